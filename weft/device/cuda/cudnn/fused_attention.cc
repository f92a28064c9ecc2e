#include "weft/device/cuda/fused_attention.h"

#include <array>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>

#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "weft/base/error.h"

// The frontend's own handle of the library, by which it finds every function.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace weft::cuda {

namespace {

namespace fe = cudnn_frontend;
using Strides = std::vector<std::int64_t>;

// Loads cuDNN once; the error, or "".
std::string load_library() {
  static std::once_flag once;
  static std::string why;
  std::call_once(once, [] {
    const std::string file = fmt::format("libcudnn.so.{}", CUDNN_MAJOR);
    for (const std::string& place : {file, WEFT_CUDA_LIBRARIES "/" + file, "/usr/local/cuda/lib64/" + file})
      if ((fe::cudnn_dlhandle = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL))) return;
    why = fmt::format("cannot load {}: {}", file, dlerror());
  });
  return why;
}

enum Name : std::int64_t { q = 1, k, v, out, stats, dout, dq, dk, dv };
enum class Pass : std::int64_t { forward, backward, unrepeatable_backward };

struct PlanOfShape {
  fe::graph::Graph graph;
  std::size_t workspace = 0;
  bool good = false;
};

class Cudnn : public FusedAttention {
 public:
  Cudnn() {
    if (fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS) throw RunError("cuDNN does not start");
  }
  ~Cudnn() override { fe::detail::destroy_handle(handle_); }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  bool forward(CudaStream& stream, const Attention& op) override {
    if (!fits(op)) return false;
    PlanOfShape& plan = plan_of({op.q, op.k, op.v, op.out}, op, Pass::forward);
    if (!plan.good) return false;
    std::unordered_map<std::int64_t, void*> pointers = {
        {q, op.q.data}, {k, op.k.data}, {v, op.v.data}, {out, op.out.data}, {stats, op.lse.data}};
    run(stream, plan, pointers, stream.scratch(plan.workspace));
    return true;
  }

  bool backward(CudaStream& stream, const AttentionBackward& op) override {
    const Attention& f = op.forward;
    if (!fits(f)) return false;
    for (const Tensor* t : {&op.dout, &op.dq, &op.dk, &op.dv})
      if (!aligned(*t)) return false;
    PlanOfShape& plan = plan_of({f.q, f.k, f.v, f.out, op.dout, op.dq, op.dk, op.dv}, f,
                                op.repeatable ? Pass::backward : Pass::unrepeatable_backward);
    if (!plan.good) return false;
    const std::size_t room = (f.lse.bytes() + 255) / 256 * 256;
    auto* scratch = static_cast<std::byte*>(stream.scratch(room + plan.workspace));
    pack_statistics(stream, f.lse, f.length, reinterpret_cast<float*>(scratch));
    std::unordered_map<std::int64_t, void*> pointers = {{q, f.q.data},     {k, f.k.data},    {v, f.v.data},
                                                        {out, f.out.data}, {stats, scratch}, {dout, op.dout.data},
                                                        {dq, op.dq.data},  {dk, op.dk.data}, {dv, op.dv.data}};
    run(stream, plan, pointers, scratch + room);
    return true;
  }

 private:
  using Key = std::array<std::int64_t, 17>;

  static bool aligned(const Tensor& t) {
    return t.dtype == DType::bf16 && t.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
  }
  static bool fits(const Attention& op) {
    return aligned(op.q) && aligned(op.k) && aligned(op.v) && aligned(op.out) && !op.sinks.given() &&
           !op.boundaries.given() && op.dim % 8 == 0 && op.value_dim % 8 == 0 && op.dim <= 128 && op.value_dim <= 128;
  }

  // The tensors in the order of Name, without stats.
  PlanOfShape& plan_of(const std::vector<Tensor>& tensors, const Attention& op, Pass pass) {
    Key key = {static_cast<std::int64_t>(pass),
               op.q.rows(),
               op.length,
               op.heads,
               op.kv_heads,
               op.dim,
               op.value_dim,
               op.window,
               std::bit_cast<std::int64_t>(op.scale)};
    for (std::size_t i = 0; i < tensors.size(); ++i) key[9 + i] = tensors[i].stride;
    const std::scoped_lock lock(mutex_);
    std::unique_ptr<PlanOfShape>& plan = plans_[key];
    if (!plan) {
      plan = std::make_unique<PlanOfShape>();
      try {
        plan->good = build(plan->graph, tensors, op, pass);
      } catch (const std::exception& error) {  // the frontend also throws, where libraries it needs are missing
        explain(error.what());
      }
      if (plan->good) plan->workspace = static_cast<std::size_t>(plan->graph.get_workspace_size());
    }
    return *plan;
  }

  // Kernels of our own take over; WEFT_EXPLAIN_CUDNN prints why.
  static void explain(const std::string& why) {
    if (std::getenv("WEFT_EXPLAIN_CUDNN")) fmt::print(stderr, "cuDNN: {}\n", why);
  }

  bool build(fe::graph::Graph& graph, const std::vector<Tensor>& tensors, const Attention& op, Pass pass) {
    const bool backward = pass != Pass::forward;
    const std::int64_t batch = op.q.rows() / op.length;
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    // [batch, heads, length, dim] of a matrix [T, heads * dim].
    const auto dims = [&](std::int64_t heads, std::int64_t dim) { return Strides{batch, heads, op.length, dim}; };
    const auto strides = [&](const Tensor& t, std::int64_t dim) {
      return Strides{op.length * t.stride, dim, t.stride, 1};
    };
    const auto input = [&](Name name, const Tensor& t, std::int64_t heads, std::int64_t dim) {
      return graph.tensor(
          fe::graph::Tensor_attributes().set_uid(name).set_dim(dims(heads, dim)).set_stride(strides(t, dim)));
    };
    const auto output = [&](const std::shared_ptr<fe::graph::Tensor_attributes>& made, Name name, const Tensor& t,
                            std::int64_t heads, std::int64_t dim) {
      made->set_output(true).set_uid(name).set_dim(dims(heads, dim)).set_stride(strides(t, dim));
    };
    // Forward writes lse as [heads, T]; backward needs it packed.
    const Strides stats_dims{batch, op.heads, op.length, 1};
    const Strides stats_strides =
        backward ? Strides{op.heads * op.length, op.length, 1, 1} : Strides{op.length, op.q.rows(), 1, 1};
    const auto common = [&](auto attributes) {
      attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
          .set_diagonal_band_right_bound(0)
          .set_attn_scale(static_cast<float>(op.scale));
      if (op.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(op.window));
      return attributes;
    };
    const auto x = input(q, tensors[0], op.heads, op.dim), y = input(k, tensors[1], op.kv_heads, op.dim),
               z = input(v, tensors[2], op.kv_heads, op.value_dim);
    if (!backward) {
      const auto [o, s] = graph.sdpa(x, y, z, common(fe::graph::SDPA_attributes().set_generate_stats(true)));
      output(o, out, tensors[3], op.heads, op.value_dim);
      s->set_output(true)
          .set_uid(stats)
          .set_data_type(fe::DataType_t::FLOAT)
          .set_dim(stats_dims)
          .set_stride(stats_strides);
    } else {
      const auto o = input(out, tensors[3], op.heads, op.value_dim),
                 d = input(dout, tensors[4], op.heads, op.value_dim);
      const auto s = graph.tensor(fe::graph::Tensor_attributes()
                                      .set_uid(stats)
                                      .set_data_type(fe::DataType_t::FLOAT)
                                      .set_dim(stats_dims)
                                      .set_stride(stats_strides));
      const auto [da, db, dc] = graph.sdpa_backward(
          x, y, z, o, d, s,
          common(fe::graph::SDPA_backward_attributes().set_deterministic_algorithm(pass == Pass::backward)));
      output(da, dq, tensors[5], op.heads, op.dim);
      output(db, dk, tensors[6], op.kv_heads, op.dim);
      output(dc, dv, tensors[7], op.kv_heads, op.value_dim);
    }
    fe::error_t status = graph.build(handle_, {fe::HeurMode_t::A});
    if (!status.is_good()) explain(status.get_message());
    return status.is_good();
  }

  void run(CudaStream& stream, PlanOfShape& plan, std::unordered_map<std::int64_t, void*>& pointers, void* workspace) {
    const std::scoped_lock lock(mutex_);
    if (fe::detail::set_stream(handle_, stream.handle()) != CUDNN_STATUS_SUCCESS) throw RunError("cuDNN: no stream");
    fe::error_t status = plan.graph.execute(handle_, pointers, workspace);
    if (!status.is_good()) throw RunError("cuDNN: {}", status.get_message());
  }

  cudnnHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<PlanOfShape>> plans_;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention() {
  if (!load_library().empty()) return nullptr;
  return std::make_unique<Cudnn>();
}

std::string cudnn_version() {
  if (const std::string why = load_library(); !why.empty()) return why;
  const std::size_t version = fe::detail::get_backend_version();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace weft::cuda
