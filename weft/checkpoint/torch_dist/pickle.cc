#include "weft/checkpoint/torch_dist/pickle.h"

#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/shown.h"

namespace weft {

std::string_view name_of(PickleKind kind) {
  switch (kind) {
    case PickleKind::none:
      return "None";
    case PickleKind::boolean:
      return "a truth value";
    case PickleKind::integer:
      return "an integer";
    case PickleKind::long_integer:
      return "an integer of more than 64 bits";
    case PickleKind::real:
      return "a float";
    case PickleKind::text:
      return "text";
    case PickleKind::bytes:
      return "bytes";
    case PickleKind::tuple:
      return "a tuple";
    case PickleKind::list:
      return "a list";
    case PickleKind::set:
      return "a set";
    case PickleKind::dict:
      return "a dict";
    case PickleKind::global:
      return "a class or function";
    case PickleKind::object:
      return "an object";
    case PickleKind::persistent:
      return "a reference to a storage";
  }
  return "?";
}

PickleValue PickleValue::of_integer(std::int64_t value) {
  PickleValue result;
  result.kind_ = PickleKind::integer;
  result.integer_ = value;
  return result;
}

PickleValue PickleValue::of_real(double value) {
  PickleValue result;
  result.kind_ = PickleKind::real;
  result.real_ = value;
  return result;
}

PickleValue PickleValue::of_range(PickleKind kind, std::span<const std::byte> bytes) {
  PickleValue result;
  result.kind_ = kind;
  result.length_ = static_cast<std::uint32_t>(bytes.size());  // a pickle has less than 4 GiB
  result.at_ = bytes.data();
  return result;
}

PickleValue PickleValue::of_node(PickleKind kind, const void* node) {
  PickleValue result;
  result.kind_ = kind;
  result.at_ = node;
  return result;
}

bool PickleValue::boolean() const {
  WEFT_CHECK(kind_ == PickleKind::boolean, "{} is asked for as a truth value", name_of(kind_));
  return integer_ != 0;
}

std::int64_t PickleValue::integer() const {
  WEFT_CHECK(kind_ == PickleKind::integer, "{} is asked for as an integer", name_of(kind_));
  return integer_;
}

double PickleValue::real() const {
  WEFT_CHECK(kind_ == PickleKind::real, "{} is asked for as a float", name_of(kind_));
  return real_;
}

std::string_view PickleValue::text() const {
  WEFT_CHECK(kind_ == PickleKind::text, "{} is asked for as text", name_of(kind_));
  return {static_cast<const char*>(at_), length_};
}

std::span<const std::byte> PickleValue::bytes() const {
  WEFT_CHECK(kind_ == PickleKind::bytes || kind_ == PickleKind::long_integer, "{} is asked for as bytes",
             name_of(kind_));
  return {static_cast<const std::byte*>(at_), length_};
}

const std::vector<PickleValue>& PickleValue::items() const {
  WEFT_CHECK(kind_ == PickleKind::tuple || kind_ == PickleKind::list || kind_ == PickleKind::set ||
                 kind_ == PickleKind::dict || kind_ == PickleKind::persistent,
             "{} is asked for its items", name_of(kind_));
  return *static_cast<const std::vector<PickleValue>*>(at_);
}

const PickledGlobal& PickleValue::global() const {
  WEFT_CHECK(kind_ == PickleKind::global, "{} is asked for as a class", name_of(kind_));
  return *static_cast<const PickledGlobal*>(at_);
}

const PickledObject& PickleValue::object() const {
  WEFT_CHECK(kind_ == PickleKind::object, "{} is asked for as an object", name_of(kind_));
  return *static_cast<const PickledObject*>(at_);
}

bool operator==(const PickledGlobal& a, const PickledGlobal& b) { return a.module == b.module && a.name == b.name; }

const std::vector<PickleValue>* entries_of(const PickleValue& value) {
  if (value.is(PickleKind::dict)) return &value.items();
  if (is_object_of(value, "collections", "OrderedDict")) return &value.object().entries;
  return nullptr;
}

const PickleValue* find_entry(const PickleValue& value, std::string_view key) {
  const std::vector<PickleValue>* entries = entries_of(value);
  if (entries == nullptr && value.is(PickleKind::object)) entries = entries_of(value.object().state);
  if (entries == nullptr) return nullptr;
  for (std::size_t i = entries->size(); i >= 2; i -= 2) {
    const PickleValue& name = (*entries)[i - 2];
    if (name.is(PickleKind::text) && name.text() == key) return &(*entries)[i - 1];
  }
  return nullptr;
}

bool is_object_of(const PickleValue& value, std::string_view module, std::string_view name) {
  return value.is(PickleKind::object) && value.object().callee.global() == PickledGlobal{module, name};
}

std::string describe(const PickleValue& value) {
  const auto full_name = [](const PickledGlobal& g) {
    return fmt::format("{}.{}", g.module.substr(0, 100), g.name.substr(0, 100));
  };
  switch (value.kind()) {
    case PickleKind::boolean:
      return value.boolean() ? "True" : "False";
    case PickleKind::integer:
      return fmt::format("{}", value.integer());
    case PickleKind::real:
      return fmt::format("{}", value.real());
    case PickleKind::text:
      return shown(value.text());
    case PickleKind::global:
      return full_name(value.global());
    case PickleKind::object:
      return "an object of " + full_name(value.object().callee.global());
    default:
      return std::string(name_of(value.kind()));
  }
}

}  // namespace weft
