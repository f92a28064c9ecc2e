#include "weft/device/cuda/stream.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/device/cuda/refuse.h"

namespace weft::cuda {

namespace {

constexpr std::size_t first_scratch = std::size_t{32} << 20;

}  // namespace

CudaStream::CudaStream(Blas& blas, FusedAttention* attention, int processors, bool urgent)
    : blas_(blas), all_processors_(processors), processors_(processors), attention_(attention) {
  int last = 0, first = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&last, &first), "asking for the priorities of streams");
  check_cuda(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, urgent ? first : last), "making a stream");
  check_cuda(cudaMalloc(&workspace_, workspace_bytes), "allocating a stream's workspace");
  check_cuda(cudaMalloc(&scratch_, first_scratch), "allocating a stream's scratch memory");
  scratch_bytes_ = first_scratch;
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(handle_);
  for (void* memory : outgrown_) cudaFree(memory);
  cudaFree(scratch_);
  cudaFree(workspace_);
  cudaStreamDestroy(handle_);
}

void CudaStream::synchronize() { check_cuda(cudaStreamSynchronize(handle_), "waiting for a stream"); }

void* CudaStream::scratch(std::size_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(handle_, &capturing), "asking a stream whether it is being captured");
  WEFT_CHECK(capturing == cudaStreamCaptureStatusNone, "scratch memory grows from {} to {} bytes during a capture",
             scratch_bytes_, bytes);
  const std::size_t wanted = std::max(bytes + bytes / 4, 2 * scratch_bytes_);  // so that all before it are less
  void* grown = nullptr;
  // In the stream's order: cudaMalloc may wait for the device, and kernels of other ranks there may wait for us.
  check_cuda(cudaMallocAsync(&grown, wanted, handle_), "allocating a stream's scratch memory");
  outgrown_.push_back(scratch_);
  scratch_ = grown;
  scratch_bytes_ = wanted;
  return scratch_;
}

}  // namespace weft::cuda
