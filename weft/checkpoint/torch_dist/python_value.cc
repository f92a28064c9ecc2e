#include "weft/checkpoint/torch_dist/python_value.h"

#include <span>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"

namespace weft {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

PythonValue::PythonValue(bool value) : kind_(PickleKind::boolean), integer_(value ? 1 : 0) {}
PythonValue::PythonValue(int value) : PythonValue(static_cast<std::int64_t>(value)) {}
PythonValue::PythonValue(std::int64_t value) : kind_(PickleKind::integer), integer_(value) {}
PythonValue::PythonValue(double value) : kind_(PickleKind::real), real_(value) {}
PythonValue::PythonValue(const char* text) : PythonValue(std::string(text)) {}
PythonValue::PythonValue(std::string text) : kind_(PickleKind::text), text_(std::move(text)) {}

PythonValue PythonValue::long_integer(std::string bytes) {
  PythonValue value(std::move(bytes));
  value.kind_ = PickleKind::long_integer;
  return value;
}

PythonValue PythonValue::bytes(std::string bytes) {
  PythonValue value(std::move(bytes));
  value.kind_ = PickleKind::bytes;
  return value;
}

PythonValue PythonValue::tuple(Values items) { return PythonValue(PickleKind::tuple, std::move(items)); }
PythonValue PythonValue::list(Values items) { return PythonValue(PickleKind::list, std::move(items)); }

PythonValue PythonValue::dict(Values keys_and_values) {
  WEFT_CHECK(keys_and_values.size() % 2 == 0, "a dict of {} keys and values", keys_and_values.size());
  return PythonValue(PickleKind::dict, std::move(keys_and_values));
}

PythonValue PythonValue::fields(Fields entries) {
  Values items;
  items.reserve(2 * entries.size());
  for (auto& [key, value] : entries) {
    items.emplace_back(std::move(key));
    items.push_back(std::move(value));
  }
  return dict(std::move(items));
}

PythonValue PythonValue::global(std::string module, std::string name) {
  PythonValue value(std::move(module) + '\n' + name);
  value.kind_ = PickleKind::global;
  return value;
}

PythonValue PythonValue::call(PythonValue callee, Values arguments) {
  Values parts;
  parts.push_back(std::move(callee));
  parts.push_back(tuple(std::move(arguments)));
  return PythonValue(PickleKind::object, std::move(parts));
}

PythonValue PythonValue::object(PythonValue of_class, PythonValue state) {
  PythonValue value = call(std::move(of_class), {});
  value.is_new_ = true;
  if (state.kind_ != PickleKind::none) value.items_.push_back(std::move(state));
  return value;
}

PythonValue PythonValue::name_space(Fields attributes) {
  return object(global("argparse", "Namespace"), fields(std::move(attributes)));
}

PythonValue PythonValue::from(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() >> 63 != 0) {
    const auto number = json.get<std::uint64_t>();
    std::string bytes(9, '\0');  // the last has the sign
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (8 * i));
    return long_integer(std::move(bytes));
  }
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    Values items;
    for (const Json& item : json) items.push_back(from(item));
    return list(std::move(items));
  }
  if (json.is_object()) {
    Fields entries;
    for (const auto& [key, value] : json.items()) entries.emplace_back(key, from(value));
    return fields(std::move(entries));
  }
  return {};
}

void PythonValue::write(PickleWriter& out) const {
  switch (kind_) {
    case PickleKind::none:
      return out.none();
    case PickleKind::boolean:
      return out.boolean(integer_ != 0);
    case PickleKind::integer:
      return out.integer(integer_);
    case PickleKind::long_integer:
      return out.long_integer(bytes_of(text_));
    case PickleKind::real:
      return out.real(real_);
    case PickleKind::text:
      return out.text(text_);
    case PickleKind::bytes:
      return out.bytes(bytes_of(text_));
    case PickleKind::tuple:
      out.begin_tuple(items_.size());
      for (const PythonValue& item : items_) item.write(out);
      return out.end_tuple(items_.size());
    case PickleKind::list:
      out.begin_list();
      for (const PythonValue& item : items_) item.write(out);
      return out.end_list();
    case PickleKind::dict:
      out.begin_dict();
      for (const PythonValue& item : items_) item.write(out);
      return out.end_dict();
    case PickleKind::global: {
      const std::size_t line = text_.find('\n');
      return out.global(std::string_view(text_).substr(0, line), std::string_view(text_).substr(line + 1));
    }
    case PickleKind::object:
      items_[0].write(out);
      items_[1].write(out);
      is_new_ ? out.new_object() : out.reduce();
      if (items_.size() == 2) return;
      items_[2].write(out);
      return out.build();
    case PickleKind::set:
    case PickleKind::persistent:
      break;
  }
  throw BugError(fmt::format("{} cannot be written", name_of(kind_)));
}

std::string pickle_of(const PythonValue& value, int protocol) {
  PickleWriter out(protocol);
  value.write(out);
  return out.finish();
}

}  // namespace weft
