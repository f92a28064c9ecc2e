// `weft train`.
#include <optional>

#include <fmt/format.h>

#include "apps/weft/commands.h"
#include "apps/weft/interrupts.h"
#include "apps/weft/machine.h"
#include "apps/weft/output_file.h"
#include "apps/weft/ranks.h"
#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/new_folder.h"
#include "weft/train/exit_signals.h"
#include "weft/train/options.h"
#include "weft/train/same_options.h"
#include "weft/train/trainer.h"

namespace weft {

int run_train_command(std::span<const std::string> words) {
  TrainOptions options;
  FlagTable flags("weft train", "Trains a model; without options a small one, on stories that Weft writes.");
  add_train_flags(flags, options);
  Launch launch;
  parse_train_options(flags, options, words, [&] {
    launch = this_launch(options.layout);
    return launch.size;
  });
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  if (!options.explain.empty()) {
    for (const std::string& name : options.explain) fmt::print("{}\n", flags.explain(name));
    return 0;
  }
  require_folder_of("--metrics", options.logging.metrics);
  require_folder_of("--trace", options.execution.trace);
  require_folder_of("--timeline", options.execution.timeline);
  if (!options.checkpoint.save_hf.empty()) require_new_folder("--save-hf", options.checkpoint.save_hf);
  if (launch.rank == 0)
    for (const auto& notes : {flags.notes(), layout_notes(options), overlap_notes(options), sharding_notes(options)})
      for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
  launch.run = run_name(flags);
  // Before any thread starts. Where nothing is asked for, the world of a launcher's rank takes SIGTERM (weft/comm/sigterm.h).
  std::optional<ExitSignals> signals;
  std::optional<Interrupts> interrupts;
  if (options.checkpoint.exit_signal_handler)
    signals.emplace();
  else if (launch.size == 1)
    interrupts.emplace();
  prepare_ranks(options, launch);
  std::string why;
  const std::string device_name = choose_device(options, why);
  if (launch.rank == 0 && !why.empty()) fmt::print(stderr, "note: {}\n", why);
  const Sigterm sigterm = signals ? Sigterm::leave : Sigterm::watch;
  return run_ranks(options, launch, device_name, sigterm, [&](const RankPlace& place) {
    TrainOptions own = options;
    if (own.execution.threads == 0) own.execution.threads = place.cores;
    if (launch.size > 1) require_same_options(RankExchange(place.world, "options"), options_in_common(flags));
    return train(own, {place.device, counting_pricer(), stdout, place.world, place.ranks_on_device,
                       signals ? &*signals : nullptr});
  });
}

}  // namespace weft
