#include "weft/train/same_options.h"

#include <algorithm>
#include <array>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/comm/host_stream.h"

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
  return flag.value_name == "FILE" || flag.value_name == "DIR" || flag.value_name == "PREFIX";
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

std::string difference_of_options(const std::vector<std::string>& first, const std::vector<std::string>& own,
                                  int rank) {
  if (first == own) return "";
  for (std::size_t i = 0; i < std::min(first.size(), own.size()); ++i) {
    if (first[i] == own[i]) continue;
    if (name_in(first[i]) != name_in(own[i])) break;
    const auto said = [](const std::string& line) {
      const std::string value = value_in(line);
      return value.empty() ? std::string("not given") : value;
    };
    return fmt::format("{} is {} on rank {} and {} on rank 0: start all ranks with the same options", name_in(own[i]),
                       said(own[i]), rank, said(first[i]));
  }
  return fmt::format("ranks {} and 0 run different versions of weft: start the same one everywhere", rank);
}

void require_same_options(World& world, const FlagTable& flags) {
  const std::unique_ptr<Communicator> group = world.make_group_of_all("options");
  const std::vector<std::string> own = options_in_common(flags);
  std::string first = join(own, "\n");
  auto bytes = static_cast<std::int64_t>(first.size());
  HostStream stream;
  group->broadcast(stream, Tensor(&bytes, DType::i64, Shape{1}), 0);
  first.resize(static_cast<std::size_t>(bytes));
  group->broadcast(stream, Tensor(first.data(), DType::u8, Shape{bytes}), 0);
  // All ranks tell each other what is wrong, so that all end with the same error, as for any other bad option.
  using Text = std::array<char, 512>;
  Text said{};
  const std::string difference = difference_of_options(split(first, '\n'), own, static_cast<int>(world.rank().value));
  std::copy_n(difference.begin(), std::min(difference.size(), said.size() - 1), said.begin());
  std::vector<Text> all(static_cast<std::size_t>(world.size()));
  group->all_gather(stream, Tensor(said.data(), DType::u8, Shape{std::ssize(said)}),
                    Tensor(all.data(), DType::u8, Shape{std::ssize(all) * std::ssize(said)}));
  for (const Text& text : all)
    if (text[0] != '\0') throw UserError("{}", text.data());
}

}  // namespace weft
