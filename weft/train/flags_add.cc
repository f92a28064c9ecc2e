// How flags enter the table: one `add` per type of target.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/train/flags.h"

namespace weft {
namespace {

std::int64_t whole_number(const Flag& flag, const std::string& word) {
  std::int64_t value = 0;
  if (!parse_int(word, value)) flag.refuse(fmt::format("'{}' is not a whole number", word));
  flag.check_range(static_cast<double>(value));
  if (static_cast<double>(value) > flag.limit)
    flag.refuse(fmt::format("{} is out of range; it must be at most {:.0f}", value, flag.limit));
  return value;
}

double real_number(const Flag& flag, const std::string& word) {
  double value = 0;
  if (!parse_double(word, value)) flag.refuse(fmt::format("'{}' is not a number", word));
  if (!std::isfinite(value)) flag.refuse(fmt::format("'{}' is not a finite number", word));
  flag.check_range(value);
  return value;
}

std::string shown(bool value) { return value ? "true" : "false"; }

std::string shown(const std::vector<std::string>& words) {
  std::vector<std::string> parts;
  for (const std::string& word : words)
    parts.push_back(word.empty() || word.find(' ') != std::string::npos ? fmt::format("'{}'", word) : word);
  return join(parts, " ");
}

}  // namespace

Flag& Flag::alias(std::string spelling) {
  spellings.push_back({std::move(spelling), spellings.front().implied});
  return *this;
}

Flag& Flag::means(std::string spelling, std::string value) {
  spellings.push_back({std::move(spelling), std::move(value)});
  return *this;
}

Flag& Flag::no_form() { return negation("--no-" + key()); }

Flag& Flag::at_least(double bound) {
  low = bound;
  return *this;
}

Flag& Flag::above(double bound) {
  low_open = true;
  return at_least(bound);
}

Flag& Flag::at_most(double bound) {
  high = bound;
  return *this;
}

Flag& Flag::below(double bound) {
  high_open = true;
  return at_most(bound);
}

Flag& Flag::standard(std::string text) {
  default_text = std::move(text);
  return *this;
}

Flag& Flag::or_alone(std::string value) {
  lonely = std::move(value);
  return *this;
}

Flag& Flag::lacks(std::string value, std::string reason) {
  lacking[std::move(value)] = std::move(reason);
  return *this;
}

Flag& Flag::limited_to(double bound) {
  limit = bound;
  return *this;
}

Flag& Flag::takes_many() {
  many = true;
  return *this;
}

Flag& Flag::each() {
  repeats = true;
  many = false;
  return *this;
}

Flag& Flag::only_on_command_line() {
  command_line_only = true;
  return *this;
}

Flag& Flag::may_be_empty() {
  empty_means_something = true;
  return *this;
}

Flag& Flag::without_note() {
  silent = true;
  return *this;
}

void Flag::refuse(const std::string& message) const { throw UserError("{}: {}", name, message); }

std::string Flag::key() const { return name.substr(2); }

std::string Flag::rule() const {
  std::string text;
  if (std::isfinite(low)) text = fmt::format("{} {}", low_open ? "above" : "at least", low);
  if (std::isfinite(high))
    text += fmt::format("{}{} {}", text.empty() ? "" : " and ", high_open ? "below" : "at most", high);
  return text;
}

void Flag::check_range(double value) const {
  if (value < low || value > high || (low_open && value == low) || (high_open && value == high))
    refuse(fmt::format("{} is out of range; it must be {}", value, rule()));
}

FlagTable::FlagTable(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)) {}

Flag& FlagTable::insert(std::string name, FlagKind kind, std::string value_name, std::string help) {
  WEFT_CHECK(looks_like_flag(name), "{} cannot be the name of a flag", name);
  Flag& flag = flags_.emplace_back();
  flag.name = std::move(name);
  flag.spellings.push_back({flag.name, {}});
  flag.kind = kind;
  flag.value_name = std::move(value_name);
  flag.help = std::move(help);
  flag.section = section_;
  return flag;
}

void FlagTable::finish(Flag& flag) { flag.default_text = flag.show(); }

Flag& FlagTable::add(std::string name, bool& target, std::string help) {
  Flag& flag = insert(std::move(name), FlagKind::toggle, "", std::move(help));
  flag.spellings.front().implied = "true";
  flag.store = [&target](const auto& words) { target = words.front() == "true"; };
  flag.show = [&target] { return shown(target); };
  finish(flag);
  return flag;
}

Flag& FlagTable::add(std::string name, std::optional<bool>& target, std::string help) {
  Flag& flag = insert(std::move(name), FlagKind::toggle, "", std::move(help));
  flag.spellings.front().implied = "true";
  flag.store = [&target](const auto& words) { target = words.front() == "true"; };
  flag.show = [&target] { return target ? shown(*target) : ""; };
  finish(flag);
  return flag;
}

Flag& FlagTable::add(std::string name, std::int64_t& target, std::string value_name, std::string help) {
  Flag& flag = insert(std::move(name), FlagKind::integer, std::move(value_name), std::move(help));
  flag.store = [&target, &flag](const auto& words) { target = whole_number(flag, words.front()); };
  flag.show = [&target] { return fmt::format("{}", target); };
  finish(flag);
  return flag;
}

Flag& FlagTable::add(std::string name, double& target, std::string value_name, std::string help) {
  Flag& flag = insert(std::move(name), FlagKind::real, std::move(value_name), std::move(help));
  flag.store = [&target, &flag](const auto& words) { target = real_number(flag, words.front()); };
  flag.show = [&target] { return fmt::format("{}", target); };
  finish(flag);
  return flag;
}

Flag& FlagTable::add(std::string name, std::optional<double>& target, std::string value_name, std::string help) {
  Flag& flag = insert(std::move(name), FlagKind::real, std::move(value_name), std::move(help));
  flag.store = [&target, &flag](const auto& words) { target = real_number(flag, words.front()); };
  flag.show = [&target] { return target ? fmt::format("{}", *target) : ""; };
  finish(flag);
  return flag;
}

Flag& FlagTable::add(std::string name, std::string& target, std::string value_name, std::string help) {
  Flag& flag = insert(std::move(name), FlagKind::text, std::move(value_name), std::move(help));
  flag.store = [&target](const auto& words) { target = words.front(); };
  flag.show = [&target] { return target; };
  finish(flag);
  return flag;
}

Flag& FlagTable::add(std::string name, std::vector<std::string>& target, std::string value_name, std::string help) {
  Flag& flag = insert(std::move(name), FlagKind::list, std::move(value_name), std::move(help)).takes_many();
  // Storing no words empties a repeatable list, so that the items of the command line replace those of a file.
  flag.store = [&target, &flag](const auto& words) {
    if (!flag.repeats || words.empty()) target.clear();
    target.insert(target.end(), words.begin(), words.end());
  };
  flag.show = [&target] { return shown(target); };
  finish(flag);
  return flag;
}

Flag& FlagTable::custom(std::string name, std::string value_name, std::function<void(const std::string&)> store,
                        std::function<std::string()> show, std::string help) {
  Flag& flag = insert(std::move(name), FlagKind::text, std::move(value_name), std::move(help));
  flag.store = [store = std::move(store)](const auto& words) { store(words.front()); };
  flag.show = std::move(show);
  finish(flag);
  return flag;
}

Flag& FlagTable::accept(std::string name, std::string value_name, std::string note, Judge judge) {
  const bool is_switch = value_name.empty();
  Flag& flag = insert(std::move(name), FlagKind::foreign, std::move(value_name), std::move(note));
  if (is_switch) flag.spellings.front().implied = "true";
  flag.store = [this, &flag, is_switch, judge = std::move(judge)](const auto& words) {
    const std::string value = join(words, " ");
    const std::string written = is_switch ? flag.name : fmt::format("{} {}", flag.name, value);
    const std::string reason = judge ? judge(value) : "";
    if (!reason.empty()) throw UserError("{}: {}", written, reason);
    if (flag.silent) return;
    const std::string remark = fmt::format("{}: {}", written, flag.help);
    if (std::find(notes_.begin(), notes_.end(), remark) == notes_.end()) notes_.push_back(remark);
  };
  // It has no value of its own, so giving it twice is not a contradiction.
  flag.show = [] { return std::string(); };
  return flag;
}

Flag& FlagTable::refuse(std::string name, std::string value_name, std::string reason) {
  return accept(std::move(name), std::move(value_name), reason, [reason](const std::string&) { return reason; });
}

void FlagTable::positional(std::string value_name, std::string& target, std::string help, bool required) {
  positionals_.push_back({std::move(value_name), std::move(help), &target, required});
}

}  // namespace weft
