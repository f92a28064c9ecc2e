// router and its backward: a warp for each token.
#include <limits>

#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/router.h"

namespace weft::cuda {

namespace {

constexpr int warps = 4;
constexpr std::int64_t most_experts = 2048;

struct Spec {
  int experts, k, groups, keep_groups, group_best;
  bool sigmoid, choose_first, normalise;
  float scaling;
};

Spec spec_of(const char* name, const RouterSpec& spec, std::int64_t experts) {
  require(experts <= most_experts, name, "there are more than 2048 experts");
  const bool sigmoid = spec.score == RouterSpec::Score::sigmoid;
  return {static_cast<int>(experts),         static_cast<int>(spec.k),
          static_cast<int>(spec.groups),     static_cast<int>(spec.keep_groups),
          static_cast<int>(spec.group_best), sigmoid,
          !sigmoid && spec.choose_first,     spec.normalise,
          static_cast<float>(spec.scaling)};
}

constexpr int nobody = std::numeric_limits<int>::max();

// Whether (value, index) comes before (best, at): larger, or equal and of lower index. NaN takes no part.
__device__ bool better(float value, int index, float best, int at) {
  return value > best || (value == best && index < at);
}

// The best of values[0 .. count) for all lanes; one value at least is a number.
__device__ int best_of(const float* values, int count, int lane) {
  float best = -INFINITY;
  int at = nobody;
  for (int i = lane; i < count; i += 32)
    if (better(values[i], i, best, at)) best = values[i], at = i;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(all_lanes, best, step);
    const int index = __shfl_xor_sync(all_lanes, at, step);
    if (better(other, index, best, at)) best = other, at = index;
  }
  return at;
}

// The sum of the group_best best choices of a group, by one lane.
__device__ float group_score(const float* values, int size, int group_best) {
  float sum = 0, last = INFINITY;
  int last_at = -1;
  for (int place = 0; place < group_best; ++place) {
    float best = -INFINITY;
    int at = nobody;
    for (int i = 0; i < size; ++i) {
      const bool taken = values[i] > last || (values[i] == last && i <= last_at);
      if (!taken && better(values[i], i, best, at)) best = values[i], at = i;
    }
    sum += best;
    last = best;
    last_at = at;
  }
  return sum != sum ? -INFINITY : sum;
}

// Takes the experts outside of the best groups out of the choice.
__device__ void keep_best_groups(const Spec& spec, float* values, float* groups, int lane) {
  const int size = spec.experts / spec.groups;
  for (int g = lane; g < spec.groups; g += 32) groups[g] = group_score(values + g * size, size, spec.group_best);
  __syncwarp();
  // The kept groups become NaN, so the others are those that are not.
  for (int kept = 0; kept < spec.keep_groups; ++kept) {
    const int g = best_of(groups, spec.groups, lane);
    __syncwarp();
    if (lane == 0) groups[g] = NAN;
    __syncwarp();
  }
  for (int e = lane; e < spec.experts; e += 32)
    if (groups[e / size] == groups[e / size]) values[e] = NAN;
  __syncwarp();
}

__global__ void route_kernel(Spec spec, Rows<const float> all_logits, const float* bias, Rows<float> all_scores,
                             Rows<float> all_weights, Rows<std::int32_t> all_indices, std::int64_t tokens) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x;
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(warps) + threadIdx.y;
  if (t >= tokens) return;
  float* values = shared + threadIdx.y * 2 * spec.experts;
  float* groups = values + spec.experts;
  const float* logits = all_logits[t];
  float *scores = all_scores[t], *weights = all_weights[t];
  std::int32_t* indices = all_indices[t];

  float highest = -INFINITY, sum = 0;
  if (!spec.sigmoid) {
    for (int e = lane; e < spec.experts; e += 32) highest = logits[e] > highest ? logits[e] : highest;
    highest = warp_max(highest);
    for (int e = lane; e < spec.experts; e += 32) sum += expf(logits[e] - highest);
    sum = warp_sum(sum);
  }
  for (int e = lane; e < spec.experts; e += 32) {
    const float score = spec.sigmoid ? 1.0f / (1.0f + expf(-logits[e])) : expf(logits[e] - highest) / sum;
    scores[e] = score;
    // A token whose logits are not numbers still gets k experts.
    const float choice = spec.choose_first ? logits[e] : bias != nullptr ? score + bias[e] : score;
    values[e] = choice != choice ? -INFINITY : choice;
  }
  __syncwarp();
  if (spec.groups > 1) keep_best_groups(spec, values, groups, lane);

  float first = 0, total = 0;
  for (int place = 0; place < spec.k; ++place) {
    const int e = best_of(values, spec.experts, lane);
    __syncwarp();
    if (place == 0) first = logits[e];
    const float score = spec.sigmoid ? 1.0f / (1.0f + expf(-logits[e])) : expf(logits[e] - highest) / sum;
    const float weight = spec.choose_first ? expf(logits[e] - first) : score;
    total += weight;
    if (lane == 0) {
      values[e] = NAN;
      indices[place] = e;
      weights[place] = weight;
    }
    __syncwarp();
  }
  float factor = spec.scaling;
  if (spec.choose_first || spec.normalise) factor /= total + (spec.sigmoid ? 1e-20f : 0.0f);
  for (int place = lane; place < spec.k; place += 32) weights[place] *= factor;
}

// With p the chosen scores over their sum (choose_first: the softmax over the chosen), q = dweight * scaling:
//   softmax, normalised or choose_first   dlogit_i = p_i (q_i - sum_j p_j q_j) for the chosen, else 0
//   softmax                               dlogit_e = s_e (q_e - sum_j s_j q_j) for all, q = 0 where not chosen
//   sigmoid                               ds_i = q_i, or (q_i - sum_j p_j q_j) / (sum + 1e-20); dlogit = s (1 - s) ds
// An index of -1 takes no part.
__global__ void route_backward_kernel(Spec spec, Rows<const float> all_scores, Rows<const float> all_weights,
                                      Rows<const std::int32_t> all_indices, Rows<const float> all_dweights,
                                      Rows<float> all_dlogits, std::int64_t tokens, bool add) {
  const int lane = threadIdx.x;
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(warps) + threadIdx.y;
  if (t >= tokens) return;
  const float *scores = all_scores[t], *weights = all_weights[t], *dweights = all_dweights[t];
  const std::int32_t* indices = all_indices[t];
  float* dlogits = all_dlogits[t];
  const bool normalised = spec.choose_first || spec.normalise, divide = normalised && !spec.choose_first;
  const auto p_of = [&](int i) {
    return indices[i] < 0                           ? 0.0f
           : spec.choose_first && spec.scaling != 0 ? weights[i] / spec.scaling
                                                    : scores[indices[i]];
  };
  float sum = 0, mean = 0;
  for (int i = lane; i < spec.k; i += 32) sum += p_of(i);
  sum = warp_sum(sum) + (spec.sigmoid ? 1e-20f : 0.0f);
  for (int i = lane; i < spec.k; i += 32) mean += (divide ? p_of(i) / sum : p_of(i)) * dweights[i] * spec.scaling;
  mean = warp_sum(mean);
  const bool spreads = !spec.sigmoid && !normalised;  // every logit moves the chosen scores
  for (int e = lane; e < spec.experts; e += 32) {
    const float moved = spreads ? -scores[e] * mean : 0.0f;
    dlogits[e] = add ? dlogits[e] + moved : moved;
  }
  __syncwarp();
  for (int i = lane; i < spec.k; i += 32) {
    if (indices[i] < 0) continue;
    const float q = dweights[i] * spec.scaling, s = scores[indices[i]];
    float& dlogit = dlogits[indices[i]];  // the choices of a token are different experts
    if (spreads)
      dlogit += s * q;
    else if (spec.sigmoid)
      dlogit += s * (1.0f - s) * (normalised ? (q - mean) / sum : q);
    else
      dlogit += (divide ? p_of(i) / sum : p_of(i)) * (q - mean);
  }
}

dim3 blocks_for(std::int64_t tokens) { return dim3(static_cast<unsigned>(divide_up(tokens, warps))); }

}  // namespace

void router(Stream& stream, const Router& op) {
  constexpr const char* name = "router";
  const std::int64_t tokens = op.logits.rows();
  if (tokens == 0) return;
  const std::int64_t experts = columns_of(op.logits);
  check_arguments(name, op);
  const Spec spec = spec_of(name, op.spec, experts);
  require(op.logits.dtype == DType::f32, name, "needs f32 on a GPU");
  const std::size_t shared = static_cast<std::size_t>(2 * warps * experts) * sizeof(float);
  if (shared > 48 << 10)
    check_cuda(
        cudaFuncSetAttribute(route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        name);
  route_kernel<<<blocks_for(tokens), dim3(32, warps), shared, cuda_stream(stream).handle()>>>(
      spec, rows_of<const float>(op.logits), optional<const float>(op.bias), rows_of<float>(op.scores),
      rows_of<float>(op.weights), rows_of<std::int32_t>(op.indices), tokens);
  launched(name);
}

void router_backward(Stream& stream, const RouterBackward& op) {
  constexpr const char* name = "router_backward";
  const std::int64_t tokens = op.scores.rows();
  if (tokens == 0) return;
  check_arguments(name, op);
  const Spec spec = spec_of(name, op.spec, columns_of(op.scores));
  require(op.scores.dtype == DType::f32, name, "needs f32 on a GPU");
  route_backward_kernel<<<blocks_for(tokens), dim3(32, warps), 0, cuda_stream(stream).handle()>>>(
      spec, rows_of<const float>(op.scores), rows_of<const float>(op.weights), rows_of<const std::int32_t>(op.indices),
      rows_of<const float>(op.dweights), rows_of<float>(op.dlogits), tokens, op.store == Store::add);
  launched(name);
}

}  // namespace weft::cuda
