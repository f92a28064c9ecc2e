// Folders with models that tests make, most of them from a golden one with something changed.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/safetensors_writer.h"

namespace weft {

inline const std::vector<std::string> golden_models = {"llama",     "llama_b",   "mixtral",
                                                       "mixtral_b", "qwen3_moe", "qwen3_moe_b"};
std::filesystem::path golden_folder(const std::string& name);

// An empty folder of this test's own, removed with it.
class ModelFolder {
 public:
  ModelFolder();
  // Config and weights of a golden model.
  explicit ModelFolder(const std::string& golden);
  ~ModelFolder();
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path file(const std::string& name) const { return path_ / name; }
  void write(const std::string& name, std::string_view bytes) const;
  // Changes keys of config.json; null removes a key.
  void patch_config(const Json& patch) const;
  void set_null(const std::string& key) const;

 private:
  std::filesystem::path path_;
};

std::vector<std::string> listing(const std::filesystem::path& folder);  // names of what is in it

// The tensors of a file by name, as raw bytes, to be changed and written again.
struct RawTensor {
  StoredType type = StoredType::f32;
  Shape shape;
  std::string bytes;
};
using RawTensors = std::map<std::string, RawTensor>;
RawTensors raw_tensors(const std::filesystem::path& file);
void write_raw(const std::filesystem::path& file, const RawTensors& tensors);
// A tensor to write whose data stays in memory until then.
TensorToWrite tensor_in_memory(std::string name, DType dtype, const Shape& shape, const void* data);
std::vector<float> floats_of(const RawTensor& tensor);
RawTensor raw_of(const Shape& shape, const std::vector<float>& values);

// What `action` throws as an Exception; "" when it throws nothing. Anything else passes.
template <class Exception, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace weft
