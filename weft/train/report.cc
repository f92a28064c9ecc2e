#include "weft/train/report.h"

#include <chrono>
#include <ctime>
#include <filesystem>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "weft/base/text.h"
#include "weft/plan/simulate/traffic.h"

namespace weft {

PlanReport report_of(const Module& module, const Plan& plan, const MemoryPlan& memory, const ModelConfig& config,
                     const TrainOptions& options) {
  PlanReport report;
  report.pattern = config.pattern;
  const Module* const alone = &module;
  report.parameters = count_parameters(std::span(&alone, 1), config.experts.experts, config.experts.router.k,
                                       options.layout.expert_model_parallel_size);
  report.nodes = plan.nodes.size();
  report.memory = memory;
  report.divided = divided_memory(plan, memory);
  report.ranks = module.layout.ranks();
  report.flops = total_flops(plan);
  report.recomputed_flops = recomputed_flops(plan);
  report.traffic = traffic_of(plan, module.layout);
  report.tokens = options.batch.global_batch_size * options.batch.seq_length;
  return report;
}

PlanReport report_of(Session& session, const TrainOptions& options, const Pricer& pricer) {
  Plan priced = session.plan().plan();
  price(priced, session.module(), pricer);
  PlanReport report = report_of(session.module(), priced, session.plan().memory(), session.options().config, options);
  if (const Layout& layout = session.options().layout; layout.stage_count() > 1) {
    std::vector<std::unique_ptr<Module>> stages;
    std::vector<const Module*> all;
    for (const RankId rank : layout.members_of(layout.stages())) {
      ModuleOptions there = training_step(session.options()).module;
      there.layout = layout.seen_from(rank);
      stages.push_back(std::make_unique<Module>(build_module(session.options().config, there)));
      all.push_back(stages.back().get());
    }
    const ExpertsSpec& experts = session.options().config.experts;
    report.parameters =
        count_parameters(all, experts.experts, experts.router.k, options.layout.expert_model_parallel_size);
  }
  report.stream_bytes = static_cast<std::int64_t>(session.memory_need().streams.total());
  report.communicator_bytes = session.memory_need().communicators;
  report.validation_bytes = session.memory_need().evaluation;
  return report;
}

namespace {

// "8.25 MiB, 8.00 MiB of them parts of what ranks divide"
std::string with_parts(std::int64_t all, std::int64_t parts) {
  const std::string text = human_bytes(static_cast<double>(all));
  if (parts == 0) return text;
  return fmt::format("{}, {} of them parts of what ranks divide", text, human_bytes(static_cast<double>(parts)));
}

}  // namespace

std::string to_text(const PlanReport& r) {
  const MemoryPlan& m = r.memory;
  std::string text;
  const auto row = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<14}{}\n", name, value);
  };
  row("pattern", r.pattern);
  row("parameters", fmt::format("{} ({} active per token)", human_count(static_cast<double>(r.parameters.all)),
                                human_count(static_cast<double>(r.parameters.active))));
  const std::string each = r.ranks > 1 ? " per rank" : "";
  if (r.ranks > 1) row("ranks", fmt::format("{}", r.ranks));
  row("plan", fmt::format("{} nodes{}, checked", r.nodes, each));
  row("work", fmt::format("{}FLOP{} and {} tokens per step", human_count(r.flops), each,
                          human_count(static_cast<double>(r.tokens))));
  if (r.recomputed_flops > 0)
    row("", fmt::format("{}FLOP{} more to recompute what is not kept", human_count(r.recomputed_flops), each));
  if (r.product_peak > 0)
    row("peak", fmt::format("{:.1f} TFLOP/s in large products, measured", r.product_peak * 1e-12));
  if (r.estimate) {
    row("estimate", step_text(*r.estimate));
    row("", "estimated for " + to_text(r.estimate->cluster));
  }
  const auto bytes = [](std::int64_t value) { return human_bytes(static_cast<double>(value)); };
  row("memory", fmt::format("{} in total{}", bytes(m.total()), each));
  const DividedMemory& divided = r.divided;
  row("  weights", with_parts(m.weights, divided.weights));
  row("  gradients", with_parts(m.gradients, divided.gradients));
  row("  optimizer", with_parts(m.states, divided.states));
  row("  activations", fmt::format("{} at the peak", bytes(m.activations)));
  if (divided.gathered > 0)
    row("    gathered", fmt::format("{} of these at most, whole weights of {} unit{}", bytes(divided.gathered),
                                    divided.units, divided.units > 1 ? "s" : ""));
  if (divided.of_instances > 0)
    row("    instances", fmt::format("{} of these, parts from other instances", bytes(divided.of_instances)));
  if (divided.in_flight > 0)
    row("    in flight", fmt::format("{} of these at most, gradients to be reduced", bytes(divided.in_flight)));
  row("  step", fmt::format("{} (inputs, tables, results)", bytes(m.step)));
  if (r.validation_bytes > 0) row("  validation", fmt::format("{} in addition", bytes(r.validation_bytes)));
  if (r.stream_bytes > 0) row("  operations", fmt::format("{} in addition, as workspace", bytes(r.stream_bytes)));
  if (r.communicator_bytes > 0)
    row("  links", fmt::format("{} in addition, between ranks, measured", bytes(r.communicator_bytes)));
  if (r.library_bytes >= 0) row("  libraries", fmt::format("{} in addition, measured", bytes(r.library_bytes)));
  std::vector<std::string> traffic;
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    if (r.traffic[lane] > 0)
      traffic.push_back(fmt::format("{} {}", name_of(static_cast<Lane>(lane)), human_bytes(r.traffic[lane])));
  if (!traffic.empty()) row("traffic", fmt::format("sends per step and rank, by lane: {}", join(traffic, ", ")));
  text.pop_back();
  return text;
}

std::string step_text(const Estimate& estimate) {
  const double seconds = estimate.seconds;
  std::string text = "step " + (seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : human_seconds(seconds));
  if (estimate.exchange.communication > 0)
    text += fmt::format(", {:.1f} % of the exchange hidden", 100 * estimate.exchange.share_hidden());
  if (estimate.tensor.communication > 0)
    text += fmt::format(", {:.1f} % of transfers among tensor ranks hidden", 100 * estimate.tensor.share_hidden());
  return text;
}

namespace {

// The name of its folder, which may be gone at the end of a run.
std::string model_name(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::weakly_canonical(folder, error);
  return error || !path.has_filename() ? folder : path.filename().string();
}

}  // namespace

std::string about_text(const TrainOptions& o, const std::string& pattern, std::int64_t parameters) {
  const auto count = [](std::int64_t n, std::string_view what) {
    return fmt::format("{} {}{}", n, what, n > 1 ? "s" : "");
  };
  std::vector<std::string> parts;
  if (!o.model.hf.empty()) parts.push_back(model_name(o.model.hf));
  const bool is_short = pattern.size() <= 80;  // a long one comes last, or it would hide the rest
  if (is_short) parts.push_back(pattern);
  parts.push_back(human_count(static_cast<double>(parameters)) + " parameters");
  parts.push_back(count(o.layout.ranks, "rank"));
  if (o.layout.tensor_model_parallel_size > 1)
    parts.push_back(count(o.layout.tensor_model_parallel_size, "tensor rank"));
  if (o.layout.context_parallel_size > 1) parts.push_back(count(o.layout.context_parallel_size, "context rank"));
  if (o.layout.ranks > 1) parts.push_back(count(o.layout.expert_model_parallel_size, "expert rank"));
  const std::int64_t steps = micro_batches(o);
  parts.push_back(fmt::format("{} micro-batch{} of {} x {} tokens", steps, steps > 1 ? "es" : "",
                              o.batch.micro_batch_size, o.batch.seq_length));
  parts.emplace_back(name_of(o.dtype));
  const ExecutionOptions& e = o.execution;
  if (e.overlap_moe_expert_parallel_comm) parts.emplace_back("--overlap-moe-expert-parallel-comm");
  if (e.delay_wgrad_compute) parts.emplace_back("--delay-wgrad-compute");
  if (e.overlap_dispatch_backward_with_experts_wgrad)
    parts.emplace_back("--overlap-dispatch-backward-with-experts-wgrad");
  if (std::string recompute = recompute_text(o.recompute); !recompute.empty()) parts.push_back(std::move(recompute));
  if (e.overlap_optimizer) parts.emplace_back("--overlap-optimizer");
  if (!e.emulate_network.empty()) parts.push_back("--emulate-network " + e.emulate_network);
  if (!is_short) parts.push_back(pattern);
  return join(parts, " · ");
}

std::string to_text(const LogLine& l) {
  std::string further;
  for (std::size_t d = 0; d < l.mtp_losses.size(); ++d)
    further += fmt::format("mtp_{} loss: {:.6E} | ", d + 1, l.mtp_losses[d]);
  for (const auto& [name, loss] : l.router_losses) further += fmt::format("{}: {:.6E} | ", name, loss);
  const std::string norm = l.gradient_norm ? fmt::format("grad norm: {:.3f} | ", *l.gradient_norm) : "";
  // The peak is known only on fast devices.
  const std::string throughput =
      l.product_peak > 0 ? fmt::format("throughput (TFLOP/s): {:.1f} | share of the measured GEMM peak: {:.1f} %",
                                       l.flops_per_second * 1e-12, 100 * l.flops_per_second / l.product_peak)
                         : fmt::format("throughput (GFLOP/s): {:.1f}", l.flops_per_second * 1e-9);
  // Weft never skips an iteration (a loss that is not finite ends the run); parsers of Megatron's logs expect the field.
  using Clock = std::chrono::system_clock;
  const auto now = Clock::now();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1000000;
  return fmt::format(
      " [{:%Y-%m-%d %H:%M:%S}.{:06}] iteration {:8}/{:8} | consumed samples: {:12} | elapsed time per iteration (ms): "
      "{:.1f} | "
      "{} | tokens per second: {:.0f} | learning rate: {:.6E} | global batch size: {:5} | "
      "lm loss: {:.6E} | {}{}number of skipped iterations: {:3} | number of nan iterations: {:3} | "
      "time left: {} |",
      fmt::localtime(Clock::to_time_t(now)), micros, l.iteration, l.iterations, l.consumed_samples,
      l.step_seconds * 1e3, throughput, l.tokens_per_second, l.learning_rate, l.global_batch, l.loss, further, norm,
      l.skipped, l.not_finite, human_seconds(l.seconds_left));
}

std::vector<std::pair<std::string, double>> named_losses(const BalanceSpec& balance, const Module& module,
                                                         const StepResult& result, bool by_layer) {
  std::vector<std::pair<std::string, double>> losses;
  if (module.indexer_loss.valid()) losses.emplace_back("indexer_loss", result.indexer_loss);
  if (result.router_losses.empty()) return losses;
  const auto add = [&](double coefficient, const char* name, RouterLoss loss) {
    if (coefficient == 0) return;
    const auto column = static_cast<std::size_t>(loss);
    losses.emplace_back(name, result.router_losses[column]);
    for (std::size_t i = 0; by_layer && i < module.expert_layers.size(); ++i) {
      const auto [depth, physical] = module.expert_layers[i];
      losses.emplace_back(fmt::format("{}{}_layer_{}", name, depth > 0 ? fmt::format("_mtp_{}", depth) : "", physical),
                          result.layer_losses[i * router_loss_count + column]);
    }
  };
  add(balance.aux_loss, "load_balancing_loss", RouterLoss::aux);
  add(balance.sequence_aux_loss, "seq_load_balancing_loss", RouterLoss::sequence_aux);
  add(balance.global_aux_loss, "global_load_balancing_loss", RouterLoss::global_aux);
  add(balance.z_loss, "z_loss", RouterLoss::z);
  return losses;
}

}  // namespace weft
