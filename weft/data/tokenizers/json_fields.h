// Fields of a JSON object, with errors that name the file and the place in it.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json.h"

namespace weft {

// An object of a tokenizer's file, called `place` in messages ("FILE: decoder.decoders[1]"; the whole file is "FILE:").
class JsonFields {
 public:
  JsonFields(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) throw UserError("{}: must be an object, and is {}", place_, json.type_name());
  }

  const std::string& place() const { return place_; }
  std::string place_of(const char* key) const { return place_ + (place_.ends_with(':') ? " " : ".") + key; }
  // Null if it is not there.
  const Json& value(const char* key) const {
    static const Json null;
    const auto found = json_.find(key);
    return found == json_.end() ? null : *found;
  }
  bool has(const char* key) const { return !value(key).is_null(); }
  const std::string& text(const char* key) const {
    const Json& json = value(key);
    if (!json.is_string()) throw UserError("{}: must be a text, and is {}", place_of(key), json.type_name());
    return json.get_ref<const std::string&>();
  }
  std::string text(const char* key, const char* standard) const { return has(key) ? text(key) : standard; }
  bool flag(const char* key, bool standard) const {
    const Json& json = value(key);
    if (json.is_null()) return standard;
    if (!json.is_boolean()) throw UserError("{}: must be true or false, and is {}", place_of(key), json.type_name());
    return json.get<bool>();
  }
  std::int64_t number(const char* key, std::int64_t standard) const {
    const Json& json = value(key);
    return json.is_null() ? standard : whole_number(json, place_of(key));
  }
  const Json& list(const char* key) const {
    const Json& json = value(key);
    if (!json.is_array()) throw UserError("{}: must be a list, and is {}", place_of(key), json.type_name());
    return json;
  }
  // Calls take(JsonFields) for each object of a list.
  template <class Take>
  void each(const char* key, Take&& take) const {
    const Json& all = list(key);
    for (std::size_t i = 0; i < all.size(); ++i) take(JsonFields(all[i], fmt::format("{}[{}]", place_of(key), i)));
  }

  static std::int64_t whole_number(const Json& json, const std::string& place) {
    if (!json.is_number_integer() || (json.is_number_unsigned() && json.get<std::uint64_t>() > INT64_MAX))
      throw UserError("{}: must be a whole number, and is {}", place,
                      json.is_number() ? json.dump() : std::string(json.type_name()));
    return json.get<std::int64_t>();
  }
  // An id: from 0 to 2^31 - 2.
  static std::int32_t id(const Json& json, const std::string& place) {
    const std::int64_t id = whole_number(json, place);
    if (id < 0 || id >= INT32_MAX) throw UserError("{}: {} cannot be an id", place, id);
    return static_cast<std::int32_t>(id);
  }

 private:
  const Json& json_;
  std::string place_;
};

}  // namespace weft
