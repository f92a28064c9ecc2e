// cross_entropy: one block or several for each row; losses of rows are added in order by one more block.
#include <cfloat>

#include <cooperative_groups.h>

#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch_hopper.cuh"
#include "weft/device/cuda/kernels/quick.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/loss.h"

namespace weft::cuda {

namespace {

// A row is read twice, the second time from the L2 cache: so there may not be many rows at once. Where rows are long, the
// blocks of a cluster share one (H200: 528 blocks with 64 KB each, 34 MB).
constexpr int threads = 512, blocks_per_processor = 4;
constexpr std::int64_t block_columns = 16384;
constexpr unsigned largest_team = 8;

// The blocks of a row.
struct Team {
#if __CUDA_ARCH__ >= 900
  cooperative_groups::cluster_group group = cooperative_groups::this_cluster();
  __device__ int rank() const { return static_cast<int>(group.block_rank()); }
  __device__ int size() const { return static_cast<int>(group.num_blocks()); }
  template <class T>
  __device__ const T* of(T* shared, int rank) const {
    return group.map_shared_rank(shared, rank);
  }
  __device__ void arrive() { group.barrier_arrive(); }
  __device__ void wait() { group.barrier_wait(); }
#else
  __device__ int rank() const { return 0; }
  __device__ int size() const { return 1; }
  template <class T>
  __device__ const T* of(T* shared, int) const {
    return shared;
  }
  __device__ void arrive() { __syncthreads(); }
  __device__ void wait() {}
#endif
};

// e^x for x <= 0; its relative error is about (2 + |x|) 2^-23.
__device__ float quick_exp(float x) { return quick_exp2(1.4426950408889634f * x); }

__device__ double scalar(const void* data, bool single) {
  return single ? static_cast<double>(*static_cast<const float*>(data)) : *static_cast<const double*>(data);
}

// The largest value of a part of a row, and the sum of exp(value - largest).
struct Exponentials {
  double sum;
  float top;
};

// f(integral constant, c) for packs of V columns below `count`, `at_once` of them from c on, or one. Returns the columns
// that are left.
template <int V, int at_once, class F>
__device__ int over_packs(int count, const F& f) {
  constexpr int step = threads * V;
  const int whole = count / V * V;
  int c = static_cast<int>(threadIdx.x) * V;
  for (; c + (at_once - 1) * step < whole; c += at_once * step) f(std::integral_constant<int, at_once>{}, c);
  for (; c < whole; c += step) f(std::integral_constant<int, 1>{}, c);
  return whole;
}

// Of `count` logits, for all threads of the block. V: how many can be read at once, at least.
template <int V>
__device__ Exponentials sum_exponentials(const float* logits, int count) {
  constexpr int width = V >= 4 ? 4 : 1;
  float top = -FLT_MAX, sum = 0;
  const int whole = over_packs<width, 4>(count, [&](auto packs, int c) {
    float v[packs.value][width], high = top, part = 0;
#pragma unroll
    for (int p = 0; p < packs.value; ++p) load<width>(logits + c + p * threads * width, v[p]);
#pragma unroll
    for (int p = 0; p < packs.value; ++p)
#pragma unroll
      for (int i = 0; i < width; ++i) high = fmaxf(high, v[p][i]);
#pragma unroll
    for (int p = 0; p < packs.value; ++p)
#pragma unroll
      for (int i = 0; i < width; ++i) part += quick_exp(v[p][i] - high);
    sum = sum * quick_exp(top - high) + part;
    top = high;
  });
  for (int c = whole + static_cast<int>(threadIdx.x); c < count; c += threads) {
    const float x = logits[c], high = fmaxf(top, x);
    sum = sum * quick_exp(top - high) + quick_exp(x - high);
    top = high;
  }
  const float highest = block_max<threads>(top);
  return {block_sum<threads>(static_cast<double>(sum * quick_exp(top - highest))), highest};
}

// dlogits = exp(logits - highest) factor; at_label where the label is; 0 beyond `count`. What it reads and writes makes
// room in the L2 cache for rows that are yet to be read again.
template <int V, class D>
__device__ void write_gradients(const float* logits, D* dlogits, int count, int columns, float highest, float factor,
                                int label, float at_label) {
  const int whole = over_packs<V, 2>(count, [&](auto packs, int c) {
    Pack<float, V> words[packs.value];
#pragma unroll
    for (int p = 0; p < packs.value; ++p) words[p] = read_once<V>(logits + c + p * threads * V);
#pragma unroll
    for (int p = 0; p < packs.value; ++p) {
      const int at = c + p * threads * V;
      float v[V];
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] = quick_exp(words[p].at[i] - highest) * factor;
      if (label >= at && label < at + V) {
#pragma unroll
        for (int i = 0; i < V; ++i)
          if (at + i == label) v[i] = at_label;
      }
      store_once<V>(dlogits + at, v);
    }
  });
  for (int c = whole + static_cast<int>(threadIdx.x); c < columns; c += threads)
    dlogits[c] = narrow<D>(c >= count ? 0.0f : c == label ? at_label : quick_exp(logits[c] - highest) * factor);
}

// A team of blocks per row, each with `part` columns (a multiple of 8).
template <int V, class D>
__global__ void __launch_bounds__(threads, blocks_per_processor)
    loss_rows(Rows<const float> all_logits, const std::int32_t* labels, const void* scale, bool single_scale,
              Rows<D> all_dlogits, float* row_losses, double* losses, int all_columns, int vocabulary, int part) {
  __shared__ Exponentials own;
  __shared__ float shared_label_logit;
  Team team;
  const std::int64_t r = blockIdx.x / static_cast<unsigned>(team.size());
  const int begin = min(team.rank() * part, all_columns), columns = min(part, all_columns - begin);
  const int count = max(min(columns, vocabulary - begin), 0);  // of the columns, those of the vocabulary
  const float* logits = all_logits[r] + begin;
  D* dlogits = all_dlogits.data != nullptr ? all_dlogits[r] + begin : nullptr;
  if (labels[r] < 0 || labels[r] >= vocabulary) {
    for (int c = static_cast<int>(threadIdx.x); dlogits != nullptr && c < columns; c += threads)
      dlogits[c] = narrow<D>(0.0f);
    if (team.rank() == 0 && threadIdx.x == 0) {
      losses[r] = 0;
      if (row_losses != nullptr) row_losses[r] = 0;
    }
    return;
  }
  const int label = labels[r] - begin;
  const bool has_label = label >= 0 && label < columns;
  const Exponentials sums = sum_exponentials<V>(logits, count);
  if (threadIdx.x == 0) {
    own = sums;
    if (has_label) shared_label_logit = logits[label];
  }
  team.arrive();
  team.wait();
  float highest = -FLT_MAX;
  double total = 0;
  for (int k = 0; k < team.size(); ++k) {
    const float top = team.of(&own, k)->top;
    highest = top > highest ? top : highest;
  }
  for (int k = 0; k < team.size(); ++k) {
    const Exponentials* of_part = team.of(&own, k);
    total += of_part->sum * static_cast<double>(expf(of_part->top - highest));
  }
  team.arrive();
  const double label_logit = has_label ? static_cast<double>(shared_label_logit) : 0.0;
  if (has_label && threadIdx.x == 0) {
    const double loss = log(total) + (static_cast<double>(highest) - label_logit);
    losses[r] = loss;
    if (row_losses != nullptr) row_losses[r] = static_cast<float>(loss);
  }
  if (dlogits != nullptr) {
    const double s = scalar(scale, single_scale);
    const float at_label =
        has_label ? static_cast<float>(s * (exp(label_logit - static_cast<double>(highest)) / total - 1)) : 0.0f;
    write_gradients<V>(logits, dlogits, count, columns, highest, static_cast<float>(s / total), label, at_label);
  }
  team.wait();  // others may still read `own`
}

__global__ void add_losses(const double* losses, std::int64_t rows, const void* scale, bool single_scale, float* loss,
                           bool add) {
  double sum = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += 1024) sum += losses[r];
  sum = block_sum<1024>(sum);
  if (threadIdx.x == 0)
    *loss = static_cast<float>(scalar(scale, single_scale) * sum + (add ? static_cast<double>(*loss) : 0.0));
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropy& op) {
  constexpr const char* name = "cross_entropy";
  const std::int64_t rows = op.logits.rows(), columns = columns_of(op.logits);
  check_arguments(name, op);
  require(columns < std::int64_t{1} << 30, name, "more than a billion columns");
  require(op.logits.dtype == DType::f32, name, "needs f32 logits on a GPU");
  CudaStream& s = cuda_stream(stream);
  double* losses = s.scratch_of<double>(std::max<std::int64_t>(rows, 1));
  const bool single = op.scale.dtype == DType::f32;
  if (rows > 0)
    with_storage(name, op.dlogits.given() ? op.dlogits.dtype : DType::f32, [&](auto type) {
      using D = typename decltype(type)::type;
      with_pack(pack, {&op.logits, &op.dlogits}, [&](auto v) {
        unsigned team = 1;
        while (s.hopper_code() && team < largest_team && columns > block_columns * team) team *= 2;
        const auto part = static_cast<int>(divide_up(divide_up(columns, team), pack) * pack);
        launch_clusters(name, s, team, loss_rows<decltype(v)::value, D>, dim3(static_cast<unsigned>(rows) * team),
                        dim3(threads), 0, rows_of<const float>(op.logits), op.labels.as<std::int32_t>(), op.scale.data,
                        single, rows_of<D>(op.dlogits), optional<float>(op.row_losses), losses,
                        static_cast<int>(columns), static_cast<int>(op.vocabulary), part);
      });
    });
  add_losses<<<1, 1024, 0, s.handle()>>>(losses, rows, op.scale.data, single, op.loss.as<float>(),
                                         op.store == Store::add);
  launched(name);
}

}  // namespace weft::cuda
