// Hugging Face model directories: config.json and safetensors, in one file or in shards.
//
// Decisions where the format leaves room:
// - experts are read separate or fused, whichever is on disk;
// - a tied model may have the embedding under either name. If both are there they must be equal: Hugging Face would
//   drop the tie without a word in the config, Weft asks for the config to be put right;
// - qwen3_moe: a sliding window is on every layer (max_window_layers is not looked at), as Hugging Face has it.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "weft/checkpoint/disk_tensor.h"
#include "weft/checkpoint/safetensors_directory.h"
#include "weft/model/config.h"

namespace weft {

struct HuggingFaceModel {
  std::string family;  // model_type
  ModelConfig config;
  std::vector<DiskTensor> tensors;  // in the order of the model
};

bool has_safetensors(const std::filesystem::path& dir);
// From config.json alone; tensors under their usual names, no MTP.
HuggingFaceModel read_hugging_face_config(const std::filesystem::path& dir);
// From config.json and the names on disk.
HuggingFaceModel read_hugging_face(const std::filesystem::path& dir);

// The weights of a directory. Opening checks that the tensors on disk are those the config asks for, and no others;
// values are read when asked for, from any thread.
class HuggingFaceWeights {
 public:
  explicit HuggingFaceWeights(const std::filesystem::path& dir);

  const HuggingFaceModel& model() const { return model_; }
  bool has(const ParameterIdentity& identity) const { return places_.contains(identity); }
  // Writes the parameter, [logical] of dtype `target`, row-major.
  void read(const ParameterIdentity& identity, const Shape& logical, DType target, void* out) const;

 private:
  struct Place {
    const TensorEntry* entry;
    const DiskPart* part;
  };
  void check_names() const;
  void check_copies() const;

  std::string dir_;
  SafetensorsDirectory files_;
  HuggingFaceModel model_;
  std::map<ParameterIdentity, std::vector<Place>> places_;
};

}  // namespace weft
