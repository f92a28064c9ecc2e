// The weights of a model directory: model.safetensors, or the shards that model.safetensors.index.json lists.
// Index and shards must agree: every tensor of the index is where it says, and no shard holds another.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "weft/checkpoint/safetensors.h"

namespace weft {

class SafetensorsDirectory {
 public:
  explicit SafetensorsDirectory(const std::filesystem::path& dir);

  const std::vector<const TensorEntry*>& entries() const { return entries_; }  // of all files, by name
  const TensorEntry* find(std::string_view name) const;                        // null: no such tensor

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<const TensorEntry*> entries_;
};

}  // namespace weft
