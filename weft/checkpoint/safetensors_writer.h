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
#include <span>
#include <string>
#include <vector>

#include "weft/base/file_system.h"
#include "weft/base/shape.h"
#include "weft/checkpoint/stored_type.h"

namespace weft {

struct TensorToWrite {
  std::string name;
  StoredType type = StoredType::f32;
  Shape shape;
  std::function<void(std::byte* out)> fill;  // writes the whole tensor, in its type
  // Or part after part along dim 0, each of the same size: of what is too large to have in memory as a whole.
  std::int64_t slices = 0;
  std::function<void(std::int64_t slice, std::byte* out)> fill_slice = {};
  // Or elements [first, first + count), one range after another: in `buffer`, or where they lie.
  std::function<std::span<const std::byte>(std::int64_t first, std::int64_t count, std::span<std::byte> buffer)> read =
      {};
};
std::size_t bytes_of(const TensorToWrite& tensor);

struct WriteTarget {
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::function<void(std::size_t)> written =
      {};  // told how many bytes of tensors have been written since the last call
  const FileSystem* files = &machine_files();
};
// RunError when the file system fails.
void write_safetensors(const std::filesystem::path& file, std::vector<TensorToWrite> tensors,
                       const WriteTarget& target = {});
// Fills the same tensors in the same order and writes nothing: what the ranks do that do not write.
void fill_without_writing(std::vector<TensorToWrite> tensors);

}  // namespace weft
