// The routed experts of one layer on a GPU: permute + experts + unpermute, forward and backward (input and weight
// gradients), bf16 with float gradients of weights. Same shapes and conventions as shared/peers/gpu_moe_layer.py:
// 6 R H F FLOP forward and 12 R H F backward with R = tokens x choices, 256 MiB written before each iteration, medians.
// One JSON line per shape.
//
//   bench_gpu_experts [--iterations N] [--even] [--bf16-gradients] [--only SHAPE]
//
// --even: every expert gets the same number of rows; otherwise the k largest of random logits are chosen, as in the
// peer.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/base/random.h"
#include "weft/device/cuda_device.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

struct Shape4 {
  std::int64_t tokens, hidden, ffn, experts, k;
};
constexpr Shape4 shapes[] = {
    {8192, 2048, 1024, 64, 8}, {2048, 2048, 1024, 64, 8}, {2048, 2048, 1408, 128, 8}, {2048, 7168, 2048, 16, 8}};

struct Settings {
  int iterations = 20, only = -1;
  bool even = false, narrow_gradients = false;
};

struct Choices {
  std::vector<std::int32_t> experts;  // [T, k]
  std::vector<float> weights;
  double busiest_over_mean = 0;
};

Choices choose(const Shape4& s, bool even) {
  Choices c;
  std::vector<double> logits(static_cast<std::size_t>(s.experts)), loads(logits.size());
  std::vector<std::int32_t> order(logits.size());
  const std::uint64_t key = random_key(7, "routing");
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    for (std::int64_t e = 0; e < s.experts; ++e)
      logits[static_cast<std::size_t>(e)] = random_normal(key, static_cast<std::uint64_t>(t * s.experts + e));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + s.k, order.end(), [&](std::int32_t a, std::int32_t b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    double sum = 0;
    for (std::int64_t j = 0; j < s.k; ++j) {
      const std::int32_t e =
          even ? static_cast<std::int32_t>((t * s.k + j) % s.experts) : order[static_cast<std::size_t>(j)];
      c.experts.push_back(e);
      loads[static_cast<std::size_t>(e)] += 1;
      c.weights.push_back(static_cast<float>(std::exp(logits[static_cast<std::size_t>(e)])));
      sum += static_cast<double>(c.weights.back());
    }
    for (std::int64_t j = 0; j < s.k; ++j)
      c.weights[c.weights.size() - 1 - static_cast<std::size_t>(j)] /= static_cast<float>(sum);
  }
  c.busiest_over_mean = *std::max_element(loads.begin(), loads.end()) * static_cast<double>(s.experts) /
                        static_cast<double>(s.tokens * s.k);
  return c;
}

// Tensors on the device, random or not.
class Tensors {
 public:
  explicit Tensors(Device& device) : device_(device), stream_(device.make_stream(1)) {
    std::vector<float> numbers(size);
    const std::uint64_t key = random_key(1, "gpu_experts");
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(random_normal(key, i));
    large_ = put(numbers, {size});
    for (float& x : numbers) x *= 0.02f;
    small_ = put(numbers, {size});
  }
  Stream& stream() { return *stream_; }
  const Operations& ops() const { return device_.operations(); }
  Tensor make(DType dtype, const Shape& shape) {
    memory_.push_back(device_.allocate(static_cast<std::size_t>(shape.elements()) * size_of(dtype)));
    return Tensor(memory_.back()->data(), dtype, shape);
  }
  Tensor random(const Shape& shape, bool large) {
    const Tensor made = make(DType::bf16, shape), flat = made.reshape({shape.elements()});
    for (std::int64_t at = 0; at < shape.elements(); at += size) {
      const std::int64_t n = std::min<std::int64_t>(size, shape.elements() - at);
      ops().cast(*stream_, {(large ? large_ : small_).slice_rows(0, n), flat.slice_rows(at, n)});
    }
    return made;
  }
  template <class T>
  Tensor put(const std::vector<T>& values, const Shape& shape) {
    const Tensor made = make(std::is_same_v<T, float> ? DType::f32 : DType::i32, shape);
    device_.copy_in(*stream_, made.data, values.data(), made.bytes());
    stream_->synchronize();
    return made;
  }
  std::vector<float> get(const Tensor& x) {  // of any dtype
    const Tensor wide = make(DType::f32, x.shape);
    ops().cast(*stream_, {x, wide});
    std::vector<float> values(static_cast<std::size_t>(x.shape.elements()));
    device_.copy_out(*stream_, values.data(), wide.data, wide.bytes());
    stream_->synchronize();
    return values;
  }

 private:
  static constexpr std::int64_t size = (1 << 22) + 1021;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Memory>> memory_;
  Tensor large_, small_;
};

struct Operation {
  const char* name;
  bool backward;
  std::function<void()> queue;
};

struct Layer {
  Tensor x, choices, weights, counts, offsets, row_of_slot, slot_of_row, in_use, rows, row_weights, w1, w2, h, a, out,
      y;
  Tensor dy, dout, da, dh, drows, drow_weights, dweights, dx, dw1, dw2;
};

Layer make_layer(Tensors& t, const Shape4& s, const Choices& c, bool narrow_gradients) {
  const std::int64_t T = s.tokens, H = s.hidden, F = s.ffn, E = s.experts, R = T * s.k;
  const DType of_gradients = narrow_gradients ? DType::bf16 : DType::f32;
  const auto floats = [&](const Shape& shape) { return t.make(DType::f32, shape); };
  const auto integers = [&](const Shape& shape) { return t.make(DType::i32, shape); };
  const auto narrow = [&](const Shape& shape) { return t.make(DType::bf16, shape); };
  Layer l;
  l.x = t.random({T, H}, true), l.dy = t.random({T, H}, true);
  l.w1 = t.random({E, 2 * F, H}, false), l.w2 = t.random({E, H, F}, false);
  l.choices = t.put(c.experts, {T, s.k}), l.weights = t.put(c.weights, {T, s.k});
  l.counts = integers({E}), l.offsets = integers({E + 1}), l.row_of_slot = integers({T, s.k});
  l.slot_of_row = integers({R}), l.in_use = integers({1});
  l.rows = narrow({R, H}), l.row_weights = floats({R, 1}), l.h = narrow({R, 2 * F}), l.a = narrow({R, F});
  l.out = narrow({R, H}), l.y = narrow({T, H}), l.dout = narrow({R, H}), l.da = narrow({R, F});
  l.dh = narrow({R, 2 * F}), l.drows = narrow({R, H}), l.drow_weights = floats({R, 1}), l.dweights = floats({R, 1});
  l.dx = narrow({T, H}), l.dw1 = t.make(of_gradients, {E, 2 * F, H}), l.dw2 = t.make(of_gradients, {E, H, F});
  return l;
}

// The same as in weft/model/layers/experts*.cc.
std::vector<Operation> operations(Tensors& t, const Layer& l, std::int64_t k) {
  using Mode = GroupedMatmul::Mode;
  const Operations& ops = t.ops();
  Stream& stream = t.stream();
  const Groups groups{l.counts, l.offsets};
  const ActivationSpec act;
  const std::int64_t R = l.rows.shape[0];
  return {
      {"route", false,
       [=, &ops, &stream] {
         ops.route_rows(stream, {l.choices, l.counts, l.offsets, l.row_of_slot, l.slot_of_row, l.in_use});
         ops.gather_rows(stream, {l.weights.reshape({R, 1}), l.slot_of_row, l.row_weights, l.in_use, 1});
       }},
      {"permute", false,
       [=, &ops, &stream] {
         ops.gather_rows(stream, {l.x, l.slot_of_row, l.rows, l.in_use, k, l.row_of_slot});
       }},
      {"up", false,
       [=, &ops, &stream] {
         ops.grouped_matmul(stream, {Mode::forward, l.rows, l.w1, l.h, groups});
       }},
      {"activation", false,
       [=, &ops, &stream] {
         ops.activation(stream, {act, l.h, l.a, l.row_weights, l.in_use});
       }},
      {"down", false,
       [=, &ops, &stream] {
         ops.grouped_matmul(stream, {Mode::forward, l.a, l.w2, l.out, groups});
       }},
      {"unpermute", false,
       [=, &ops, &stream] {
         ops.sum_rows(stream, {l.out, l.row_of_slot, l.y, {}, {}});
       }},
      {"permute d", true,
       [=, &ops, &stream] {
         ops.gather_rows(stream, {l.dy, l.slot_of_row, l.dout, l.in_use, k, l.row_of_slot});
       }},
      {"down d", true,
       [=, &ops, &stream] {
         ops.grouped_matmul(stream, {Mode::input_gradient, l.da, l.w2, l.dout, groups});
       }},
      {"activation d", true,
       [=, &ops, &stream] {
         ops.activation_backward(stream, {act, l.h, l.row_weights, l.da, l.dh, l.drow_weights, l.in_use});
       }},
      {"up d", true,
       [=, &ops, &stream] {
         ops.grouped_matmul(stream, {Mode::input_gradient, l.drows, l.w1, l.dh, groups});
       }},
      {"unpermute d", true,
       [=, &ops, &stream] {
         ops.sum_rows(stream, {l.drows, l.row_of_slot, l.dx, {}, {}});
         ops.gather_rows(stream, {l.drow_weights, l.row_of_slot.reshape({R}), l.dweights, {}, 1});
       }},
      {"down w", true,
       [=, &ops, &stream] {
         ops.grouped_matmul(stream, {Mode::weight_gradient, l.a, l.dw2, l.dout, groups});
       }},
      {"up w", true,
       [=, &ops, &stream] {
         ops.grouped_matmul(stream, {Mode::weight_gradient, l.rows, l.dw1, l.dh, groups});
       }},
  };
}

class Clock {
 public:
  Clock(Device& device, Tensors& tensors, int iterations)
      : device_(device), tensors_(tensors), iterations_(iterations) {
    flush_ = tensors.make(DType::f32, {64 << 20});
  }
  // Median milliseconds of each of the parts, queued one after another; 256 MiB are written before the first.
  std::vector<double> time(const std::vector<std::function<void()>>& parts) {
    Stream& stream = tensors_.stream();
    std::vector<std::vector<double>> times(parts.size());
    for (int i = -3; i < iterations_; ++i) {
      std::vector<std::unique_ptr<Event>> events;
      for (std::size_t p = 0; p <= parts.size(); ++p) events.push_back(device_.make_event());
      tensors_.ops().fill(stream, {flush_, 0});
      events[0]->record(stream);
      for (std::size_t p = 0; p < parts.size(); ++p) {
        parts[p]();
        events[p + 1]->record(stream);
      }
      stream.synchronize();
      for (std::size_t p = 0; i >= 0 && p < parts.size(); ++p)
        times[p].push_back(events[p + 1]->seconds_since(*events[p]) * 1e3);
    }
    std::vector<double> medians;
    for (std::vector<double>& of_part : times) {
      std::nth_element(of_part.begin(), of_part.begin() + std::ssize(of_part) / 2, of_part.end());
      medians.push_back(of_part[of_part.size() / 2]);
    }
    return medians;
  }

 private:
  Device& device_;
  Tensors& tensors_;
  int iterations_;
  Tensor flush_;
};

// The largest error of the first tokens' output, relative to its largest value, compared with double on the host.
double error_of(Tensors& t, const Layer& l, const Shape4& s, const Choices& c) {
  const std::int64_t H = s.hidden, F = s.ffn, tokens = 2;
  const std::vector<float> x = t.get(l.x.slice_rows(0, tokens)), y = t.get(l.y.slice_rows(0, tokens));
  double worst = 0, largest = 0;
  for (std::int64_t token = 0; token < tokens; ++token) {
    std::vector<double> sum(static_cast<std::size_t>(H));
    for (std::int64_t j = 0; j < s.k; ++j) {
      const auto slot = static_cast<std::size_t>(token * s.k + j);
      const std::vector<float> w1 = t.get(l.w1.slice_rows(c.experts[slot], 1).reshape({2 * F, H}));
      const std::vector<float> w2 = t.get(l.w2.slice_rows(c.experts[slot], 1).reshape({H, F}));
      const auto product = [&](const std::vector<float>& w, std::int64_t row, auto&& in, std::int64_t n) {
        double total = 0;
        for (std::int64_t i = 0; i < n; ++i)
          total += static_cast<double>(w[static_cast<std::size_t>(row * n + i)]) * in(i);
        return total;
      };
      const auto in = [&](std::int64_t i) { return static_cast<double>(x[static_cast<std::size_t>(token * H + i)]); };
      std::vector<double> a(static_cast<std::size_t>(F));
      for (std::int64_t f = 0; f < F; ++f) {
        const double g = product(w1, f, in, H), u = product(w1, F + f, in, H);
        a[static_cast<std::size_t>(f)] = g / (1 + std::exp(-g)) * u * static_cast<double>(c.weights[slot]);
      }
      for (std::int64_t i = 0; i < H; ++i)
        sum[static_cast<std::size_t>(i)] += product(
            w2, i, [&](std::int64_t f) { return a[static_cast<std::size_t>(f)]; }, F);
    }
    for (std::int64_t i = 0; i < H; ++i) {
      largest = std::max(largest, std::abs(sum[static_cast<std::size_t>(i)]));
      worst = std::max(worst, std::abs(sum[static_cast<std::size_t>(i)] -
                                       static_cast<double>(y[static_cast<std::size_t>(token * H + i)])));
    }
  }
  return worst / largest;
}

double rounded(double x) { return std::round(x * 1e4) / 1e4; }

void run(Device& device, const Shape4& s, const Settings& settings) {
  Tensors tensors(device);
  Clock clock(device, tensors, settings.iterations);
  const Choices choices = choose(s, settings.even);
  const Layer layer = make_layer(tensors, s, choices, settings.narrow_gradients);
  const std::vector<Operation> parts = operations(tensors, layer, s.k);
  const Json shape = {
      {"tokens", s.tokens}, {"hidden", s.hidden}, {"ffn", s.ffn}, {"experts", s.experts}, {"topk", s.k}};
  for (const Operation& part : parts) part.queue();  // first use: scratch memory grows
  tensors.stream().synchronize();

  // As in a training step: forward and backward captured.
  std::vector<std::unique_ptr<Graph>> graphs;
  for (const bool backward : {false, true})
    graphs.push_back(device.capture(tensors.stream(), [&] {
      for (const Operation& part : parts)
        if (part.backward == backward) part.queue();
    }));
  const std::vector<double> whole =
      clock.time({[&] { graphs[0]->launch(tensors.stream()); }, [&] { graphs[1]->launch(tensors.stream()); }});
  std::vector<std::function<void()>> queues;
  for (const Operation& part : parts) queues.push_back(part.queue);
  const std::vector<double> each = clock.time(queues);

  Json by_operation = Json::object();
  for (std::size_t i = 0; i < parts.size(); ++i) by_operation[parts[i].name] = rounded(each[i]);
  const double flop = 6.0 * static_cast<double>(s.tokens * s.k) * static_cast<double>(s.hidden * s.ffn);
  Json line = {{"bench", "gpu_experts"}};
  line.update(shape);
  line.update({{"routing", settings.even ? "even" : "random"},
               {"busiest_over_mean", rounded(choices.busiest_over_mean)},
               {"weight_gradients", settings.narrow_gradients ? "bf16" : "f32"},
               {"fwd_ms", rounded(whole[0])},
               {"bwd_ms", rounded(whole[1])},
               {"fwd_tflops", rounded(flop / whole[0] / 1e9)},
               {"bwd_tflops", rounded(2 * flop / whole[1] / 1e9)},
               {"tflops", rounded(3 * flop / (whole[0] + whole[1]) / 1e9)},
               {"rel_err", rounded(error_of(tensors, layer, s, choices))},
               {"ms_by_operation", by_operation}});
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    weft::Settings settings;
    for (int i = 1; i < argc; ++i) {
      const std::string option = argv[i];
      const auto value = [&]() -> std::string {
        if (i + 1 >= argc) throw weft::UserError("{} needs a value", option);
        return argv[++i];
      };
      if (option == "--iterations")
        settings.iterations = std::max(1, std::atoi(value().c_str()));
      else if (option == "--only")
        settings.only = std::atoi(value().c_str());
      else if (option == "--even")
        settings.even = true;
      else if (option == "--bf16-gradients")
        settings.narrow_gradients = true;
      else
        throw weft::UserError("there is no option '{}'", option);
    }
    const std::unique_ptr<weft::Device> device = weft::make_cuda_device();
    for (int i = 0; i < 4; ++i)
      if (settings.only < 0 || settings.only == i) weft::run(*device, weft::shapes[i], settings);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_gpu_experts: {}\n", error.what());
    return 1;
  }
}
