// Writes a safetensors file, one tensor after another, so that only one is in memory at a time.
//
// The header is padded with spaces to a multiple of 8 bytes and tensors lie in the order of the reference writer (wider
// types first, then by name), so every tensor is aligned to its elements. The file is written under another name,
// flushed to disk and renamed: a reader never sees half of it, and a failure leaves nothing behind.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "weft/base/shape.h"
#include "weft/checkpoint/stored_type.h"

namespace weft {

struct TensorToWrite {
  std::string name;
  StoredType type = StoredType::f32;
  Shape shape;
  std::function<void(std::byte* out)> fill;  // writes the whole tensor, in its type
};
// A tensor whose data stays in memory until the file is written.
TensorToWrite tensor_in_memory(std::string name, DType dtype, const Shape& shape, const void* data);

// RunError when the file system fails.
void write_safetensors(const std::filesystem::path& file, std::vector<TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace weft
