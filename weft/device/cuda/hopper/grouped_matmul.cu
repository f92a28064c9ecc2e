// When grouped_matmul goes to the Hopper kernels, and with what.
#include "weft/device/cuda/hopper/kernels.h"
#include "weft/device/cuda/hopper/products.h"
#include "weft/device/cuda/kernels/grouped.h"
#include "weft/device/cuda/kernels/launch.cuh"

namespace weft::cuda {

namespace {

bool is_hopper() {
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "grouped_matmul");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "grouped_matmul");
  return major == 9;
}

bool aligned(const Tensor& t) {
  const auto elements = static_cast<std::int64_t>(16 / size_of(t.dtype));
  return t.stride % elements == 0 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

// Below this many rows per group, on average over the room for rows, weight gradients are short sums: the larger tiles read
// less, and there is less to hide their stores behind. (H200: even at 256 rows 5-10 % faster, at 1024 20 % slower.)
constexpr std::int64_t short_sum = 512;

using Product = void (*)(CudaStream&, const hopper::Products&);
Product product_of(const GroupedMatmul& op) {
  if (op.w.dtype == DType::bf16) return hopper::weight_gradient_narrow;
  if (op.store == Store::add) return hopper::weight_gradient_add;
  return op.x.rows() < short_sum * op.w.shape[0] ? hopper::weight_gradient_short : hopper::weight_gradient;
}

// Gradients of experts without rows: nothing is summed, zeros are written.
__global__ void clear_empty(const std::int32_t* counts, uint4* w, std::int64_t words, std::int64_t pitch) {
  if (counts[blockIdx.y] != 0) return;
  uint4* to = w + blockIdx.y * pitch;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < words;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
    to[i] = uint4{0, 0, 0, 0};
}

__global__ void write_lists(hopper::Products p, hopper::Lists lists) {
  const int g = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (g >= p.groups) return;
  const int count = p.counts[g];
  const std::int64_t offset = p.offsets[g];
  // CUTLASS takes no sum over nothing: such a group has no rows (zeros are written elsewhere).
  lists.sizes[g] = hopper::Sizes{count > 0 ? p.m : 0, p.n, count > 0 ? count : 64};
  lists.a[g] = p.a + offset * p.a_stride;
  lists.b[g] = p.b + offset * p.b_stride;
  lists.d[g] = static_cast<char*>(p.d) + g * p.d_group * p.d_bytes;
  lists.a_stride[g] = p.a_stride;
  lists.b_stride[g] = p.b_stride;
  lists.d_stride[g] = p.d_stride;
}

}  // namespace

void hopper::list_groups(CudaStream& stream, const Products& products, const Lists& lists) {
  write_lists<<<static_cast<unsigned>(divide_up(products.groups, 64)), 64, 0, stream.handle()>>>(products, lists);
  launched("grouped_matmul");
}

bool hopper_grouped_matmul(CudaStream& stream, const GroupedMatmul& op) {
  using Mode = GroupedMatmul::Mode;
  const std::int64_t n = op.w.shape[1], k = op.w.shape[2];
  const bool gradient = op.mode == Mode::weight_gradient;
  const Tensor& first = op.mode == Mode::forward ? op.x : op.y;
  const Tensor& second = gradient ? op.x : op.w;
  const Tensor& result = op.mode == Mode::forward ? op.y : op.mode == Mode::input_gradient ? op.x : op.w;
  if (first.dtype != DType::bf16 || second.dtype != DType::bf16 || op.bias.given()) return false;
  const bool narrow = result.dtype == DType::bf16;
  if (!narrow && !(gradient && result.dtype == DType::f32)) return false;
  if (n % 8 != 0 || k % 8 != 0 || !aligned(first) || !aligned(second) || !aligned(result) || !is_hopper()) return false;
  if (!gradient) {
    hopper::multiply_rows_of(stream, op);
    return true;
  }

  hopper::Products p = {};
  p.counts = op.groups.counts.as<std::int32_t>(), p.offsets = op.groups.offsets.as<std::int32_t>();
  p.groups = static_cast<int>(op.w.shape[0]), p.m = static_cast<int>(n), p.n = static_cast<int>(k);
  p.d_bytes = static_cast<int>(size_of(result.dtype));
  p.a = first.as<bf16>(), p.b = second.as<bf16>(), p.d = result.data;
  p.a_stride = first.stride, p.b_stride = second.stride, p.d_stride = k, p.d_group = op.w.stride;
  p.add = op.store == Store::add;
  product_of(op)(stream, p);  // first: it asks for scratch memory
  if (!p.add) {
    const auto words_of = [&](std::int64_t elements) { return elements * p.d_bytes / 16; };
    clear_empty<<<dim3(16, static_cast<unsigned>(p.groups)), 256, 0, stream.handle()>>>(
        p.counts, op.w.as<uint4>(), words_of(n * k), words_of(op.w.stride));
    launched("grouped_matmul");
  }
  return true;
}

}  // namespace weft::cuda
