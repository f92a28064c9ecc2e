// `weft plan` and `weft check`: what a configuration would do, before anything runs.
#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/weft/commands.h"
#include "apps/weft/machine.h"
#include "apps/weft/output_file.h"
#include "apps/weft/ranks.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/execute/step_plan.h"
#include "weft/plan/check/check_ranks.h"
#include "weft/plan/draw/perfetto.h"
#include "weft/plan/draw/timeline_page.h"
#include "weft/plan/simulate/estimate.h"
#include "weft/plan/text.h"
#include "weft/train/data_source.h"
#include "weft/train/options.h"
#include "weft/train/prefetch_costs.h"
#include "weft/train/report.h"
#include "weft/train/stage_report.h"
#include "weft/train/trainer.h"

namespace weft {

namespace {

// A configuration, planned without running it: no weights, no data, any size.
struct PlannedStep {
  ModelConfig config;
  StepOptions options;
  std::unique_ptr<LayoutPlans> all;
  std::vector<PlanFault> faults;  // of all ranks

  const StepPlan& step() const { return *all->steps().front(); }  // of the first rank
};

PlannedStep planned_step(const TrainOptions& options) {
  PlannedStep planned;
  planned.config = run_config(options);
  planned.options = training_step(session_options(options, planned.config));
  planned.all = std::make_unique<LayoutPlans>(planned.options, counting_pricer());
  planned.faults = check_ranks(planned.all->ranks());
  return planned;
}

ParameterCount parameters_of(const PlannedStep& planned, const TrainOptions& options) {
  const Layout& layout = planned.step().module.layout;
  std::vector<const Module*> stages;
  for (const RankId rank : layout.members_of(layout.stages())) stages.push_back(&planned.all->step_of(rank).module);
  return count_parameters(stages, planned.config.experts.experts, planned.config.experts.router.k,
                          options.layout.expert_model_parallel_size);
}

// Options of a command that plans: all of train's, and these. False: there is nothing else to do here.
struct Output {
  bool json = false;
  std::string html;
  Cluster cluster;
};
bool parse(const char* program, const char* summary, std::span<const std::string> words, TrainOptions& options,
           Output& output) {
  FlagTable flags(program, summary);
  const bool draws = std::string_view(program) == "weft plan";
  flags.section("Output");
  flags.add("--json", output.json, "Prints JSON.");
  if (draws)
    flags.add("--html", output.html, "FILE",
              "Writes a page that draws lanes, exchange and memory over estimated time.");
  flags.section("The machines that times are estimated for");
  Cluster& cluster = output.cluster;
  std::int64_t ranks_per_machine = 0;
  flags.add("--estimate-flops", cluster.flops, "X", "FLOPs per second of a rank.").above(0);
  flags.add("--estimate-memory-bandwidth", cluster.bytes, "X", "Bytes of memory traffic per second of a rank.")
      .above(0);
  flags.add("--estimate-network-bandwidth", cluster.between.bandwidth, "X", "Bytes per second that a rank sends.")
      .above(0);
  flags.add("--estimate-network-latency", cluster.between.latency, "X", "Seconds that a transfer takes between ranks.")
      .at_least(0);
  flags.add("--estimate-ranks-per-machine", ranks_per_machine, "N", "Ranks that share a machine. 0: all share one.")
      .at_least(0);
  flags
      .add("--estimate-machine-bandwidth", cluster.within.bandwidth, "X",
           "Bytes per second that a rank sends to ranks of its machine. Unless given, as over the network.")
      .above(0);
  flags
      .add("--estimate-machine-latency", cluster.within.latency, "X",
           "Seconds that a transfer takes between ranks of one machine. Unless given, as over the network.")
      .at_least(0);
  add_train_flags(flags, options);
  Launch launch;
  parse_train_options(flags, options, words, [&]() -> std::int64_t {
    if (flags.is_set("--ranks")) return 1;  // planned for that many, wherever this runs
    launch = this_launch(options.layout);
    return launch.size;
  });
  if (flags.help_wanted()) fmt::print("{}", flags.help());
  for (const std::string& name : options.explain) fmt::print("{}\n", flags.explain(name));
  if (flags.help_wanted() || !options.explain.empty()) return false;
  cluster.ranks_per_machine = static_cast<int>(std::min<std::int64_t>(ranks_per_machine, options.layout.ranks));
  if (!flags.is_set("--estimate-machine-bandwidth")) cluster.within.bandwidth = cluster.between.bandwidth;
  if (!flags.is_set("--estimate-machine-latency")) cluster.within.latency = cluster.between.latency;
  if (launch.rank != 0) return false;  // all processes of a launcher would print the same
  require_folder_of("--html", output.html);
  require_folder_of("--trace", options.execution.trace);
  for (const auto& notes : {flags.notes(), layout_notes(options), overlap_notes(options), sharding_notes(options)})
    for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
  std::vector<const char*> outputs = {"--timeline", "--metrics",   "--tensorboard-dir", "--sample",
                                      "--save-hf",  "--hf-family", "--hf-dtype",        "--digest"};
  if (!draws) outputs.push_back("--trace");
  note_missing_outputs(flags, fmt::format("{} runs nothing (weft plan --html FILE draws its plan)", program), outputs);
  return true;
}

}  // namespace

int run_plan_command(std::span<const std::string> words) {
  TrainOptions options;
  Output output;
  if (!parse("weft plan", "Prints the plan of a training step: every node, what it reads, writes and adds to.", words,
             options, output))
    return 0;
  const PlannedStep planned = planned_step(options);
  if (!planned.faults.empty()) throw_faults("the plan of all ranks", planned.faults);
  if (!output.html.empty() || !options.execution.trace.empty()) {
    Timeline timeline = estimate_timeline(planned.all->ranks(), output.cluster);
    timeline.title = "weft plan: estimate of a step";
    timeline.stages = planned.all->stages();
    timeline.about = about_text(options, planned.config.pattern, parameters_of(planned, options).all);
    if (!output.html.empty()) write_file_atomically(output.html, timeline_page(timeline, nullptr));
    if (!options.execution.trace.empty()) write_file_atomically(options.execution.trace, perfetto_trace(timeline));
    if (!output.json) {
      fmt::print("{} nodes per rank; {}, {}\n", planned.step().plan.nodes.size(),
                 step_text(estimate_step(planned.all->ranks(), output.cluster)), timeline.times);
      return 0;
    }
  }
  if (output.json) {
    fmt::print("{}\n", to_json(planned.step().plan, planned.step().memory).dump());
  } else {
    fmt::print("{}", to_text(planned.step().plan, planned.step().memory));
  }
  return 0;
}

int run_check_command(std::span<const std::string> words) {
  TrainOptions options;
  Output output;
  if (!parse("weft check", "Builds and checks the plan; reports parameters, peak memory and work before anything runs.",
             words, options, output))
    return 0;
  const PlannedStep planned = planned_step(options);
  const StepPlan& step = planned.step();
  PlanReport report = report_of(step.module, step.plan, step.memory, planned.config, options);
  report.parameters = parameters_of(planned, options);
  Estimate estimate;
  if (planned.faults.empty()) estimate = estimate_step(planned.all->ranks(), output.cluster);
  report.estimate = planned.faults.empty() ? &estimate : nullptr;
  std::vector<PrefetchCost> prefetch;
  if (planned.faults.empty() && step.module.layout.stage_count() == 1)
    prefetch = prefetch_costs(step.module, planned.options.plan, counting_pricer(), output.cluster);
  StageReport stages;
  if (planned.faults.empty()) stages = stage_report(*planned.all, planned.options, output.cluster);
  if (!output.json) {
    fmt::print("{}\n", to_text(report));
    if (!stages.stages.empty()) fmt::print("{}\n", to_text(stages));
    if (!prefetch.empty()) fmt::print("{}\n", to_text(prefetch));
    if (!planned.faults.empty()) throw_faults("the plan of all ranks", planned.faults);
    return 0;
  }
  Json faults = Json::array();
  for (const PlanFault& fault : planned.faults) {
    Json nodes = Json::array(), ranks = Json::array();
    for (NodeId node : fault.nodes) nodes.push_back(node.value);
    for (RankId rank : fault.ranks) ranks.push_back(rank.value);
    faults.push_back({{"message", fault.message}, {"nodes", nodes}, {"ranks", ranks}});
  }
  Json traffic = Json::object();
  for (std::size_t lane = 0; lane < lane_count; ++lane)
    if (report.traffic[lane] > 0) traffic[std::string(name_of(static_cast<Lane>(lane)))] = report.traffic[lane];
  const MemoryPlan& m = step.memory;
  const DividedMemory& divided = report.divided;
  const Cluster& cluster = output.cluster;
  const Json result = {
      {"pattern", report.pattern},
      {"parameters", report.parameters.all},
      {"active_parameters", report.parameters.active},
      {"nodes", report.nodes},
      {"flops_per_step", report.flops},
      {"recomputed_flops_per_step", report.recomputed_flops},
      {"tokens_per_step", report.tokens},
      {"memory",
       {{"total", m.total()},
        {"weights", m.weights},
        {"gradients", m.gradients},
        {"optimizer", m.states},
        {"activations", m.activations},
        {"step", m.step}}},
      {"divided",
       {{"weights", divided.weights},
        {"gradients", divided.gradients},
        {"optimizer", divided.states},
        {"gathered_at_peak", divided.gathered},
        {"units_at_peak", divided.units},
        {"gathered_from_instances", divided.of_instances},
        {"gradients_in_flight", divided.in_flight}}},
      {"prefetch", to_json(prefetch)},
      {"pipeline", to_json(stages)},
      {"estimate",
       {{"step_seconds", estimate.seconds},
        {"exchange_seconds", estimate.exchange.communication},
        {"exchange_hidden_seconds", estimate.exchange.hidden},
        {"tensor_seconds", estimate.tensor.communication},
        {"tensor_hidden_seconds", estimate.tensor.hidden},
        {"communication_seconds", estimate.all.communication},
        {"communication_hidden_seconds", estimate.all.hidden},
        {"flops", cluster.flops},
        {"memory_bandwidth", cluster.bytes},
        {"network_bandwidth", cluster.between.bandwidth},
        {"network_latency", cluster.between.latency},
        {"ranks_per_machine", cluster.ranks_per_machine},
        {"machine_bandwidth", cluster.within.bandwidth},
        {"machine_latency", cluster.within.latency}}},
      {"traffic", traffic},
      {"ranks", report.ranks},
      {"faults", faults},
  };
  fmt::print("{}\n", result.dump());
  return planned.faults.empty() ? 0 : 1;
}

}  // namespace weft
