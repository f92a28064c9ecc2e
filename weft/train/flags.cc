#include "weft/train/flags.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {
namespace {

using Form = FlagValue::Form;
using Source = FlagOrigin::Source;

std::string_view noun(FlagKind kind) {
  switch (kind) {
    case FlagKind::toggle:
      return "true or false";
    case FlagKind::integer:
      return "a whole number";
    case FlagKind::real:
      return "a number";
    case FlagKind::list:
      return "a list of texts";
    case FlagKind::choice:
    case FlagKind::text:
    case FlagKind::foreign:
      return "a text";
  }
  return "";
}

// Which forms of a file's values each kind takes.
bool suits(FlagKind kind, Form form) {
  switch (kind) {
    case FlagKind::toggle:
      return form == Form::boolean;
    case FlagKind::integer:
      return form == Form::integer;
    case FlagKind::real:
      return form == Form::integer || form == Form::real;
    case FlagKind::choice:
      return form == Form::text;
    case FlagKind::list:
      return form == Form::list || suits(FlagKind::text, form);  // a list of one may be written without brackets
    case FlagKind::text:
      return form == Form::text || form == Form::integer || form == Form::real;
    case FlagKind::foreign:
      return form != Form::list;
  }
  return false;
}

bool is_false(const FlagValue& value) { return value.form == Form::boolean && value.words.front() == "false"; }

void check_choice(const Flag& flag, const std::string& word) {
  if (std::find(flag.choices.begin(), flag.choices.end(), word) != flag.choices.end()) return;
  const std::string choices = join(flag.choices, ", ");
  if (const auto lacking = flag.lacking.find(word); lacking != flag.lacking.end())
    throw UserError("{} {}: {}; choose one of {}", flag.name, word, lacking->second, choices);
  const std::string near = nearest_name(word, flag.choices);
  flag.refuse(fmt::format("'{}' is not one of {}{}", word, choices,
                          near.empty() ? "" : fmt::format("; did you mean {}?", near)));
}

std::string described(const std::string& value, const Flag& flag, const std::string& spelled,
                      const FlagOrigin& origin) {
  std::vector<std::string> details;
  if (spelled != flag.name) details.push_back(spelled);
  if (origin.source == Source::file) details.push_back(origin.where);
  return details.empty() ? value : fmt::format("{} ({})", value, join(details, ", "));
}

[[noreturn]] void rethrow_at(const FlagOrigin& origin, std::size_t at, const std::string& message) {
  if (origin.source != Source::file) throw UserError(message);
  const auto column = 1 + std::count_if(origin.line.begin(), origin.line.begin() + static_cast<std::ptrdiff_t>(at),
                                        [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  throw UserError("{}:{}: {}\n{}", origin.where, column, message, point_at(origin.line, at));
}

std::string spelling_of(std::string_view name) {
  std::string spelling(name);
  std::replace(spelling.begin(), spelling.end(), '_', '-');
  return spelling.rfind("--", 0) == 0 ? spelling : "--" + spelling;
}

}  // namespace

bool looks_like_flag(std::string_view word) {
  return word.size() > 2 && word.substr(0, 2) == "--" && word[2] >= 'a' && word[2] <= 'z';
}

FlagTable::Found FlagTable::find(std::string_view spelling) {
  for (Flag& flag : flags_)
    for (const Flag::Spelling& known : flag.spellings)
      if (known.text == spelling) return {&flag, &known};
  return {nullptr, nullptr};
}

std::string FlagTable::suggestion(std::string_view spelling) const {
  std::vector<std::string> names;
  for (const Flag& flag : flags_)
    for (const Flag::Spelling& known : flag.spellings) names.push_back(known.text);
  const std::string near = nearest_name(spelling, names);
  return near.empty() ? fmt::format("; {} --help lists all flags", program_) : fmt::format("; did you mean {}?", near);
}

std::vector<FlagAssignment> FlagTable::scan(std::span<const std::string> words) {
  std::set<std::string> unique;
  for (const Flag& flag : flags_)
    for (const Flag::Spelling& spelling : flag.spellings)
      WEFT_CHECK(unique.insert(spelling.text).second, "two flags are spelled {}", spelling.text);

  // Help is needed most when the rest is wrong.
  help_wanted_ = std::any_of(words.begin(), words.end(), [](const auto& w) { return w == "--help" || w == "-h"; });
  if (help_wanted_) return {};

  std::vector<FlagAssignment> found;
  const FlagOrigin origin{.source = Source::command_line};
  std::size_t positional = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!looks_like_flag(word)) {
      if (positional == positionals_.size()) {
        // "-E" is a word where there are positionals.
        if (word.size() > 1 && word[0] == '-' && positionals_.empty())
          throw UserError("unknown flag {}{}", word, suggestion(word));
        throw UserError("unexpected argument '{}': {}", word, advice_);
      }
      found.push_back({positionals_[positional++].value_name, {Form::words, {word}}, origin});
      continue;
    }
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto [flag, spelling] = find(name);
    if (!flag) throw UserError("unknown flag {}{}", name, suggestion(name));
    FlagAssignment assignment{name, {}, origin};
    FlagValue& value = assignment.value;
    if (equals != std::string::npos) {
      value = {Form::words, {word.substr(equals + 1)}};
    } else if (!spelling->implied) {
      const std::size_t most = flag->many ? words.size() : 1;
      while (value.words.size() < most && i + 1 < words.size() && !looks_like_flag(words[i + 1]))
        value.words.push_back(words[++i]);
      if (!value.words.empty()) value.form = Form::words;
      if (value.words.empty() && !flag->lonely)
        throw UserError("{}: a value is missing; write {} {}", name, name, flag->value_name);
    }
    found.push_back(std::move(assignment));
  }
  if (positional < positionals_.size() && positionals_[positional].required)
    throw UserError("{} is missing; {}", positionals_[positional].value_name, usage());
  return found;
}

std::vector<std::string> FlagTable::words_of(const Found& found, const FlagValue& value) const {
  const Flag& flag = *found.flag;
  const std::string written = value.words.empty() ? "" : value.words.front();
  if (const auto& implied = found.spelling->implied) {
    if (value.form == Form::none || (value.form == Form::boolean && written == "true")) return {*implied};
    if (value.form == Form::words)
      throw UserError("{} takes no value, but '{}' is given", found.spelling->text, written);
    if (value.form != Form::boolean) throw UserError("{} must be true or false", found.spelling->text);
    if (flag.kind == FlagKind::toggle) return {*implied == "true" ? "false" : "true"};
    if (flag.default_text != *implied) return {flag.default_text};
    throw UserError("{} = false does not tell what to use instead; set {}", found.spelling->text.substr(2), flag.key());
  }
  if (value.form == Form::none || (value.form == Form::boolean && written == "true" && flag.lonely))
    return {*flag.lonely};
  if (value.form != Form::words && !suits(flag.kind, value.form)) {
    const std::string seen = value.form == Form::list   ? "a list"
                             : value.form == Form::text ? fmt::format("the text '{}'", written)
                                                        : written;
    flag.refuse(fmt::format("must be {}, not {}", noun(flag.kind), seen));
  }
  const auto& words = value.words;
  if (!flag.empty_means_something && (words.empty() || std::find(words.begin(), words.end(), "") != words.end()))
    flag.refuse("the value is empty; drop the flag instead");
  return words;
}

void FlagTable::apply(std::span<const FlagAssignment> assignments) {
  ++layer_;
  // What is not chosen ("swiglu = false") is applied after everything that is ("activation = 'gelu'").
  const auto denies = [&](const FlagAssignment& a) {
    const Found found = find(a.spelling);
    return found.flag && found.flag->kind == FlagKind::choice && found.spelling->implied && is_false(a.value);
  };
  std::vector<std::string> refused;  // all at once, for users who bring a script of Megatron's
  for (const FlagAssignment& assignment : assignments) {
    if (denies(assignment)) continue;
    try {
      apply(assignment);
    } catch (const UserError& error) {
      const Flag* flag = find(assignment.spelling).flag;
      if (!flag || flag->kind != FlagKind::foreign) throw;
      refused.emplace_back(error.what());
    }
  }
  if (refused.size() == 1) throw UserError(refused.front());
  for (std::string& text : refused) text = join(split(text, '\n'), "\n    ");  // keeps a caret line below its text
  if (!refused.empty()) throw UserError("{} flags are refused:\n  - {}", refused.size(), join(refused, "\n  - "));
  for (const FlagAssignment& assignment : assignments)
    if (denies(assignment) && find(assignment.spelling).flag->show() == find(assignment.spelling).spelling->implied)
      apply(assignment);
}

void FlagTable::apply(const FlagAssignment& assignment) {
  const FlagOrigin& origin = assignment.origin;
  for (const Positional& positional : positionals_)
    if (positional.value_name == assignment.spelling) {
      *positional.target = assignment.value.words.front();
      return;
    }
  const Found found = find(assignment.spelling);
  const std::string key = origin.source == Source::file ? assignment.spelling.substr(2) : assignment.spelling;
  if (!found.flag) rethrow_at(origin, origin.key_at, fmt::format("unknown key {}{}", key, suggestion("--" + key)));
  Flag& flag = *found.flag;
  if (flag.command_line_only && origin.source == Source::file)
    rethrow_at(origin, origin.key_at, fmt::format("{} is allowed only on the command line, not in a file", key));
  // A foreign flag set to false asks for nothing.
  if (flag.kind == FlagKind::foreign && is_false(assignment.value)) return;
  try {
    const std::vector<std::string> words = words_of(found, assignment.value);
    if (flag.kind == FlagKind::choice) check_choice(flag, words.front());
    const bool again = flag.layer == layer_;
    const std::string before = again ? flag.show() : "";
    if (flag.repeats && !again) flag.store({});
    flag.store(words);
    const std::string after = flag.show();
    if (again && !flag.repeats && before != after)
      throw UserError("{} is given twice with different values: {} and {}; keep one", flag.name,
                      described(before, flag, flag.spelled, flag.origin),
                      described(after, flag, assignment.spelling, origin));
    flag.origin = origin;
    flag.spelled = assignment.spelling;
    flag.layer = layer_;
  } catch (const UserError& error) {
    std::string message = error.what();
    if (message.find(assignment.spelling) == std::string::npos && origin.source == Source::command_line)
      message += fmt::format(" (written as {})", assignment.spelling);
    rethrow_at(origin, origin.value_at, message);
  }
}

const Flag& FlagTable::flag(std::string_view name) const {
  const std::string spelling = spelling_of(name);
  for (const Flag& flag : flags_)
    for (const Flag::Spelling& known : flag.spellings)
      if (known.text == spelling) return flag;
  throw UserError("unknown flag {}{}", spelling, suggestion(spelling));
}

bool FlagTable::is_set(std::string_view name) const { return flag(name).origin.source >= Source::checkpoint; }

void FlagTable::mark_derived(std::string_view name, std::string reason) {
  const Found found = find(spelling_of(name));
  WEFT_CHECK(found.flag, "{} is not a flag", name);
  found.flag->origin = {.source = Source::derived, .where = std::move(reason)};
}

}  // namespace weft
