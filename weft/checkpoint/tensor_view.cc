#include "weft/checkpoint/tensor_view.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/checkpoint/megatron/megatron_checkpoint.h"
#include "weft/checkpoint/parameter_list.h"

namespace weft {
namespace {

// One of ours that holds all numbers of a float type.
DType type_holding(StoredType type) {
  return type == StoredType::f64 ? DType::f64 : type == StoredType::bf16 ? DType::bf16 : DType::f32;
}

// A box read as numbers of `type_holding` and written in the tensor's own type: the same bits.
template <class Read>
void read_floats(const ViewedTensor& tensor, const ParameterIdentity& identity, const Box& box, std::byte* out,
                 const Read& read) {
  ParameterPart part;
  part.identity = identity;
  part.shape = tensor.shape;
  part.box = box;
  HostTensor values(type_holding(tensor.type), box.extent.elements());
  read(part, values);
  store(values.dtype, values.bytes.data(), tensor.type, out, values.elements());
}

// Of a tensor that lies in a mapped file whole.
void copy_box(std::span<const std::byte> tensor, StoredType type, const Shape& shape, const Box& box, std::byte* out) {
  const auto size = static_cast<std::size_t>(bits_of(type)) / 8;
  const BoxRuns runs(shape, box, {});
  for (std::int64_t r = 0; r < runs.size(); ++r) {
    const auto bytes = tensor.subspan(static_cast<std::size_t>(runs[r].logical) * size,
                                      static_cast<std::size_t>(runs[r].count) * size);
    if (bytes.empty()) continue;
    std::memcpy(out + static_cast<std::size_t>(runs[r].tensor) * size, bytes.data(), bytes.size());
    forget_pages(bytes);
  }
}

class RunTensors : public TensorView {
 public:
  explicit RunTensors(const RunCheckpoint& checkpoint) : checkpoint_(checkpoint) {
    for (const auto& [name, tensor] : checkpoint.manifest().tensors)
      tensors_.push_back({name, tensor.type, tensor.shape});
    sort();
  }

  void read(std::size_t tensor, const Box& box, std::byte* out) const override {
    const ViewedTensor& wanted = tensors_[tensor];
    if (!is_float(wanted.type))  // not a parameter: one file holds it whole
      return copy_box(checkpoint_.bytes_of(wanted.name), wanted.type, wanted.shape, box, out);
    read_floats(wanted, {}, box, out,
                [&](const ParameterPart& part, HostTensor& values) { checkpoint_.read(wanted.name, part, values); });
  }

 private:
  const RunCheckpoint& checkpoint_;
};

class FolderTensors : public TensorView {
 public:
  explicit FolderTensors(const SafetensorsDirectory& files) : files_(files) {
    for (const TensorEntry* entry : files.entries()) tensors_.push_back({entry->name, entry->type, entry->shape});
    sort();
  }

  void read(std::size_t tensor, const Box& box, std::byte* out) const override {
    const TensorEntry& entry = *files_.find(tensors_[tensor].name);
    copy_box(entry.bytes, entry.type, entry.shape, box, out);
  }

 private:
  const SafetensorsDirectory& files_;
};

class TorchDistTensors : public TensorView {
 public:
  explicit TorchDistTensors(const TorchDistCheckpoint& checkpoint) : checkpoint_(checkpoint) {
    for (const ShardedTensor& tensor : checkpoint.tensors())
      tensors_.push_back({tensor.name, tensor.type, tensor.shape});
    sort();
  }

  void read(std::size_t tensor, const Box& box, std::byte* out) const override {
    const ShardedTensor& from = checkpoint_.at(tensors_[tensor].name);
    const std::size_t size = static_cast<std::size_t>(bits_of(from.type)) / 8;
    checkpoint_.read(from, box, {out, static_cast<std::size_t>(box.extent.elements()) * size});
  }

 private:
  const TorchDistCheckpoint& checkpoint_;
};

class HuggingFaceParameters : public TensorView {
 public:
  explicit HuggingFaceParameters(const HuggingFaceWeights& weights) : weights_(weights) {
    for (const DiskTensor& tensor : weights.model().tensors) {
      if (tensor.copy) continue;
      for (const DiskPart& part : tensor.parts) {
        const std::string name = "weight/" + to_text(part.identity);
        if (identities_.emplace(name, part.identity).second) tensors_.push_back({name, tensor.type, part.parameter});
      }
    }
    sort();
  }

  void read(std::size_t tensor, const Box& box, std::byte* out) const override {
    const ViewedTensor& wanted = tensors_[tensor];
    read_floats(wanted, identities_.at(wanted.name), box, out,
                [&](const ParameterPart& part, HostTensor& values) { weights_.read(part, values); });
  }

 private:
  const HuggingFaceWeights& weights_;
  std::map<std::string, ParameterIdentity> identities_;
};

class MegatronParameters : public TensorView {
 public:
  MegatronParameters(const MegatronCheckpoint& checkpoint, const ModelConfig& config) : checkpoint_(checkpoint) {
    for (const ListedParameter& parameter : parameters_of(config))
      for (const Content content : {Content::weight, Content::first_moment, Content::second_moment}) {
        const std::optional<StoredType> type = checkpoint.type_of(content, parameter.identity);
        if (!type) continue;
        tensors_.push_back({tensor_name(content, parameter.identity), *type, parameter.shape});
        places_[tensors_.back().name] = {content, parameter.identity};
      }
    sort();
  }

  void read(std::size_t tensor, const Box& box, std::byte* out) const override {
    const ViewedTensor& wanted = tensors_[tensor];
    const Place& place = places_.at(wanted.name);
    read_floats(wanted, place.identity, box, out,
                [&](const ParameterPart& part, HostTensor& values) { checkpoint_.read(place.content, part, values); });
  }

 private:
  struct Place {
    Content content = Content::weight;
    ParameterIdentity identity;
  };
  const MegatronCheckpoint& checkpoint_;
  std::map<std::string, Place> places_;
};

}  // namespace

std::int64_t bytes_of(const ViewedTensor& tensor) { return (tensor.shape.elements() * bits_of(tensor.type) + 7) / 8; }

void TensorView::sort() {
  std::sort(tensors_.begin(), tensors_.end(),
            [](const ViewedTensor& a, const ViewedTensor& b) { return a.name < b.name; });
}

std::unique_ptr<TensorView> view_of(const RunCheckpoint& checkpoint) {
  return std::make_unique<RunTensors>(checkpoint);
}
std::unique_ptr<TensorView> view_of(const SafetensorsDirectory& files) {
  return std::make_unique<FolderTensors>(files);
}
std::unique_ptr<TensorView> view_of(const TorchDistCheckpoint& checkpoint) {
  return std::make_unique<TorchDistTensors>(checkpoint);
}
std::unique_ptr<TensorView> view_of_parameters(const HuggingFaceWeights& weights) {
  return std::make_unique<HuggingFaceParameters>(weights);
}
std::unique_ptr<TensorView> view_of_parameters(const MegatronCheckpoint& checkpoint, const ModelConfig& config) {
  return std::make_unique<MegatronParameters>(checkpoint, config);
}

}  // namespace weft
