#include "weft/checkpoint/safetensors_directory.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/json_strict.h"

namespace weft {
namespace {

// Which shard holds which tensors: shard -> names.
std::map<std::string, std::vector<std::string>> read_index(const std::filesystem::path& index) {
  const nlohmann::json json = parse_strict_json(read_regular_file(index), index.string());
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object()) {
    throw UserError("{}: lacks the object 'weight_map' (tensor name -> file)", index.string());
  }
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [name, file] : map->items()) {
    const std::string shard = file.is_string() ? file.get<std::string>() : "";
    if (shard.empty() || std::filesystem::path(shard).filename() != shard || shard == "..") {
      throw UserError("{}: weight_map['{}'] must be the name of a file in this folder", index.string(), name);
    }
    shards[shard].push_back(name);
  }
  return shards;
}

void check_shard(const SafetensorsFile& file, const std::string& path, const std::vector<std::string>& listed,
                 const std::string& index) {
  for (const std::string& name : listed) {
    if (file.find(name) == nullptr) {
      throw UserError("{}: tensor '{}' is not in this file, in which {} lists it", path, name, index);
    }
  }
  if (file.entries().size() == listed.size()) return;
  for (const TensorEntry& entry : file.entries()) {
    if (!std::binary_search(listed.begin(), listed.end(), entry.name)) {
      throw UserError("{}: tensor '{}' is in this file, but {} does not list it there", path, entry.name, index);
    }
  }
}

}  // namespace

SafetensorsDirectory::SafetensorsDirectory(const std::filesystem::path& dir) {
  const std::filesystem::path single = dir / "model.safetensors", index = dir / "model.safetensors.index.json";
  if (is_there(single)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
  } else if (is_there(index)) {
    for (const auto& [shard, names] : read_index(index)) {  // names come sorted
      if (!is_there(dir / shard)) {
        throw UserError("{}: the shard {} ({} tensors) is missing from {}", index.string(), shard, names.size(),
                        dir.string());
      }
      files_.push_back(std::make_unique<SafetensorsFile>(dir / shard));
      check_shard(*files_.back(), (dir / shard).string(), names, index.filename().string());
    }
  } else {
    const bool pickled = is_there(dir / "pytorch_model.bin") || is_there(dir / "pytorch_model.bin.index.json");
    throw UserError("{}: neither model.safetensors nor model.safetensors.index.json is there{}", dir.string(),
                    pickled ? "; pytorch_model.bin is not read: save the model as safetensors first" : "");
  }
  for (const auto& file : files_) {
    for (const TensorEntry& entry : file->entries()) entries_.push_back(&entry);
  }
  std::sort(entries_.begin(), entries_.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
}

const TensorEntry* SafetensorsDirectory::find(std::string_view name) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                                   [](const TensorEntry* entry, std::string_view n) { return entry->name < n; });
  return at != entries_.end() && (*at)->name == name ? *at : nullptr;
}

}  // namespace weft
