// A model with its values, whatever files it is read from: logical parameters by identity. Commands read every model
// through this, and a conversion is one of these and a writer (convert.h).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/checkpoint/model_description.h"
#include "weft/checkpoint/new_folder.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/model/content.h"
#include "weft/model/parameters.h"

namespace weft {

// Several threads may read. UserError, when opened or when read, for what is wrong with the files.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  virtual const ModelDescription& description() const = 0;
  // The type that the values are stored in; nothing: they are not stored. The weights of all parameters are.
  virtual std::optional<StoredType> type_of(Content content, const ParameterIdentity& identity) const = 0;
  // Writes the whole parameter, [shape] of `type`, row-major: bit for bit where it is stored in that type. Embedding and
  // head may be stored with more rows, which pad the vocabulary: then it is the first ones.
  virtual void read(Content content, const ParameterIdentity& identity, const Shape& shape, StoredType type,
                    std::span<std::byte> out) const = 0;
  // Writes the elements that the part holds to their places in its tensor.
  virtual void read(Content content, const ParameterPart& part, HostTensor& tensor) const = 0;
  // From here on all files are open: whatever happens to their names, they can be read.
  virtual void open_files() const {}
  // What was read of it need not stay in memory.
  virtual void forget(Content content, const ParameterIdentity& identity) const;
  // The tensor that holds it, as its files name it: for messages.
  virtual std::string place_of(const ParameterIdentity& identity) const;
  virtual std::size_t tensors() const = 0;  // in its files

  // Nothing: no run has saved it.
  virtual std::optional<SavedRun> run() const { return std::nullopt; }
  // Why the optimizer's state, or part of it, cannot be read, with what to do about it; "": it can, or there is none.
  virtual std::string optimizer_problem() const { return ""; }
  // Tensors that are not parameters, under the names they have in a Hugging Face folder. Valid as long as the source.
  virtual std::vector<TensorEntry> other_tensors() const { return {}; }
  // The small files of the Hugging Face folder that the model came from.
  virtual SideFiles side_files() const { return {}; }
};

// Whether there are Weft's own files: a checkpoint, or a folder with checkpoints of a run.
bool is_weft_checkpoint(const std::filesystem::path& dir);
std::unique_ptr<ModelSource> open_hugging_face(const std::filesystem::path& dir);
std::unique_ptr<ModelSource> open_weft(const std::filesystem::path& dir);
// One of them, whichever it is.
std::unique_ptr<ModelSource> open_model(const std::filesystem::path& dir);

// Whether the folder holds weights, and not a config.json alone, which describes a model that begins with random ones.
bool has_weights(const std::filesystem::path& dir);
// What the model in a folder is, with or without weights.
ModelConfig read_model_config(const std::filesystem::path& dir);

// The first tensor with a weight that is NaN or infinite; reads all tensors up to it.
std::optional<std::string> first_not_finite(const ModelSource& source);

}  // namespace weft
