#include "weft/device/cuda/stream.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/device/cuda/check.h"

namespace weft::cuda {

CudaStream::CudaStream(Blas& blas, FusedAttention* attention, const Gpu& gpu, Kind kind)
    : kind_(kind), blas_(blas), gpu_(gpu), processors_(gpu.processors), attention_(attention) {
  if (kind == Kind::measures) return;
  int last = 0, first = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&last, &first), "asking for the priorities of streams");
  check_cuda(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, kind == Kind::urgent ? first : last),
             "making a stream");
}

CudaStream::~CudaStream() {
  if (kind_ == Kind::measures) return;
  cudaStreamSynchronize(handle_);
  for (void* memory : outgrown_) cudaFree(memory);
  cudaFree(scratch_);
  cudaFree(workspace_);
  cudaStreamDestroy(handle_);
}

void CudaStream::synchronize() { check_cuda(cudaStreamSynchronize(handle_), "waiting for a stream"); }

void* CudaStream::allocate(std::size_t bytes) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(handle_, &capturing), "asking a stream whether it is being captured");
  WEFT_CHECK(capturing == cudaStreamCaptureStatusNone, "a stream's working memory grows by {} bytes during a capture",
             bytes);
  void* memory = nullptr;
  // In the stream's order: cudaMalloc may wait for the device, and kernels of other ranks there may wait for us.
  check_cuda(cudaMallocAsync(&memory, bytes, handle_), "allocating a stream's working memory");
  held_bytes_ += bytes;
  return memory;
}

void* CudaStream::workspace() {
  if (workspace_ == nullptr) workspace_ = allocate(workspace_bytes);
  return workspace_;
}

void CudaStream::reserve(const WorkingMemory& memory) {
  if (memory.products > 0) workspace();
  if (memory.scratch <= scratch_bytes_) return;
  if (scratch_ != nullptr) outgrown_.push_back(scratch_);
  scratch_ = allocate(memory.scratch);
  scratch_bytes_ = memory.scratch;
}

void* CudaStream::scratch(std::size_t bytes) {
  if (kind_ == Kind::measures) throw ScratchAsked{bytes};
  if (bytes > scratch_bytes_ || scratch_ == nullptr)
    reserve({rounded(std::max(bytes, 2 * scratch_bytes_)), 0});  // twice: so that all before it are less
  return scratch_;
}

}  // namespace weft::cuda
