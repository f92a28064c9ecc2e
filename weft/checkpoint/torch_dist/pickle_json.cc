#include "weft/checkpoint/torch_dist/pickle_json.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/checkpoint/torch_dist/utf8.h"

namespace weft {
namespace {

constexpr int max_depth = 64;
constexpr std::size_t max_integer_bytes = 64;  // decimal digits take time that is quadratic in the length

// Two's complement, little-endian.
std::string decimal(std::span<const std::byte> bytes) {
  if (bytes.size() > max_integer_bytes) return fmt::format("an integer of {} bytes", bytes.size());
  std::vector<unsigned> magnitude;
  for (const std::byte b : bytes) magnitude.push_back(std::to_integer<unsigned>(b));
  const bool negative = magnitude.back() >= 0x80;
  unsigned carry = 1;
  for (unsigned& digit : magnitude) {
    if (!negative) break;
    digit = (0xff - digit) + carry;
    carry = digit >> 8;
    digit &= 0xff;
  }
  std::string digits;
  while (std::any_of(magnitude.begin(), magnitude.end(), [](unsigned d) { return d != 0; })) {
    unsigned rest = 0;
    for (std::size_t i = magnitude.size(); i > 0; --i) {
      const unsigned value = rest * 256 + magnitude[i - 1];
      magnitude[i - 1] = value / 10;
      rest = value % 10;
    }
    digits += static_cast<char>('0' + rest);
  }
  if (digits.empty()) digits += '0';
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

class Converter {
 public:
  Converter(const Pickle& pickle, const std::string& where) : steps_left_(1024 + 4 * pickle.size()), where_(where) {}

  Json convert(const PickleValue& value, int depth) {
    spend(1);
    if (depth > max_depth) throw UserError("{}: values nest more than {} deep", where_, max_depth);
    switch (value.kind()) {
      case PickleKind::none:
        return nullptr;
      case PickleKind::boolean:
        return value.boolean();
      case PickleKind::integer:
        return value.integer();
      case PickleKind::long_integer:
        return decimal(value.bytes());
      case PickleKind::real:
        return value.real();
      case PickleKind::text:
        return text_of(value.text());
      case PickleKind::bytes:
        return nullptr;
      case PickleKind::dict:
        return entries(value.items(), depth);
      case PickleKind::global:
        return name_of_global(value.global());
      case PickleKind::object:
        return object(value.object(), depth);
      default:
        return array(value.items(), depth);
    }
  }

 private:
  // Text counts by its length: a long one that is used often would take more memory than the pickle too.
  void spend(std::size_t steps) {
    if (steps > steps_left_) {
      throw UserError("{}: damaged: values repeat or contain themselves, so that they never end", where_);
    }
    steps_left_ -= steps;
  }

  std::string text_of(std::string_view text) {
    spend(text.size() / 16);
    return as_valid_utf8(text);
  }

  std::string name_of_global(const PickledGlobal& global) {
    return fmt::format("{}.{}", text_of(global.module), text_of(global.name));
  }

  Json array(const std::vector<PickleValue>& items, int depth) {
    Json result = Json::array();
    for (const PickleValue& item : items) result.push_back(convert(item, depth + 1));
    return result;
  }

  Json entries(const std::vector<PickleValue>& entries, int depth) {
    // Python keeps the place of a key's first value and the value of its last.
    std::vector<std::string> order;
    std::map<std::string, Json> values;
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      const PickleValue& key = entries[i];
      std::string name = key.is(PickleKind::text) ? text_of(key.text()) : convert(key, depth + 1).dump();
      Json value = convert(entries[i + 1], depth + 1);
      const auto [at, added] = values.insert_or_assign(name, std::move(value));
      if (added) order.push_back(std::move(name));
    }
    // ordered_json looks for a key among all; here they are known to differ.
    Json::object_t result;
    for (std::string& name : order) {
      Json& value = values.at(name);
      static_cast<Json::object_t::Container&>(result).emplace_back(std::move(name), std::move(value));
    }
    return result;
  }

  Json object(const PickledObject& object, int depth) {
    const std::string name = name_of_global(object.callee.global());
    if (name == "collections.OrderedDict") return entries(object.entries, depth);
    if (name == "argparse.Namespace" || name == "types.SimpleNamespace") return convert(object.state, depth + 1);
    Json result = {{"class", name}, {"arguments", convert(object.arguments, depth + 1)}};
    if (!object.keywords.is(PickleKind::none)) result["keywords"] = convert(object.keywords, depth + 1);
    if (!object.state.is(PickleKind::none)) result["state"] = convert(object.state, depth + 1);
    if (!object.items.empty()) result["items"] = array(object.items, depth);
    if (!object.entries.empty()) result["entries"] = entries(object.entries, depth);
    return result;
  }

  std::size_t steps_left_;
  const std::string& where_;
};

}  // namespace

Json to_json(const PickleValue& value, const Pickle& pickle, const std::string& where) {
  return Converter(pickle, where).convert(value, 0);
}

}  // namespace weft
