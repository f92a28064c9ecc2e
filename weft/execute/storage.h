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

  // Host copies, as double whatever the dtype. Values are converted exactly or rounded once.
  std::vector<double> read(Stream& stream, const Tensor& tensor) const;
  void write(Stream& stream, const Tensor& tensor, std::span<const double> values) const;
  // A parameter tensor: the weight, its lower bits if they are kept (split_float), and zero moments.
  void write_parameter(Stream& stream, TensorId id, std::span<const double> values) const;
  // What training works with: floats where a bf16 weight's lower bits are kept.
  std::vector<double> read_parameter(Stream& stream, TensorId id) const;

 private:
  void write_split(Stream& stream, const Tensor& weight, const Tensor& remainder, std::span<const double> values) const;
  std::vector<double> read_split(Stream& stream, const Tensor& weight, const Tensor& remainder) const;

  Device& device_;
  std::unique_ptr<Memory> memory_;
  std::vector<Tensor> weights_, gradients_, states_;  // states_ by ValueId
  std::vector<ParameterStates> state_ids_;
};

// Host numbers to and from a dtype.
std::vector<std::byte> pack(std::span<const double> values, DType dtype);
std::vector<double> unpack(std::span<const std::byte> bytes, DType dtype);

}  // namespace weft
