// JSON text to a value, of either kind of object, in time and memory that the text's length bounds.
//
// The library's own parser does it too, but lets values nest without a limit, takes a zero byte for the end of the text,
// and needs quadratic time for many keys (ordered objects) or for many objects in one (with a callback).
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json.h"

namespace weft {

enum class EqualKeys { last_counts, refused };

template <class Value>
class JsonBuilder {
 public:
  JsonBuilder(const std::string& where, EqualKeys equal_keys) : where_(where), equal_keys_(equal_keys) {}

  // UserError "WHERE: ...".
  Value build(std::string_view text) {
    if (text.find('\0') != std::string_view::npos) throw UserError("{}: not valid JSON: holds a zero byte", where_);
    if (Value::sax_parse(text.begin(), text.end(), this)) return std::move(root_);
    throw UserError("{}: not valid JSON", where_);
  }

  // What the parser calls.
  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(typename Value::number_integer_t value) { return add(value); }
  bool number_unsigned(typename Value::number_unsigned_t value) { return add(value); }
  bool number_float(typename Value::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(typename Value::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Value::object()); }
  bool start_array(std::size_t) { return open(Value::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    slot_ = place_of(name);
    return true;
  }
  template <class Error>
  bool parse_error(std::size_t, const std::string&, const Error& error) {
    throw UserError("{}: not valid JSON: {}", where_, reason_of(error));
  }

 private:
  struct Open {
    Value* value;
    std::unordered_map<std::string, std::size_t> places;  // of an ordered object with many keys
  };

  template <class Added>
  bool add(Added&& value) {
    place(std::forward<Added>(value));
    return true;
  }
  template <class Added>
  Value* place(Added&& value) {
    if (open_.empty()) {
      root_ = std::forward<Added>(value);
      return &root_;
    }
    if (open_.back().value->is_object()) {
      *slot_ = std::forward<Added>(value);
      return slot_;
    }
    auto& array = *open_.back().value->template get_ptr<typename Value::array_t*>();
    array.emplace_back(std::forward<Added>(value));
    return &array.back();
  }
  bool open(Value&& empty) {
    if (open_.size() == static_cast<std::size_t>(max_json_depth))
      throw UserError("{}: not read as JSON: values nest more than {} deep", where_, max_json_depth);
    open_.push_back({place(std::move(empty)), {}});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Value* place_of(const std::string& name) {
    auto& object = *open_.back().value->template get_ptr<typename Value::object_t*>();
    if constexpr (std::is_same_v<Value, nlohmann::json>) {
      const auto [at, is_new] = object.try_emplace(name);
      if (!is_new) found_again(name);
      return &at->second;
    } else {
      constexpr std::size_t few = 16;  // so many are looked through
      auto& places = open_.back().places;
      if (object.size() == few && places.empty())
        for (const auto& [key, value] : object) places.emplace(key, places.size());
      std::size_t at = object.size();
      if (places.empty()) {
        const auto same = [&](const auto& entry) { return entry.first == name; };
        at = static_cast<std::size_t>(std::find_if(object.begin(), object.end(), same) - object.begin());
      } else {
        at = places.emplace(name, object.size()).first->second;
      }
      if (at == object.size()) {
        object.emplace_back(name, nullptr);
      } else {
        found_again(name);
      }
      return &(object.begin() + static_cast<std::ptrdiff_t>(at))->second;
    }
  }
  void found_again(const std::string& name) const {
    if (equal_keys_ == EqualKeys::refused) throw UserError("{}: the key '{}' occurs twice in one object", where_, name);
  }

  const std::string& where_;
  EqualKeys equal_keys_;
  Value root_;
  std::vector<Open> open_;  // the object or array being filled, and those around it
  Value* slot_ = nullptr;   // of the key read last
};

}  // namespace weft
