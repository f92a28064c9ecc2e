// Pickles as plain data. Nothing is imported, made or run: a class or function is its name, and an object is the name it
// was to be made with, the arguments and the state, which are not applied.
//
// Values refer to the pickle and to its bytes, and must not outlive either. Values may be shared and may contain
// themselves, as in Python: who walks them has to bound depth and steps (to_json does).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class PickleValue;
struct PickledGlobal;
struct PickledObject;

enum class PickleKind : std::uint8_t {
  none,
  boolean,
  integer,       // that fits 64 bits
  long_integer,  // that does not
  real,
  text,
  bytes,
  tuple,
  list,
  set,
  dict,
  global,      // a class or function
  object,      // of REDUCE, NEWOBJ, NEWOBJ_EX
  persistent,  // what the writer keeps elsewhere, a tensor's storage: items() is the one value that names it
};
std::string_view name_of(PickleKind kind);

// 16 bytes, so that a hostile pickle, a value for every byte, takes little more than its own size.
class PickleValue {
 public:
  PickleValue() = default;  // none

  PickleKind kind() const { return kind_; }
  bool is(PickleKind kind) const { return kind_ == kind; }
  // Each may be asked of its kind alone; BugError otherwise.
  bool boolean() const;
  std::int64_t integer() const;
  double real() const;
  std::string_view text() const;                  // UTF-8 if the file is in order
  std::span<const std::byte> bytes() const;       // of a long_integer too: two's complement, little-endian
  const std::vector<PickleValue>& items() const;  // of a dict: key, value, key, value, ...
  const PickledGlobal& global() const;
  const PickledObject& object() const;

 private:
  friend class Unpickler;
  static PickleValue of_integer(std::int64_t value);
  static PickleValue of_real(double value);
  static PickleValue of_range(PickleKind kind, std::span<const std::byte> bytes);
  static PickleValue of_node(PickleKind kind, const void* node);

  PickleKind kind_ = PickleKind::none;
  std::uint32_t length_ = 0;
  union {
    std::int64_t integer_ = 0;
    double real_;
    const void* at_;
  };
};

struct PickledGlobal {
  std::string_view module, name;
};
bool operator==(const PickledGlobal& a, const PickledGlobal& b);

struct PickledObject {
  PickleValue callee;                // a global
  PickleValue arguments, keywords;   // a tuple; a dict or none
  PickleValue state;                 // as given to __setstate__ or __dict__; none: no state
  std::vector<PickleValue> items;    // appended to it, for subclasses of list and set
  std::vector<PickleValue> entries;  // key, value, ...: set in it, for subclasses of dict
};

// A pickle of protocol 2 to 5. Memory is bounded by a multiple of the pickle's size (each byte makes at most one value),
// time is linear, and the stack is not used, however deep values nest.
class Pickle {
 public:
  // UserError that begins with `where`: what is not a pickle, is damaged, or names a class or function that is not in the
  // list of pickle_globals.h.
  Pickle(std::span<const std::byte> bytes, const std::string& where);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return root_; }
  std::size_t size() const { return size_; }  // bytes of the pickle

 private:
  friend class Unpickler;
  std::deque<std::vector<PickleValue>> sequences_;
  std::deque<PickledGlobal> globals_;
  std::deque<PickledObject> objects_;
  PickleValue root_;
  std::size_t size_ = 0;
};

// The value of a text key in a dict, an OrderedDict, or the attributes of an object whose state is a dict; null: there is
// none. The last counts if there are several, as in Python. Linear in the number of entries.
const PickleValue* find_entry(const PickleValue& value, std::string_view key);
// The entries of a dict or an OrderedDict: key, value, ...; null: it is neither.
const std::vector<PickleValue>* entries_of(const PickleValue& value);
// Whether it is an object made by this class or function.
bool is_object_of(const PickleValue& value, std::string_view module, std::string_view name);
// "a dict", "an object of torch.Size", for messages.
std::string describe(const PickleValue& value);

}  // namespace weft
