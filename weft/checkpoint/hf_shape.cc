#include "weft/checkpoint/hf_shape.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/hf_family.h"
#include "weft/checkpoint/model_description.h"

namespace weft {
namespace {

// The same model has the same config after these: what its layers do not use gets its default, and what can be written in
// two ways is written in one.

void normalise(RopeSpec& rope) {
  RopeSpec plain;
  plain.enabled = rope.enabled;
  if (rope.enabled) {
    plain.base = rope.base;
    plain.fraction = rope.fraction;
    plain.style = rope.style;
    plain.scaling = rope.scaling;
    if (rope.scaling != RopeSpec::Scaling::none) plain.factor = rope.factor;
    if (rope.scaling == RopeSpec::Scaling::llama3) {
      plain.low_frequency = rope.low_frequency;
      plain.high_frequency = rope.high_frequency;
      plain.original_positions = rope.original_positions;
    } else if (rope.scaling == RopeSpec::Scaling::yarn) {
      plain.beta_fast = rope.beta_fast;
      plain.beta_slow = rope.beta_slow;
      plain.magnitude = rope.magnitude;
      plain.truncate = rope.truncate;
      plain.original_positions = rope.original_positions;
    }
  }
  rope = plain;
}

void normalise(AttentionSpec& attention) {
  if (attention.scale == 0) attention.scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
  normalise(attention.rope);
}

void normalise(ActivationSpec& activation) {
  ActivationSpec plain{activation.kind};
  if (activation.kind == ActivationKind::clamped_swiglu || activation.kind == ActivationKind::quick_geglu)
    plain.limit = activation.limit;
  if (activation.kind == ActivationKind::quick_geglu) {
    plain.alpha = activation.alpha;
    plain.offset = activation.offset;
  }
  activation = plain;
}

void normalise(RouterSpec& router) {
  if (router.groups <= 1) {
    const RouterSpec plain;
    router.groups = plain.groups;
    router.keep_groups = plain.keep_groups;
    router.group_best = plain.group_best;
  }
  if (router.score == RouterSpec::Score::sigmoid) router.choose_first = false;
  // A softmax over the chosen experts is one over all, divided by the sum of the chosen.
  if (router.choose_first) router.normalise = true;
  if (router.score == RouterSpec::Score::softmax && router.normalise) router.choose_first = router.groups <= 1;
}

ModelConfig normalised(ModelConfig config) {
  const Pattern pattern = parse_pattern(config.pattern);
  std::string part;
  for (const PatternLayer& layer : pattern.mtp_layers) part += layer.letters();
  const std::string symbols = main_symbols(config), all = symbols + part;
  config.pattern = symbols;
  for (int depth = 0; depth < pattern.mtp_depths; ++depth) config.pattern += "/" + part;
  const auto has = [&](std::string_view any) { return all.find_first_of(any) != std::string::npos; };
  config.padded_vocabulary = 0;
  config.mtp_loss_factor = ModelConfig().mtp_loss_factor;  // of the training, as are the next two
  config.experts.balance = {};
  config.latent_attention.indexer.loss_factor = 0;

  // Every attention layer by itself.
  std::map<int, AttentionSpec> layers;
  for (std::size_t i = 0; i < symbols.size(); ++i)
    if (symbols[i] == letter(Symbol::attention)) {
      AttentionSpec& layer = layers[static_cast<int>(i)] = config.attention_of(static_cast<int>(i));
      normalise(layer);
    }
  config.attention_at = std::move(layers);
  if (part.find(letter(Symbol::attention)) == std::string::npos) config.attention = {};
  normalise(config.attention);

  if (has("+D")) {
    LatentAttentionSpec& latent = config.latent_attention;
    if (latent.scale == 0) latent.scale = 1 / std::sqrt(static_cast<double>(latent.head_dim + latent.rotary_dim));
    if (latent.norm_epsilon == 0) latent.norm_epsilon = config.norm_epsilon;
    if (!has("D")) latent.indexer = {};
    normalise(latent.rope);
  } else {
    config.latent_attention = {};
  }
  if (!has("-")) config.mlp = {};
  if (!has("E")) config.experts = {};
  if (!has("M")) config.mamba = {};
  if (!has("G")) config.delta_net = {};
  if (config.mamba.groups == 1) config.mamba.norm_by_group = true;  // the whole width is the group
  config.delta_net.chunk = DeltaNetSpec().chunk;                    // how it is computed
  if (config.experts.shared_ffn == 0) config.experts.shared_gate = false;
  normalise(config.mlp.activation);
  normalise(config.experts.activation);
  normalise(config.experts.router);
  return config;
}

bool same(const Json& a, const Json& b) {
  if (a.is_number_float() && b.is_number_float()) {  // some are computed on the way
    const double x = a.get<double>(), y = b.get<double>();
    return std::abs(x - y) <= 1e-12 * std::max(std::abs(x), std::abs(y));
  }
  return a == b;
}

// "`attention.qk_norm` is true, there false"; layers of one kind are not told apart.
void add_differences(const Json& here, const Json& there, const std::string& field, std::set<std::string>& all) {
  if (here.is_object() && there.is_object()) {
    for (const auto& [key, value] : here.items())
      if (there.contains(key))
        add_differences(value, there[key],
                        field == "attention_at" ? "attention"
                        : field.empty()         ? key
                                                : field + "." + key,
                        all);
    return;
  }
  if (!same(here, there)) all.insert(fmt::format("`{}` is {}, there {}", field, here.dump(), there.dump()));
}

struct Fit {
  ModelConfig config;  // as the family's own would be read
  Json json;
  bool layers = false;                   // the same
  std::vector<std::string> differences;  // none: the family has such models
};

Fit fit(const HuggingFaceFamily& family, const ModelConfig& config) {
  Fit result;
  result.json = {{"architectures", {family.architecture}}, {"model_type", family.name}};
  ModelConfig wanted = config;
  wanted.padded_vocabulary = 0;
  family.write(wanted, result.json);
  try {
    result.config = config_of_family(family, result.json, mtp_depths(config) > 0);
  } catch (const UserError& error) {
    result.differences = {error.what()};
    const std::string symbols = main_symbols(config);
    result.layers = symbols.find_first_not_of(family.layers) == std::string::npos;
    if (!result.layers) result.differences = {fmt::format("its layers are {}", family.layers)};
    return result;
  }
  ModelConfig here = normalised(wanted), there = normalised(result.config);
  if (here.max_positions == 0 || there.max_positions == 0) here.max_positions = there.max_positions = 0;
  result.layers = here.pattern == there.pattern;
  if (!result.layers) {
    result.layers = main_symbols(here) == main_symbols(there);
    result.differences = {result.layers ? "it does not have such multi-token prediction"
                                        : fmt::format("its layers are {}", family.layers)};
    return result;
  }
  std::set<std::string> differences;
  add_differences(to_json(here), to_json(there), "", differences);
  result.differences.assign(differences.begin(), differences.end());
  return result;
}

FamilyShape shape_of(const HuggingFaceFamily& family, Fit fit) {
  HuggingFaceForm form;
  if (fit.config.pattern.find(letter(Symbol::experts)) != std::string::npos) form.experts = family.experts.at(0).form;
  return {hugging_face_model(std::string(family.name), fit.config, form), std::move(fit.json)};
}

}  // namespace

FamilyShape shape_of_family(const ModelConfig& config, const std::string& family) {
  if (!family.empty()) {
    const HuggingFaceFamily only = family_named(family);
    Fit result = fit(only, config);
    if (!result.differences.empty())
      throw UserError("{} has no models of this shape: {}", family, join(result.differences, "; "));
    return shape_of(only, std::move(result));
  }
  std::vector<std::string> fitting, near;
  std::optional<FamilyShape> shape;
  for (const HuggingFaceFamily& known : hugging_face_families()) {
    Fit result = fit(known, config);
    if (result.differences.empty()) {
      fitting.emplace_back(known.name);
      shape = shape_of(known, std::move(result));
    } else if (result.layers) {
      near.push_back(fmt::format("{}: {}", known.name, join(result.differences, "; ")));
    }
  }
  if (fitting.size() == 1) return *std::move(shape);
  if (!fitting.empty())
    throw UserError("several families have models of this shape: {}; choose one with --hf-family", join(fitting, ", "));
  if (near.empty())
    throw UserError("no Hugging Face family that Weft knows has models with the layers {}: {}", config.pattern,
                    family_layers());
  throw UserError("no Hugging Face family that Weft knows has models of this shape.\n{}", join(near, "\n"));
}

}  // namespace weft
