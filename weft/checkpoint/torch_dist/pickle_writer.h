// Writes pickles as Python's pickler does, opcode by opcode: protocol 2 for what torch.save writes, protocol 4 for
// `.metadata`.
//
// The calls are those of the machine that reads them: a dict is begin_dict, key, value, ..., end_dict; an object that
// CALLABLE(*ARGUMENTS) makes is global, begin_tuple, ..., end_tuple, reduce; its state follows it, then build. Text and
// names of classes are written once and referred to later, so that a long name costs two bytes from its second use on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class PickleWriter {
 public:
  explicit PickleWriter(int protocol);  // 2 to 4

  void none();
  void boolean(bool value);
  void integer(std::int64_t value);
  void long_integer(std::span<const std::byte> bytes);  // two's complement, little-endian, as short as can be
  void real(double value);
  void text(std::string_view value);  // UTF-8; UserError for what is not, which Python could not read
  void bytes(std::span<const std::byte> value);
  void global(std::string_view module, std::string_view name);

  void begin_tuple(std::size_t items);
  void end_tuple(std::size_t items);
  void empty_tuple();
  void begin_list();
  void end_list();
  void begin_dict();
  void end_dict();
  void begin_entries();  // of an object that is a dict: key, value, ...
  void end_entries();

  void reduce();      // (callee, tuple) -> what the call returns
  void new_object();  // (class, tuple) -> an object of it that was not initialised
  void build();       // (object, state) -> the object with this state
  void persistent();  // (name) -> what the reader keeps under that name, a tensor's storage

  std::string finish();  // the pickle of the one value that was written

 private:
  void op(int code) { out_ += static_cast<char>(code); }
  void number(std::uint64_t value, int bytes);
  bool recall(const std::string& what);
  void remember(std::string what);

  int protocol_;
  std::string out_;
  std::map<std::string, std::uint32_t, std::less<>> memo_;
};

}  // namespace weft
