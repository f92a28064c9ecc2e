// A trained model as a folder of the kind that it came from.
#pragma once

#include <filesystem>
#include <memory>

#include "weft/checkpoint/model_source.h"
#include "weft/checkpoint/new_folder.h"
#include "weft/train/session.h"

namespace weft {

// UserError "--save-hf TO: ..." unless a folder can be made there: makes one beside, which goes away again.
void require_savable(const std::filesystem::path& to);

// Made before training: everything of the old folder that the new one needs is open or in memory from then on.
class HuggingFaceSaver {
 public:
  // from: a model that comes from a Hugging Face folder.
  HuggingFaceSaver(std::unique_ptr<ModelSource> from, std::filesystem::path to);

  // Tensors have the names and the types that they had; weights are rounded once to it, and those that no step
  // changes are the old file's. With several ranks all of them
  // call it, and the first writes.
  void save(Session& session) const;

 private:
  std::unique_ptr<ModelSource> from_;
  HuggingFaceModel model_;
  SideFiles side_files_;
  std::filesystem::path to_;
};

}  // namespace weft
