// A model's config as JSON, from one list of its fields for both ways.
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/model_description.h"

namespace weft {
namespace {

template <class Enum>
struct NamesOf;
template <>
struct NamesOf<RopeSpec::Scaling> {
  static constexpr std::array<std::string_view, 4> names = {"none", "linear", "llama3", "yarn"};
};
template <>
struct NamesOf<RotaryStyle> {
  static constexpr std::array<std::string_view, 2> names = {"half_split", "interleaved"};
};
template <>
struct NamesOf<ActivationKind> {
  static constexpr std::array<std::string_view, 6> names = {"swiglu",   "squared_relu",   "gelu",
                                                            "gelu_erf", "clamped_swiglu", "quick_geglu"};
};
template <>
struct NamesOf<RouterSpec::Score> {
  static constexpr std::array<std::string_view, 2> names = {"softmax", "sigmoid"};
};
template <>
struct NamesOf<DropChoices::Policy> {
  static constexpr std::array<std::string_view, 2> names = {"probabilities", "position"};
};

// The fields of every struct, each told to `visit` under its name. T: the struct, const or not.

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, RopeSpec>
void each_field(T& rope, const Visit& visit) {
  visit("scaling", rope.scaling);
  visit("enabled", rope.enabled);
  visit("base", rope.base);
  visit("fraction", rope.fraction);
  visit("style", rope.style);
  visit("factor", rope.factor);
  visit("original_positions", rope.original_positions);
  visit("low_frequency", rope.low_frequency);
  visit("high_frequency", rope.high_frequency);
  visit("beta_fast", rope.beta_fast);
  visit("beta_slow", rope.beta_slow);
  visit("magnitude", rope.magnitude);
  visit("truncate", rope.truncate);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, AttentionSpec>
void each_field(T& attention, const Visit& visit) {
  visit("heads", attention.heads);
  visit("kv_heads", attention.kv_heads);
  visit("head_dim", attention.head_dim);
  visit("scale", attention.scale);
  visit("qkv_bias", attention.qkv_bias);
  visit("output_bias", attention.output_bias);
  visit("qk_norm", attention.qk_norm);
  visit("sinks", attention.sinks);
  visit("output_gate", attention.output_gate);
  visit("window", attention.window);
  visit("rope", attention.rope);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, IndexerSpec>
void each_field(T& indexer, const Visit& visit) {
  visit("heads", indexer.heads);
  visit("dim", indexer.dim);
  visit("topk", indexer.topk);
  visit("loss_factor", indexer.loss_factor);
  visit("norm_epsilon", indexer.norm_epsilon);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, LatentAttentionSpec>
void each_field(T& latent, const Visit& visit) {
  visit("heads", latent.heads);
  visit("q_rank", latent.q_rank);
  visit("kv_rank", latent.kv_rank);
  visit("head_dim", latent.head_dim);
  visit("rotary_dim", latent.rotary_dim);
  visit("value_dim", latent.value_dim);
  visit("scale", latent.scale);
  visit("norm_epsilon", latent.norm_epsilon);
  visit("rope", latent.rope);
  visit("indexer", latent.indexer);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, ActivationSpec>
void each_field(T& activation, const Visit& visit) {
  visit("kind", activation.kind);
  visit("limit", activation.limit);
  visit("alpha", activation.alpha);
  visit("offset", activation.offset);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, MlpSpec>
void each_field(T& mlp, const Visit& visit) {
  visit("ffn", mlp.ffn);
  visit("activation", mlp.activation);
  visit("bias", mlp.bias);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, RouterSpec>
void each_field(T& router, const Visit& visit) {
  visit("score", router.score);
  visit("choose_first", router.choose_first);
  visit("normalise", router.normalise);
  visit("scaling", router.scaling);
  visit("k", router.k);
  visit("groups", router.groups);
  visit("keep_groups", router.keep_groups);
  visit("group_best", router.group_best);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, BalanceSpec>
void each_field(T& balance, const Visit& visit) {
  visit("aux_loss", balance.aux_loss);
  visit("sequence_aux_loss", balance.sequence_aux_loss);
  visit("global_aux_loss", balance.global_aux_loss);
  visit("z_loss", balance.z_loss);
  visit("bias_update_rate", balance.bias_update_rate);
  visit("capacity_factor", balance.capacity_factor);
  visit("drop_policy", balance.drop_policy);
  visit("pad_to_capacity", balance.pad_to_capacity);
  visit("forced", balance.forced);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, ExpertsSpec>
void each_field(T& experts, const Visit& visit) {
  visit("experts", experts.experts);
  visit("ffn", experts.ffn);
  visit("router", experts.router);
  visit("activation", experts.activation);
  visit("shared_ffn", experts.shared_ffn);
  visit("bias", experts.bias);
  visit("router_bias", experts.router_bias);
  visit("expert_bias", experts.expert_bias);
  visit("balance", experts.balance);
  visit("latent", experts.latent);
  visit("shared_gate", experts.shared_gate);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, MambaSpec>
void each_field(T& mamba, const Visit& visit) {
  visit("heads", mamba.heads);
  visit("head_dim", mamba.head_dim);
  visit("groups", mamba.groups);
  visit("state", mamba.state);
  visit("taps", mamba.taps);
  visit("chunk", mamba.chunk);
  visit("conv_bias", mamba.conv_bias);
  visit("norm_by_group", mamba.norm_by_group);
  visit("step_least", mamba.step_least);
  visit("step_most", mamba.step_most);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, DeltaNetSpec>
void each_field(T& delta_net, const Visit& visit) {
  visit("heads", delta_net.heads);
  visit("key_heads", delta_net.key_heads);
  visit("head_dim", delta_net.head_dim);
  visit("key_dim", delta_net.key_dim);
  visit("taps", delta_net.taps);
  visit("chunk", delta_net.chunk);
}

template <class T, class Visit>
requires std::is_same_v<std::remove_const_t<T>, ModelConfig>
void each_field(T& config, const Visit& visit) {
  visit("pattern", config.pattern);
  visit("hidden", config.hidden);
  visit("vocabulary", config.vocabulary);
  visit("padded_vocabulary", config.padded_vocabulary);
  visit("norm_epsilon", config.norm_epsilon);
  visit("zero_centred_norms", config.zero_centred_norms);
  visit("tied_embeddings", config.tied_embeddings);
  visit("attention", config.attention);
  visit("latent_attention", config.latent_attention);
  visit("mlp", config.mlp);
  visit("experts", config.experts);
  visit("mtp_loss_factor", config.mtp_loss_factor);
  visit("mamba", config.mamba);
  visit("delta_net", config.delta_net);
  visit("attention_at", config.attention_at);
  visit("init_std", config.init_std);
  visit("max_positions", config.max_positions);
}

template <class T>
Json written(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return NamesOf<T>::names.at(static_cast<std::size_t>(value));
  } else if constexpr (std::is_same_v<T, double>) {
    return std::isinf(value) ? Json(nullptr) : Json(value);
  } else if constexpr (std::is_same_v<T, std::map<int, AttentionSpec>>) {
    Json layers = Json::object();
    for (const auto& [layer, attention] : value) layers[std::to_string(layer)] = written(attention);
    return layers;
  } else if constexpr (std::is_class_v<T> && !std::is_same_v<T, std::string>) {
    Json object = Json::object();
    each_field(value, [&](const char* name, const auto& field) { object[name] = written(field); });
    return object;
  } else {
    return value;
  }
}

template <class T>
void read_value(const Json& json, const std::string& name, T& value) {
  const auto refuse = [&](std::string_view wanted) {
    throw UserError("'{}' is {}: it must be {}", name, json.dump(), wanted);
  };
  if constexpr (std::is_enum_v<T>) {
    const auto& names = NamesOf<T>::names;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (json != names[i]) continue;
      value = static_cast<T>(i);
      return;
    }
    refuse("one of " + join(std::vector<std::string>(names.begin(), names.end()), ", "));
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) refuse("true or false");
    value = json.get<bool>();
  } else if constexpr (std::is_same_v<T, double>) {
    if (!json.is_number() && !json.is_null()) refuse("a number");
    value = json.is_null() ? std::numeric_limits<double>::infinity() : json.get<double>();
  } else if constexpr (std::is_integral_v<T>) {
    if (!json.is_number_integer() || json < 0 || json > std::int64_t{1} << 53) refuse("a whole number");
    value = json.get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) refuse("text");
    value = json.get<std::string>();
  } else if constexpr (std::is_same_v<T, std::map<int, AttentionSpec>>) {
    if (!json.is_object()) refuse("an object");
    for (const auto& [layer, attention] : json.items()) {
      std::int64_t number = 0;
      if (!parse_int(layer, number) || number < 0 || number > 1'000'000) refuse("an object of layers by number");
      read_value(attention, name + "." + layer, value[static_cast<int>(number)]);
    }
  } else {
    if (!json.is_object()) refuse("an object");
    std::size_t known = 0;
    each_field(value, [&](const char* field, auto& to) {
      if (!json.contains(field)) return;
      ++known;
      read_value(json[field], name.empty() ? field : name + "." + field, to);
    });
    if (known == json.size()) return;
    for (const auto& [key, unused] : json.items()) {
      bool found = false;
      each_field(value, [&](const char* field, auto&) { found = found || key == field; });
      if (!found)
        throw UserError("'{}' is not known to this Weft; read it with the one that wrote it, or a newer one",
                        name.empty() ? key : name + "." + key);
    }
  }
}

}  // namespace

Json to_json(const ModelConfig& config) { return written(config); }

ModelConfig model_config_of(const Json& json, const std::string& where) {
  ModelConfig config;
  try {
    read_value(json, "", config);
    check_config(config);
  } catch (const UserError& error) {
    throw UserError("{}: the model's {}", where, error.what());
  }
  return config;
}

}  // namespace weft
