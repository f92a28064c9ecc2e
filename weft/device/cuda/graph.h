// A recorded step as a CUDA graph that the GPU unrolls itself.
//
// The host's part of launching a graph as it was recorded grows with its fills, by about 2 us each (kernels and copies
// cost next to nothing), and cuBLASLt puts a fill before most products. So the recorded graph becomes the body of a
// conditional node whose condition is always true: such a body is kept on the GPU, which starts its nodes (fills as
// kernels too), and the host launches a graph of one node.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <cuda_runtime.h>

#include "weft/device/device.h"

namespace weft::cuda {

struct FreePinned {
  void operator()(std::byte* memory) const { cudaFreeHost(memory); }
};
using PinnedBytes = std::unique_ptr<std::byte, FreePinned>;

class CudaGraph : public Graph {
 public:
  // Records what `queue` puts on `stream`, and on streams that wait for it and that it waits for in the end.
  CudaGraph(cudaStream_t stream, const std::function<void()>& queue);
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void launch(Stream& stream) override;
  std::string why_from_host() const override { return why_from_host_; }

 private:
  PinnedBytes sources_;  // of copies that were recorded from other memory of the host
  cudaGraphExec_t executable_ = nullptr;
  std::string why_from_host_;
};

}  // namespace weft::cuda
