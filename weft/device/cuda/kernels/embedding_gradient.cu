// embedding_gradient: the first occurrence of a token finds the others and adds up their rows, in their order. Looking
// for them costs T^2 comparisons in all, which is little next to the rows for any micro-batch that fits a GPU.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/elementwise.h"
#include "weft/device/operations/loss.h"

namespace weft::cuda {

namespace {

constexpr int threads = 256;

// Whether a token like that of `t` comes before it. For all threads of the block.
__device__ bool occurs_before(const std::int32_t* tokens, std::int64_t t, std::int32_t token) {
  bool found = false;
  for (std::int64_t i = threadIdx.x; i < t && !found; i += threads) found = tokens[i] == token;
  return __syncthreads_or(found) != 0;
}

// Where a token like that of `begin` is in [begin, begin + threads), in order: their number. For all threads.
__device__ int find(const std::int32_t* tokens, std::int64_t begin, std::int64_t end, std::int32_t token, int* list) {
  __shared__ int counts[threads / 32];
  const std::int64_t i = begin + threadIdx.x;
  const bool same = i < end && tokens[i] == token;
  const unsigned lanes = __ballot_sync(all_lanes, same);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) counts[warp] = __popc(lanes);
  __syncthreads();
  int before = 0, total = 0;
  for (int w = 0; w < threads / 32; ++w) {
    if (w < warp) before += counts[w];
    total += counts[w];
  }
  if (same) list[before + __popc(lanes & ((1u << lane) - 1))] = threadIdx.x;
  __syncthreads();
  return total;
}

template <int V, class T, class G>
__global__ void add_tokens(const std::int32_t* tokens, std::int64_t count, Rows<const T> dy, Rows<G> dweight,
                           std::int64_t columns, std::int64_t vocabulary, bool add) {
  __shared__ int list[threads];
  const std::int64_t t = blockIdx.x, c = (blockIdx.y * static_cast<std::int64_t>(threads) + threadIdx.x) * V;
  const std::int32_t token = tokens[t];
  if (token < 0 || token >= vocabulary) return;
  if (occurs_before(tokens, t, token)) return;
  float sum[V] = {}, v[V];
  for (std::int64_t begin = t; begin < count; begin += threads) {
    const int found = find(tokens, begin, count, token, list);
    if (c < columns) {
#pragma unroll 4
      for (int i = 0; i < found; ++i) {
        load<V>(dy[begin + list[i]] + c, v);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[j] += v[j];
      }
    }
    __syncthreads();
  }
  if (c >= columns) return;
  if (add) {
    load<V>(dweight[token] + c, v);
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] += v[j];
  }
  store<V>(dweight[token] + c, sum);
}

}  // namespace

void embedding_gradient(Stream& stream, const EmbeddingGradient& op) {
  constexpr const char* name = "embedding_gradient";
  check_arguments(name, op);
  const std::int64_t tokens = op.tokens.shape.elements(), columns = columns_of(op.dweight);
  if (op.store == Store::write) fill(stream, {op.dweight, 0});
  if (tokens == 0 || columns == 0) return;
  with_storage_and(name, op.dy.dtype, op.dweight.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using G = typename decltype(u)::type;
    with_pack(columns, {&op.dy, &op.dweight}, [&](auto v) {
      constexpr int V = decltype(v)::value;
      const dim3 grid(static_cast<unsigned>(tokens), static_cast<unsigned>(divide_up(columns, threads * V)));
      add_tokens<V, T, G><<<grid, threads, 0, cuda_stream(stream).handle()>>>(
          op.tokens.as<std::int32_t>(), tokens, rows_of<const T>(op.dy), rows_of<G>(op.dweight), columns,
          op.dweight.rows(), op.store == Store::add);
      launched(name);
    });
  });
}

}  // namespace weft::cuda
