// What the backward pass computes again instead of keeping it, as Megatron's flags say it.
#include <algorithm>

#include <fmt/format.h>

#include "weft/base/text.h"
#include "weft/train/options.h"

namespace weft {

namespace {

using Granularity = RecomputeGranularity;

struct ModuleName {
  RecomputeModule module;
  std::string_view layers;  // that have it
};
constexpr ModuleName modules[] = {
    {RecomputeModule::core_attn, "*+D"},    {RecomputeModule::moe_act, "E"},      {RecomputeModule::layernorm, ""},
    {RecomputeModule::mla_up_proj, "+D"},   {RecomputeModule::mlp, "-"},          {RecomputeModule::moe, "E"},
    {RecomputeModule::shared_experts, "E"}, {RecomputeModule::gdn_norm_out, "G"},
};

const ModuleName* module_named(std::string_view name) {
  const auto at = std::find_if(std::begin(modules), std::end(modules),
                               [&](const ModuleName& m) { return name_of(m.module) == name; });
  return at == std::end(modules) ? nullptr : at;
}

std::string names_of_modules() {
  std::vector<std::string> names;
  for (const ModuleName& m : modules) names.emplace_back(name_of(m.module));
  return join(names, ", ");
}

// Those of --recompute-modules, or the default.
std::vector<std::string> chosen(const RecomputeOptions& o) {
  return o.modules.empty() ? std::vector<std::string>{"core_attn"} : o.modules;
}

}  // namespace

void add_recompute_flags(FlagTable& flags, RecomputeOptions& recompute) {
  flags.section("Recomputation");
  flags
      .choice("--recompute-granularity", recompute.granularity,
              {{"none", Granularity::none}, {"full", Granularity::full}, {"selective", Granularity::selective}},
              "What the backward pass computes again, so that the forward pass need not keep it. full: whole layers "
              "(--recompute-method); selective: parts of all layers (--recompute-modules).")
      .means("--recompute-activations", "selective");
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
  flags
      .add(
          "--recompute-modules", recompute.modules, "NAME",
          "What --recompute-granularity selective computes again: core_attn (attention itself, of *, + and D), moe_act "
          "(the activation of the experts), layernorm (the norm before every layer), mla_up_proj (queries, keys and "
          "values of + and D), mlp (all of - but its norm), moe (all of E but its norm), shared_experts, gdn_norm_out "
          "(the norm and gate of the heads of G).")
      .takes_many()
      .standard("core_attn");
}

std::vector<std::string> find_recompute_problems(const RecomputeOptions& o) {
  std::vector<std::string> problems;
  if (o.granularity == Granularity::full && o.method == RecomputeMethod::none)
    problems.emplace_back("--recompute-granularity full: also needs --recompute-method uniform or block");
  if (o.granularity == Granularity::full && o.num_layers == 0)
    problems.emplace_back(
        "--recompute-granularity full: also needs --recompute-num-layers N; 1 takes the least memory with uniform");
  for (const std::string& name : o.modules)
    if (!module_named(name))
      problems.push_back(fmt::format("--recompute-modules {}: is not one of {}", name, names_of_modules()));
  return problems;
}

std::string why_recomputing_is_idle(const Flag& flag, const RecomputeOptions& o, const std::string& pattern,
                                    bool shared_experts) {
  const bool of_full = flag.name == "--recompute-method" || flag.name == "--recompute-num-layers";
  const bool of_modules = flag.name == "--recompute-modules";
  if (of_full && o.granularity == Granularity::none) return "nothing is recomputed; set --recompute-granularity full";
  if (of_full && o.granularity == Granularity::selective)
    return "--recompute-granularity selective chooses modules of all layers; drop the flag, or use full";
  if (of_modules && o.granularity == Granularity::none)
    return "nothing is recomputed; set --recompute-granularity selective";
  if (of_modules && o.granularity == Granularity::full)
    return "--recompute-granularity full computes whole layers again; drop the flag, or use selective";
  const bool names = of_modules || (flag.name == "--recompute-granularity" && o.modules.empty());
  if (!names || o.granularity != Granularity::selective) return "";
  for (const std::string& name : chosen(o)) {
    const ModuleName* module = module_named(name);
    if (!module || module->layers.empty()) continue;
    std::vector<std::string> layers;
    for (const char layer : module->layers) layers.emplace_back(1, layer);
    if (pattern.find_first_of(module->layers) == std::string::npos)
      return fmt::format("{} is part of {}, and the pattern '{}' has none; {}", name, join(layers, ", "), pattern,
                         of_modules ? "drop it" : "name others with --recompute-modules");
    if (module->module == RecomputeModule::shared_experts && !shared_experts)
      return "there is no shared expert; drop shared_experts, or set --moe-shared-expert-intermediate-size";
  }
  return "";
}

Recomputation recomputation_of(const RecomputeOptions& o) {
  using Kind = Recomputation::Kind;
  Recomputation made;
  if (o.granularity == Granularity::full) {
    made.kind = o.method == RecomputeMethod::block ? Kind::block : Kind::uniform;
    made.items = static_cast<int>(o.num_layers);
  }
  if (o.granularity == Granularity::selective) {
    made.kind = Kind::modules;
    for (const std::string& name : chosen(o)) made.modules |= set_of({module_named(name)->module});
  }
  return made;
}

std::string recompute_text(const RecomputeOptions& o) {
  if (o.granularity == Granularity::full)
    return fmt::format("--recompute-granularity full --recompute-method {} --recompute-num-layers {}",
                       o.method == RecomputeMethod::block ? "block" : "uniform", o.num_layers);
  if (o.granularity == Granularity::selective)
    return "--recompute-granularity selective --recompute-modules " + join(chosen(o), " ");
  return "";
}

}  // namespace weft
