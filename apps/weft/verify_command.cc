// `weft verify`: a layout against the serial single-rank oracle.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/weft/commands.h"
#include "apps/weft/machine.h"
#include "apps/weft/output_file.h"
#include "apps/weft/ranks.h"
#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/train/verify.h"

namespace weft {

int run_verify_command(std::span<const std::string> words) {
  TrainOptions options;
  options.dtype = DType::f64;
  bool json = false;
  std::int64_t steps = 3;
  double tolerance = 0;
  FlagTable flags(
      "weft verify",
      "Runs a configuration of `weft train` for a few steps on its ranks and on the serial single-rank oracle, and "
      "compares losses, gradient norms and weights after each step: in f64, on a GPU in f32, unless a flag asks for "
      "otherwise.");
  flags.section("Verify");
  flags.add("--steps", steps, "N", "Steps to compare.").at_least(1);
  flags.add("--tolerance", tolerance, "X", "Largest relative difference.")
      .standard("1e-9 in f64, 1e-4 in f32, 5e-2 in bf16")
      .above(0);
  flags.add("--json", json, "Prints JSON.");
  add_train_flags(flags, options);
  parse_train_options(flags, options, words);
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  for (const std::string& name : options.explain) fmt::print("{}\n", flags.explain(name));
  if (!options.explain.empty()) return 0;
  if (this_launch(options.layout).size > 1)
    throw UserError("weft verify compares thread ranks: start it once, with --ranks N");
  note_missing_outputs(flags, "weft verify only compares",
                       {"--trace", "--timeline", "--metrics", "--tensorboard-dir", "--sample", "--save-hf",
                        "--hf-family", "--hf-dtype", "--digest"});
  if (options.execution.device == "cuda" && !flags.is_set("--dtype")) options.dtype = DType::f32;
  if (tolerance == 0) tolerance = options.dtype == DType::f64 ? 1e-9 : options.dtype == DType::f32 ? 1e-4 : 5e-2;

  for (const auto& notes : {layout_notes(options), overlap_notes(options), sharding_notes(options)})
    for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
  prepare_ranks(options, Launch{});
  const auto run = [&](const TrainOptions& o) {
    auto record = std::make_unique<RunRecord>(static_cast<int>(steps));
    run_ranks(o, Launch{}, o.execution.device, Sigterm::watch, [&](const RankPlace& place) {
      run_recorded(o, {place.device, counting_pricer(), stdout, place.world, place.ranks_on_device}, *record);
      return 0;
    });
    return record;
  };
  const auto oracle = run(oracle_of(options)), layout = run(options);
  const std::vector<StepDifference> differences = compare(*layout, *oracle);
  bool equal = true;
  Json list = Json::array();
  if (!json) fmt::print("step   loss                oracle              loss diff  norm diff  weight diff\n");
  for (std::size_t i = 0; i < differences.size(); ++i) {
    const StepDifference& d = differences[i];
    const bool good = d.within(tolerance);
    equal &= good;
    list.push_back({{"step", i + 1},
                    {"loss", d.loss},
                    {"oracle_loss", d.oracle_loss},
                    {"loss_difference", d.loss_difference},
                    {"grad_norm_difference", d.norm_difference},
                    {"weight_difference", d.weight_difference},
                    {"worst_weight", d.worst_weight},
                    {"equal", good}});
    if (!json)
      fmt::print("{:<6} {:<19.15g} {:<19.15g} {:<10.2e} {:<10.2e} {:<10.2e} {}\n", i + 1, d.loss, d.oracle_loss,
                 d.loss_difference, d.norm_difference, d.weight_difference,
                 good ? "" : "DIFFERS: " + d.beyond(tolerance));
  }
  if (json)
    fmt::print("{}\n", Json({{"steps", list}, {"tolerance", tolerance}, {"equal", equal}}).dump());
  else
    fmt::print("{}\n",
               equal ? fmt::format("equal within {:g}", tolerance) : fmt::format("NOT equal within {:g}", tolerance));
  return equal ? 0 : 1;
}

}  // namespace weft
