// count_experts, drop_choices, balance_losses, update_expert_bias.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/balance.h"
#include "weft/device/operations/optimizer.h"

namespace weft::cuda {

namespace {

constexpr int threads = 512, warps = threads / 32;

// Adds 1 to count[e] for each of the k largest of scores[0 .. experts); of equal ones the lower index. taken: one bit
// per expert. By a warp.
__device__ void count_best(const float* scores, int experts, int k, unsigned* taken, int* count, int lane) {
  for (int i = lane; i < (experts + 31) / 32; i += 32) taken[i] = 0;
  __syncwarp();
  for (int place = 0; place < k; ++place) {
    float best = 0;
    int at = -1;
    for (int e = lane; e < experts; e += 32)
      if ((taken[e / 32] >> e % 32 & 1) == 0 && (at < 0 || scores[e] > best)) best = scores[e], at = e;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(all_lanes, best, step);
      const int index = __shfl_xor_sync(all_lanes, at, step);
      if (index >= 0 && (at < 0 || other > best || (other == best && index < at))) best = other, at = index;
    }
    __syncwarp();
    if (lane == 0 && at >= 0) {
      taken[at / 32] |= 1u << at % 32;
      atomicAdd(&count[at], 1);
    }
    __syncwarp();
  }
}

// A block for each sequence. Whole numbers: the order of additions does not matter.
template <class Count>
__global__ void count_kernel(const std::int32_t* indices, Rows<const float> scores, Count* counts, const Count* before,
                             std::int64_t length, int experts, int k, bool add) {
  extern __shared__ int count[];
  for (int e = threadIdx.x; e < experts; e += threads) count[e] = 0;
  __syncthreads();
  const std::int64_t first = blockIdx.x * length;
  if (indices != nullptr) {
    for (std::int64_t i = threadIdx.x; i < length * k; i += threads) {
      const int e = indices[first * k + i];
      if (e >= 0 && e < experts) atomicAdd(&count[e], 1);
    }
  } else {
    const int warp = threadIdx.x / 32, words = (experts + 31) / 32;
    auto* taken = reinterpret_cast<unsigned*>(count + experts) + warp * words;
    for (std::int64_t t = warp; t < length; t += warps)
      count_best(scores[first + t], experts, k, taken, count, threadIdx.x % 32);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += threads) {
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * experts + e;
    counts[at] =
        (add ? counts[at] : Count{0}) + (before != nullptr ? before[at] : Count{0}) + static_cast<Count>(count[e]);
  }
}

// A slot stays if fewer than `capacity` slots of its expert come before it. Every slot looks at all others: no sort.
__global__ void drop_kernel(const std::int32_t* indices, const float* weights, std::int32_t* kept, int slots,
                            int capacity, bool by_weight) {
  __shared__ int experts[threads];
  __shared__ float values[threads];
  const int slot = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  const int expert = slot < slots ? indices[slot] : -1;
  const float weight = slot < slots ? weights[slot] : 0.0f;
  int before = 0;
  for (int tile = 0; tile < slots; tile += threads) {
    const int other = tile + static_cast<int>(threadIdx.x);
    __syncthreads();
    experts[threadIdx.x] = other < slots ? indices[other] : -2;
    values[threadIdx.x] = other < slots ? weights[other] : 0.0f;
    __syncthreads();
    for (int i = 0; i < threads; ++i) {
      const bool earlier = tile + i < slot;
      const bool first = by_weight ? values[i] > weight || (values[i] == weight && earlier) : earlier;
      before += experts[i] == expert && first ? 1 : 0;
    }
  }
  if (slot < slots) kept[slot] = expert >= 0 && before < capacity ? expert : -1;
}

// pressure [sequences, E] = E n / sum of n. A block for each sequence.
__global__ void pressure_kernel(const double* counts, float* pressure, int experts) {
  const double* n = counts + static_cast<std::int64_t>(blockIdx.x) * experts;
  double sum = 0;
  for (int e = threadIdx.x; e < experts; e += threads) sum += n[e];
  sum = block_sum<threads>(sum);
  for (int e = threadIdx.x; e < experts; e += threads)
    pressure[static_cast<std::int64_t>(blockIdx.x) * experts + e] =
        static_cast<float>(sum > 0 ? static_cast<double>(experts) * n[e] / sum : 0.0);
}

struct Losses {
  Rows<const float> scores, logits;
  Rows<float> dlogits;
  const float* pressure;  // null: no balance loss
  const double* scale;
  double *balance, *z;  // one per token; z null: no z loss
  std::int64_t tokens, length;
  int experts;
  bool softmax;
  double balance_coefficient, z_coefficient;
};

// A warp for each token.
__global__ void loss_kernel(Losses x) {
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(warps) + threadIdx.x / 32;
  if (t >= x.tokens) return;
  const int lane = threadIdx.x % 32;
  const double per_token = *x.scale / static_cast<double>(x.tokens);
  float* dlogits = x.dlogits[t];
  if (x.pressure != nullptr) {
    const float *scores = x.scores[t], *g = x.pressure + t / x.length * x.experts;
    const auto scale = static_cast<float>(per_token * x.balance_coefficient);
    float sum = 0, dot = 0;
    for (int e = lane; e < x.experts; e += 32) sum += scores[e], dot += scores[e] * g[e];
    sum = warp_sum(sum);
    dot = warp_sum(dot);
    const float inverse = 1.0f / (sum + 1e-20f), mean = x.softmax ? dot : dot * inverse;
    for (int e = lane; e < x.experts; e += 32)
      dlogits[e] += x.softmax ? scale * scores[e] * (g[e] - mean)
                              : scale * (g[e] - mean) * inverse * scores[e] * (1.0f - scores[e]);
    if (lane == 0) x.balance[t] = static_cast<double>(mean);
  }
  if (x.z != nullptr) {
    const float* logits = x.logits[t];
    const auto scale = static_cast<float>(per_token * x.z_coefficient);
    float top = -INFINITY, sum = 0;
    for (int e = lane; e < x.experts; e += 32) top = fmaxf(top, logits[e]);
    top = warp_max(top);
    for (int e = lane; e < x.experts; e += 32) sum += expf(logits[e] - top);
    sum = warp_sum(sum);
    const float z = top + logf(sum);
    for (int e = lane; e < x.experts; e += 32) dlogits[e] += scale * 2 * z * expf(logits[e] - top) / sum;
    if (lane == 0) x.z[t] = static_cast<double>(z * z);
  }
}

__global__ void add_losses(const double* losses, std::int64_t tokens, const double* scale, double* out, bool add) {
  double sum = 0;
  for (std::int64_t t = threadIdx.x; t < tokens; t += threads) sum += losses[t];
  sum = block_sum<threads>(sum);
  if (threadIdx.x == 0) *out = (add ? *out : 0.0) + *scale / static_cast<double>(tokens) * sum;
}

template <class B>
__global__ void bias_kernel(B* bias, const double* counts, int experts, const double* values, double rate) {
  if (values[StepValues::finite] == 0) return;
  double sum = 0;
  for (int e = threadIdx.x; e < experts; e += threads) sum += counts[e];
  const double mean = block_sum<threads>(sum) / experts;
  for (int e = threadIdx.x; e < experts; e += threads)
    bias[e] += static_cast<B>(rate) * static_cast<B>((mean > counts[e]) - (mean < counts[e]));
}

// body(T) for f32 and f64.
template <class Body>
void with_count(const char* name, DType dtype, const Body& body) {
  require(dtype == DType::f32 || dtype == DType::f64, name, "needs f32 or f64");
  dtype == DType::f32 ? body(Type<float>{}) : body(Type<double>{});
}

}  // namespace

void count_experts(Stream& stream, const CountExperts& op) {
  constexpr const char* name = "count_experts";
  check_arguments(name, op);
  const std::int64_t tokens = op.indices.given() ? op.indices.shape.elements() / op.k : op.scores.rows();
  const std::int64_t experts = op.counts.shape.elements() / op.sequences;
  require(experts <= 4096, name, "more than 4096 experts");
  require(op.indices.given() || op.scores.dtype == DType::f32, name, "needs f32 scores on a GPU");
  const auto e = static_cast<std::size_t>(experts);
  const std::size_t shared = (e + warps * ((e + 31) / 32)) * sizeof(int);
  with_count(name, op.counts.dtype, [&](auto type) {
    using Count = typename decltype(type)::type;
    count_kernel<Count><<<static_cast<unsigned>(op.sequences), threads, shared, cuda_stream(stream).handle()>>>(
        optional<const std::int32_t>(op.indices), rows_of<const float>(op.scores), op.counts.as<Count>(),
        optional<const Count>(op.before), tokens / op.sequences, static_cast<int>(experts), static_cast<int>(op.k),
        op.store == Store::add);
    launched(name);
  });
}

void drop_choices(Stream& stream, const DropChoices& op) {
  constexpr const char* name = "drop_choices";
  check_arguments(name, op);
  require(op.weights.dtype == DType::f32, name, "needs f32 weights on a GPU");
  const std::int64_t slots = op.indices.shape.elements();
  require(slots < 1 << 30, name, "a billion slots or more");
  if (slots == 0) return;
  drop_kernel<<<static_cast<unsigned>(divide_up(slots, threads)), threads, 0, cuda_stream(stream).handle()>>>(
      op.indices.as<std::int32_t>(), op.weights.as<float>(), op.kept.as<std::int32_t>(), static_cast<int>(slots),
      static_cast<int>(std::min<std::int64_t>(op.capacity, slots)), op.policy == DropChoices::Policy::probabilities);
  launched(name);
}

void balance_losses(Stream& stream, const BalanceLosses& op) {
  constexpr const char* name = "balance_losses";
  const std::int64_t tokens = op.scores.rows(), experts = columns_of(op.scores);
  check_arguments(name, op);
  require(op.scores.dtype == DType::f32, name, "needs f32 scores on a GPU");
  const bool balances = op.counts.given(), z = op.z_coefficient != 0;
  if (tokens == 0) return;
  CudaStream& s = cuda_stream(stream);
  double* losses = s.scratch_of<double>(2 * tokens + (op.sequences * experts + 1) / 2);
  auto* pressure = reinterpret_cast<float*>(losses + 2 * tokens);
  if (balances) {
    pressure_kernel<<<static_cast<unsigned>(op.sequences), threads, 0, s.handle()>>>(op.counts.as<double>(), pressure,
                                                                                     static_cast<int>(experts));
    launched(name);
  }
  const Losses x{rows_of<const float>(op.scores),
                 rows_of<const float>(op.logits),
                 rows_of<float>(op.dlogits),
                 balances ? pressure : nullptr,
                 op.scale.as<double>(),
                 losses,
                 z ? losses + tokens : nullptr,
                 tokens,
                 tokens / op.sequences,
                 static_cast<int>(experts),
                 op.score == RouterSpec::Score::softmax,
                 op.balance_coefficient,
                 op.z_coefficient};
  loss_kernel<<<static_cast<unsigned>(divide_up(tokens, warps)), threads, 0, s.handle()>>>(x);
  launched(name);
  const auto add_up = [&](const double* from, const Tensor& out) {
    add_losses<<<1, threads, 0, s.handle()>>>(from, tokens, op.scale.as<double>(), out.as<double>(),
                                              op.store == Store::add);
    launched(name);
  };
  if (balances && op.balance_loss.given()) add_up(losses, op.balance_loss);
  if (z && op.z_loss.given()) add_up(losses + tokens, op.z_loss);
}

void update_expert_bias(Stream& stream, const UpdateExpertBias& op) {
  constexpr const char* name = "update_expert_bias";
  const std::int64_t experts = op.bias.shape.elements();
  check_arguments(name, op);
  with_count(name, op.bias.dtype, [&](auto type) {
    using B = typename decltype(type)::type;
    bias_kernel<B><<<1, threads, 0, cuda_stream(stream).handle()>>>(
        op.bias.as<B>(), op.counts.as<double>(), static_cast<int>(experts), op.step_values.as<double>(), op.rate);
    launched(name);
  });
}

}  // namespace weft::cuda
