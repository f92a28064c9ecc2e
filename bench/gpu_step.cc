// A whole training step on a GPU: the models of shared/peers/gpu_train_step.py, in bf16 with float gradients (or bf16
// gradients, as in the peer), with two sequences of 4096 tokens. One JSON line per model: tokens/s, model TFLOP/s by
// the peer's formula, memory, the time of the host and of gaps between kernels, and where the time goes by kind of
// node.
//
//   bench_gpu_step [MODEL...] [--steps N] [--no-moe-router-force-load-balancing] [--overlap-optimizer]
//                  [--grad-reduce-in-bf16] [--attention-backward fastest] [--clip-grad X]
//                                              MODEL: gpt-moe, hybrid-moe, dense (default: all)
//
// Weights are random: zeros would need less power. Routing is forced to be even, as with the peer's --balanced, or it
// is that of the untrained router on random tokens.
//
// replay_host_us: from the call of Session::step (tokens on the host) to the return of the graph's launch; launch_us:
// the part of it within the executor; host_us: all time of the host in a step except waiting for the GPU. Medians. (A
// GPU begins a graph before its launch returns.)
// between_steps: the share of wall time in which no step is on the GPU, by events around each step, in separate steps.
// gpu_busy: the share of two steps in which at least one kernel or copy ran, by CUPTI. Gaps between kernels count as
// idle, and CUPTI makes them longer, so this is a lower bound.
// joules, watts: from the GPU's own counter.
// memory: the estimate before the run, and by how much the GPU's free memory (cudaMemGetInfo) shrank.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/gpu_busy.h"
#include "bench/gpu_counter.h"
#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/base/random.h"
#include "weft/device/cuda_device.h"
#include "weft/device/operations.h"
#include "weft/execute/stream_executor.h"
#include "weft/train/session.h"

namespace weft {
namespace {

constexpr std::int64_t batch = 2, length = 4096;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

ModelConfig model(const std::string& name) {
  ModelConfig c;
  c.hidden = 2048;
  c.vocabulary = 32768;
  c.attention.heads = 16;
  c.attention.kv_heads = 4;
  c.attention.head_dim = 128;
  if (name == "gpt-moe" || name == "hybrid-moe") {
    const bool hybrid = name == "hybrid-moe";
    for (int i = 0; i < (hybrid ? 2 : 12); ++i) c.pattern += hybrid ? "MEMEM*E" : "*E";
    c.mamba.heads = 64;
    c.mamba.head_dim = 64;
    c.mamba.groups = 8;
    c.mamba.state = 128;
    c.experts.experts = 64;
    c.experts.ffn = 1024;
    c.experts.shared_ffn = 1024;
    c.experts.router.k = 8;
  } else if (name == "dense") {
    for (int i = 0; i < 24; ++i) c.pattern += "*-";
    c.mlp.ffn = 6144;
  } else {
    throw UserError("there is no model '{}': gpt-moe, hybrid-moe and dense", name);
  }
  return c;
}

// Matrices of forward and backward, causal attention, the scan by chunks: the peer's count.
double flop_per_token(const ModelConfig& c) {
  const auto h = static_cast<double>(c.hidden), q = static_cast<double>(c.attention.heads),
             k = static_cast<double>(c.attention.kv_heads), d = static_cast<double>(c.attention.head_dim);
  double f = 2 * h * static_cast<double>(c.vocabulary);
  for (char symbol : c.pattern) {
    if (symbol == '*') f += 2 * h * (q + 2 * k) * d + 2 * q * d * h + 2.0 * length * q * d;
    if (symbol == '-') f += 6 * h * static_cast<double>(c.mlp.ffn);
    if (symbol == 'M') {
      const MambaSpec& m = c.mamba;
      const auto inner = static_cast<double>(m.width()), mixed = static_cast<double>(m.channels()),
                 heads = static_cast<double>(m.heads), p = static_cast<double>(m.head_dim),
                 n = static_cast<double>(m.state), chunk = static_cast<double>(m.chunk);
      f += 2 * h * (inner + mixed + heads) + 2 * inner * h + 8 * mixed;
      f += static_cast<double>(m.groups) * chunk * n + heads * (chunk * p + 4 * n * p);
    }
    if (symbol == 'E')
      f += 2 * h * static_cast<double>(c.experts.experts) +
           6 * h * static_cast<double>(c.experts.router.k * c.experts.ffn + c.experts.shared_ffn);
  }
  return 3 * f;
}

// Random weights, repeated from one block on the device: generating them on the host would take minutes.
void fill_parameters(Session& session) {
  Device& device = session.device();
  Stream& stream = session.stream();
  const Operations& ops = device.operations();
  constexpr std::int64_t size = (1 << 22) + 1021;
  std::vector<float> numbers(size);
  const std::uint64_t key = random_key(1, "gpu_step");
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(0.02 * random_normal(key, i));
  const std::unique_ptr<Memory> block = device.allocate(size * sizeof(float));
  device.copy_in(stream, block->data(), numbers.data(), size * sizeof(float));
  const Tensor random(block->data(), DType::f32, {size});
  const Module& module = session.module();
  for (std::size_t i = 0; i < module.parameters.size(); ++i) {
    const Tensor& weight = session.storage().weight(TensorId(static_cast<std::int64_t>(i)));
    const ParameterStates& states = module.states[i];
    const std::int64_t count = weight.shape.elements();
    const Tensor flat(weight.data, weight.dtype, {count});
    for (std::int64_t at = 0; at < count; at += size) {
      const std::int64_t n = std::min(size, count - at);
      if (weight.shape.dims() == 1)
        ops.fill(stream, {flat.slice_rows(at, n), 1});
      else
        ops.cast(stream, {random.slice_rows(0, n), flat.slice_rows(at, n)});
    }
    for (ValueId state : states.all())
      if (state.valid()) ops.fill(stream, {session.storage().state(state), 0});
  }
  stream.synchronize();
}

std::vector<MicroBatch> random_batches() {
  std::vector<MicroBatch> batches(4);
  const std::uint64_t key = random_key(2, "tokens");
  std::uint64_t at = 0;
  for (MicroBatch& b : batches) {
    b.batch = batch;
    b.length = length;
    const auto token = [&] {
      return static_cast<std::int32_t>(static_cast<std::int64_t>(std::abs(random_normal(key, at++)) * 1e7) % 32768);
    };
    for (std::int64_t i = 0; i < batch * length; ++i) b.tokens.push_back(token());
    b.labels = b.tokens;
    std::rotate(b.labels.begin(), b.labels.begin() + 1, b.labels.end());
  }
  return batches;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

double rounded(double value, double unit) { return std::round(value / unit) * unit; }

struct BenchOptions {
  int steps = 10;
  bool even_routing = true, late_updates = false, bf16_gradients = false, fast_attention = false;
  double clip = 1;
};

void run(const std::string& name, const BenchOptions& options) {
  const int steps = options.steps;
  const std::unique_ptr<Device> device = make_cuda_device();
  const std::size_t before = device->free_bytes();
  SessionOptions o;
  o.config = model(name);
  o.config.experts.balance.forced = options.even_routing;
  o.precision.compute = DType::bf16;
  o.precision.bf16_gradients = options.bf16_gradients;
  o.batch = batch;
  o.length = length;
  o.ranks.parallel = true;
  o.plan.overlap_updates = options.late_updates;
  o.optimizer.clip = options.clip;
  o.repeatable_attention = !options.fast_attention;
  o.logits_slice_bytes = std::int64_t{1} << 30;
  Session session(*device, o);
  fill_parameters(session);
  const std::vector<MicroBatch> batches = random_batches();
  double loss = 0;
  const auto step = [&](int i) {
    loss = session.step(std::span(&batches[static_cast<std::size_t>(i % 4)], 1), 1e-5, 0.1).loss;
  };
  auto& executor = dynamic_cast<StreamExecutor&>(*session.executor());
  int before_timing = 3;
  for (int i = 0; before_timing > 0; ++i) {  // the last of them record the graph and launch it for the first time
    step(i);
    if (executor.division().settled()) --before_timing;
  }
  std::vector<double> replay, launch, host;
  const std::optional<GpuEnergy> energy = GpuEnergy::if_counted();
  const double joules = energy ? energy->joules() : 0, start = now();
  for (int i = 0; i < steps; ++i) {
    const double called = now();
    step(i);
    const StreamExecutor::StepTimes times = executor.step_times();
    host.push_back(now() - called - times.waited);
    replay.push_back(executor.began() - called + times.queued);
    launch.push_back(times.queued);
  }
  const double seconds = (now() - start) / steps;
  const double joules_per_step = energy ? (energy->joules() - joules) / steps : 0;
  executor.time_on_device(true);
  double on_device = 0;
  const double start_timed = now();
  for (int i = 0; i < steps; ++i) {
    step(i);
    on_device += executor.step_times().on_device;
  }
  const double between = 1 - on_device / (now() - start_timed);
  executor.time_on_device(false);
  const std::size_t after = device->free_bytes();
  const MemoryNeed& need = session.memory_need();
  const auto gib = [](auto bytes) { return rounded(static_cast<double>(bytes) / (1 << 30), 1e-3); };
  const double measured = static_cast<double>(before - after);
  const Json memory = {{"estimate_gib", gib(need.total())},
                       {"measured_gib", gib(measured)},
                       {"estimate_over_measured", rounded(static_cast<double>(need.total()) / measured, 1e-4)},
                       {"plan_gib", gib(need.plan.total())},
                       {"streams_gib", gib(need.streams.total())},
                       {"streams_hold_gib", gib(session.stream().held_bytes() + executor.held_bytes())},
                       {"libraries_gib", gib(need.library_bytes)}};

  session.executor()->keep_times(true);
  step(0);
  const Plan& plan = session.plan().plan();
  std::map<std::string, double> milliseconds;
  double busy = 0;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const NodeTime& t = session.executor()->times()[i];
    const Node& node = plan.nodes[i];
    const PlaceInfo& place = plan.place_of(node);
    const std::string layer = place.layer.find('.') != std::string::npos && place.layer.starts_with("main")
                                  ? place.layer.substr(place.layer.size() - 1)
                              : place.layer.starts_with("unit") ? "unit"
                                                                : place.layer;
    milliseconds[fmt::format("{} {} {}", layer, place.piece, name_of(node.phase))] += (t.end - t.start) * 1e3;
    busy += t.end - t.start;
  }
  executor.keep_times(false);
  GpuBusy gpu;
  {
    StreamExecutor own(session.plan(), *device, session.stream(), {});
    const auto two_steps = [&] {
      for (int i = 0; i < 2; ++i) own.run_step();
    };
    const auto prepare = [&] {
      two_steps();
      while (!own.division().settled()) own.run_step();
      two_steps();
    };
    gpu = measure_busy(prepare, two_steps);
  }
  Json table = Json::object();
  for (const auto& [kind, time] : milliseconds) table[kind] = std::round(time * 100) / 100;
  Json divisions = Json::object();
  for (const auto& [processors, time] : executor.division().timed())
    divisions[std::to_string(processors)] = std::round(time * 1e5) / 100;
  const double tokens = static_cast<double>(batch * length) / seconds;
  const Json result = {
      {"model", name},
      {"routing", options.even_routing ? "even" : "as initialised"},
      {"overlap_optimizer", options.late_updates},
      {"clip_grad", options.clip},
      {"update_processors", executor.division().processors()},
      {"ms_by_update_processors", divisions},
      {"attention_backward", options.fast_attention ? "fastest" : "deterministic"},
      {"gradients", options.bf16_gradients ? "bf16" : "f32"},
      {"tokens_s", std::round(tokens)},
      {"step_ms", seconds * 1e3},
      {"joules", energy ? Json(joules_per_step) : Json("not counted")},
      {"watts", energy ? Json(joules_per_step / seconds) : Json("not counted")},
      {"model_tflops", tokens * flop_per_token(o.config) * 1e-12},
      {"loss", loss},
      {"memory", memory},
      {"replay_host_us", rounded(median(replay) * 1e6, 0.1)},
      {"launch_us", rounded(median(launch) * 1e6, 0.1)},
      {"host_us", rounded(median(host) * 1e6, 0.1)},
      {"between_steps", rounded(between, 1e-5)},
      {"gpu_busy", gpu.why_not.empty() ? Json(rounded(gpu.busy / gpu.span, 1e-4)) : Json(gpu.why_not)},
      {"kernels", gpu.count / 2},
      {"graph", executor.why_no_graph().empty() ? "full" : executor.why_no_graph()},
      {"unrolled_by", executor.why_from_host().empty() ? "device" : "host: " + executor.why_from_host()},
      {"nodes_ms", busy * 1e3},
      {"ms_by_kind", table}};
  fmt::print("{}\n", result.dump());
  std::fflush(stdout);
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    std::vector<std::string> models;
    weft::BenchOptions options;
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
        options.steps = std::atoi(argv[++i]);
      else if (std::strcmp(argv[i], "--no-moe-router-force-load-balancing") == 0)
        options.even_routing = false;
      else if (std::strcmp(argv[i], "--overlap-optimizer") == 0)
        options.late_updates = true;
      else if (std::strcmp(argv[i], "--grad-reduce-in-bf16") == 0)
        options.bf16_gradients = true;
      else if (std::strcmp(argv[i], "--clip-grad") == 0 && i + 1 < argc)
        options.clip = std::atof(argv[++i]);
      else if (std::strcmp(argv[i], "--attention-backward") == 0 && i + 1 < argc)
        options.fast_attention = std::strcmp(argv[++i], "fastest") == 0;
      else
        models.push_back(argv[i]);
    }
    if (models.empty()) models = {"gpt-moe", "hybrid-moe", "dense"};
    for (const std::string& name : models) weft::run(name, options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_gpu_step: {}\n", error.what());
    return 1;
  }
}
