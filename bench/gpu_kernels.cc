// Single operations of a training step on a GPU, in bf16, compared with what bounds them: the bandwidth of a large copy
// and the rate of a large product, both measured here. One JSON line per case; the cases are those of
// shared/peers/gpu_kernels.py, and attention in the modes of bench/peers/attention.py.
//
//   bench_gpu_kernels [NAME...] [--rounds N]      NAME: part of a case's name (default: all)
//
// 256 MiB are written before every round, so that the L2 cache is cold; medians. Data are random. "share" is the
// fraction of the bound that is reached: bytes (the least that must move) over the copy's bandwidth, or FLOP over the
// product's rate. After these writes up to 50 MB in the L2 cache still have to go to memory, at the expense of the
// operation. So operations bound by bytes are measured in two ways: "ms" and "share" after another 256 MiB were read,
// which leaves a cold cache with nothing to write back; "ms_after_writes" and "share_after_writes" without that.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/gpu_data.h"
#include "weft/base/error.h"
#include "weft/base/json.h"

namespace weft {
namespace {

class Bench : public GpuData {
 public:
  Bench(std::vector<std::string> names, int rounds)
      : names_(std::move(names)),
        rounds_(rounds),
        start_(device().make_event()),
        end_(device().make_event()),
        cold_(empty(DType::f32, {64 << 20})),
        read_(filled(DType::f32, {64 << 20}, 1)),
        sum_(empty(DType::f64, {1})) {}

  void forget() { GpuData::forget(3); }  // the first are cold_, read_ and sum_
  bool wanted(const std::string& name) const { return is_wanted(name, names_); }

  // Milliseconds, the median of the rounds. settled: the cache has nothing to write back.
  double time(const std::function<void()>& work, bool settled = false) {
    work();
    std::vector<double> times;
    for (int i = 0; i < rounds_; ++i) {
      ops().fill(stream(), {cold_, static_cast<double>(i + 1)});
      if (settled) ops().sum_of_squares(stream(), {std::span<const Tensor>(&read_, 1), sum_});
      start_->record(stream());
      work();
      end_->record(stream());
      stream().synchronize();
      times.push_back(end_->seconds_since(*start_) * 1e3);
    }
    std::nth_element(times.begin(), times.begin() + rounds_ / 2, times.end());
    return times[static_cast<std::size_t>(rounds_ / 2)];
  }
  void copy_limit() {
    const Tensor a = random(DType::f32, {std::int64_t{1} << 28}), b = empty(DType::f32, {std::int64_t{1} << 28});
    const double ms = time([&] { ops().cast(stream(), {a, b}); });
    bandwidth_ = 2 * static_cast<double>(a.bytes()) / ms * 1e-6;
    fmt::print("{}\n", Json({{"case", "copy 1 GiB"}, {"ms", ms}, {"gb_s", bandwidth_}}).dump());
    forget();
  }
  void product_limit() {
    const std::int64_t n = 8192;
    const Tensor a = random(DType::bf16, {n, n}), b = random(DType::bf16, {n, n}), c = empty(DType::bf16, {n, n});
    const double ms = time([&] { ops().matmul(stream(), {a, b, c, Transposed::no, Transposed::yes}); });
    rate_ = 2 * std::pow(static_cast<double>(n), 3) / ms * 1e-9;
    fmt::print("{}\n", Json({{"case", "product 8192^3 bf16"}, {"ms", ms}, {"tflop_s", rate_}}).dump());
    forget();
  }
  void by_bytes(const std::string& name, double bytes, const std::function<void()>& work) {
    const double ms = time(work, true), rate = bytes / ms * 1e-6, after = time(work);
    print({{"case", name},
           {"ms", ms},
           {"gb_s", rate},
           {"share", rate / bandwidth_},
           {"ms_after_writes", after},
           {"share_after_writes", bytes / after * 1e-6 / bandwidth_}});
  }
  void by_flop(const std::string& name, double flop, const std::function<void()>& work) {
    const double ms = time(work), rate = flop / ms * 1e-9;
    print({{"case", name}, {"ms", ms}, {"tflop_s", rate}, {"share", rate / rate_}});
  }

 private:
  static void print(const Json& line) {
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }
  std::vector<std::string> names_;
  int rounds_;
  std::unique_ptr<Event> start_, end_;
  Tensor cold_, read_, sum_;
  double bandwidth_ = 1, rate_ = 1;
};

// b2 l4096 h64 p64 n128 g8, chunks of 128.
void scan(Bench& b) {
  const std::int64_t T = 8192, heads = 64, dim = 64, state = 128, groups = 8, chunks = T / 128;
  const auto rows = [&](std::int64_t columns) { return b.random(DType::bf16, {T, columns}); };
  StateScan f{rows(heads * dim), rows(groups * state), rows(groups * state), rows(heads)};
  f.A_log = b.filled(DType::f32, {heads}, 1);
  f.dt_bias = b.filled(DType::f32, {heads}, -4);
  f.D = b.filled(DType::f32, {heads}, 1);
  f.y = rows(heads * dim);
  f.states = b.empty(DType::f32, {chunks, heads * dim * state});
  f.length = 4096;
  f.heads = heads;
  f.groups = groups;
  f.dim = dim;
  f.state = state;
  b.by_bytes("scan forward b2 l4096 h64 p64 n128 g8", bytes_of({&f.x, &f.B, &f.C, &f.dt, &f.y, &f.states}),
             [&] { b.ops().state_scan(b.stream(), f); });
  StateScanBackward g{f, rows(heads * dim), rows(heads * dim), rows(groups * state), rows(groups * state), rows(heads)};
  g.dA_log = b.empty(DType::f32, {heads});
  g.ddt_bias = b.empty(DType::f32, {heads});
  g.dD = b.empty(DType::f32, {heads});
  g.dstates = b.empty(DType::f32, {chunks, heads * dim * state});
  g.sums = b.empty(DType::f32, {chunks, 3 * heads});
  b.by_bytes("scan backward b2 l4096 h64 p64 n128 g8",
             bytes_of({&f.x, &f.B, &f.C, &f.dt, &f.states, &g.dy, &g.dx, &g.dB, &g.dC, &g.ddt}),
             [&] { b.ops().state_scan_backward(b.stream(), g); });
}

void convolution(Bench& b) {
  const std::int64_t T = 8192, channels = 6144;
  const auto rows = [&] { return b.random(DType::bf16, {T, channels}); };
  CausalConvolution f{rows(), b.random(DType::bf16, {channels, 4}), b.random(DType::bf16, {channels}), rows()};
  f.length = 4096;
  b.by_bytes("convolution forward b2 l4096 d6144", bytes_of({&f.x, &f.y}),
             [&] { b.ops().causal_convolution(b.stream(), f); });
  const Tensor dy = rows(), dx = rows();
  b.by_bytes("convolution backward b2 l4096 d6144", bytes_of({&f.x, &dy, &dx}), [&] {
    b.ops().causal_convolution_backward(b.stream(), {f, dy, dx});
  });
  const Tensor dweight = b.empty(DType::f32, {channels, 4}), dbias = b.empty(DType::f32, {channels});
  b.by_bytes("convolution weight gradient b2 l4096 d6144", bytes_of({&f.x, &dy}), [&] {
    b.ops().causal_convolution_weight_gradient(b.stream(), {f, dy, dweight, dbias});
  });
}

void gated_norm(Bench& b) {
  const std::int64_t T = 8192, width = 4096, groups = 8;
  const auto rows = [&] { return b.random(DType::bf16, {T, width}); };
  GatedNorm f{rows(), rows(), b.random(DType::bf16, {width}), rows(), b.empty(DType::f32, {T * groups})};
  f.groups = groups;
  b.by_bytes("gated norm forward 8192x4096 in 8", bytes_of({&f.x, &f.z, &f.y}),
             [&] { b.ops().gated_norm(b.stream(), f); });
  const Tensor dy = rows(), dx = rows(), dz = rows(), dweight = b.empty(DType::f32, {width});
  b.by_bytes("gated norm backward 8192x4096 in 8", bytes_of({&f.x, &f.z, &dy, &dx, &dz}), [&] {
    b.ops().gated_norm_backward(b.stream(), {f, dy, dx, dz, dweight});
  });
}

void norm(Bench& b, std::int64_t T, std::int64_t width) {
  const auto rows = [&] { return b.random(DType::bf16, {T, width}); };
  const Tensor x = rows(), y = rows(), dy = rows(), dx = rows(), residual = rows(),
               weight = b.random(DType::bf16, {width}), inverse = b.empty(DType::f32, {T}),
               dweight = b.empty(DType::f32, {width});
  const std::string shape = fmt::format(" {}x{}", T, width);
  b.by_bytes("copy" + shape, bytes_of({&x, &y}), [&] { b.ops().cast(b.stream(), {x, y}); });
  b.by_bytes("rms norm forward" + shape, bytes_of({&x, &y}), [&] {
    b.ops().rms_norm(b.stream(), {x, weight, y, inverse});
  });
  b.by_bytes("rms norm backward" + shape, bytes_of({&x, &dy, &dx}), [&] {
    b.ops().rms_norm_backward(b.stream(), {x, weight, inverse, dy, dx, {}, dweight});
  });
  b.by_bytes("rms norm backward with residual" + shape, bytes_of({&x, &dy, &residual, &dx}), [&] {
    b.ops().rms_norm_backward(b.stream(), {x, weight, inverse, dy, dx, residual, dweight});
  });
}

void optimizer(Bench& b) {
  const std::vector<AdamSlab> slabs = adam_slabs(b, 1000000000, 16, DType::f32);
  std::vector<Tensor> gradients;
  double bytes = 0, read = 0;
  for (const AdamSlab& s : slabs) {
    gradients.push_back(s.gradient);
    bytes += bytes_of({&s.gradient}) + 2 * bytes_of({&s.weight, &s.remainder, &s.m, &s.v});
    read += bytes_of({&s.gradient});
  }
  const Tensor values = b.filled(DType::f64, {StepValues::count}, 0.5), sum = b.empty(DType::f64, {1});
  b.by_bytes("sum of squares 1e9", read, [&] { b.ops().sum_of_squares(b.stream(), {gradients, sum}); });
  b.by_bytes("adamw 1e9", bytes, [&] { b.ops().adamw(b.stream(), {slabs, values}); });
}

// The head and its loss in slices, as in the model.
void head(Bench& b) {
  const std::int64_t T = 4096, H = 2048, V = 131072, slice = 2048;
  const Tensor x = b.random(DType::bf16, {T, H}), w = b.random(DType::bf16, {V, H}), dx = b.empty(DType::bf16, {T, H}),
               dw = b.empty(DType::f32, {V, H}), logits = b.empty(DType::f32, {slice, V}),
               dlogits = b.empty(DType::bf16, {slice, V}), loss = b.empty(DType::f32, {1}),
               scale = b.filled(DType::f64, {1}, 1.0 / static_cast<double>(T));
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < T; ++t) ids.push_back(static_cast<std::int32_t>(t * 7919 % V));
  const Tensor labels = b.integers(ids);
  b.by_bytes("cross entropy 2048x131072", bytes_of({&logits, &dlogits}), [&] {
    b.ops().cross_entropy(b.stream(), {logits, labels.slice_rows(0, slice), scale, loss, dlogits, {}, V});
  });
  b.by_flop("head and cross entropy 4096x2048x131072", 6.0 * static_cast<double>(T * H) * static_cast<double>(V), [&] {
    for (std::int64_t begin = 0; begin < T; begin += slice) {
      const Tensor rows = x.slice_rows(begin, slice);
      const Store store = begin == 0 ? Store::write : Store::add;
      b.ops().matmul(b.stream(), {rows, w, logits, Transposed::no, Transposed::yes});
      b.ops().cross_entropy(b.stream(), {logits, labels.slice_rows(begin, slice), scale, loss, dlogits, {}, V, store});
      b.ops().matmul(b.stream(), {dlogits, w, dx.slice_rows(begin, slice)});
      b.ops().matmul(b.stream(), {dlogits, rows, dw, Transposed::yes, Transposed::no, store});
    }
  });
}

void permutation(Bench& b) {
  const std::int64_t T = Routing::tokens, k = Routing::k, H = 2048, R = Routing::rows;
  const RouteRows route = even_routing(b).route;
  b.ops().route_rows(b.stream(), route);
  const Tensor x = b.random(DType::bf16, {T, H}), rows = b.random(DType::bf16, {R, H}),
               y = b.empty(DType::bf16, {T, H});
  b.by_bytes("route 8192 x 8 of 64", bytes_of({&route.indices, &route.row_of_slot, &route.slot_of_row}),
             [&] { b.ops().route_rows(b.stream(), route); });
  b.by_bytes("permute 65536x2048", bytes_of({&x, &rows}), [&] {
    b.ops().gather_rows(b.stream(), {x, route.slot_of_row, rows, {}, k, route.row_of_slot});
  });
  b.by_bytes("unpermute 65536x2048", bytes_of({&rows, &y}), [&] {
    b.ops().sum_rows(b.stream(), {rows, route.row_of_slot, y});
  });
}

void attention(Bench& b, std::int64_t batch, std::int64_t length) {
  const std::int64_t T = batch * length, heads = 32, kv = 8, dim = 128;
  const auto rows = [&](std::int64_t n) { return b.random(DType::bf16, {T, n * dim}); };
  Attention f{rows(heads), rows(kv), rows(kv), rows(heads), b.empty(DType::f32, {heads, T})};
  f.length = length;
  f.heads = heads;
  f.kv_heads = kv;
  f.dim = f.value_dim = dim;
  f.scale = 1 / std::sqrt(static_cast<double>(dim));
  const double flop = 2.0 * static_cast<double>(batch * heads * dim) * std::pow(static_cast<double>(length), 2);
  const std::string shape = fmt::format(" b{} l{} h32/8 d128", batch, length);
  b.by_flop("attention forward" + shape, flop, [&] { b.ops().attention(b.stream(), f); });
  const AttentionBackward g{f, rows(heads), rows(heads), rows(kv), rows(kv), {}, b.empty(DType::f32, {heads, T})};
  b.by_flop("attention backward, deterministic" + shape, 2.5 * flop,
            [&] { b.ops().attention_backward(b.stream(), g); });
  AttentionBackward any = g;
  any.repeatable = false;
  b.by_flop("attention backward, fastest" + shape, 2.5 * flop, [&] { b.ops().attention_backward(b.stream(), any); });
}

void run(const std::vector<std::string>& names, int rounds) {
  Bench b(names, rounds);
  b.copy_limit();
  b.product_limit();
  const auto part = [&](const char* name, const std::function<void()>& body) {
    if (!b.wanted(name)) return;
    body();
    b.forget();
  };
  part("scan", [&] { scan(b); });
  part("convolution", [&] { convolution(b); });
  part("gated norm", [&] { gated_norm(b); });
  part("rms norm", [&] {
    norm(b, 8192, 2048);
    norm(b, 8192, 4096);
  });
  part("adamw", [&] { optimizer(b); });
  part("cross entropy", [&] { head(b); });
  part("permute", [&] { permutation(b); });
  part("attention", [&] {
    attention(b, 2, 4096);
    attention(b, 2, 8192);
  });
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    std::vector<std::string> names;
    int rounds = 15;
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
        rounds = std::max(1, std::atoi(argv[++i]));
      else
        names.push_back(argv[i]);
    }
    weft::run(names, rounds);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_gpu_kernels: {}\n", error.what());
    return 1;
  }
}
