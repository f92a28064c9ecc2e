// sum_of_squares, clip_factor, adamw. Lists of tensors travel as parameters of the kernel: one launch for all of them.
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/optimizer.h"

namespace weft::cuda {

namespace {

constexpr int threads = 256;

// Items of a list that a kernel handles, block after block; `first` is the item's first block.
template <class Item, int capacity>
struct List {
  Item items[capacity];
  int count = 0;
};

template <class Item, int capacity>
__device__ const Item& item_of(const List<Item, capacity>& list, int block) {
  int low = 0, high = list.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (list.items[middle].first <= block)
      low = middle;
    else
      high = middle - 1;
  }
  return list.items[low];
}

constexpr std::int64_t squares_a_block = 65536;

struct Numbers {
  const void* data;
  std::int64_t count;
  int first;
  bool single;  // f32, otherwise bf16
};

template <int V, class T>
__device__ double sum_squares(const T* x, std::int64_t count) {
  double sum = 0;
  float v[V];
  for (std::int64_t i = threadIdx.x * V; i + V <= count; i += threads * V) {
    load<V>(x + i, v);
#pragma unroll
    for (int j = 0; j < V; ++j) sum += static_cast<double>(v[j]) * static_cast<double>(v[j]);
  }
  const std::int64_t rest = count / V * V + threadIdx.x;
  if (rest < count) sum += static_cast<double>(widen(x[rest])) * static_cast<double>(widen(x[rest]));
  return sum;
}

template <class T>
__device__ double sum_squares_of(const T* x, std::int64_t count) {
  return reinterpret_cast<std::uintptr_t>(x) % (4 * sizeof(T)) == 0 ? sum_squares<4>(x, count)
                                                                    : sum_squares<1>(x, count);
}

template <int capacity>
__global__ void squares_kernel(const __grid_constant__ List<Numbers, capacity> list, double* parts) {
  const int block = static_cast<int>(blockIdx.x);
  const Numbers& item = item_of(list, block);
  const std::int64_t begin = (block - item.first) * squares_a_block;
  const std::int64_t count = item.count - begin < squares_a_block ? item.count - begin : squares_a_block;
  double sum = item.single ? sum_squares_of(static_cast<const float*>(item.data) + begin, count)
                           : sum_squares_of(static_cast<const bf16*>(item.data) + begin, count);
  sum = block_sum<threads>(sum);
  if (threadIdx.x == 0) parts[block] = sum;
}

__global__ void add_parts(const double* parts, std::int64_t count, double* out, bool add) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += 1024) sum += parts[i];
  sum = block_sum<1024>(sum);
  if (threadIdx.x == 0) *out = add ? *out + sum : sum;
}

__global__ void clip_kernel(const double* sums, std::int64_t count, const void* loss, bool single, double* values,
                            double limit) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += sums[i];
  const double norm = sqrt(sum);
  const double l = loss == nullptr ? 0 : single ? *static_cast<const float*>(loss) : *static_cast<const double*>(loss);
  values[StepValues::gradient_norm] = norm;
  values[StepValues::clip_factor] = limit > 0 ? fmin(1.0, limit / (norm + 1e-6)) : 1.0;
  values[StepValues::finite] = isfinite(norm) && isfinite(l) ? 1.0 : 0.0;
}

constexpr std::int64_t updates_a_block = 8192;

struct SlabItem {
  void *weight, *master;
  float *m, *v;
  const void* gradient;
  std::int64_t count;
  int first;
  bool single_weight, single_gradient, decays, packs;
};

struct StepConstants {
  float clip, beta1, rest1, beta2, rest2, inverse1, inverse2, eps, rate, decay;
};

// Rounded as written, whichever kernel it is compiled into: an update is the same on all processors and on a few.
__device__ inline void update_one(const StepConstants& k, float g, float& first, float& second, float& value) {
  const float d = __fmul_rn(k.clip, g);
  first = __fmaf_rn(k.beta1, first, __fmul_rn(k.rest1, d));
  second = __fmaf_rn(k.beta2, second, __fmul_rn(__fmul_rn(k.rest2, d), d));
  const float root = __fadd_rn(__fsqrt_rn(__fmul_rn(second, k.inverse2)), k.eps);
  const float direction = __fdiv_rn(__fmul_rn(first, k.inverse1), root);
  value = __fmaf_rn(-k.rate, __fmaf_rn(k.decay, value, direction), value);
}

// Elements [begin, end) of a slab, at least V; a thread has `at_once` packs of V on the way. master: what is updated;
// weight: where it is rounded to, or null.
template <int threads, int at_once, int V, class M, class W, class G>
__device__ void update(const StepConstants& k, M* master, W* weight, float* m, float* v, const G* gradient,
                       std::int64_t begin, std::int64_t end) {
  for (std::int64_t at = begin + threadIdx.x * V; at < end; at += threads * V * at_once) {
    float g[at_once][V], first[at_once][V], second[at_once][V], value[at_once][V];
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      const std::int64_t wanted = at + n * threads * V;
      const std::int64_t i = wanted < end ? wanted : end - V;  // without a branch: what lies behind is not stored
      load<V>(gradient + i, g[n]);
      load<V>(m + i, first[n]);
      load<V>(v + i, second[n]);
      load<V>(master + i, value[n]);
    }
#pragma unroll
    for (int n = 0; n < at_once; ++n) {
      const std::int64_t i = at + n * threads * V;
      if (i >= end) break;
#pragma unroll
      for (int j = 0; j < V; ++j) update_one(k, g[n][j], first[n][j], second[n][j], value[n][j]);
      store<V>(m + i, first[n]);
      store<V>(v + i, second[n]);
      store<V>(master + i, value[n]);
      if (weight != nullptr) store<V>(weight + i, value[n]);
    }
  }
}

template <int threads, int at_once, class W, class G>
__device__ void update_item(const StepConstants& k, const SlabItem& s, std::int64_t begin, std::int64_t end) {
  W* weight = static_cast<W*>(s.weight);
  const G* gradient = static_cast<const G*>(s.gradient);
  float* master = static_cast<float*>(s.master);
  if (s.packs && end % 4 == 0) {
    if (master != nullptr)
      update<threads, at_once, 4>(k, master, weight, s.m, s.v, gradient, begin, end);
    else
      update<threads, at_once, 4>(k, weight, static_cast<W*>(nullptr), s.m, s.v, gradient, begin, end);
  } else if (master != nullptr) {
    update<threads, 1, 1>(k, master, weight, s.m, s.v, gradient, begin, end);
  } else {
    update<threads, 1, 1>(k, weight, static_cast<W*>(nullptr), s.m, s.v, gradient, begin, end);
  }
}

// `parts` of updates_a_block elements, dealt out to the blocks in turn.
template <int threads, int at_once, int capacity>
__global__ void __launch_bounds__(threads)
    adamw_kernel(const __grid_constant__ List<SlabItem, capacity> list, int parts, const double* values, double beta1,
                 double beta2, double eps) {
  if (values[StepValues::finite] == 0) return;
  StepConstants k{static_cast<float>(values[StepValues::clip_factor]),
                  static_cast<float>(beta1),
                  static_cast<float>(1 - beta1),
                  static_cast<float>(beta2),
                  static_cast<float>(1 - beta2),
                  static_cast<float>(1 / values[StepValues::correction1]),
                  static_cast<float>(1 / values[StepValues::correction2]),
                  static_cast<float>(eps),
                  static_cast<float>(values[StepValues::learning_rate]),
                  0.0f};
  const float decay = static_cast<float>(values[StepValues::weight_decay]);
  for (int part = static_cast<int>(blockIdx.x); part < parts; part += static_cast<int>(gridDim.x)) {
    const SlabItem& s = item_of(list, part);
    k.decay = s.decays ? decay : 0.0f;
    const std::int64_t begin = (part - s.first) * updates_a_block;
    const std::int64_t end = begin + updates_a_block < s.count ? begin + updates_a_block : s.count;
    if (s.single_weight)
      s.single_gradient ? update_item<threads, at_once, float, float>(k, s, begin, end)
                        : update_item<threads, at_once, float, bf16>(k, s, begin, end);
    else
      s.single_gradient ? update_item<threads, at_once, bf16, float>(k, s, begin, end)
                        : update_item<threads, at_once, bf16, bf16>(k, s, begin, end);
  }
}

// On a few processors beside other kernels: one block on each, which stays. It takes more than half of the registers, so
// there are never two on one, and it must draw about 80 GB/s alone: with a latency of 1 us that is 43 KB of reads on the
// way (16 of 30 bytes), and four packs a thread are 128 KB. Blocks come in pairs like those of the products beside it:
// pairs are taken from one cluster of processors (GPC), which must not be left with odd ones.
constexpr int resident_threads = 512, resident_packs = 4;
template <int capacity>
void launch_resident(CudaStream& stream, const List<SlabItem, capacity>& list, unsigned parts, const AdamW& op) {
  int device = 0, pairs = 0;
  check_cuda(cudaGetDevice(&device), "adamw");
  check_cuda(cudaDeviceGetAttribute(&pairs, cudaDevAttrClusterLaunch, device), "adamw");
  cudaLaunchAttribute pair = {};
  pair.id = cudaLaunchAttributeClusterDimension;
  pair.val.clusterDim.x = 2, pair.val.clusterDim.y = 1, pair.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(std::max(stream.processors() / 2 * 2, 2)));
  config.blockDim = dim3(resident_threads);
  config.stream = stream.handle();
  config.attrs = &pair;
  config.numAttrs = pairs != 0 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, adamw_kernel<resident_threads, resident_packs, capacity>, list,
                                static_cast<int>(parts), op.step_values.as<double>(), op.beta1, op.beta2, op.eps),
             "adamw");
}

// Hands a list over in as few launches as its length allows: flush(list, blocks).
template <class Item, int capacity, class Flush>
class ListBuilder {
 public:
  explicit ListBuilder(const Flush& flush) : flush_(flush) {}
  void add(Item item, std::int64_t blocks) {
    if (blocks == 0) return;
    if (list_.count == capacity || blocks_ + blocks > (std::int64_t{1} << 30)) finish();
    item.first = static_cast<int>(blocks_);
    list_.items[list_.count++] = item;
    blocks_ += blocks;
  }
  void finish() {
    if (list_.count > 0) flush_(list_, static_cast<unsigned>(blocks_));
    list_.count = 0;
    blocks_ = 0;
  }

 private:
  const Flush& flush_;
  List<Item, capacity> list_;
  std::int64_t blocks_ = 0;
};

// Calls body with a builder that is as large as a list of `count` needs.
template <class Item, int few, int many, class Flush, class Body>
void with_list(std::size_t count, const Flush& flush, const Body& body) {
  if (count <= few) {
    ListBuilder<Item, few, Flush> builder(flush);
    body(builder);
    builder.finish();
  } else {
    ListBuilder<Item, many, Flush> builder(flush);
    body(builder);
    builder.finish();
  }
}

void check(const AdamSlab& slab) {
  require(slab.m.dtype == DType::f32 && slab.v.dtype == DType::f32 &&
              (!slab.master.given() || slab.master.dtype == DType::f32),
          "adamw", "m, v or master are not f32");
  const std::int64_t count = slab.weight.shape.elements();
  for (const Tensor* tensor : {&slab.weight, &slab.master, &slab.m, &slab.v, &slab.gradient})
    require(!tensor->given() || (tensor->shape.elements() == count && tensor->contiguous()), "adamw",
            "a slab's tensors differ in length or are not contiguous");
  for (const Tensor* tensor : {&slab.weight, &slab.gradient})
    require(tensor->dtype == DType::f32 || tensor->dtype == DType::bf16, "adamw", "needs f32 or bf16 on a GPU");
}

}  // namespace

void sum_of_squares(Stream& stream, const SumOfSquares& op) {
  constexpr const char* name = "sum_of_squares";
  require(op.out.dtype == DType::f64, name, "its result is f64");
  std::int64_t blocks = 0;
  for (const Tensor& x : op.x) {
    require(x.contiguous() && (x.dtype == DType::f32 || x.dtype == DType::bf16), name,
            "needs contiguous tensors of f32 or bf16");
    blocks += divide_up(x.shape.elements(), squares_a_block);
  }
  CudaStream& s = cuda_stream(stream);
  double* parts = s.scratch_of<double>(std::max<std::int64_t>(blocks, 1));
  std::int64_t done = 0;
  const auto flush = [&](const auto& list, unsigned count) {
    squares_kernel<<<count, threads, 0, s.handle()>>>(list, parts + done);
    launched(name);
    done += count;
  };
  with_list<Numbers, 64, 1024>(op.x.size(), flush, [&](auto& builder) {
    for (const Tensor& x : op.x)
      builder.add({x.data, x.shape.elements(), 0, x.dtype == DType::f32},
                  divide_up(x.shape.elements(), squares_a_block));
  });
  add_parts<<<1, 1024, 0, s.handle()>>>(parts, blocks, op.out.as<double>(), op.store == Store::add);
  launched(name);
}

void clip_factor(Stream& stream, const ClipFactor& op) {
  constexpr const char* name = "clip_factor";
  require(op.sum.dtype == DType::f64, name, "the sum is not f64");
  require(op.step_values.dtype == DType::f64 && op.step_values.shape.elements() >= StepValues::count, name,
          "step_values are not f64 [count]");
  require(!op.loss.given() || op.loss.dtype == DType::f32 || op.loss.dtype == DType::f64, name,
          "the loss is neither f32 nor f64");
  clip_kernel<<<1, 1, 0, cuda_stream(stream).handle()>>>(op.sum.as<double>(), op.sum.shape.elements(),
                                                         optional<const void>(op.loss), op.loss.dtype == DType::f32,
                                                         op.step_values.as<double>(), op.limit);
  launched(name);
}

void adamw(Stream& stream, const AdamW& op) {
  require(op.step_values.dtype == DType::f64 && op.step_values.shape.elements() >= StepValues::count, "adamw",
          "step_values are not f64 [count]");
  CudaStream& s = cuda_stream(stream);
  const auto flush = [&]<int capacity>(const List<SlabItem, capacity>& list, unsigned parts) {
    if (s.shares_processors()) return launch_resident(s, list, parts, op);
    adamw_kernel<threads, 1><<<parts, threads, 0, s.handle()>>>(
        list, static_cast<int>(parts), op.step_values.as<double>(), op.beta1, op.beta2, op.eps);
    launched("adamw");
  };
  with_list<SlabItem, 32, 512>(op.slabs.size(), flush, [&](auto& builder) {
    for (const AdamSlab& slab : op.slabs) {
      check(slab);
      const std::int64_t count = slab.weight.shape.elements();
      bool aligned = true;
      for (const Tensor* tensor : {&slab.weight, &slab.master, &slab.m, &slab.v, &slab.gradient})
        aligned = aligned && reinterpret_cast<std::uintptr_t>(tensor->data) % 16 == 0;
      builder.add({slab.weight.data, slab.master.data, slab.m.as<float>(), slab.v.as<float>(), slab.gradient.data,
                   count, 0, slab.weight.dtype == DType::f32, slab.gradient.dtype == DType::f32, slab.decay, aligned},
                  divide_up(count, updates_a_block));
    }
  });
}

}  // namespace weft::cuda
