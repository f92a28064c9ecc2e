// What a model is, apart from its values: what a checkpoint records about itself, so that nothing else is needed to load it, to
// train it further or to write it in another format.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "weft/base/dtype.h"
#include "weft/base/json.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/checkpoint/run_position.h"
#include "weft/model/config.h"

namespace weft {

// Of a model that came from a Hugging Face folder: what a folder with the same tensors needs.
struct HuggingFaceOrigin {
  std::string family;  // model_type
  HuggingFaceForm form;
  // The dtypes there: a tensor's own, or that of all others, or (without one) that of the parameter as it is stored.
  std::map<std::string, StoredType> types = {};
  std::optional<StoredType> type = {};
};

struct ModelDescription {
  ModelConfig config;
  std::optional<DType> compute = {};  // what a run computes in; absent: no run has
  std::optional<HuggingFaceOrigin> hugging_face = {};
};

// How far the run that saved a model was.
struct SavedRun {
  RunPosition position;
  std::int64_t ranks = 1;        // that wrote it
  std::string arguments = "{}";  // its flags: a JSON object
};

Json to_json(const SavedRun& run);
SavedRun saved_run_of(const Json& json, const std::string& where);

Json to_json(const ModelDescription& description);
// UserError naming `where` and the key.
ModelDescription model_description_of(const Json& json, const std::string& where);

// Every field of the config under its name: {"hidden": 64, "attention": {"heads": 4, ...}, ...}. Infinity is null.
// (model_json.cc)
Json to_json(const ModelConfig& config);
// A field that is not there has its default. UserError for one that this Weft does not know.
ModelConfig model_config_of(const Json& json, const std::string& where);

}  // namespace weft
