// The energy of single operations of a training step on a GPU, each run for about a second without a pause. Whole steps
// are bound by power (docs/gpu_speed.md), so joules are what matters. One JSON line per case: ms, watts, joules. Data
// are random; shapes are those of gpt-moe in bench_gpu_step.
//
//   bench_gpu_energy [NAME...]      NAME: part of a case's name (default: all)
//
// Energy is read from the GPU's own counter through NVML, which is loaded at run time.
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/gpu_counter.h"
#include "bench/gpu_data.h"
#include "weft/base/error.h"
#include "weft/base/json.h"

namespace weft {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Bench : public GpuData {
 public:
  explicit Bench(std::vector<std::string> names) : names_(std::move(names)) {}
  bool wanted(const std::string& name) const { return is_wanted(name, names_); }
  void idle() {
    stream().synchronize();
    const double joules = energy_.joules(), start = now();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    print("nothing", (now() - start) * 1e3, energy_.joules() - joules, 1, 0, 0);
  }
  void run(const std::string& name, double flop, double bytes, const std::function<void()>& work) {
    if (!wanted(name)) return;
    work();
    stream().synchronize();
    const double begin = now();
    for (int i = 0; i < 5; ++i) work();
    stream().synchronize();
    const int count = std::max(5, static_cast<int>(5 / (now() - begin)));  // about a second
    for (int i = 0; i < count / 4; ++i) work();                            // warm
    stream().synchronize();
    const double joules = energy_.joules(), start = now();
    for (int i = 0; i < count; ++i) work();
    stream().synchronize();
    print(name, (now() - start) * 1e3, energy_.joules() - joules, count, flop, bytes);
  }

 private:
  void print(const std::string& name, double ms, double joules, int count, double flop, double bytes) {
    Json line = {{"case", name},
                 {"ms", ms / count},
                 {"watts", joules / ms * 1e3},
                 {"joules", joules / count},
                 {"mhz", energy_.clock()}};
    if (flop > 0) line["tflop_s"] = flop * count / ms * 1e-9;
    if (flop > 0) line["pj_per_flop"] = joules / count / flop * 1e12;
    if (bytes > 0) line["gb_s"] = bytes * count / ms * 1e-6;
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }
  GpuEnergy energy_;
  std::vector<std::string> names_;
};

void optimizer(Bench& b) {
  const std::int64_t n = 1000000000;
  const Tensor values = b.filled(DType::f64, {StepValues::count}, 0.5);
  for (const DType gradients : {DType::bf16, DType::f32}) {
    const std::vector<AdamSlab> slabs = adam_slabs(b, n, 8, gradients);
    const double bytes = static_cast<double>(n) * (gradients == DType::bf16 ? 26 : 28);
    const char* type = gradients == DType::bf16 ? "bf16" : "f32";
    for (const int processors : {b.device().processors(), 96, 64, 56, 48, 40, 32, 24}) {
      b.stream().use_processors(processors);
      b.run(fmt::format("adamw 1e9, {} gradients, {} SMs", type, processors), 0, bytes, [&] {
        b.ops().adamw(b.stream(), {slabs, values});
      });
    }
    b.stream().use_processors(b.device().processors());
    b.forget(1);
  }
}

void products(Bench& b) {
  const std::int64_t T = 8192, H = 2048, F = 6144;
  const Tensor x = b.random(DType::bf16, {T, H}), w = b.random(DType::bf16, {2 * F, H}),
               y = b.random(DType::bf16, {T, 2 * F}), dw = b.empty(DType::bf16, {2 * F, H});
  const double flop = 4.0 * static_cast<double>(T * H * F);
  b.run("product 8192 x 2048 x 12288", flop, 0, [&] {
    b.ops().matmul(b.stream(), {x, w, y, Transposed::no, Transposed::yes});
  });
  b.run("product, input gradient", flop, 0, [&] { b.ops().matmul(b.stream(), {y, w, x}); });
  b.run("product, weight gradient", flop, 0, [&] {
    b.ops().matmul(b.stream(), {y, x, dw, Transposed::yes, Transposed::no});
  });
}

void experts(Bench& b) {
  const Routing routing = even_routing(b);
  const RouteRows& route = routing.route;
  const std::int64_t T = Routing::tokens, R = Routing::rows, E = Routing::experts, H = 2048, F = 1024;
  b.ops().route_rows(b.stream(), route);
  const auto rows = [&](std::int64_t n, std::int64_t columns) { return b.random(DType::bf16, {n, columns}); };
  const Tensor x = rows(T, H), in = rows(R, H), h = rows(R, 2 * F), a = rows(R, F), out = rows(R, H),
               w1 = b.random(DType::bf16, {E, 2 * F, H}), w2 = b.random(DType::bf16, {E, H, F}),
               dw1 = b.empty(DType::bf16, {E, 2 * F, H}), dw2 = b.empty(DType::bf16, {E, H, F}), dh = rows(R, 2 * F);
  const Groups groups{route.counts, route.offsets};
  const double flop = 2.0 * static_cast<double>(R * H * F);
  using Mode = GroupedMatmul::Mode;
  const auto product = [&](const char* name, Mode mode, const Tensor& from, const Tensor& w, const Tensor& to,
                           double times) {
    b.run(name, times * flop, 0, [&] { b.ops().grouped_matmul(b.stream(), {mode, from, w, to, groups}); });
  };
  product("experts w1", Mode::forward, in, w1, h, 2);
  product("experts w2", Mode::forward, a, w2, out, 1);
  product("experts w2, input gradient", Mode::input_gradient, a, w2, out, 1);
  product("experts w1, input gradient", Mode::input_gradient, in, w1, h, 2);
  product("experts w1, weight gradient", Mode::weight_gradient, in, dw1, h, 2);
  product("experts w2, weight gradient", Mode::weight_gradient, a, dw2, out, 1);
  const Tensor scale = b.filled(DType::f32, {R}, 0.125), dscale = b.empty(DType::f32, {R});
  b.run("swiglu", 0, bytes_of({&h, &a}), [&] { b.ops().activation(b.stream(), {{}, h, a, scale}); });
  b.run("swiglu backward", 0, bytes_of({&h, &a, &dh}), [&] {
    b.ops().activation_backward(b.stream(), {{}, h, scale, a, dh, dscale});
  });
  b.run("permute", 0, bytes_of({&x, &in}), [&] {
    b.ops().gather_rows(b.stream(), {x, route.slot_of_row, in, {}, Routing::k, route.row_of_slot});
  });
  b.run("unpermute", 0, bytes_of({&in, &x}), [&] { b.ops().sum_rows(b.stream(), {in, route.row_of_slot, x}); });
}

void rest(Bench& b) {
  const std::int64_t T = 8192, H = 2048, heads = 16, kv = 4, dim = 128, length = 4096;
  const auto rows = [&](std::int64_t columns) { return b.random(DType::bf16, {T, columns}); };
  const Tensor x = rows(H), y = rows(H), dy = rows(H), dx = rows(H), weight = b.random(DType::bf16, {H}),
               inverse = b.empty(DType::f32, {T}), dweight = b.empty(DType::f32, {H});
  b.run("rms norm", 0, bytes_of({&x, &y}), [&] { b.ops().rms_norm(b.stream(), {x, weight, y, inverse}); });
  b.run("rms norm backward", 0, bytes_of({&x, &dy, &dx}), [&] {
    b.ops().rms_norm_backward(b.stream(), {x, weight, inverse, dy, dx, {}, dweight});
  });
  Attention f{rows(heads * dim), rows(kv * dim), rows(kv * dim), rows(heads * dim), b.empty(DType::f32, {heads, T})};
  f.length = length, f.heads = heads, f.kv_heads = kv, f.dim = f.value_dim = dim;
  f.scale = 1 / std::sqrt(static_cast<double>(dim));
  const double flop = 4.0 * static_cast<double>(heads * dim) * static_cast<double>(length * length);
  b.run("attention", flop, 0, [&] { b.ops().attention(b.stream(), f); });
  AttentionBackward g{
      f, rows(heads * dim), rows(heads * dim), rows(kv * dim), rows(kv * dim), {}, b.empty(DType::f32, {heads, T})};
  b.run("attention backward, deterministic", 2.5 * flop, 0, [&] { b.ops().attention_backward(b.stream(), g); });
  g.repeatable = false;
  b.run("attention backward, fastest", 2.5 * flop, 0, [&] { b.ops().attention_backward(b.stream(), g); });
}

void run(std::vector<std::string> names) {
  Bench b(std::move(names));
  b.idle();
  const Tensor from = b.random(DType::f32, {std::int64_t{1} << 29}), to = b.empty(DType::f32, from.shape);
  b.run("copy 2 GiB", 0, bytes_of({&from, &to}), [&] { b.ops().cast(b.stream(), {from, to}); });
  b.forget();
  for (const auto& part : {optimizer, products, experts, rest}) {
    part(b);
    b.forget();
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    weft::run(std::vector<std::string>(argv + 1, argv + argc));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_gpu_energy: {}\n", error.what());
    return 1;
  }
}
