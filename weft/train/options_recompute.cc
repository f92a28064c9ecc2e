// What the backward pass computes again instead of keeping it, as Megatron's flags say it.
#include <fmt/format.h>

#include "weft/train/options.h"

namespace weft {

void add_recompute_flags(FlagTable& flags, RecomputeOptions& recompute) {
  flags.section("Recomputation");
  flags
      .choice("--recompute-granularity", recompute.granularity,
              {{"none", RecomputeGranularity::none}, {"full", RecomputeGranularity::full}},
              "What the backward pass computes again, so that the forward pass need not keep it. full: whole layers.")
      .lacks("selective", "parts of layers are not recomputed yet; use full");
  flags.choice(
      "--recompute-method", recompute.method,
      {{"none", RecomputeMethod::none}, {"uniform", RecomputeMethod::uniform}, {"block", RecomputeMethod::block}},
      "Of --recompute-granularity full. uniform: all layers, of which every N-th keeps its input; block: the first N "
      "layers of every segment and MTP depth, each of which keeps its input.");
  flags
      .add("--recompute-num-layers", recompute.num_layers, "N",
           "N of --recompute-method, counted in items of the pattern: a group in brackets is one.")
      .at_least(1)
      .standard("must be given with full");
}

std::vector<std::string> find_recompute_problems(const RecomputeOptions& o) {
  std::vector<std::string> problems;
  if (o.granularity != RecomputeGranularity::full) return problems;
  if (o.method == RecomputeMethod::none)
    problems.emplace_back("--recompute-granularity full: also needs --recompute-method uniform or block");
  if (o.num_layers == 0)
    problems.emplace_back(
        "--recompute-granularity full: also needs --recompute-num-layers N; 1 takes the least memory with uniform");
  return problems;
}

std::string why_recomputing_is_idle(const std::string& flag, const RecomputeOptions& o) {
  const bool of_full = flag == "--recompute-method" || flag == "--recompute-num-layers";
  if (of_full && o.granularity == RecomputeGranularity::none)
    return "nothing is recomputed; set --recompute-granularity full";
  return "";
}

Recomputation recomputation_of(const RecomputeOptions& o) {
  Recomputation made;
  if (o.granularity != RecomputeGranularity::full) return made;
  made.kind = o.method == RecomputeMethod::block ? Recomputation::Kind::block : Recomputation::Kind::uniform;
  made.items = static_cast<int>(o.num_layers);
  return made;
}

std::string recompute_text(const RecomputeOptions& o) {
  if (o.granularity != RecomputeGranularity::full) return "";
  return fmt::format("--recompute-granularity full --recompute-method {} --recompute-num-layers {}",
                     o.method == RecomputeMethod::block ? "block" : "uniform", o.num_layers);
}

}  // namespace weft
