// The tensors of a checkpoint, whatever its form: names, types, shapes, and the bytes of any box.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/shape.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/checkpoint/safetensors_directory.h"
#include "weft/checkpoint/stored_type.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"
#include "weft/model/boxes.h"
#include "weft/model/config.h"

namespace weft {

class HuggingFaceWeights;
class MegatronCheckpoint;

struct ViewedTensor {
  std::string name;
  StoredType type = StoredType::f32;
  Shape shape;
};
// Rounded up where elements do not fill whole bytes.
std::int64_t bytes_of(const ViewedTensor& tensor);

class TensorView {
 public:
  TensorView() = default;
  TensorView(const TensorView&) = delete;
  TensorView& operator=(const TensorView&) = delete;
  virtual ~TensorView() = default;

  const std::vector<ViewedTensor>& tensors() const { return tensors_; }  // by name
  // Writes the box, row-major, in bytes of the tensor's type, which has whole bytes for every element. UserError names file
  // and tensor.
  virtual void read(std::size_t tensor, const Box& box, std::byte* out) const = 0;

 protected:
  void sort();  // by name; before any other vector goes by their order

  std::vector<ViewedTensor> tensors_;
};

// Under the names that the form has: CONTENT/IDENTITY, those of the family, Megatron's keys. What they are made of must
// outlive them.
std::unique_ptr<TensorView> view_of(const RunCheckpoint& checkpoint);
std::unique_ptr<TensorView> view_of(const SafetensorsDirectory& files);
std::unique_ptr<TensorView> view_of(const TorchDistCheckpoint& checkpoint);
// The parameters of a Hugging Face folder as a checkpoint of Weft has them, "weight/IDENTITY"; other tensors are left out.
std::unique_ptr<TensorView> view_of_parameters(const HuggingFaceWeights& weights);
// The same of a checkpoint of Megatron that was opened as one of this model; moments too.
std::unique_ptr<TensorView> view_of_parameters(const MegatronCheckpoint& checkpoint, const ModelConfig& config);

}  // namespace weft
