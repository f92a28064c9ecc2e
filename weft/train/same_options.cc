#include "weft/train/same_options.h"

#include <algorithm>

#include <fmt/format.h>

#include "weft/base/checksum.h"
#include "weft/base/text.h"

namespace weft {

namespace {

// Ranks may differ in where files are and in what they log. But all of them make samples together.
bool in_common(const Flag& flag) {
  if (flag.kind == FlagKind::foreign || flag.command_line_only) return false;
  if (flag.section == "Logging" && !flag.name.starts_with("--sample")) return false;
  for (const char* own : {"--threads", "--rank", "--trace", "--timeline"})
    if (flag.name == own) return false;
  return true;
}

bool is_place(const Flag& flag) {
  return flag.value_name == "FILE" || flag.value_name == "DIR" || flag.value_name == "PREFIX" ||
         flag.value_name == "PATH";
}

// Whether there is one; for a list how many there are, and their weights: "0.3 /data/a 0.7 /data/b" -> "0.3 ... 0.7 ...".
std::string without_places(const Flag& flag, const std::string& value) {
  if (flag.kind != FlagKind::list) return value.empty() ? "" : "...";
  std::vector<std::string> words;
  for (std::string& word : split(value, ' ')) {
    double number = 0;
    if (!word.empty()) words.push_back(parse_double(word, number) ? std::move(word) : "...");
  }
  return join(words, " ");
}

std::string name_in(const std::string& line) { return line.substr(0, line.find(' ')); }
std::string value_in(const std::string& line) {
  const std::size_t space = line.find(' ');
  return space == std::string::npos ? "" : line.substr(space + 1);
}

}  // namespace

std::vector<std::string> options_in_common(const FlagTable& flags) {
  std::vector<std::string> lines;
  for (const Flag& flag : flags.flags()) {
    if (!in_common(flag)) continue;
    std::string value = flag.show ? flag.show() : "";
    std::replace(value.begin(), value.end(), '\n', ' ');
    lines.push_back(flag.name + " " + (is_place(flag) ? without_places(flag, value) : value));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string run_name(const FlagTable& flags) {
  return "options " + checksum_text(checksum_of(join(options_in_common(flags), "\n")));
}

void require_same_options(const RankExchange& ranks, const std::vector<std::string>& options) {
  const std::optional<LineDifference> found = first_difference(ranks, options);
  if (!found) return;
  const std::int64_t rank = found->rank.value;
  if (name_in(found->on_rank) != name_in(found->on_other))
    throw AgreedError(
        found->rank, fmt::format("ranks {} and 0 run different versions of weft: start the same one everywhere", rank));
  const auto value = [](const std::string& line) {
    const std::string text = value_in(line);
    return text.empty() ? std::string("not given") : text;
  };
  throw AgreedError(found->rank,
                    fmt::format("{} is {} on rank {} and {} on rank 0: start all ranks with the same options",
                                name_in(found->on_rank), value(found->on_rank), rank, value(found->on_other)));
}

}  // namespace weft
