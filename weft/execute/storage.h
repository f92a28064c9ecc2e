// Memory that outlives a step and that several plans share: weights, gradients, optimizer state.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "weft/device/device.h"
#include "weft/model/module.h"

namespace weft {

class ModelStorage {
 public:
  // Room for the parameters of `module`, and, if it has updates, for gradients and states.
  ModelStorage(Device& device, const Module& module);

  const Tensor& weight(TensorId id) const { return weights_[id.index()]; }
  const Tensor& gradient(TensorId id) const;
  const Tensor& state(ValueId value) const;  // of the module the storage was made for
  std::size_t bytes() const;
  void touch_memory() const { memory_->touch(); }

  // Copies to and from the host, in bytes of the tensor's type. Both wait for the stream.
  HostTensor read(Stream& stream, const Tensor& tensor) const;
  void write(Stream& stream, const Tensor& tensor, const HostTensor& values) const;

 private:
  Device& device_;
  std::unique_ptr<Memory> memory_;
  std::vector<Tensor> weights_, gradients_, states_;  // states_ by ValueId
};

// Host numbers to and from a dtype.
std::vector<std::byte> pack(std::span<const double> values, DType dtype);
std::vector<double> unpack(std::span<const std::byte> bytes, DType dtype);

}  // namespace weft
