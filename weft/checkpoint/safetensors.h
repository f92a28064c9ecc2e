// One safetensors file, mapped: opening it reads and checks the header, and only what is asked for is read after.
//
//   u64 N, little-endian | N bytes of JSON | data       the tensors tile the data: no hole, no overlap, nothing after
//
// Whatever is wrong with a file is a UserError that names the file and, where there is one, the tensor.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/shape.h"
#include "weft/checkpoint/stored_type.h"

namespace weft {

struct TensorEntry {
  std::string name;
  StoredType type = StoredType::f32;
  Shape shape;
  std::span<const std::byte> bytes;  // of the mapped file; need not be aligned
  std::string file;                  // for messages
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& file);

  const std::vector<TensorEntry>& entries() const { return entries_; }  // by name
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const TensorEntry* find(std::string_view name) const;  // null: no such tensor
  const TensorEntry& at(std::string_view name) const;    // UserError: no such tensor

 private:
  std::string file_;
  MappedFile mapping_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// All elements of a tensor as `target`, row-major: floats as floats and integers as integers (see stored_type.h).
// UserError when the tensor's type is another, or an integer does not fit.
void read_as(const TensorEntry& entry, DType target, void* out);
// Elements [first, first + count) of it.
void read_range(const TensorEntry& entry, std::int64_t first, std::int64_t count, DType target, void* out);

// What a header describes, before it is compared with the data.
struct SafetensorsHeader {
  struct Tensor {
    std::string name;
    StoredType type = StoredType::f32;
    Shape shape;
    std::uint64_t begin = 0, end = 0;  // bytes of the data
  };
  std::vector<Tensor> tensors;  // by name
  std::map<std::string, std::string> metadata;
};
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file);
// The tensors must tile `data_bytes` bytes.
void check_safetensors_tiling(const SafetensorsHeader& header, std::uint64_t data_bytes, const std::string& file);

}  // namespace weft
