#include "weft/device/cuda/graph.h"

#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "weft/device/cuda/check.h"
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
    cudaGetLastError();  // lanes that have not come back make it fail
    OwnedGraph(graph).reset();
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "capturing a step");
  return OwnedGraph(graph);
}

// A GPU cannot copy from memory of the host that is not pinned. What a library recorded so (seen in steps with cuDNN's
// attention over 96 tokens: twice 8 bytes a call) moves, as it is now, into pinned memory, which the graph keeps.
PinnedBytes pin_sources(cudaGraph_t graph) {
  constexpr const char* what = "looking at the copies of a CUDA graph";
  std::size_t count = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &count), what);
  std::vector<cudaGraphNode_t> nodes(count);
  check_cuda(cudaGraphGetNodes(graph, nodes.data(), &count), what);
  struct Copy {
    cudaGraphNode_t node;
    cudaMemcpy3DParms params;
    std::size_t at;
  };
  std::vector<Copy> copies;
  std::size_t bytes = 0;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type = {};
    check_cuda(cudaGraphNodeGetType(node, &type), what);
    if (type != cudaGraphNodeTypeMemcpy) continue;
    cudaMemcpy3DParms params = {};
    check_cuda(cudaGraphMemcpyNodeGetParams(node, &params), what);
    const bool line = params.srcArray == nullptr && params.extent.height <= 1 && params.extent.depth <= 1;
    if (!line || params.kind != cudaMemcpyHostToDevice) continue;
    cudaPointerAttributes source = {};
    check_cuda(cudaPointerGetAttributes(&source, params.srcPtr.ptr), what);
    if (source.type != cudaMemoryTypeUnregistered) continue;
    copies.push_back({node, params, bytes});
    bytes += (params.extent.width + 15) / 16 * 16;
  }
  if (copies.empty()) return nullptr;
  void* memory = nullptr;
  check_cuda(cudaMallocHost(&memory, bytes), what);
  PinnedBytes sources(static_cast<std::byte*>(memory));
  for (Copy& copy : copies) {
    std::byte* to = sources.get() + copy.at;
    std::memcpy(to, static_cast<const std::byte*>(copy.params.srcPtr.ptr) + copy.params.srcPos.x,
                copy.params.extent.width);
    copy.params.srcPtr.ptr = to;
    copy.params.srcPos.x = 0;
    check_cuda(cudaGraphMemcpyNodeSetParams(copy.node, &copy.params), what);
  }
  return sources;
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
  sources_ = pin_sources(recorded.get());
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
