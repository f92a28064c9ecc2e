#include "weft/checkpoint/model_source.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/checkpoint/parameter_list.h"
#include "weft/checkpoint/run_checkpoint.h"

namespace weft {
namespace {

class HuggingFaceSource : public ModelSource {
 public:
  explicit HuggingFaceSource(const std::filesystem::path& dir)
      : dir_(dir),
        weights_(dir),
        description_{weights_.model().config, {}, HuggingFaceOrigin{weights_.model().family, weights_.model().form}} {
    // A copy may have a dtype of its own.
    for (const DiskTensor& tensor : weights_.model().tensors)
      if (tensor.type != weights_.stored().type_of(tensor.parts[0].identity))
        description_.hugging_face->types[tensor.name] = tensor.type;
  }

  const ModelDescription& description() const override { return description_; }
  std::optional<StoredType> type_of(Content content, const ParameterIdentity& identity) const override {
    if (content != Content::weight || !weights_.has(identity)) return std::nullopt;
    return weights_.stored().type_of(identity);
  }
  void read(Content content, const ParameterIdentity& identity, const Shape& shape, StoredType type,
            std::span<std::byte> out) const override {
    WEFT_CHECK(content == Content::weight, "{} of a Hugging Face model", name_of(content));
    weights_.stored().read(identity, shape, type, out.data());
  }
  void read(Content content, const ParameterPart& part, HostTensor& tensor) const override {
    WEFT_CHECK(content == Content::weight, "{} of a Hugging Face model", name_of(content));
    weights_.read(part, tensor);
  }
  void forget(Content, const ParameterIdentity& identity) const override { weights_.stored().forget(identity); }
  std::string place_of(const ParameterIdentity& identity) const override {
    return weights_.stored().tensor_of(identity);
  }
  std::size_t tensors() const override { return weights_.model().tensors.size() + weights_.other_tensors().size(); }
  std::vector<TensorEntry> other_tensors() const override {
    std::vector<TensorEntry> others;
    for (const TensorEntry* entry : weights_.other_tensors()) others.push_back(*entry);
    return others;
  }
  SideFiles side_files() const override { return read_side_files(dir_); }

 private:
  std::filesystem::path dir_;
  HuggingFaceWeights weights_;
  ModelDescription description_;
};

std::filesystem::path weft_folder(const std::filesystem::path& dir) {
  require_readable_folder(dir, fmt::format("a Weft checkpoint is a folder with {}", manifest_name));
  if (const std::optional<std::filesystem::path> folder = checkpoint_in(dir)) return *folder;
  if (const std::vector<std::int64_t> there = checkpoints_in(dir); !there.empty())
    throw UserError("{}: there is no {}, which names the checkpoint to read; name a folder in it, the newest is {}",
                    dir.string(), tracker_name, checkpoint_folder(dir, there.back()).string());
  throw UserError("{}: there is no {}, so this is not a Weft checkpoint{}", dir.string(), manifest_name,
                  std::filesystem::exists(dir / "config.json") ? "; a Hugging Face model is read with --from hf" : "");
}

class WeftSource : public ModelSource {
 public:
  explicit WeftSource(const std::filesystem::path& dir) : checkpoint_(weft_folder(dir)) {
    const std::string where = (checkpoint_.folder() / manifest_name).string();
    description_ = checkpoint_.description();
    std::vector<std::string> missing;
    for (const ListedParameter& parameter : parameters_of(description_.config))
      if (!checkpoint_.has(tensor_name(Content::weight, parameter.identity)))
        missing.push_back(tensor_name(Content::weight, parameter.identity));
    if (!missing.empty())
      throw UserError("{}: {} parameters of the model that it describes are not in it, '{}' first", where,
                      missing.size(), missing.front());
  }

  const ModelDescription& description() const override { return description_; }
  std::optional<StoredType> type_of(Content content, const ParameterIdentity& identity) const override {
    return checkpoint_.type_of(tensor_name(content, identity));
  }
  void read(Content content, const ParameterIdentity& identity, const Shape& shape, StoredType type,
            std::span<std::byte> out) const override {
    checkpoint_.read(tensor_name(content, identity), shape, type, out.data());
  }
  void read(Content content, const ParameterPart& part, HostTensor& tensor) const override {
    checkpoint_.read(tensor_name(content, part.identity), part, tensor);
  }
  void open_files() const override { checkpoint_.open_files(); }
  std::size_t tensors() const override { return checkpoint_.manifest().tensors.size(); }
  std::optional<SavedRun> run() const override { return checkpoint_.run(); }
  std::vector<TensorEntry> other_tensors() const override {
    std::vector<TensorEntry> others;
    for (const auto& [name, tensor] : checkpoint_.manifest().tensors)
      if (name.starts_with(other_tensor_prefix))
        others.push_back({name.substr(other_tensor_prefix.size()), tensor.type, tensor.shape,
                          checkpoint_.bytes_of(name), checkpoint_.folder().string()});
    return others;
  }
  SideFiles side_files() const override { return checkpoint_.side_files(); }

 private:
  RunCheckpoint checkpoint_;
  ModelDescription description_;
};

}  // namespace

void ModelSource::forget(Content, const ParameterIdentity&) const {}

std::string ModelSource::place_of(const ParameterIdentity& identity) const {
  return tensor_name(Content::weight, identity);
}

bool is_weft_checkpoint(const std::filesystem::path& dir) {
  std::error_code error;  // what cannot be looked at is not there
  const std::optional<std::filesystem::path> folder = checkpoint_in(dir);
  return folder && std::filesystem::exists(*folder / manifest_name, error);
}

std::unique_ptr<ModelSource> open_hugging_face(const std::filesystem::path& dir) {
  return std::make_unique<HuggingFaceSource>(dir);
}

std::unique_ptr<ModelSource> open_weft(const std::filesystem::path& dir) { return std::make_unique<WeftSource>(dir); }

std::unique_ptr<ModelSource> open_model(const std::filesystem::path& dir) {
  return is_weft_checkpoint(dir) ? open_weft(dir) : open_hugging_face(dir);
}

bool has_weights(const std::filesystem::path& dir) { return is_weft_checkpoint(dir) || has_safetensors(dir); }

ModelConfig read_model_config(const std::filesystem::path& dir) {
  if (is_weft_checkpoint(dir)) return RunCheckpoint(*checkpoint_in(dir)).description().config;
  return (has_safetensors(dir) ? read_hugging_face(dir) : read_hugging_face_config(dir)).config;
}

std::optional<std::string> first_not_finite(const ModelSource& source) {
  std::vector<double> values;
  for (const ListedParameter& parameter : parameters_of(source.description().config)) {
    values.resize(static_cast<std::size_t>(parameter.shape.elements()));
    source.read(Content::weight, parameter.identity, parameter.shape, StoredType::f64,
                std::as_writable_bytes(std::span(values)));
    if (!std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); }))
      return source.place_of(parameter.identity);
    source.forget(Content::weight, parameter.identity);
  }
  return std::nullopt;
}

}  // namespace weft
