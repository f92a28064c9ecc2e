#include <algorithm>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/checkpoint/json_strict.h"
#include "weft/checkpoint/safetensors.h"

namespace weft {
namespace {

// A part of the header as it stands in the file, shortened, for messages.
std::string quoted(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

class TensorReader {
 public:
  TensorReader(const std::string& name, const nlohmann::json& value, const std::string& file)
      : where_(fmt::format("{}: tensor '{}'", file, name)), value_(value) {
    if (!value.is_object()) throw UserError("{}: must be an object, is {}", where_, quoted(value));
    tensor_.name = name;
  }

  SafetensorsHeader::Tensor read() {
    read_type();
    read_shape();
    read_offsets();
    return tensor_;
  }

 private:
  const nlohmann::json& field(const char* key) {
    const auto at = value_.find(key);
    if (at == value_.end()) throw UserError("{}: lacks '{}'", where_, key);
    return *at;
  }

  void read_type() {
    const nlohmann::json& type = field("dtype");
    if (!type.is_string()) throw UserError("{}: dtype must be text, is {}", where_, quoted(type));
    const std::optional<StoredType> known = stored_type_of(type.get<std::string>());
    if (!known) throw UserError("{}: unknown dtype {}", where_, quoted(type));
    tensor_.type = *known;
  }

  void read_shape() {
    const nlohmann::json& shape = field("shape");
    if (!shape.is_array()) throw UserError("{}: shape must be a list, is {}", where_, quoted(shape));
    if (shape.size() > Shape::max_dims) {
      throw UserError("{}: has {} dims, Weft reads at most {}", where_, shape.size(), Shape::max_dims);
    }
    std::uint64_t bits = static_cast<std::uint64_t>(bits_of(tensor_.type));
    bool overflow = false;
    for (const nlohmann::json& extent : shape) {
      const auto value = whole_number(extent, "shape");
      overflow = overflow || value > max_extent || __builtin_mul_overflow(bits, value, &bits);
      if (!overflow) tensor_.shape.append(static_cast<std::int64_t>(value));
    }
    if (overflow) throw UserError("{}: shape {} is too large to be true", where_, quoted(shape));
    if (bits % 8 != 0) throw UserError("{}: {} of {} do not fill whole bytes", where_, quoted(shape), name());
    bytes_ = bits / 8;
  }

  void read_offsets() {
    const nlohmann::json& offsets = field("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) {
      throw UserError("{}: data_offsets must be [begin, end], is {}", where_, quoted(offsets));
    }
    tensor_.begin = whole_number(offsets[0], "data_offsets");
    tensor_.end = whole_number(offsets[1], "data_offsets");
    if (tensor_.end < tensor_.begin) throw UserError("{}: data_offsets {} go backwards", where_, quoted(offsets));
    if (tensor_.end - tensor_.begin != bytes_) {
      throw UserError("{}: data_offsets {} hold {} bytes, but {} of {} take {}", where_, quoted(offsets),
                      tensor_.end - tensor_.begin, to_text(tensor_.shape), name(), bytes_);
    }
  }

  std::uint64_t whole_number(const nlohmann::json& value, const char* key) {
    if (value.is_number_unsigned()) return value.get<std::uint64_t>();
    if (value.is_number_integer()) throw UserError("{}: {} holds the negative number {}", where_, key, quoted(value));
    throw UserError("{}: {} holds {}, which is not a whole number of 64 bits", where_, key, quoted(value));
  }

  std::string_view name() const { return name_of(tensor_.type); }

  static constexpr std::uint64_t max_extent = std::uint64_t{1} << 62;
  std::string where_;
  const nlohmann::json& value_;
  SafetensorsHeader::Tensor tensor_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file) {
  if (json.empty() || json.front() != '{') {
    throw UserError("{}: not a safetensors file: the header must begin with '{{'", file);
  }
  const nlohmann::json header = parse_strict_json(json, file + ": header");
  SafetensorsHeader result;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      result.tensors.push_back(TensorReader(name, value, file).read());
      continue;
    }
    if (!value.is_object()) throw UserError("{}: __metadata__ must be an object, is {}", file, quoted(value));
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) throw UserError("{}: __metadata__ '{}' must be text, is {}", file, key, quoted(text));
      result.metadata[key] = text.get<std::string>();
    }
  }
  return result;
}

void check_safetensors_tiling(const SafetensorsHeader& header, std::uint64_t data_bytes, const std::string& file) {
  std::vector<const SafetensorsHeader::Tensor*> sorted;
  for (const SafetensorsHeader::Tensor& tensor : header.tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::tie(a->begin, a->end, a->name) < std::tie(b->begin, b->end, b->name);
  });
  std::uint64_t filled = 0;
  std::string before;
  for (const SafetensorsHeader::Tensor* tensor : sorted) {
    if (tensor->begin < filled) {
      throw UserError("{}: tensors '{}' and '{}' overlap: one ends at byte {} of the data, the other begins at {}",
                      file, before, tensor->name, filled, tensor->begin);
    }
    if (tensor->begin > filled) {
      throw UserError("{}: a hole in the data: bytes {} to {}, before tensor '{}', belong to none", file, filled,
                      tensor->begin, tensor->name);
    }
    filled = tensor->end;
    before = tensor->name;
  }
  if (filled > data_bytes) {
    throw UserError("{}: truncated: tensor '{}' ends at byte {} of the data, and the file has {}", file, before, filled,
                    data_bytes);
  }
  if (filled < data_bytes) {
    throw UserError("{}: {} bytes after the last tensor belong to none", file, data_bytes - filled);
  }
}

}  // namespace weft
