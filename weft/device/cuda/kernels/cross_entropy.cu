// cross_entropy: one block or several for each row; losses of rows are added in order by one more block.
#include <cooperative_groups.h>

#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch_hopper.cuh"
#include "weft/device/cuda/kernels/softmax.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/loss.h"

namespace weft::cuda {

namespace {

// A row is read twice, the second time from the L2 cache: so there may not be many rows at once. Where rows are long, the
// blocks of a cluster share one (H200: 528 blocks with 64 KB each, 34 MB).
constexpr int blocks_per_processor = 4;
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
