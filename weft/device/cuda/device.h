// One NVIDIA GPU as a device.
#pragma once

#include <memory>
#include <string>

#include "weft/device/cuda/blas.h"
#include "weft/device/cuda/fused_attention.h"
#include "weft/device/cuda/stream.h"
#include "weft/device/device.h"
#include "weft/device/operations.h"

namespace weft::cuda {

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index);

  std::string name() const override { return name_; }
  std::string identity() const override { return identity_; }
  void bind_thread() override;
  const Operations& operations() const override { return operations_; }
  std::unique_ptr<Stream> make_stream(int threads) override;
  std::unique_ptr<Stream> make_urgent_stream() override;
  int processors() const override { return gpu_.processors; }
  std::unique_ptr<Event> make_event() override;
  std::unique_ptr<Memory> allocate(std::size_t bytes) override;
  std::size_t free_bytes() const override;
  std::unique_ptr<Memory> allocate_host(std::size_t bytes) override;
  WorkingMemory working_memory(const std::function<void(const Operations&, Stream&)>& queue) override;
  std::size_t library_bytes() const override;
  bool asynchronous() const override { return true; }
  bool computes_in(DType dtype) const override { return dtype != DType::f64; }
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& queue) override;
  void copy_in(Stream& stream, void* device, const void* host, std::size_t bytes) override;
  void copy_out(Stream& stream, void* host, const void* device, std::size_t bytes) override;
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override;
  void reduce(Stream& stream, Reduction reduction, DType dtype, void* out, std::span<const std::byte* const> inputs,
              std::int64_t count) override;

 private:
  void require_access(const void* memory) const;

  int index_;
  std::string name_, identity_;
  Gpu gpu_;
  std::unique_ptr<Blas> blas_;
  std::unique_ptr<FusedAttention> attention_;
  Operations operations_;
};

}  // namespace weft::cuda
