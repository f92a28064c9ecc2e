// One model's files to another's: names and layouts change, elements do not. A conversion is a source (model_source.h)
// and one of the writers below.
//
// One parameter is in memory at a time, with the tensor (or the expert's part of one) that it goes to; pages of the
// input are given back once they are read. So a model may be larger than memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "weft/checkpoint/model_source.h"

namespace weft {

enum class CheckpointFormat : std::uint8_t { hugging_face, weft, megatron };

// Of a Hugging Face folder that is written.
struct HuggingFaceOptions {
  std::optional<ExpertsForm> experts;  // absent: as they were, or as is usual
  std::string family;                  // "": the one that the model came from, or the only one that has such models
  // Of all tensors but those that transformers keeps in float; absent: as they were, or what the run computed in.
  std::optional<StoredType> type;
};

struct ConvertOptions {
  CheckpointFormat from = CheckpointFormat::hugging_face, to = CheckpointFormat::weft;
  std::filesystem::path in, out;
  HuggingFaceOptions hugging_face;  // of such a folder that is written
  std::int64_t max_shard_bytes = 50'000'000'000;
  bool optimizer = true;  // its state, too, where the form that is written has one
  // Of a Megatron checkpoint: keys and args of a transformer, not of a hybrid model; and it must be one whose layers are in
  // one tensor, [layers, ...].
  bool megatron_transformer = false, megatron_stacked_layers = false;
  std::function<void(std::size_t bytes, std::size_t total)> progress = {};
};

struct ConvertResult {
  std::string family, pattern;              // family: "" of a model that is none's
  ExpertsForm experts = ExpertsForm::none;  // as a Hugging Face folder has them
  std::size_t tensors_in = 0, tensors_out = 0, files = 0, bytes = 0;
  std::int64_t parameters = 0;
};

// UserError for what is wrong with the folders; then, and when writing fails, there is no `out`.
ConvertResult convert_checkpoint(const ConvertOptions& options);
// The same from a source that is already open; options.in and options.from are ignored.
ConvertResult convert_checkpoint(const ModelSource& source, const ConvertOptions& options);

// Where the optimizer's state is to be written: UserError if the source has some that cannot be read.
void require_optimizer(const ModelSource& source, const ConvertOptions& options);

// To the folder options.out, from any source.
ConvertResult write_hugging_face(const ModelSource& source, const ConvertOptions& options);  // convert_hugging_face.cc
// With the optimizer's state where the source has it, unless the options leave it. (convert_weft.cc)
ConvertResult write_weft(const ModelSource& source, const ConvertOptions& options);

// To DIR/iter_NNNNNNN, or DIR/release of a model without a run; with the optimizer's state as write_weft, in the form that
// Megatron calls fully reshardable. (convert_megatron.cc)
ConvertResult write_megatron(const ModelSource& source, const ConvertOptions& options);

struct HuggingFaceFolder {
  HuggingFaceModel model;  // with the types of its tensors
  SideFiles side_files;    // config.json
};
// What the folder of this model has. UserError where no family has such models.
HuggingFaceFolder hugging_face_folder(const ModelSource& source, const HuggingFaceOptions& options);
// Of a model that does not come from such a folder; type: where the options have none.
HuggingFaceFolder hugging_face_folder(const ModelConfig& config, StoredType type, const HuggingFaceOptions& options);
// Of a config.json without weights.
HuggingFaceFolder hugging_face_folder(const std::filesystem::path& dir, StoredType type,
                                      const HuggingFaceOptions& options);
// The tensors of the folder that the model came from.
HuggingFaceModel hugging_face_tensors(const ModelSource& source);
// What such a folder needs, the dtypes of its tensors included, once the values are kept in other types: for the
// checkpoints of a run that begins with this model. Nothing where the model does not come from such a folder.
std::optional<HuggingFaceOrigin> origin_with_types(const ModelSource& source);
// Tells options.progress of bytes as they are written.
std::function<void(std::size_t bytes)> progress_of(const ConvertOptions& options, std::size_t total);

}  // namespace weft
