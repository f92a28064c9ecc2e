// A model that does not come from a Hugging Face folder, as one of a family: where the family has such models.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "weft/base/json.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/model/config.h"

namespace weft {

struct FamilyShape {
  HuggingFaceModel model;  // its config as the family's own reads, its tensors in their usual form
  Json config;             // config.json
};

// family: "" is the only one that has such models.
// UserError, with the fields of ModelConfig in backquotes: no family has such models, and why; several have.
FamilyShape shape_of_family(const ModelConfig& config, const std::string& family);

}  // namespace weft
