// A value of Python's, to be written as a pickle: the arguments and the state of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/base/json.h"
#include "weft/checkpoint/torch_dist/pickle.h"
#include "weft/checkpoint/torch_dist/pickle_writer.h"

namespace weft {

class PythonValue {
 public:
  using Values = std::vector<PythonValue>;
  using Fields = std::vector<std::pair<std::string, PythonValue>>;

  PythonValue() = default;  // None
  PythonValue(bool value);
  PythonValue(int value);
  PythonValue(std::int64_t value);
  PythonValue(double value);
  PythonValue(const char* text);
  PythonValue(std::string text);

  // Two's complement, little-endian: an integer that does not fit 64 bits.
  static PythonValue long_integer(std::string bytes);
  static PythonValue bytes(std::string bytes);
  static PythonValue tuple(Values items);
  static PythonValue list(Values items);
  static PythonValue dict(Values keys_and_values);
  static PythonValue fields(Fields entries);  // a dict whose keys are text
  static PythonValue global(std::string module, std::string name);
  // What CALLEE(*arguments) returns.
  static PythonValue call(PythonValue callee, Values arguments);
  // An object of the class, not initialised, with this state; None: none.
  static PythonValue object(PythonValue of_class, PythonValue state);
  // argparse.Namespace with these attributes.
  static PythonValue name_space(Fields attributes);
  // Null, truth values, numbers, text, arrays (lists) and objects (dicts).
  static PythonValue from(const Json& json);

  void write(PickleWriter& out) const;

 private:
  explicit PythonValue(PickleKind kind, Values items) : kind_(kind), items_(std::move(items)) {}

  PickleKind kind_ = PickleKind::none;
  bool is_new_ = false;  // of an object: made by NEWOBJ, else by REDUCE
  union {
    std::int64_t integer_ = 0;
    double real_;
  };
  std::string text_;  // bytes of text, bytes and long integers; of a class "MODULE\nNAME"
  Values items_;      // of a dict key, value, ...; of an object class, arguments, state
};

std::string pickle_of(const PythonValue& value, int protocol);

}  // namespace weft
