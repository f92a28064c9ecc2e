// The table as text: --help, --explain, the dump of all values, and Markdown.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "weft/base/text.h"
#include "weft/train/flags.h"

namespace weft {
namespace {

constexpr std::size_t line_width = 100;

std::string wrapped(const std::string& text, std::size_t indent) {
  std::string out, line(indent, ' ');
  for (const std::string& word : split(text, ' ')) {
    if (line.size() > indent && line.size() + 1 + word.size() > line_width) {
      out += line + "\n";
      line.assign(indent, ' ');
    }
    if (line.size() > indent) line += ' ';
    line += word;
  }
  return out + line + "\n";
}

// "--lr-decay-style constant|linear", "--data-path PATH...", "--stories [BYTES]".
std::string form_of(const Flag& flag) {
  if (flag.spellings.front().implied) return flag.name;
  const std::string value = flag.kind == FlagKind::choice ? join(flag.choices, "|") : flag.value_name;
  if (flag.lonely) return fmt::format("{} [{}]", flag.name, value);
  return fmt::format("{} {}{}", flag.name, value, flag.many ? "..." : "");
}

// Other spellings: "--hybrid-layer-pattern", or "--fp64 (f64)" where they stand for a value.
std::vector<std::string> others_of(const Flag& flag) {
  std::vector<std::string> others;
  const auto& implied = flag.spellings.front().implied;
  for (const Flag::Spelling& spelling : flag.spellings) {
    if (spelling.text == flag.name) continue;
    const bool same = spelling.implied == implied;
    others.push_back(same ? spelling.text : fmt::format("{} ({})", spelling.text, *spelling.implied));
  }
  return others;
}

std::string default_of(const Flag& flag) {
  if (flag.kind == FlagKind::foreign) return "";
  return flag.default_text.empty() ? "none" : flag.default_text;
}

// A default that is computed later is described in words.
std::string value_of(const Flag& flag) {
  const bool untouched = flag.origin.source == FlagOrigin::Source::standard;
  const std::string value = untouched ? flag.default_text : flag.show();
  return value.empty() ? "none" : value;
}

// Markdown escapes: within code only the table's bar is special.
std::string escaped(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::vector<std::string> sections_of(const std::deque<Flag>& flags) {
  std::vector<std::string> sections;
  for (const Flag& flag : flags)
    if (std::find(sections.begin(), sections.end(), flag.section) == sections.end()) sections.push_back(flag.section);
  return sections;
}

}  // namespace

std::string FlagOrigin::text() const {
  switch (source) {
    case Source::standard:
      return "default";
    case Source::derived:
      return "derived: " + where;
    case Source::checkpoint:
    case Source::file:
      return where;
    case Source::command_line:
      return "command line";
  }
  return "";
}

std::string FlagTable::usage() const {
  std::string text = "usage: " + program_;
  for (const Positional& positional : positionals_)
    text += positional.required ? " " + positional.value_name : fmt::format(" [{}]", positional.value_name);
  return text + " [flags]";
}

std::string FlagTable::help() const {
  std::string text = usage() + "\n";
  if (!summary_.empty()) text += wrapped(summary_, 0);
  for (const Positional& positional : positionals_)
    text += fmt::format("\n  {}\n{}", positional.value_name, wrapped(positional.help, 6));
  for (const std::string& section : sections_of(flags_)) {
    text += fmt::format("\n{}\n", section);
    for (const Flag& flag : flags_) {
      if (flag.section != section) continue;
      text += fmt::format("  {}\n", form_of(flag));
      std::string help = flag.help;
      const std::string standard = default_of(flag);
      if (!standard.empty()) help += fmt::format(" [{}]", standard);
      const auto others = others_of(flag);
      if (!others.empty()) help += fmt::format(" Also: {}.", join(others, ", "));
      text += wrapped(help, 6);
    }
  }
  return text;
}

std::string FlagTable::explain(std::string_view name) const {
  const Flag& explained = flag(name);
  std::string text = explained.name;
  if (explained.kind == FlagKind::foreign) return text + "\n  " + explained.help + "\n";
  text += fmt::format(" = {}\n  from      {}\n", value_of(explained), explained.origin.text());
  text += fmt::format("  default   {}\n", default_of(explained));
  if (!explained.choices.empty()) text += fmt::format("  choices   {}\n", join(explained.choices, ", "));
  if (!explained.rule().empty()) text += fmt::format("  range     {}\n", explained.rule());
  const auto others = others_of(explained);
  if (!others.empty()) text += fmt::format("  also      {}\n", join(others, ", "));
  return text + wrapped(explained.help, 2);
}

std::string FlagTable::dump() const {
  std::vector<std::string> lines;
  for (const Flag& flag : flags_) {
    if (flag.kind == FlagKind::foreign || flag.command_line_only) continue;
    std::string name = flag.key();
    std::replace(name.begin(), name.end(), '-', '_');
    const std::size_t dots = name.size() < 48 ? 48 - name.size() : 0;
    lines.push_back(fmt::format("  {} {} {}", name, std::string(dots, '.'), value_of(flag)));
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string FlagTable::markdown() const {
  std::string text;
  for (const std::string& section : sections_of(flags_)) {
    text += fmt::format("\n## {}\n\n", section);
    bool header = false;
    for (const Flag& flag : flags_) {
      if (flag.section != section) continue;
      const bool foreign = flag.kind == FlagKind::foreign;
      if (!header)
        text += foreign ? "| flag | what happens |\n|---|---|\n" : "| flag | default | meaning |\n|---|---|---|\n";
      header = true;
      std::string meaning = flag.help;
      if (std::string rule = flag.rule(); !rule.empty()) {
        rule[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(rule[0])));
        meaning += fmt::format(" {}.", rule);
      }
      const auto others = others_of(flag);
      if (!others.empty()) meaning += fmt::format(" Also: {}.", join(others, ", "));
      text += fmt::format("| `{}` |", escaped(form_of(flag), "|"));
      if (!foreign) text += fmt::format(" {} |", escaped(default_of(flag), "|<*["));
      text += fmt::format(" {} |\n", escaped(meaning, "|<*["));
    }
  }
  return text;
}

}  // namespace weft
