#include "weft/train/toml.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text.h"

namespace weft {
namespace {

using Form = FlagValue::Form;

// The lines of a file, to point into. The parser's positions count characters from 1.
class Source {
 public:
  Source(std::string_view text, std::string file) : lines_(split(text, '\n')), file_(std::move(file)) {
    for (std::string& line : lines_)
      if (!line.empty() && line.back() == '\r') line.pop_back();
  }

  std::string line(toml::source_position at) const {
    return at.line >= 1 && at.line <= lines_.size() ? lines_[at.line - 1] : "";
  }

  std::size_t byte(toml::source_position at) const {
    const std::string text = line(at);
    std::size_t i = 0;
    for (toml::source_index column = 1; column < at.column && i < text.size(); ++column) {
      ++i;
      while (i < text.size() && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) ++i;
    }
    return i;
  }

  FlagOrigin origin(const toml::key& key, const toml::node& value) const {
    const toml::source_position at = key.source().begin;
    FlagOrigin origin{FlagOrigin::Source::file, fmt::format("{}:{}", file_, at.line), line(at), byte(at), 0};
    origin.value_at = value.source().begin.line == at.line ? byte(value.source().begin) : origin.key_at;
    return origin;
  }

  [[noreturn]] void fail(toml::source_position at, std::string_view message) const {
    throw UserError("{}:{}:{}: {}\n{}", file_, at.line, at.column, message, point_at(line(at), byte(at)));
  }

 private:
  std::vector<std::string> lines_;
  std::string file_;
};

FlagValue scalar(const Source& source, const std::string& key, const toml::node& node) {
  if (const auto* value = node.as_boolean()) return {Form::boolean, {value->get() ? "true" : "false"}};
  if (const auto* value = node.as_integer()) return {Form::integer, {fmt::format("{}", value->get())}};
  if (const auto* value = node.as_floating_point()) return {Form::real, {fmt::format("{}", value->get())}};
  if (const auto* value = node.as_string()) return {Form::text, {value->get()}};
  source.fail(node.source().begin,
              fmt::format("{}: a value must be a text, a number, true, false or a list of these", key));
}

void collect(const Source& source, const toml::table& table, std::vector<FlagAssignment>& found) {
  for (const auto& [toml_key, node] : table) {
    std::string key(toml_key.str());
    std::replace(key.begin(), key.end(), '_', '-');
    if (const toml::table* section = node.as_table()) {
      collect(source, *section, found);
      continue;
    }
    FlagAssignment assignment{"--" + key, {}, source.origin(toml_key, node)};
    if (const toml::array* array = node.as_array()) {
      assignment.value.form = Form::list;
      for (const toml::node& item : *array) assignment.value.words.push_back(scalar(source, key, item).words.front());
    } else {
      assignment.value = scalar(source, key, node);
    }
    found.push_back(std::move(assignment));
  }
}

// Tables are sorted by key; errors should come in the order of the file.
int line_of(const FlagAssignment& assignment) {
  const std::string& where = assignment.origin.where;
  return std::stoi(where.substr(where.rfind(':') + 1));
}

// The parser walks tables inside of tables on the stack. A key of many parts, a.b.c, is as many of them; so are values
// within values.
class DepthCheck {
 public:
  DepthCheck(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  void run() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        skip_string(c);
        continue;
      }
      if (c == '#') at_ = std::min(text_.find('\n', at_), text_.size() - 1);
      switch (text_[at_]) {
        case '\n':
          ++line_;
          parts_ = 0;
          break;
        case '.':
          if (++parts_ == most) fail("a key has more than {} parts");
          break;
        case '[':
        case '{':
          if (++open_ == most) fail("values nest more than {} deep");
          parts_ = 0;
          break;
        case ']':
        case '}':
          open_ = std::max(0, open_ - 1);
          break;
        case ',':
        case '=':
          parts_ = 0;
          break;
        default:
          break;
      }
      ++at_;
    }
  }

 private:
  static constexpr int most = 32;

  // Its end, or the end of the text where it has none, of which the parser complains.
  void skip_string(char quote) {
    const std::string three(3, quote);
    const bool many_lines = text_.substr(at_, 3) == three;
    const std::string_view end = many_lines ? std::string_view(three) : std::string_view(three).substr(0, 1);
    for (at_ += end.size(); at_ < text_.size(); ++at_) {
      if (text_.substr(at_, end.size()) == end) {
        at_ += end.size();
        return;
      }
      if (text_[at_] == '\n') {
        if (!many_lines) return;
        ++line_;
      }
      if (text_[at_] == '\\' && quote == '"') ++at_;
    }
  }

  void fail(fmt::format_string<const int&> what) const {
    throw UserError("{}:{}: {}; no flag needs this", file_, line_, fmt::format(what, most));
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0;
  int line_ = 1, parts_ = 0, open_ = 0;
};

}  // namespace

std::vector<FlagAssignment> parse_toml(std::string_view text, const std::string& file) {
  DepthCheck(text, file).run();
  const Source source(text, file);
  toml::table table;
  try {
    table = toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    source.fail(error.source().begin, error.description());
  }
  std::vector<FlagAssignment> found;
  collect(source, table, found);
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return line_of(a) < line_of(b); });
  return found;
}

std::vector<FlagAssignment> read_toml(const std::filesystem::path& file) {
  return parse_toml(read_file(file), file.string());
}

void parse_flags(FlagTable& flags, std::span<const std::string> words) {
  const std::vector<FlagAssignment> command_line = flags.scan(words);
  for (const FlagAssignment& assignment : command_line)
    if (assignment.spelling == "--config")
      for (const std::string& file : assignment.value.words)
        if (!file.empty()) flags.apply(read_toml(file));  // an empty name is refused below
  flags.apply(command_line);
}

}  // namespace weft
