// Gradients of norms: of what a norm read, and of its weights, which are sums over rows. For parts that fit into registers
// both come of one reading.
//
// A kind of norm, F, has
//   Element, Weight             its types
//   in[inputs], out[outputs]    what it reads and writes for every element; weights; inverses [rows * parts of a row]
//   dot(v, w)                   an element's term of the sum over its part; v: the inputs there, w: its weight
//   gradients(v, w, inverse, along, to)     the outputs there; along = inverse^3 dot / width
//   weight_term(v, inverse)                 its term of the weight's gradient
#pragma once

#include "weft/device/cuda/kernels/column_sums.cuh"
#include "weft/device/cuda/kernels/ring.cuh"
#include "weft/device/cuda/kernels/row_parts.cuh"

namespace weft::cuda {

// The sum over the threads of a part, in a loop whose turns use of_warps[0] and of_warps[1] alternately.
template <int threads, int at_once>
__device__ float turn_sum(float x, float (&of_warps)[at_once][threads < 32 ? 1 : threads / 32]) {
#pragma unroll
  for (int step = (threads < 32 ? threads : 32) / 2; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  if constexpr (threads > 32) {
    float(&mine)[threads / 32] = of_warps[threadIdx.y];
    if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(static_cast<int>(threadIdx.y) + 1), "n"(threads) : "memory");
    x = mine[0];
#pragma unroll
    for (int i = 1; i < threads / 32; ++i) x += mine[i];
  }
  return x;
}

// What was computed from a value before is computed again from here on, and need not stay in registers.
template <class T>
__device__ inline void forget(T& value) {
  static_assert(sizeof(T) % 4 == 0);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i)
    asm volatile("" : "+r"(reinterpret_cast<unsigned*>(&value)[i]));
}

// The parts that a block of gradients_in_turns takes. Those with the same weights are numbered row by row; in a turn each
// block takes the next `at_once` of them. All blocks together go from the last rows to the first: what the product before
// wrote last may still be in the L2 cache.
struct PartsInTurns {
  unsigned parts, of_row;  // in all, in a row
  int turns;
  bool shared;  // weights; else blockIdx.y is the part of a row, and of_row is 1

  struct Place {
    std::int64_t row, column, inverse;
  };
  __device__ unsigned at(int turn, int at_once) const {
    return (static_cast<unsigned>(turns - 1 - turn) * gridDim.x + blockIdx.x) * static_cast<unsigned>(at_once) +
           threadIdx.y;
  }
  __device__ Place place(unsigned part, int width) const {
    if (!shared) return {part, blockIdx.y * static_cast<std::int64_t>(width), part * gridDim.y + blockIdx.y};
    const unsigned row = of_row == 1 ? part : part / of_row;
    return {row, (part - row * of_row) * static_cast<std::int64_t>(width), part};
  }
};

// What a block of gradients_in_turns has in shared memory: parts on their way, then the sums of the parts side by side.
template <class F, int threads, int count, int at_once>
struct TurnMemory {
  static constexpr int depth = F::inputs == 2 ? 4 : 3;  // about 100 KB on their way: what a multiprocessor needs
  using Words = Ring<Pack<typename F::Element, pack>, F::inputs * count, depth, threads * at_once>;
  union {
    Words ring;
    alignas(16) float totals[at_once][threads * count * pack];
  };
  float of_warps[2][at_once][threads < 32 ? 1 : threads / 32];
};

// sums [gridDim.x, weights]: of the parts of each block.
template <class F, int threads, int count, int at_once>
__global__ void __launch_bounds__(threads* at_once, 1)
    gradients_in_turns(F f, PartsInTurns walk, int width, float* sums, std::int64_t weights) {
  using Memory = TurnMemory<F, threads, count, at_once>;
  using Words = typename Memory::Words;
  extern __shared__ __align__(16) unsigned char memory[];
  Memory& shared = *reinterpret_cast<Memory*>(memory);
  let_next_start();
  const int thread = static_cast<int>(threadIdx.y) * threads + static_cast<int>(threadIdx.x);
  Held<typename F::Weight, threads, count> weight;
  Held<typename F::Element, threads, count> in[F::inputs];

  const auto ask = [&](int turn) {
    const unsigned part = walk.at(turn, at_once);
    if (turn < walk.turns && part < walk.parts) {
      const PartsInTurns::Place from = walk.place(part, width);
#pragma unroll
      for (int k = 0; k < F::inputs; ++k)
#pragma unroll
        for (int i = 0; i < count; ++i)
          if (weight.place(i) < width)
            shared.ring.ask(turn % Memory::depth, k * count + i, f.in[k][from.row] + from.column + weight.place(i),
                            thread);
    }
    Words::asked();
  };
#pragma unroll
  for (int turn = 0; turn < Memory::depth - 1; ++turn) ask(turn);
  const auto inverse_of = [&](int turn) {
    const unsigned part = walk.at(turn, at_once);
    return turn < walk.turns && part < walk.parts ? f.inverses[walk.place(part, width).inverse] : 0.0f;
  };
  float next_inverse = inverse_of(0);
  const std::int64_t first_weight = walk.shared ? 0 : blockIdx.y * static_cast<std::int64_t>(width);
  weight.read(f.weights + first_weight, width);
  const float share = 1.0f / static_cast<float>(width);
  float sum[count][pack] = {};
  const auto inputs_at = [&](int i, int e, float(&v)[F::inputs]) {
#pragma unroll
    for (int k = 0; k < F::inputs; ++k) v[k] = in[k](i, e);
  };
#pragma unroll 1
  for (int turn = 0; turn < walk.turns; ++turn) {
    const unsigned part = walk.at(turn, at_once);
    const bool inside = part < walk.parts;
    const float inverse = next_inverse;
    next_inverse = inverse_of(turn + 1);
    Words::template wait<Memory::depth - 2>();
    float dot = 0;
    if (inside) {
#pragma unroll
      for (int k = 0; k < F::inputs; ++k)
#pragma unroll
        for (int i = 0; i < count; ++i) in[k].packs[i] = shared.ring.get(turn % Memory::depth, k * count + i, thread);
    }
    ask(turn + Memory::depth - 1);
    if (inside)
      over_held<threads, count>(
          width,
          [&](int i, int e) {
            float v[F::inputs];
            inputs_at(i, e, v);
            dot += f.dot(v, weight(i, e));
          },
          [](int) {});
    dot = turn_sum<threads, at_once>(dot, shared.of_warps[turn % 2]);
    forget(in);
    forget(weight);
    if (!inside) continue;
    const PartsInTurns::Place to = walk.place(part, width);
    const float along = inverse * inverse * inverse * dot * share;
    float out[F::outputs][pack];
    over_held<threads, count>(
        width,
        [&](int i, int e) {
          float v[F::inputs], results[F::outputs];
          inputs_at(i, e, v);
          f.gradients(v, weight(i, e), inverse, along, results);
          sum[i][e] += f.weight_term(v, inverse);
#pragma unroll
          for (int k = 0; k < F::outputs; ++k) out[k][e] = results[k];
        },
        [&](int i) {
#pragma unroll
          for (int k = 0; k < F::outputs; ++k) store<pack>(f.out[k][to.row] + to.column + weight.place(i), out[k]);
        });
  }
  Words::template wait<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < count; ++i) store<pack>(&shared.totals[threadIdx.y][weight.place(i)], sum[i]);
  __syncthreads();
  for (int c = thread; c < width; c += threads * at_once) {
    float total = shared.totals[0][c];
#pragma unroll
    for (int y = 1; y < at_once; ++y) total += shared.totals[y][c];
    sums[blockIdx.x * weights + first_weight + c] = total;
  }
}

// The outputs alone, for parts of any width, which are read twice.
template <class F, int threads, int V>
__global__ void gradients_of_parts(F f, Parts parts) {
  const std::int64_t index = part_index();
  if (index >= parts.rows * parts.count) return;
  const std::int64_t r = index / parts.count, part = index % parts.count, offset = part * parts.width;
  const typename F::Weight* weights = f.weights + part * parts.weight_step;
  const float inverse = f.inverses[index];
  float w[V], in[F::inputs][V], v[F::inputs];
  const auto read = [&](std::int64_t j) {
    load<V>(weights + j, w);
#pragma unroll
    for (int k = 0; k < F::inputs; ++k) load<V>(f.in[k][r] + offset + j, in[k]);
  };
  const auto element = [&](int i) {
#pragma unroll
    for (int k = 0; k < F::inputs; ++k) v[k] = in[k][i];
  };
  float dot = 0;
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    read(j);
#pragma unroll
    for (int i = 0; i < V; ++i) element(i), dot += f.dot(v, w[i]);
  }
  dot = part_sum<threads>(dot);
  const float along = inverse * inverse * inverse * dot / static_cast<float>(parts.width);
  for (std::int64_t j = threadIdx.x * V; j < parts.width; j += threads * V) {
    read(j);
    float out[F::outputs][V], results[F::outputs];
#pragma unroll
    for (int i = 0; i < V; ++i) {
      element(i), f.gradients(v, w[i], inverse, along, results);
#pragma unroll
      for (int k = 0; k < F::outputs; ++k) out[k][i] = results[k];
    }
#pragma unroll
    for (int k = 0; k < F::outputs; ++k) store<V>(f.out[k][r] + offset + j, out[k]);
  }
}

// For sums of columns. Where the parts share their weights, a part is a row of the sum.
template <class F>
struct WeightTerms {
  F f;
  unsigned parts, width;
  bool shared;
  __device__ float operator()(std::int64_t r, std::int64_t c) const {
    const std::int64_t row = shared ? static_cast<unsigned>(r) / parts : r;
    const std::int64_t part = shared ? r - row * parts : static_cast<unsigned>(c) / width;
    const std::int64_t at = shared ? part * width + c : c;
    float v[F::inputs];
#pragma unroll
    for (int k = 0; k < F::inputs; ++k) v[k] = widen(f.in[k][row][at]);
    return f.weight_term(v, f.inverses[row * parts + part]);
  }
};

// One block per multiprocessor of an H200, less four: twice as many are not faster, and leave more sums to add up. The
// number is the same on any GPU, since it decides the order of sums.
constexpr int threads_in_turns = 512, packs_in_turns = 2;
constexpr std::int64_t most_turning_blocks = 128;

template <int threads, class Y, class F>
void queue_in_turns(const char* name, CudaStream& stream, const F& f, const Parts& parts, Y* dweight, Store store) {
  constexpr int at_once = threads_in_turns / threads, count = packs_in_turns;
  const bool shared = parts.weight_step == 0;
  const std::int64_t many = parts.rows * (shared ? parts.count : 1), columns = shared ? 1 : parts.count;
  const std::int64_t most_chunks = std::max<std::int64_t>(most_turning_blocks / columns, 1);
  const std::int64_t turns = divide_up(many, most_chunks * at_once), chunks = divide_up(many, turns * at_once);
  const std::int64_t weights = parts.width * columns;
  const PartsInTurns walk{static_cast<unsigned>(many), static_cast<unsigned>(shared ? parts.count : 1),
                          static_cast<int>(turns), shared};
  constexpr int shared_bytes = sizeof(TurnMemory<F, threads, count, at_once>);
  const auto kernel = gradients_in_turns<F, threads, count, at_once>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), name);
  sum_by_chunks(name, stream, chunks, weights, dweight, store, [&](float* sums) {
    kernel<<<dim3(static_cast<unsigned>(chunks), static_cast<unsigned>(columns)), dim3(threads, at_once), shared_bytes,
             stream.handle()>>>(f, walk, static_cast<int>(parts.width), sums, weights);
  });
}

// packed: everything f reads and writes of a part can be read eight elements at a time. dweight (+)= the sums.
template <class Y, class F>
void queue_gradients(const char* name, CudaStream& stream, const F& f, const Parts& parts, bool packed,
                     const Tensor& dweight, Store store) {
  const bool shared = parts.weight_step == 0;
  require(parts.rows * parts.count < std::int64_t{1} << 31 && (shared || parts.count < 65536), name, "too many parts");
  if constexpr (std::is_same_v<typename F::Element, bf16>) {
    const auto by = [&](auto threads) {
      queue_in_turns<decltype(threads)::value>(name, stream, f, parts, dweight.as<Y>(), store);
    };
    if (packed && parts.rows > 0 && parts.width <= threads_in_turns * packs_in_turns * pack) {
      if (parts.width <= 128) return by(std::integral_constant<int, 8>{});
      if (parts.width <= 256) return by(std::integral_constant<int, 16>{});
      if (parts.width <= 512) return by(std::integral_constant<int, 32>{});
      if (parts.width <= 1024) return by(std::integral_constant<int, 64>{});
      if (parts.width <= 2048) return by(std::integral_constant<int, 128>{});
      if (parts.width <= 4096) return by(std::integral_constant<int, 256>{});
      return by(std::integral_constant<int, 512>{});
    }
  }
  // The sums first: outputs may take the place of inputs.
  const WeightTerms<F> terms{f, static_cast<unsigned>(parts.count), static_cast<unsigned>(parts.width), shared};
  sum_columns(name, stream, terms, parts.rows * (shared ? parts.count : 1), dweight.shape.elements(), nullptr,
              dweight.as<Y>(), store);
  if (parts.rows == 0) return;
  const auto by = [&](auto v) {
    with_threads(parts, [&](auto threads) {
      constexpr int n = decltype(threads)::value;
      const Launch l = launch_of<n>(parts);
      gradients_of_parts<F, n, decltype(v)::value><<<l.grid, l.block, 0, stream.handle()>>>(f, parts);
      launched(name);
    });
  };
  packed ? by(std::integral_constant<int, pack>{}) : by(std::integral_constant<int, 1>{});
}

}  // namespace weft::cuda
