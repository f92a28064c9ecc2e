// `weft plan` and `weft check`: what a configuration would do, before anything runs.
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
#include "weft/optim/adamw.h"
#include "weft/plan/build.h"
#include "weft/plan/check_ranks.h"
#include "weft/plan/estimate.h"
#include "weft/plan/memory.h"
#include "weft/plan/perfetto.h"
#include "weft/plan/text.h"
#include "weft/plan/timeline_page.h"
#include "weft/train/data_source.h"
#include "weft/train/options.h"
#include "weft/train/report.h"
#include "weft/train/trainer.h"

namespace weft {

namespace {

// A configuration, planned on paper: no weights, no data, any size.
struct PaperPlan {
  ModelConfig config;
  Module module;
  Plan plan;
  MemoryPlan memory;
  std::vector<PlanFault> faults;  // of all ranks
};

PaperPlan plan_on_paper(const TrainOptions& options) {
  PaperPlan paper;
  paper.config = run_config(options);
  const SessionOptions s = session_options(options, paper.config);
  ModuleOptions shape = module_options(s);
  shape.data_shards = options.layout.ranks;
  paper.module = build_module(paper.config, shape);
  GradientLayout layout{options.layout.ranks, s.ranks.expert_ranks, options.layout.ranks / s.ranks.expert_ranks};
  add_updates(paper.module, s.precision, s.adam, layout);
  paper.plan = build_plan(paper.module, plan_options(s));
  paper.plan.pattern = paper.config.pattern;
  price(paper.plan, paper.module, counting_pricer(paper.module));
  paper.memory = plan_memory(paper.plan);
  paper.faults = check_ranks(same_on_all_ranks(grid_of(layout), paper.plan, paper.memory));
  return paper;
}

ParameterCount parameters_of(const PaperPlan& paper, const TrainOptions& options) {
  return count_parameters(paper.module, paper.config.experts.experts, paper.config.experts.router.k,
                          options.layout.expert_model_parallel_size);
}

// Options of a command that plans: all of train's, and these. False: nothing is left to do here.
struct Output {
  bool json = false;
  std::string html;
  MachineRates rates;
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
  flags.section("The machine that times are estimated for");
  flags.add("--estimate-flops", output.rates.flops, "X", "FLOPs a second, of a rank.").above(0);
  flags.add("--estimate-memory-bandwidth", output.rates.bytes, "X", "Bytes a second, of a rank.").above(0);
  flags.add("--estimate-network-bandwidth", output.rates.bandwidth, "X", "Bytes a second that a rank sends.").above(0);
  flags.add("--estimate-network-latency", output.rates.latency, "X", "Seconds, of a transfer between ranks.")
      .at_least(0);
  add_train_flags(flags, options);
  Launch launch;
  parse_train_options(flags, options, words, [&]() -> std::int64_t {
    if (flags.is_set("--ranks")) return 1;  // a plan on paper, wherever this runs
    launch = this_launch(options.layout);
    return launch.size;
  });
  if (flags.help_wanted()) fmt::print("{}", flags.help());
  for (const std::string& name : options.explain) fmt::print("{}\n", flags.explain(name));
  if (flags.help_wanted() || !options.explain.empty()) return false;
  if (launch.rank != 0) return false;  // all processes of a launcher would say the same
  require_folder_of("--html", output.html);
  require_folder_of("--trace", options.execution.trace);
  for (const auto& notes : {flags.notes(), weave_notes(options)})
    for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
  std::vector<const char*> outputs = {"--timeline", "--metrics", "--tensorboard-dir",
                                      "--sample",   "--save-hf", "--digest"};
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
  const PaperPlan paper = plan_on_paper(options);
  if (!paper.faults.empty()) throw_faults("the plan of all ranks", paper.faults);
  if (!output.html.empty() || !options.execution.trace.empty()) {
    Timeline timeline =
        estimate_timeline(paper.plan, paper.memory, static_cast<int>(options.layout.ranks), output.rates);
    timeline.title = "weft plan: estimate of a step";
    timeline.about = about_text(options, paper.config.pattern, parameters_of(paper, options).all);
    if (!output.html.empty()) write_file_atomically(output.html, timeline_page(timeline, nullptr));
    if (!options.execution.trace.empty()) write_file_atomically(options.execution.trace, perfetto_trace(timeline));
    if (!output.json) {
      fmt::print("{} nodes a rank; {}, {}\n", paper.plan.nodes.size(), step_text(timeline), timeline.times);
      return 0;
    }
  }
  if (output.json) {
    fmt::print("{}\n", to_json(paper.plan, paper.memory).dump());
  } else {
    fmt::print("{}", to_text(paper.plan, paper.memory));
  }
  return 0;
}

int run_check_command(std::span<const std::string> words) {
  TrainOptions options;
  Output output;
  if (!parse("weft check", "Builds and checks the plan; says parameters, peak memory and work before anything runs.",
             words, options, output))
    return 0;
  const PaperPlan paper = plan_on_paper(options);
  PlanReport report;
  report.pattern = paper.config.pattern;
  report.parameters = parameters_of(paper, options);
  report.ranks = options.layout.ranks;
  report.nodes = paper.plan.nodes.size();
  report.memory = paper.memory;
  report.flops = total_flops(paper.plan);
  report.tokens = options.batch.global_batch_size * options.batch.seq_length;
  const Timeline estimate = estimate_timeline(paper.plan, paper.memory, 1, output.rates);  // ranks do the same
  report.estimate = &estimate;
  if (!output.json) {
    fmt::print("{}\n", to_text(report));
    if (!paper.faults.empty()) throw_faults("the plan of all ranks", paper.faults);
    return 0;
  }
  Json faults = Json::array();
  for (const PlanFault& fault : paper.faults) {
    Json nodes = Json::array(), ranks = Json::array();
    for (NodeId node : fault.nodes) nodes.push_back(node.value);
    for (RankId rank : fault.ranks) ranks.push_back(rank.value);
    faults.push_back({{"message", fault.message}, {"nodes", nodes}, {"ranks", ranks}});
  }
  const MemoryPlan& m = paper.memory;
  const Overlap exchange = overlap_of(estimate, 0, Lane::exchange);
  const Json result = {
      {"pattern", report.pattern},
      {"parameters", report.parameters.all},
      {"active_parameters", report.parameters.active},
      {"nodes", report.nodes},
      {"flops_per_step", report.flops},
      {"tokens_per_step", report.tokens},
      {"memory",
       {{"total", m.total()},
        {"weights", m.weights},
        {"gradients", m.gradients},
        {"optimizer", m.states},
        {"activations", m.activations},
        {"step", m.step}}},
      {"estimate",
       {{"step_seconds", range_of(estimate).length()},
        {"exchange_seconds", exchange.communication},
        {"exchange_hidden_seconds", exchange.hidden},
        {"flops", output.rates.flops},
        {"memory_bandwidth", output.rates.bytes},
        {"network_bandwidth", output.rates.bandwidth},
        {"network_latency", output.rates.latency}}},
      {"ranks", report.ranks},
      {"faults", faults},
  };
  fmt::print("{}\n", result.dump());
  return paper.faults.empty() ? 0 : 1;
}

}  // namespace weft
