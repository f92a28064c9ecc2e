// A trained model as a Hugging Face folder.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/new_folder.h"
#include "weft/train/session.h"

namespace weft {

// UserError "FLAG TO: ..." unless a folder can be made there: makes one next to it, and removes it again.
void require_savable(const char* flag, const std::filesystem::path& to);

// Made before training: everything of the old folder that the new one needs is open or in memory from then on.
class HuggingFaceSaver {
 public:
  // from: the folder that the run begins with, with or without weights; "" of a model made of flags. config, compute: of
  // the run. tokenizer: the files of one that the run names, which take the place of the old folder's. UserError where no
  // family has such models.
  HuggingFaceSaver(const std::filesystem::path& from, const ModelConfig& config, DType compute,
                   const HuggingFaceOptions& options, const SideFiles& tokenizer);

  // UserError "FLAG TO: ..." where the disk has no room for the model.
  void require_room(const char* flag, const std::filesystem::path& to) const;
  // Tensors have the names and, unless the options say otherwise, the types that they had; weights are rounded once to it,
  // and those that no step changes are the old file's. With several ranks all of them call it, and the first writes.
  // Returns why it could not be written, on all ranks; "": it is. RunError where weights are not finite: no place would
  // make them a model.
  std::string save(Session& session, const std::filesystem::path& to) const;

 private:
  std::vector<TensorToWrite> tensors(const ParameterSource& source) const;

  std::unique_ptr<ModelSource> from_;  // null: the run begins with random weights
  HuggingFaceFolder folder_;
  std::vector<TensorEntry> others_;
};

}  // namespace weft
