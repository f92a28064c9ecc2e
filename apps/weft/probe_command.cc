// `weft probe`: a Hugging Face model on given tokens.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/weft/commands.h"
#include "apps/weft/machine.h"
#include "apps/weft/output_file.h"
#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/comm/neighbours.h"
#include "weft/train/options.h"
#include "weft/train/probe.h"

namespace weft {

int run_probe_command(std::span<const std::string> words) {
  std::string model, tokens, out, device_name = "cpu";
  DType dtype = DType::f32;
  bool json = false, with_trajectory = false;
  std::int64_t threads = 0;
  double mtp_loss_factor = 0.1;
  OptimizerOptions optimizer;
  FlagTable flags("weft probe",
                  "Loads a model, runs forward and backward on given tokens; writes logits and every gradient.");
  flags.section("Probe");
  flags.add("--hf", model, "DIR", "A Hugging Face folder, or a Weft checkpoint.");
  flags.add("--tokens", tokens, "FILE", "Safetensors with input_ids and labels [batch, length], or trajectory.tokens.");
  flags.add("--out", out, "FILE", "Safetensors to write: logits, and grad.NAME for every weight.");
  flags.choice("--dtype", dtype, {{"f32", DType::f32}, {"f64", DType::f64}, {"bf16", DType::bf16}},
               "Data type to compute in.");
  flags.add("--trajectory", with_trajectory, "Trains on trajectory.tokens [steps, batch, length + 1] instead.");
  flags
      .add("--mtp-loss-scaling-factor", mtp_loss_factor, "X",
           "Gradients are those of the main loss + X times the mean of the MTP depths' losses.")
      .above(0);
  flags.add("--device", device_name, "NAME", "Where to compute; `weft devices` lists what there is.");
  flags.add("--threads", threads, "N", "Threads.").standard("one per core").at_least(1);
  flags.add("--json", json, "Prints one line of JSON.");
  add_optimizer_flags(flags, optimizer);
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  if (model.empty()) throw UserError("weft probe needs a model: --hf DIR");
  if (tokens.empty()) throw UserError("weft probe needs tokens: --tokens FILE.safetensors");
  if (with_trajectory && !out.empty()) throw UserError("--trajectory prints losses; it writes no --out file");
  require_folder_of("--out", out);

  ProbeOptions options;
  options.model = model;
  options.tokens = tokens;
  options.out = out;
  options.precision.compute = dtype;
  options.mtp_loss_factor = mtp_loss_factor;
  options.threads = static_cast<int>(threads > 0 ? threads : usable_core_count());
  const std::unique_ptr<Device> device = make_device(device_name);
  Json result;
  if (with_trajectory) {
    TrajectoryOptions t;
    t.optimizer = optimizer_spec(optimizer);
    t.learning_rate = optimizer.lr;
    t.weight_decay = optimizer.weight_decay;
    const TrajectoryResult r = probe_trajectory(*device, options, t);
    result = {{"losses", r.losses}};
    if (!r.gradient_norms.empty()) result["grad_norms"] = r.gradient_norms;
    if (!r.mtp_losses.empty()) result["mtp_losses"] = r.mtp_losses;
    if (!json)
      for (std::size_t i = 0; i < r.losses.size(); ++i)
        fmt::print("step {}  loss {:.10g}{}\n", i, r.losses[i],
                   r.gradient_norms.empty() ? "" : fmt::format("  grad norm {:.10g}", r.gradient_norms[i]));
  } else {
    const ProbeResult r = probe(*device, options);
    result = {{"loss", r.loss}, {"grad_norm", r.gradient_norm}};
    if (!r.mtp_losses.empty()) result["mtp_losses"] = r.mtp_losses;
    if (!json) {
      fmt::print("loss {:.10g}  grad norm {:.10g}\n", r.loss, r.gradient_norm);
      for (std::size_t d = 0; d < r.mtp_losses.size(); ++d)
        fmt::print("mtp {}  loss {:.10g}\n", d + 1, r.mtp_losses[d]);
    }
  }
  if (json) fmt::print("{}\n", result.dump());
  return 0;
}

}  // namespace weft
