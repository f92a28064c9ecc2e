// From an operation to the kernels of rows.cuh.
#include "weft/device/cuda/hopper/kernels.h"
#include "weft/device/cuda/hopper/rows.cuh"
#include "weft/device/cuda/hopper/tensor_map.h"
#include "weft/device/cuda/kernels/launch_hopper.cuh"
#include "weft/device/operations/matmul.h"

namespace weft::cuda::hopper {

namespace {

// Pairs of blocks down a column of tiles share b, and read less than pairs across would.
using Forward = RowsWay<false, 2, 1, 1>;
using InputGradient = RowsWay<true, 2, 1, 1>;

template <class Way>
void run(CudaStream& stream, const RowProducts& p) {
  constexpr const char* name = "grouped_matmul";
  constexpr int bytes = static_cast<int>(sizeof(RowsShared));
  check_cuda(cudaFuncSetAttribute(multiply_rows<Way>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
  const int clusters = std::max(stream.processors() / Way::blocks, 1);
  launch_clusters(name, stream, Way::blocks, multiply_rows<Way>, static_cast<unsigned>(clusters * Way::blocks),
                  rows_threads, bytes, p);
}

}  // namespace

void multiply_rows_of(CudaStream& stream, const GroupedMatmul& op) {
  const std::int64_t rows = op.x.rows(), groups = op.w.shape[0], n = op.w.shape[1], k = op.w.shape[2];
  if (rows == 0) return;
  stream.handle();  // without running, it ends here: tensors without memory have no maps
  const bool forward = op.mode == GroupedMatmul::Mode::forward;
  const Tensor &a = forward ? op.x : op.y, &d = forward ? op.y : op.x;
  RowProducts p = {};
  p.columns = static_cast<int>(forward ? n : k), p.depth = static_cast<int>(forward ? k : n);
  p.a = tensor_map(a.data, {{p.depth, 1, 64}, {rows, a.stride, 64}});
  p.b = tensor_map(op.w.data, {{k, 1, 64}, {n, k, forward ? 128 : 64}, {groups, op.w.stride, 1}});
  p.d = d.as<bf16>(), p.d_stride = d.stride;
  p.counts = op.groups.counts.as<std::int32_t>(), p.offsets = op.groups.offsets.as<std::int32_t>();
  p.groups = static_cast<int>(groups);
  forward ? run<Forward>(stream, p) : run<InputGradient>(stream, p);
}

}  // namespace weft::cuda::hopper
