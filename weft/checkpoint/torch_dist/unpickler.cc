#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/byte_cursor.h"
#include "weft/checkpoint/torch_dist/pickle.h"
#include "weft/checkpoint/torch_dist/pickle_globals.h"
#include "weft/checkpoint/torch_dist/shown.h"

namespace weft {

// The stack machine that a pickle is a program for. Its opcodes are those that Python's pickler writes in protocols 2 to
// 5; the textual ones of protocols 0 and 1, the registry of extensions and buffers outside the pickle are refused.
class Unpickler {
 public:
  Unpickler(Pickle& pickle, std::span<const std::byte> bytes, const std::string& where)
      : pickle_(pickle), in_(bytes, where), where_(where), size_(bytes.size()) {}

  PickleValue run() {
    if (size_ >= std::uint64_t{1} << 32) throw UserError("{}: a pickle of 4 GiB or more", where_);
    if (size_ < 2 || in_.number<std::uint8_t>("a pickle") != 0x80) {
      throw UserError("{}: is not a pickle of protocol 2 to 5: it does not begin with the byte 80", where_);
    }
    const int protocol = in_.number<std::uint8_t>("the protocol");
    if (protocol < 2 || protocol > 5) {
      throw UserError("{}: is a pickle of protocol {}; Weft reads 2 to 5", where_, protocol);
    }
    while (!result_) step();
    if (in_.left() != 0) throw UserError("{}: damaged: {} bytes follow the end of the pickle", where_, in_.left());
    return *result_;
  }

 private:
  using Kind = PickleKind;
  using Values = std::vector<PickleValue>;

  template <class... Values>
  [[noreturn]] void fail(fmt::format_string<Values...> text, Values&&... values) const {
    throw UserError("{}: damaged pickle, at byte {}: {}", where_, op_at_,
                    fmt::format(text, std::forward<Values>(values)...));
  }

  void step() {
    op_at_ = in_.position();
    const auto op = in_.number<std::uint8_t>("an opcode");
    if (!step_scalar(op) && !step_container(op) && !step_object(op) && !step_memo(op)) {
      fail("opcode {:02x}, which Python does not write in protocols 2 to 5", op);
    }
  }

  bool step_scalar(std::uint8_t op) {
    switch (op) {
      case 'N':
        push(PickleValue());
        return true;
      case 0x88:
        push_boolean(true);
        return true;
      case 0x89:
        push_boolean(false);
        return true;
      case 'J':
        push(PickleValue::of_integer(number<std::int32_t>()));
        return true;
      case 'K':
        push(PickleValue::of_integer(number<std::uint8_t>()));
        return true;
      case 'M':
        push(PickleValue::of_integer(number<std::uint16_t>()));
        return true;
      case 0x8a:
        push_long(number<std::uint8_t>());
        return true;
      case 0x8b:
        push_long(number<std::uint32_t>());
        return true;
      case 'G':
        push(PickleValue::of_real(big_endian_double()));
        return true;
      case 0x8c:
        push_range(Kind::text, number<std::uint8_t>());
        return true;
      case 'X':
        push_range(Kind::text, number<std::uint32_t>());
        return true;
      case 0x8d:
        push_range(Kind::text, number<std::uint64_t>());
        return true;
      case 'C':
        push_range(Kind::bytes, number<std::uint8_t>());
        return true;
      case 'B':
        push_range(Kind::bytes, number<std::uint32_t>());
        return true;
      case 0x8e:  // bytes
      case 0x96:  // a bytearray
        push_range(Kind::bytes, number<std::uint64_t>());
        return true;
      default:
        return false;
    }
  }

  bool step_container(std::uint8_t op) {
    switch (op) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case ')':
        push_sequence(Kind::tuple, {});
        return true;
      case ']':
        push_sequence(Kind::list, {});
        return true;
      case '}':
        push_sequence(Kind::dict, {});
        return true;
      case 0x8f:
        push_sequence(Kind::set, {});
        return true;
      case 't':
        push_sequence(Kind::tuple, pop_to_mark());
        return true;
      case 0x91:
        push_sequence(Kind::set, pop_to_mark());
        return true;  // a frozenset
      case 0x85:
        push_tuple(take<1>());
        return true;
      case 0x86:
        push_tuple(take<2>());
        return true;
      case 0x87:
        push_tuple(take<3>());
        return true;
      case 'a':
        extend(Kind::list, take<1>());
        return true;
      case 'e':
        extend(Kind::list, pop_to_mark());
        return true;
      case 0x90:
        extend(Kind::set, pop_to_mark());
        return true;
      case 's':
        set_entries(take<2>());
        return true;
      case 'u':
        set_entries(pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  bool step_object(std::uint8_t op) {
    switch (op) {
      case 'c': {
        const std::string_view module = line(), name = line();
        push_global(module, name);
        return true;
      }
      case 0x93: {
        const auto names = take<2>();
        if (!names[0].is(Kind::text) || !names[1].is(Kind::text)) fail("the name of a class is not text");
        push_global(names[0].text(), names[1].text());
        return true;
      }
      case 'R':
      case 0x81: {
        const auto parts = take<2>();
        push_object(parts[0], parts[1], PickleValue());
        return true;
      }
      case 0x92: {
        const auto parts = take<3>();
        push_object(parts[0], parts[1], parts[2]);
        return true;
      }
      case 'b': {
        const PickleValue state = take<1>()[0];
        mutable_object(top()).state = state;
        return true;
      }
      case 'Q': {
        const auto id = take<1>();
        push_sequence(Kind::persistent, {id.begin(), id.end()});
        return true;
      }
      default:
        return false;
    }
  }

  bool step_memo(std::uint8_t op) {
    switch (op) {
      case 'q':
        remember(number<std::uint8_t>());
        return true;
      case 'r':
        remember(number<std::uint32_t>());
        return true;
      case 0x94:
        remember(memo_.size());
        return true;
      case 'h':
        recall(number<std::uint8_t>());
        return true;
      case 'j':
        recall(number<std::uint32_t>());
        return true;
      case '2':
        push(PickleValue(top()));
        return true;
      case '0':
        if (!marks_.empty() && marks_.back() == stack_.size())
          marks_.pop_back();
        else
          take<1>();
        return true;
      case '1':
        pop_to_mark();
        return true;
      case 0x95:
        // A frame only tells how much to read at once.
        if (const auto frame = number<std::uint64_t>(); frame > in_.left()) {
          fail("a frame of {} bytes, and {} are left", frame, in_.left());
        }
        return true;
      case '.':
        if (stack_.size() != 1 || !marks_.empty()) fail("ends with {} values instead of one", stack_.size());
        result_ = stack_.back();
        return true;
      default:
        return false;
    }
  }

  template <class T>
  T number() {
    return in_.number<T>("an opcode's argument");
  }

  double big_endian_double() {
    std::uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = bits << 8 | number<std::uint8_t>();
    return std::bit_cast<double>(bits);
  }

  std::string_view line() {
    const auto rest = in_.left();
    ByteCursor ahead = in_;
    const std::string_view text = ahead.take_text(rest, "a name");
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) fail("a name without an end");
    in_.take(end + 1, "a name");
    return text.substr(0, end);
  }

  void push(PickleValue value) { stack_.push_back(value); }

  void push_boolean(bool value) {
    PickleValue result = PickleValue::of_integer(value ? 1 : 0);
    result.kind_ = Kind::boolean;
    push(result);
  }

  void push_long(std::uint64_t length) {
    const auto bytes = in_.take(length, "an integer");
    if (length > 8) return push(PickleValue::of_range(Kind::long_integer, bytes));
    std::uint64_t value = 0;
    for (std::size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<std::uint8_t>(bytes[i - 1]);
    const bool negative = !bytes.empty() && (bytes.back() & std::byte{0x80}) != std::byte{0};
    if (negative && length < 8) value |= ~std::uint64_t{0} << (8 * length);
    push(PickleValue::of_integer(static_cast<std::int64_t>(value)));
  }

  void push_range(Kind kind, std::uint64_t length) {
    push(PickleValue::of_range(kind, in_.take(length, name_of(kind))));
  }

  void push_sequence(Kind kind, Values items) {
    pickle_.sequences_.push_back(std::move(items));
    push(PickleValue::of_node(kind, &pickle_.sequences_.back()));
  }

  template <std::size_t count>
  void push_tuple(const std::array<PickleValue, count>& items) {
    push_sequence(Kind::tuple, {items.begin(), items.end()});
  }

  void push_global(std::string_view module, std::string_view name) {
    if (!is_accepted_global(module, name)) {
      throw UserError(
          "{}: the pickle names {}, at byte {}, which is not among the classes and functions that checkpoints of "
          "Megatron and PyTorch are known to name; Weft does not read it (nothing was run)",
          where_, shown(fmt::format("{}.{}", module.substr(0, 100), name.substr(0, 100))), op_at_);
    }
    pickle_.globals_.push_back({module, name});
    push(PickleValue::of_node(Kind::global, &pickle_.globals_.back()));
  }

  void push_object(PickleValue callee, PickleValue arguments, PickleValue keywords) {
    if (!callee.is(Kind::global)) fail("{} is called as if it were a class", describe(callee));
    if (!arguments.is(Kind::tuple)) fail("the arguments of {} are {}", describe(callee), describe(arguments));
    PickledObject object;
    object.callee = callee;
    object.arguments = arguments;
    object.keywords = keywords;
    pickle_.objects_.push_back(std::move(object));
    push(PickleValue::of_node(Kind::object, &pickle_.objects_.back()));
  }

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  PickleValue& top() {
    if (stack_.size() <= floor()) fail("the stack is empty");
    return stack_.back();
  }

  void require(std::size_t count) const {
    if (stack_.size() - floor() < count) {
      fail("{} values are needed, {} are on the stack", count, stack_.size() - floor());
    }
  }

  template <std::size_t count>
  std::array<PickleValue, count> take() {
    require(count);
    std::array<PickleValue, count> values;
    std::copy(stack_.end() - count, stack_.end(), values.begin());
    stack_.resize(stack_.size() - count);
    return values;
  }

  Values pop_to_mark() {
    if (marks_.empty()) fail("a mark is needed, and there is none");
    Values values(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }

  // Nodes belong to the pickle that is being made here: values only promise not to change them.
  PickledObject& mutable_object(const PickleValue& value) {
    if (!value.is(Kind::object)) fail("{} is changed as if it were an object", describe(value));
    return *static_cast<PickledObject*>(const_cast<void*>(value.at_));
  }
  Values& mutable_items(const PickleValue& value) { return *static_cast<Values*>(const_cast<void*>(value.at_)); }

  void extend(Kind kind, std::span<const PickleValue> values) {
    const PickleValue target = top();
    Values& items = target.is(kind) ? mutable_items(target) : mutable_object(target).items;
    items.insert(items.end(), values.begin(), values.end());
  }

  void set_entries(std::span<const PickleValue> values) {
    if (values.size() % 2 != 0) fail("a key without a value");
    const PickleValue target = top();
    Values& entries = target.is(Kind::dict) ? mutable_items(target) : mutable_object(target).entries;
    entries.insert(entries.end(), values.begin(), values.end());
  }

  void remember(std::uint64_t index) {
    // Python numbers from 0 on without gaps; an index beyond the pickle's size would ask for memory that it cannot need.
    if (index >= size_) fail("memo entry {} of a pickle of {} bytes", index, size_);
    const PickleValue value = top();
    if (index >= memo_.size()) memo_.resize(index + 1);
    memo_[index] = value;
  }

  void recall(std::uint64_t index) {
    if (index >= memo_.size() || !memo_[index]) fail("memo entry {} is used before it is set", index);
    push(*memo_[index]);
  }

  Pickle& pickle_;
  ByteCursor in_;
  const std::string& where_;
  std::size_t size_, op_at_ = 0;
  Values stack_;
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::vector<std::optional<PickleValue>> memo_;
  std::optional<PickleValue> result_;
};

Pickle::Pickle(std::span<const std::byte> bytes, const std::string& where) : size_(bytes.size()) {
  root_ = Unpickler(*this, bytes, where).run();
}

}  // namespace weft
