// A CUDA stream with the memory that its operations work in. Operations of one stream run one after another, so they
// share it; nothing in it outlives an operation.
#pragma once

#include <cstddef>
#include <vector>

#include <cuda_runtime.h>

#include "weft/device/device.h"

namespace weft::cuda {

class Blas;
class FusedAttention;

// Thrown by a stream that runs nothing (working_memory.h), where an operation would begin to run.
struct ScratchAsked {
  std::size_t bytes = 0;
};

// What streams know of their GPU.
struct Gpu {
  int processors = 0;  // multiprocessors
  // What runs was compiled for Hopper or newer: it has clusters, and waits for the kernel before it. A Hopper GPU may also
  // run code for older ones, compiled by its driver.
  bool hopper_code = false;
};

class CudaStream : public Stream {
 public:
  // urgent: blocks of its kernels go before those of other streams. measures: it runs nothing (working_memory.h).
  enum class Kind { usual, urgent, measures };
  CudaStream(Blas& blas, FusedAttention* attention, const Gpu& gpu, Kind kind);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void synchronize() override;
  void use_processors(int count) override { processors_ = count; }
  void* native() const override { return handle_; }
  cudaStream_t handle() const {
    if (kind_ == Kind::measures) throw ScratchAsked{};
    return handle_;
  }
  int processors() const { return processors_; }  // how many the kernels of an operation may fill
  bool shares_processors() const { return processors_ < gpu_.processors; }
  bool hopper_code() const { return gpu_.hopper_code; }
  Blas& blas() const { return blas_; }
  FusedAttention* attention() const { return attention_; }  // null: none

  void reserve(const WorkingMemory& memory) override;
  std::size_t held_bytes() const override { return held_bytes_; }

  // At least `bytes`, aligned to 256, for the operation that asks, once per operation and before it launches anything. It
  // grows where less was reserved, when an operation of a new size is queued for the first time (never while a step is
  // being captured); what it had before stays, since graphs captured earlier use it.
  void* scratch(std::size_t bytes);
  template <class T>
  T* scratch_of(std::int64_t count) {
    return static_cast<T*>(scratch(static_cast<std::size_t>(count) * sizeof(T)));
  }
  // cuBLASLt's.
  static constexpr std::size_t workspace_bytes = std::size_t{64} << 20;
  void* workspace();
  // What the driver really takes for these bytes.
  static constexpr std::size_t rounded(std::size_t bytes) { return (bytes + (2 << 20) - 1) >> 21 << 21; }

 private:
  void* allocate(std::size_t bytes);

  const Kind kind_;
  Blas& blas_;
  const Gpu gpu_;
  int processors_;
  cudaStream_t handle_ = nullptr;
  void* workspace_ = nullptr;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0, held_bytes_ = 0;
  FusedAttention* attention_;
  std::vector<void*> outgrown_;  // scratch that captured graphs may still use
};

inline CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }

}  // namespace weft::cuda
