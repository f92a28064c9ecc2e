// Hugging Face model directories: config.json and safetensors, in one file or in shards.
//
// Decisions where the format leaves room:
// - experts are read separate or fused, whichever is on disk;
// - a tied model may have the embedding under either name. If both are there they must be equal: Hugging Face would
//   drop the tie without a word in the config, Weft asks for the config to be put right;
// - MTP is there where its weights are;
// - qwen3_moe: a sliding window is on every layer (max_window_layers is not looked at), as Hugging Face has it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/disk_tensor.h"
#include "weft/checkpoint/safetensors_directory.h"
#include "weft/checkpoint/stored_weights.h"
#include "weft/model/config.h"

namespace weft {

enum class ExpertsForm : std::uint8_t {
  none,      // the model has no experts
  separate,  // a tensor for every expert's matrix
  fused,     // one for all experts of a layer, gate and up together
};
std::string_view name_of(ExpertsForm form);

// How the same model may differ on disk.
struct HuggingFaceForm {
  ExpertsForm experts = ExpertsForm::none;
  std::vector<std::string> copies;  // tensors that repeat another one
  bool tied_as_head = false;        // the one matrix of a tied model is stored under the head's name
};

struct HuggingFaceModel {
  std::string family;  // model_type
  ModelConfig config;
  HuggingFaceForm form;
  std::vector<DiskTensor> tensors;  // in the order of the model
};

// UserError "FOLDER: not a folder; KIND is ..." unless it is one whose files can be looked at.
void require_readable_folder(const std::filesystem::path& dir, const std::string& kind);
bool has_safetensors(const std::filesystem::path& dir);
// From config.json alone; tensors under their usual names, no MTP.
HuggingFaceModel read_hugging_face_config(const std::filesystem::path& dir);
// From config.json and the names on disk.
HuggingFaceModel read_hugging_face(const std::filesystem::path& dir);
// From what a checkpoint records of a model that was one; types of tensors are not known. UserError for a family that Weft
// does not know.
HuggingFaceModel hugging_face_model(const std::string& family, const ModelConfig& config, const HuggingFaceForm& form);
// The same model with its experts in another form. UserError where the family does not have it.
HuggingFaceModel with_experts(const HuggingFaceModel& model, ExpertsForm experts);

// The weights of a directory. Opening checks that the tensors on disk are those the config asks for, and no others;
// values are read when asked for, from any thread.
class HuggingFaceWeights {
 public:
  explicit HuggingFaceWeights(const std::filesystem::path& dir);

  const HuggingFaceModel& model() const { return model_; }
  const StoredWeights& stored() const { return *stored_; }
  bool has(const ParameterIdentity& identity) const { return stored_->has(identity); }
  // Writes the parameter, [logical] of dtype `target`, row-major.
  void read(const ParameterIdentity& identity, const Shape& logical, DType target, void* out) const {
    stored_->read(identity, logical, target, out);
  }
  // Writes the elements that the part holds to their places in its tensor.
  void read(const ParameterPart& part, HostTensor& tensor) const { stored_->read(part, tensor); }
  std::vector<const TensorEntry*> other_tensors() const;  // that are not parameters

 private:
  std::string dir_;
  SafetensorsDirectory files_;
  HuggingFaceModel model_;
  std::unique_ptr<StoredWeights> stored_;
};

}  // namespace weft
