#include "weft/device/cuda/graph.h"

#include <memory>
#include <type_traits>

#include "weft/device/cuda/refuse.h"
#include "weft/device/cuda/stream.h"

namespace weft::cuda {

namespace {

struct Destroy {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using OwnedGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, Destroy>;

cudaError_t add_node(cudaGraph_t graph, cudaGraphNodeParams& params) {
  cudaGraphNode_t node = nullptr;
#if CUDART_VERSION >= 13000  // one more argument: of what kind its edges are
  return cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &params);
#else
  return cudaGraphAddNode(&node, graph, nullptr, 0, &params);
#endif
}

OwnedGraph record(cudaStream_t stream, const std::function<void()>& queue) {
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning to capture a step");
  cudaGraph_t graph = nullptr;
  try {
    queue();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    OwnedGraph(graph).reset();
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "capturing a step");
  return OwnedGraph(graph);
}

// A graph of one node that runs `body` whenever it is launched: the condition begins as true, and nothing changes it.
cudaError_t wrap(cudaGraph_t body, OwnedGraph& wrapped) {
  cudaGraph_t graph = nullptr;
  if (const cudaError_t made = cudaGraphCreate(&graph, 0); made != cudaSuccess) return made;
  wrapped.reset(graph);
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.type = cudaGraphCondTypeIf;
  params.conditional.size = 1;
  cudaError_t done = cudaGraphConditionalHandleCreate(&params.conditional.handle, graph, 1, cudaGraphCondAssignDefault);
  if (done == cudaSuccess) done = add_node(graph, params);
  cudaGraphNode_t child = nullptr;
  if (done == cudaSuccess)
    done = cudaGraphAddChildGraphNode(&child, params.conditional.phGraph_out[0], nullptr, 0, body);
  return done;
}

}  // namespace

CudaGraph::CudaGraph(cudaStream_t stream, const std::function<void()>& queue) {
  const OwnedGraph recorded = record(stream, queue);
  OwnedGraph wrapped;
  cudaError_t done = wrap(recorded.get(), wrapped);
  if (done == cudaSuccess) done = cudaGraphInstantiate(&executable_, wrapped.get(), 0);
  if (done != cudaSuccess) {  // nodes of a kind that the GPU cannot start, or a driver without conditions
    cudaGetLastError();
    why_from_host_ = cudaGetErrorString(done);
    check_cuda(cudaGraphInstantiate(&executable_, recorded.get(), 0), "making a CUDA graph");
  }
  check_cuda(cudaGraphUpload(executable_, stream), "bringing a CUDA graph to the GPU");
}

void CudaGraph::launch(Stream& stream) {
  check_cuda(cudaGraphLaunch(executable_, cuda_stream(stream).handle()), "launching a CUDA graph");
}

}  // namespace weft::cuda
