// What a rank keeps of its parameters, as the host sees it: tensors in bytes of their type, parts by identity and box.
#pragma once

#include <functional>
#include <span>

#include "weft/execute/storage.h"
#include "weft/model/content.h"

namespace weft {

class ModelParameters {
 public:
  // All must outlive it. Its calls wait for the stream.
  ModelParameters(Device& device, const Module& module, const ModelStorage& storage, Stream& stream);

  const Module& module() const { return module_; }
  bool has(TensorId id, Content content) const;
  DType type_of(TensorId id, Content content) const;    // on the host: of weights f32 where the device has bf16
  HostTensor read(TensorId id, Content content) const;  // all of it
  // Elements [first, first + count) of the part's box, row-major, in type_of: in `buffer`, which has room for them, or where
  // they lie.
  std::span<const std::byte> read(TensorId id, Content content, const ParameterPart& part, std::int64_t first,
                                  std::int64_t count, std::span<std::byte> buffer) const;
  // Sets such a range to `values`, in type_of.
  void write(TensorId id, Content content, const ParameterPart& part, std::int64_t first, std::int64_t count,
             std::span<const std::byte> values) const;

  // The host never holds a whole tensor: parts come in pieces of some MiB. A piece is a part of its own, a smaller box of the
  // same parameter, with a tensor that holds nothing else.
  //
  // Writes all of the piece's elements to their places in the tensor, which holds anything before.
  using Source = std::function<void(const ParameterPart& piece, HostTensor& tensor)>;
  void write(TensorId id, Content content, const ParameterPart& part, const Source& source) const;
  // Sets all weights. Moments become zero.
  void set_weights(const Source& source) const;
  using Sink = std::function<void(const ParameterPart& piece, const HostTensor& tensor)>;
  // Every part of the tensor, or of every tensor that has such content, one after another.
  void each(TensorId id, Content content, const Sink& sink) const;
  void each(Content content, const Sink& sink) const;

 private:
  const Tensor* tensor_of(TensorId id, Content content) const;  // null: there is none
  const Tensor* remainder_of(TensorId id) const;
  void clear(const Tensor& tensor) const;

  Device& device_;
  const Module& module_;
  const ModelStorage& storage_;
  Stream& stream_;
};

}  // namespace weft
