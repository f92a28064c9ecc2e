#include "weft/pattern/scan.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {
namespace {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::vector<PatternPart> parts() {
    std::vector<PatternPart> parts = {part(true)};
    while (at_ < text_.size()) {  // at a '/'
      ++at_;
      parts.push_back(part(false));
      require_same(parts[1], parts.back());
    }
    return parts;
  }

 private:
  [[noreturn]] void fail(std::size_t position, std::string_view rule) const { fail_pattern(text_, position, rule); }

  PatternPart part(bool main) {
    PatternPart part{.begin = at_, .segments = {{}}};
    logical_ = physical_ = 0;
    plain_.reset();
    latent_.reset();
    for (; at_ < text_.size() && text_[at_] != '/'; ++at_) {
      const char c = text_[at_];
      if (c == '|' && main) {
        part.segments.emplace_back();
      } else if (c == '|') {
        fail(at_, "'|' is allowed in the main part only: an MTP part is always on the last stage");
      } else if (c == ']') {
        fail(at_, "']' without '[': put '[' before the group's first symbol");
      } else {
        part.segments.back().push_back(c == '[' ? group() : single());
      }
    }
    part.end = at_;
    return part;
  }

  PatternItem single() {
    PatternItem item{.begin = at_};
    item.layer.logical = logical_++;
    add_symbol(item.layer);
    return item;
  }

  // From '[' to its ']'; leaves at_ on the ']'.
  PatternItem group() {
    PatternItem item{.begin = at_};
    item.layer.grouped = true;
    item.layer.logical = logical_++;
    for (++at_; at_ < text_.size() && text_[at_] != ']'; ++at_) {
      const char c = text_[at_];
      if (c == '[') fail(at_, "groups do not nest: close the first group with ']' before this '['");
      if (c == '|') fail(at_, "'|' inside a group: a group is never split over stages; close it with ']' first");
      if (c == '/') fail(at_, "'/' inside a group: close the group with ']' before the MTP part");
      if (!item.layer.symbols.empty() && item.layer.symbols.back() == Symbol::experts)
        fail(at_ - 1, "'E' must be the last symbol of its group");
      add_symbol(item.layer);
    }
    if (at_ == text_.size()) fail(item.begin, "'[' without ']': put ']' after the group's last symbol");
    if (item.layer.symbols.empty()) fail(at_, "empty group: '[]' must hold at least one symbol");
    return item;
  }

  void add_symbol(PatternLayer& layer) {
    const std::optional<Symbol> symbol = symbol_of(text_[at_]);
    if (!symbol) fail_unknown();
    layer.symbols.push_back(*symbol);
    layer.physical.push_back(physical_++);
    if (*symbol == Symbol::attention) {
      plain_ = *symbol;
    } else if (*symbol == Symbol::latent_attention || *symbol == Symbol::sparse_attention) {
      latent_ = *symbol;
    }
    if (plain_ && latent_)
      fail(at_, fmt::format("'*' and '{}' in one part: plain attention cannot be combined with '+' or 'D'",
                            letter(*latent_)));
  }

  [[noreturn]] void fail_unknown() const {
    std::size_t end = at_ + 1;  // a whole UTF-8 character
    while (end < text_.size() && (text_[end] & 0xc0) == 0x80) ++end;
    const std::string_view character = text_.substr(at_, end - at_);
    const char upper = static_cast<char>(std::toupper(static_cast<unsigned char>(text_[at_])));
    std::string rule = fmt::format("'{}' is not a symbol", character);
    if (symbol_of(upper)) rule += fmt::format(" (did you mean '{}'?)", upper);
    rule += "; the symbols are";
    for (Symbol symbol : all_symbols)
      rule += fmt::format("{} {} {}", symbol == all_symbols.front() ? "" : ",", letter(symbol), name_of(symbol));
    fail(at_, rule);
  }

  void require_same(const PatternPart& first, const PatternPart& other) const {
    const std::string_view a = text_.substr(first.begin, first.end - first.begin);
    const std::string_view b = text_.substr(other.begin, other.end - other.begin);
    if (a == b) return;
    const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).second - b.begin();
    fail(other.begin + static_cast<std::size_t>(differ),
         fmt::format("MTP parts differ: all must be the same, and the first is '{}'", a));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int logical_ = 0, physical_ = 0;        // next numbers in this part
  std::optional<Symbol> plain_, latent_;  // attention kinds seen in this part
};

}  // namespace

void fail_pattern(std::string_view text, std::size_t position, std::string_view rule) {
  throw UserError("bad pattern: {}\n{}", rule, point_at(text, position));
}

std::vector<PatternPart> scan_pattern(std::string_view text) { return Scanner(text).parts(); }

}  // namespace weft
