// The transformer's form of a model: --num-layers and the flags that choose the kind of each layer make the pattern.
#include <algorithm>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/pattern/pattern.h"
#include "weft/train/options.h"

namespace weft {
namespace {

using Variant = ModelOptions::AttentionVariant;

Flag& add_choice(FlagTable& flags, const char* name, LayerChoice& target, const char* help) {
  return flags.custom(
      name, "K|LIST",
      [name, &target](const std::string& text) {
        try {
          target = parse_layer_choice(text);
        } catch (const UserError& error) {
          throw UserError("{} {}: {}", name, text, error.what());
        }
      },
      [&target] { return target.text; }, help);
}

// Whether there is one entry per layer, if there is a list.
bool fits(const LayerChoice& choice, std::int64_t layers) {
  return choice.list.empty() || std::ssize(choice.list) == layers;
}

bool has_experts(const ModelOptions& model, std::int64_t layer) {
  const LayerChoice& choice = model.moe_layer_freq;
  if (model.num_experts == 0) return false;
  if (choice.number > 0) return layer % choice.number == 0;
  return !fits(choice, model.num_layers) || choice.list[static_cast<std::size_t>(layer)] == 1;
}

bool is_linear(const ModelOptions& model, std::int64_t layer) {
  const LayerChoice& choice = model.linear_attention_freq;
  if (model.experimental_attention_variant != Variant::gated_delta_net) return false;
  if (choice.number > 0) return (layer + 1) % choice.number != 0;
  return choice.list.empty() || !fits(choice, model.num_layers) || choice.list[static_cast<std::size_t>(layer)] == 1;
}

Symbol attention_of(const ModelOptions& model, std::int64_t layer) {
  if (is_linear(model, layer)) return Symbol::gated_delta;
  if (model.experimental_attention_variant == Variant::dsa) return Symbol::sparse_attention;
  return model.multi_latent_attention ? Symbol::latent_attention : Symbol::attention;
}

}  // namespace

void add_layer_flags(FlagTable& flags, ModelOptions& model) {
  flags
      .add("--num-layers", model.num_layers, "N",
           "Without --pattern: the model has N transformer layers, and the flags below choose their kinds: [*-] has "
           "attention and an MLP, [*E] experts. With --pattern: must match its number of layers.")
      .at_least(1)
      .limited_to(100000)
      .standard("the pattern's");
  flags.add("--multi-latent-attention", model.multi_latent_attention,
            "With --num-layers: the attention of all layers is multi-latent, +.");
  flags
      .choice(
          "--experimental-attention-variant", model.experimental_attention_variant,
          {{"none", Variant::none}, {"gated_delta_net", Variant::gated_delta_net}, {"dsa", Variant::dsa}},
          "With --num-layers: gated_delta_net makes layers of --linear-attention-freq gated delta nets, G; dsa makes "
          "the multi-latent attention of all layers sparse, D.")
      .lacks("dsv4_hybrid", "Weft has no compressed attention");
  add_choice(flags, "--linear-attention-freq", model.linear_attention_freq,
             "Which layers are gated delta nets: all but every K-th, or those with a 1 in a list such as [1,1,1,0]*4.")
      .standard("none");
  add_choice(flags, "--moe-layer-freq", model.moe_layer_freq,
             "With --num-layers and --num-experts, which layers have experts: the first and every K-th after it, or "
             "those with a 1 in a list such as ([0]*3+[1]*13).");
  flags
      .add(
          "--mtp-num-layers", model.mtp_num_layers, "D",
          "With --num-layers: the number of further tokens that are predicted, each by a layer like the last one. With "
          "--pattern: must match its number of depths.")
      .at_least(0)
      .limited_to(1000);
}

std::string pattern_of_layers(const ModelOptions& model) {
  std::string pattern, layer;
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    const Symbol second = has_experts(model, i) ? Symbol::experts : Symbol::mlp;
    layer = fmt::format("[{}{}]", letter(attention_of(model, i)), letter(second));
    pattern += layer;
  }
  for (std::int64_t depth = 0; depth < model.mtp_num_layers; ++depth) pattern += "/" + layer;
  return pattern;
}

std::vector<std::string> find_layer_problems(const FlagTable& flags, const ModelOptions& model, bool pattern_given) {
  std::vector<std::string> problems;
  const auto add = [&](const char* flag, const std::string& why) {
    const std::string value = flags.flag(flag).show();
    problems.push_back(fmt::format("{}{}: {}", flag, value == "true" ? "" : " " + value, why));
  };
  const auto has = [&](const char* letters) { return model.pattern.find_first_of(letters) != std::string::npos; };
  const bool dsa = model.experimental_attention_variant == Variant::dsa;
  const bool linear = model.experimental_attention_variant == Variant::gated_delta_net;
  const bool chooses_experts = model.moe_layer_freq != ModelOptions().moe_layer_freq;
  const bool chooses_linear = !model.linear_attention_freq.text.empty();

  // A pattern that is what the flags make changes nothing.
  if (pattern_given && (model.num_layers == 0 || pattern_of_layers(model) != model.pattern)) {
    const auto missing = [&](const char* letters) {
      return fmt::format("the pattern '{}' has no {}; write it into --pattern, or drop the flag", model.pattern,
                         letters);
    };
    if (model.multi_latent_attention && !has("+D")) add("--multi-latent-attention", missing("+ or D"));
    if (dsa && !has("D")) add("--experimental-attention-variant", missing("D"));
    if (linear && !has("G")) add("--experimental-attention-variant", missing("G"));
    const char* twice = "--pattern chooses the layers; drop one of the two";
    if (chooses_experts) add("--moe-layer-freq", twice);
    if (chooses_linear) add("--linear-attention-freq", twice);
    // A trailing / does not make a depth.
    const auto depths = std::ranges::count(model.pattern, '/') - (model.pattern.ends_with('/') ? 1 : 0);
    if (model.mtp_num_layers > 0 && model.mtp_num_layers != depths)
      add("--mtp-num-layers",
          fmt::format("the pattern '{}' has {} depth{}; write a part after / for each depth, or drop the flag",
                      model.pattern, depths, depths == 1 ? "" : "s"));
    return problems;
  }
  if (model.num_layers == 0) {
    const auto set = [&](bool is_set, const char* flag) {
      if (is_set) add(flag, "set the number of layers with --num-layers, or choose all layers with --pattern");
    };
    set(model.multi_latent_attention, "--multi-latent-attention");
    set(dsa || linear, "--experimental-attention-variant");
    set(chooses_linear, "--linear-attention-freq");
    set(chooses_experts, "--moe-layer-freq");
    set(model.mtp_num_layers > 0, "--mtp-num-layers");
    return problems;
  }
  const auto list_of = [&](const char* flag, const LayerChoice& choice) {
    if (!fits(choice, model.num_layers))
      add(flag,
          fmt::format("the list has {} entr{} for {} layer{} (--num-layers); give one per layer", choice.list.size(),
                      choice.list.size() == 1 ? "y" : "ies", model.num_layers, model.num_layers == 1 ? "" : "s"));
  };
  list_of("--moe-layer-freq", model.moe_layer_freq);
  list_of("--linear-attention-freq", model.linear_attention_freq);
  if (chooses_experts && model.num_experts == 0) add("--moe-layer-freq", "there are no experts; set --num-experts");
  if (chooses_linear && !linear)
    add("--linear-attention-freq", "needs --experimental-attention-variant gated_delta_net");
  if (linear && !chooses_linear)
    add("--experimental-attention-variant", "needs --linear-attention-freq, 4 for one layer of full attention in four");
  if (dsa && !model.multi_latent_attention)
    add("--experimental-attention-variant",
        "sparse attention is a form of multi-latent attention; add --multi-latent-attention");
  if (model.multi_latent_attention && !has("+D"))
    add("--multi-latent-attention", "--linear-attention-freq leaves no layer with full attention; drop one of the two");
  return problems;
}

}  // namespace weft
