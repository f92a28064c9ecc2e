// Weft's own checkpoints: a folder with
//
//   weft.json                   the description below
//   model*.safetensors          tensors under canonical names (canonical_names.h), in one file or in shards
//   config.json and others      of the family it came from, as they were
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/base/json.h"
#include "weft/checkpoint/hugging_face.h"

namespace weft {

// Of the model, and what is needed to write the folder that it came from once more.
struct WeftDescription {
  std::string pattern, family;
  HuggingFaceForm form;
  std::vector<std::string> others;          // tensors that are not parameters; they keep their names
  std::map<std::string, StoredType> types;  // there: of tensors that have not the type of the one that holds them here
};
Json to_json(const WeftDescription& description);
// UserError naming `where`.
WeftDescription parse_description(const Json& json, const std::string& where);

// Opening checks that the tensors are those that the description asks for.
class WeftWeights {
 public:
  explicit WeftWeights(const std::filesystem::path& dir);

  // As a Hugging Face folder would have it, the types of its tensors included.
  const HuggingFaceModel& model() const { return model_; }
  const std::vector<DiskTensor>& tensors() const { return tensors_; }  // as they are here
  const StoredWeights& stored() const { return *stored_; }
  std::vector<const TensorEntry*> other_tensors() const;

 private:
  WeftDescription description_;
  SafetensorsDirectory files_;
  HuggingFaceModel model_;
  std::vector<DiskTensor> tensors_;
  std::unique_ptr<StoredWeights> stored_;
};

}  // namespace weft
