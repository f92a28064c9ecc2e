#include "weft/data/tokenizers/regex_syntax.h"

#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

// Contents of classes. PCRE2's own \s also takes U+180E, and its \w has no marks; Rust's \w has two characters more.
constexpr std::string_view spaces =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view word_characters = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
constexpr std::string_view onig_word_characters = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view anything = "[\\x{0}-\\x{10ffff}]";
constexpr int max_depth = 50;

constexpr std::array<std::pair<std::string_view, std::string_view>, 9> long_names = {{{"Letter", "L"},
                                                                                      {"Mark", "M"},
                                                                                      {"Number", "N"},
                                                                                      {"Punctuation", "P"},
                                                                                      {"Symbol", "S"},
                                                                                      {"Separator", "Z"},
                                                                                      {"Other", "C"},
                                                                                      {"Alpha", "Alphabetic"},
                                                                                      {"Space", "White_Space"}}};

// Names that are not those of scripts: \p{Han} is the script itself, which PCRE2 writes \p{sc:Han}.
bool is_script(std::string_view name) {
  constexpr std::array<std::string_view, 14> scripts = {"Han",    "Hiragana", "Katakana",   "Hangul",  "Latin",
                                                        "Greek",  "Cyrillic", "Arabic",     "Hebrew",  "Thai",
                                                        "Common", "Bopomofo", "Devanagari", "Armenian"};
  for (std::string_view script : scripts)
    if (script == name) return true;
  return false;
}

class Translator {
 public:
  Translator(std::string_view pattern, RegexDialect dialect) : pattern_(pattern), dialect_(dialect) {}

  std::string translate() {
    while (at_ < pattern_.size()) step();
    return std::move(out_);
  }

 private:
  bool onig() const { return dialect_ == RegexDialect::oniguruma; }
  bool done() const { return at_ >= pattern_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  [[noreturn]] void fail(const char* what) const { throw UserError("{} at byte {} of the pattern", what, at_); }

  void step() {
    const char c = peek();
    if (c == '(') return group();
    if (c == ')') {
      if (groups_.empty()) fail("a ')' without its '('");
      atom_ = groups_.back();
      groups_.pop_back();
      out_ += c;
      ++at_;
      return;
    }
    if (c == '{' && interval()) return;
    if (c == '*' || c == '+' || c == '?') {
      out_ += c;
      ++at_;
      return;
    }
    atom_ = out_.size();
    if (c == '[') {
      out_ += one_class(0);
    } else if (c == '\\') {
      escape();
    } else {
      const std::size_t size = std::min(character_size(c), pattern_.size() - at_);
      out_ += pattern_.substr(at_, size);
      at_ += size;
    }
  }

  void group() {
    groups_.push_back(out_.size());
    if (groups_.size() > static_cast<std::size_t>(max_depth)) fail("groups nest too deep");
    out_ += '(';
    ++at_;
    if (peek() != '?') return;
    // Ruby's (?m) is what others call (?s): a dot that also takes the end of a line.
    for (; !done() && peek() != ':' && peek() != ')'; ++at_) {
      const char c = peek();
      out_ += onig() && c == 'm' ? 's' : c;
      if (c == '=' || c == '!' || c == '<' || c == '>' || c == '#') {
        ++at_;
        return;
      }
    }
  }

  // {n,m}: followed by + it means "keep what is taken", but to Oniguruma "once or more".
  bool interval() {
    std::size_t end = at_ + 1;
    while (end < pattern_.size() && (std::isdigit(static_cast<unsigned char>(pattern_[end])) || pattern_[end] == ','))
      ++end;
    if (end >= pattern_.size() || pattern_[end] != '}' || end == at_ + 1) return false;
    std::string_view counts = pattern_.substr(at_, end + 1 - at_);
    if (counts[1] == ',' && onig()) {  // {,m} from 0 on
      out_ += "{0";
      counts.remove_prefix(1);
    }
    out_ += counts;
    at_ = end + 1;
    if (onig() && peek() == '+') {
      out_.insert(atom_, "(?:");
      out_ += ')';
    }
    return true;
  }

  // Outside classes.
  void escape() {
    const char c = peek(1);
    const auto is = [&](char lower) { return std::tolower(static_cast<unsigned char>(c)) == lower; };
    if (is('s') || is('w') || is('d') || (is('h') && onig())) {
      out_ += c >= 'a' ? "[" : "[^";
      out_ += class_escape();
      out_ += ']';
    } else {
      out_ += class_escape();
    }
  }

  // What stands for the escape inside [ ].
  std::string class_escape() {
    const char c = peek(1);
    if (c == '\0') fail("the pattern ends after \\");
    at_ += 2;
    switch (c) {
      case 's':
      case 'S':
        return std::string(spaces);
      case 'w':
      case 'W':
        return std::string(onig() ? onig_word_characters : word_characters);
      case 'd':
      case 'D':
        return "\\p{Nd}";
      case 'h':
      case 'H':
        if (onig()) return "0-9a-fA-F";
        return {'\\', c};
      case 'p':
      case 'P':
        return property(c);
      case 'u':
        return code_point();
      default:
        break;
    }
    if (static_cast<unsigned char>(c) < 0x80) return {'\\', c};
    --at_;  // an escaped character that needs none
    const std::size_t size = std::min(character_size(c), pattern_.size() - at_);
    at_ += size;
    return std::string(pattern_.substr(at_ - size, size));
  }

  std::string property(char p) {
    if (peek() != '{') {
      ++at_;
      return std::string{'\\', p} + std::string(pattern_.substr(std::min(at_ - 1, pattern_.size()), 1));
    }
    const std::size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) fail("\\p{ without its }");
    std::string_view name = pattern_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    std::string result{'\\', p, '{'};
    if (name.starts_with('^')) {
      result += '^';
      name.remove_prefix(1);
    }
    for (std::string_view prefix : {"Script=", "sc="})
      if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    for (const auto& [longer, shorter] : long_names)
      if (name == longer) name = shorter;
    if (is_script(name)) result += "sc:";
    return result + std::string(name) + '}';
  }

  // \uHHHH
  std::string code_point() {
    const std::string_view digits = pattern_.substr(at_, 4);
    for (char c : digits)
      if (!std::isxdigit(static_cast<unsigned char>(c))) fail("\\u needs four digits");
    if (digits.size() != 4) fail("\\u needs four digits");
    at_ += 4;
    return "\\x{" + std::string(digits) + '}';
  }

  // A class, from its [ on, as something that takes one character. Parts of an intersection a&&b, and negated escapes and
  // classes inside it, have no place in PCRE2's classes: they become alternatives and conditions.
  std::string one_class(int depth) {
    if (depth == max_depth) fail("classes nest too deep");
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    std::vector<std::string> parts;  // of the intersection
    std::string items;               // that a class may hold
    std::vector<std::string> others;
    bool first = true;
    const auto end_part = [&] {
      std::string part = items.empty() ? "" : "[" + items + "]";
      for (const std::string& other : others) part += (part.empty() ? "" : "|") + other;
      if (part.empty()) fail("an empty class");
      parts.push_back(others.empty() || (items.empty() && others.size() == 1) ? part : "(?:" + part + ")");
      items.clear();
      others.clear();
    };
    for (;; first = false) {
      if (done()) fail("a class without its ]");
      const char c = peek();
      if (c == ']' && !first) break;
      if (c == '[' && peek(1) == ':') {
        const std::size_t end = pattern_.find(":]", at_ + 2);
        if (end == std::string_view::npos) fail("[: without its :]");
        items += pattern_.substr(at_, end + 2 - at_);
        at_ = end + 2;
      } else if (c == '[') {
        others.push_back(one_class(depth + 1));
      } else if (c == '&' && peek(1) == '&') {
        end_part();
        at_ += 2;
      } else if (c == '\\') {
        const char kind = peek(1);
        if (kind == 'S' || kind == 'W' || kind == 'D' || (kind == 'H' && onig()))
          others.push_back("[^" + class_escape() + "]");
        else
          items += class_escape();
      } else {
        const std::size_t size = std::min(character_size(c), pattern_.size() - at_);
        if (c == ']') items += '\\';
        if (c == '^' && items.empty()) items += '\\';
        items += pattern_.substr(at_, size);
        at_ += size;
      }
    }
    ++at_;
    if (negated && others.empty() && parts.empty()) return "[^" + items + "]";
    end_part();
    std::string all = parts.back();
    for (std::size_t i = parts.size() - 1; i-- > 0;) all = "(?:(?=" + parts[i] + ")" + all + ")";
    return negated ? "(?:(?!" + all + ")" + std::string(anything) + ")" : all;
  }

  std::string_view pattern_;
  RegexDialect dialect_;
  std::size_t at_ = 0, atom_ = 0;  // atom_: where in out_ the last thing that can be repeated begins
  std::vector<std::size_t> groups_;
  std::string out_;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, RegexDialect dialect) {
  return Translator(pattern, dialect).translate();
}

}  // namespace weft
