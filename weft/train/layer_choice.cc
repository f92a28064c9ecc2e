#include "weft/train/layer_choice.h"

#include <cctype>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {
namespace {

constexpr std::int64_t longest = 100'000;  // entries, and the largest number; as of --num-layers
constexpr int deepest = 32;                // parentheses and brackets

struct Value {
  bool is_list = false;
  std::int64_t number = 0;
  std::vector<std::int64_t> list;
};

// sum = product ("+" product)*    product = factor ("*" factor)*    factor = number | "(" sum ")" | "[" sum, ... "]"
class Expression {
 public:
  explicit Expression(std::string_view text) : text_(text) {}

  Value read() {
    Value value = sum(0);
    if (!peek_is('\0')) fail("+ or * should be here");
    return value;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { throw UserError("{}\n{}", what, point_at(text_, at_)); }

  bool peek_is(char wanted) {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return (at_ < text_.size() ? text_[at_] : '\0') == wanted;
  }
  bool take(char wanted) {
    if (!peek_is(wanted)) return false;
    ++at_;
    return true;
  }
  std::int64_t bounded(std::int64_t size) const {
    if (size > longest) fail(fmt::format("no model has more than {} layers", longest));
    return size;
  }

  Value sum(int depth) {
    Value left = product(depth);
    while (take('+')) {
      const Value right = product(depth);
      if (left.is_list != right.is_list) fail("a list and a number cannot be added");
      left.number = bounded(left.number + right.number);
      bounded(std::ssize(left.list) + std::ssize(right.list));
      left.list.insert(left.list.end(), right.list.begin(), right.list.end());
    }
    return left;
  }

  Value product(int depth) {
    Value left = factor(depth);
    while (take('*')) {
      Value right = factor(depth);
      if (left.is_list && right.is_list) fail("two lists cannot be multiplied");
      if (!left.is_list && !right.is_list) {
        left.number = bounded(left.number * right.number);  // both are at most 10^5
        continue;
      }
      if (right.is_list) std::swap(left, right);
      const std::vector<std::int64_t> once = std::move(left.list);
      bounded(std::ssize(once) * right.number);
      left.list.clear();
      for (std::int64_t i = 0; i < right.number; ++i) left.list.insert(left.list.end(), once.begin(), once.end());
    }
    return left;
  }

  Value factor(int depth) {
    if (depth > deepest) fail("parentheses are nested too deeply");
    Value value;
    if (take('(')) {
      value = sum(depth + 1);
      if (!take(')')) fail("a ) should be here");
    } else if (take('[')) {
      value.is_list = true;
      while (!take(']')) {
        const Value entry = sum(depth + 1);
        if (entry.is_list) fail("a list holds numbers only");
        value.list.push_back(entry.number);
        bounded(std::ssize(value.list));
        if (!take(',') && !peek_is(']')) fail("a , or ] should be here");
      }
    } else {
      const std::size_t begin = at_;
      while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
      const std::string_view digits = text_.substr(begin, at_ - begin);
      if (digits.empty()) fail("a number or a list should be here");
      if (!parse_int(digits, value.number)) value.number = longest + 1;
      bounded(value.number);
    }
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

LayerChoice parse_layer_choice(std::string_view text) {
  const Value value = Expression(text).read();
  if (!value.is_list) {
    if (value.number < 1) throw UserError("{} is out of range; it must be at least 1", value.number);
    return {.number = value.number, .list = {}, .text = fmt::format("{}", value.number)};
  }
  if (value.list.empty()) throw UserError("the list is empty");
  LayerChoice choice{.number = 0, .list = {}, .text = std::string(trim(text))};
  for (const std::int64_t entry : value.list) {
    if (entry > 1) throw UserError("the list has a {}; each layer has a 0 or a 1", entry);
    choice.list.push_back(static_cast<std::uint8_t>(entry));
  }
  return choice;
}

}  // namespace weft
