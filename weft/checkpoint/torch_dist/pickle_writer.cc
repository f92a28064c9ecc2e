#include "weft/checkpoint/torch_dist/pickle_writer.h"

#include <bit>
#include <limits>
#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/shown.h"
#include "weft/checkpoint/torch_dist/utf8.h"

namespace weft {
namespace {

constexpr std::uint64_t most_in_four_bytes = std::numeric_limits<std::uint32_t>::max();

// What Python calls latin1: a character for every byte.
std::string latin1_as_utf8(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    const auto code = std::to_integer<unsigned>(byte);
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xc0 | code >> 6);
      text += static_cast<char>(0x80 | (code & 0x3f));
    }
  }
  return text;
}

}  // namespace

PickleWriter::PickleWriter(int protocol) : protocol_(protocol) {
  WEFT_CHECK(protocol >= 2 && protocol <= 4, "a pickle of protocol {}", protocol);
  op(0x80);
  op(protocol);
}

void PickleWriter::number(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) op(static_cast<int>(value >> (8 * i) & 0xff));
}

bool PickleWriter::recall(const std::string& what) {
  const auto at = memo_.find(what);
  if (at == memo_.end()) return false;
  const bool near = at->second < 256;
  op(near ? 'h' : 'j');
  number(at->second, near ? 1 : 4);
  return true;
}

void PickleWriter::remember(std::string what) {
  const auto index = static_cast<std::uint32_t>(memo_.size());
  memo_.emplace(std::move(what), index);
  if (protocol_ >= 4) return op(0x94);
  op(index < 256 ? 'q' : 'r');
  number(index, index < 256 ? 1 : 4);
}

void PickleWriter::none() { op('N'); }
void PickleWriter::boolean(bool value) { op(value ? 0x88 : 0x89); }

void PickleWriter::integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value < 256) {
    op('K');
    number(bits, 1);
  } else if (value >= 0 && value < 65536) {
    op('M');
    number(bits, 2);
  } else if (value == static_cast<std::int32_t>(value)) {
    op('J');
    number(bits, 4);
  } else {
    int bytes = 5;  // as few as hold the number and its sign
    while (bytes < 8 && value >> (8 * bytes - 1) != 0 && value >> (8 * bytes - 1) != -1) ++bytes;
    op(0x8a);
    op(bytes);
    number(bits, bytes);
  }
}

void PickleWriter::long_integer(std::span<const std::byte> bytes) {
  if (bytes.size() < 256) {
    op(0x8a);
    number(bytes.size(), 1);
  } else {
    WEFT_CHECK(bytes.size() <= most_in_four_bytes / 2, "an integer of {} bytes", bytes.size());
    op(0x8b);
    number(bytes.size(), 4);
  }
  out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void PickleWriter::real(double value) {
  op('G');
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int i = 7; i >= 0; --i) op(static_cast<int>(bits >> (8 * i) & 0xff));
}

void PickleWriter::text(std::string_view value) {
  std::string key = "t";
  key += value;
  if (recall(key)) return;
  if (!is_valid_utf8(value)) throw UserError("{} is not UTF-8, and cannot be written as Python's text", shown(value));
  WEFT_CHECK(value.size() <= most_in_four_bytes, "a text of {} bytes", value.size());
  const bool is_short = protocol_ >= 4 && value.size() < 256;
  op(is_short ? 0x8c : 'X');
  number(value.size(), is_short ? 1 : 4);
  out_ += value;
  remember(std::move(key));
}

void PickleWriter::bytes(std::span<const std::byte> value) {
  if (protocol_ < 3) {  // which has no opcode for them: Python makes them from text
    global("_codecs", "encode");
    begin_tuple(2);
    text(latin1_as_utf8(value));
    text("latin1");
    end_tuple(2);
    return reduce();
  }
  WEFT_CHECK(value.size() <= most_in_four_bytes, "{} bytes as one value", value.size());
  op(value.size() < 256 ? 'C' : 'B');
  number(value.size(), value.size() < 256 ? 1 : 4);
  out_.append(reinterpret_cast<const char*>(value.data()), value.size());
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  std::string key = "g";
  key += module;
  key += '\n';
  key += name;
  if (recall(key)) return;
  if (protocol_ >= 4) {
    text(module);
    text(name);
    op(0x93);
  } else {
    op('c');
    out_ += key.substr(1);
    op('\n');
  }
  remember(std::move(key));
}

void PickleWriter::begin_tuple(std::size_t items) {
  if (items > 3) op('(');
}

void PickleWriter::end_tuple(std::size_t items) {
  if (items == 0) return empty_tuple();
  op(items > 3 ? 't' : 0x84 + static_cast<int>(items));
}

void PickleWriter::empty_tuple() { op(')'); }

void PickleWriter::begin_list() {
  op(']');
  op('(');
}
void PickleWriter::end_list() { op('e'); }
void PickleWriter::begin_dict() {
  op('}');
  op('(');
}
void PickleWriter::end_dict() { op('u'); }
void PickleWriter::begin_entries() { op('('); }
void PickleWriter::end_entries() { op('u'); }

void PickleWriter::reduce() { op('R'); }
void PickleWriter::new_object() { op(0x81); }
void PickleWriter::build() { op('b'); }
void PickleWriter::persistent() { op('Q'); }

std::string PickleWriter::finish() {
  op('.');
  return std::move(out_);
}

}  // namespace weft
