// `weft train`.
#include <fmt/format.h>

#include "apps/weft/commands.h"
#include "apps/weft/machine.h"
#include "apps/weft/output_file.h"
#include "apps/weft/ranks.h"
#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/new_folder.h"
#include "weft/train/options.h"
#include "weft/train/report.h"
#include "weft/train/same_options.h"
#include "weft/train/trainer.h"

namespace weft {

int run_train_command(std::span<const std::string> words) {
  TrainOptions options;
  FlagTable flags("weft train", "Trains a model; without options a small one, on stories that Weft writes.");
  add_train_flags(flags, options);
  std::int64_t rank = 0, world_size = 0;
  flags.section("Ranks started by hand");
  flags
      .add("--rank", rank, "R",
           "This process is rank R of --world-size; MASTER_ADDR and MASTER_PORT say where rank 0 is.")
      .at_least(0)
      .standard("the launcher's");
  flags.add("--world-size", world_size, "N", "So many processes are started.").at_least(1).standard("the launcher's");
  Launch launch;
  parse_train_options(flags, options, words, [&] {
    LaunchOptions given;
    if (flags.is_set("--rank")) given.rank = static_cast<int>(rank);
    if (flags.is_set("--world-size")) given.world_size = static_cast<int>(world_size);
    launch = this_launch(given);
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
    for (const auto& notes : {flags.notes(), idle_flags(options)})
      for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
  prepare_ranks(options, launch);
  std::string why;
  const std::string device_name = choose_device(options, why);
  if (launch.rank == 0 && !why.empty()) fmt::print(stderr, "note: {}\n", why);
  return run_ranks(options, launch, device_name, [&](const RankPlace& place) {
    TrainOptions own = options;
    if (own.execution.threads == 0) own.execution.threads = place.cores;
    if (launch.size > 1) require_same_options(*place.world, flags);
    return train(own, {place.device, counting_pricer, stdout, place.world, place.ranks_on_device});
  });
}

}  // namespace weft
