// How Megatron's distributed checkpoints (torch_dist) name and shape the parameters of a model: for reading and for
// writing. A DiskTensor is a key of the model's state; its parts tell which elements of which parameters lie in which box of
// the key's tensor. The optimizer's state has the same keys and shapes after a prefix (state_prefix).
//
//   const MegatronForm form = megatron_form(config);
//   for (const DiskTensor& tensor : megatron_tensors(config, form)) ...   // tensor.name: the key
//
// Keys are per layer, decoder.layers.N.KEY, as Megatron writes them for every hybrid model and for transformers whose
// layers differ; or stacked, decoder.layers.KEY [L, ...], as it writes them for transformers of equal layers. Experts are
// one key with an axis of their own, [E, out, in], stacked [L, E, out, in]. The layers of an MTP depth are
// mtp.layers.D.mtp_model_layer.layers.J of a hybrid model, mtp.layers.D.transformer_layer of a transformer. Projections of Mamba and the gated delta net
// are split (in_proj.weight.{z,x,B,C,dt}). What else Megatron or others write is read too (key_variants.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/canonical_names.h"

namespace weft {

struct MegatronForm {
  CanonicalForm names;
  bool transformer = false;  // else a hybrid model
  bool stacked = false;
};

// The form that Megatron gives a model of this pattern. Groups: the transformer's keys, layers numbered by items. Flat: the
// hybrid model's, layers numbered by symbols.
MegatronForm megatron_form(const ModelConfig& config);
// The form of a transformer with these layers: stacked where Megatron stacks them, which is where all are alike, or else with
// a key for each layer. UserError: no transformer of Megatron's has these layers.
MegatronForm transformer_megatron_form(const ModelConfig& config);
// The same, stacked. UserError: Megatron does not stack these layers.
MegatronForm stacked_megatron_form(const ModelConfig& config);

// In the order of the model. UserError: two symbols would have the same key ("[MM]"), or layers that are to be stacked
// differ.
std::vector<DiskTensor> megatron_tensors(const ModelConfig& config, const MegatronForm& form);

// What Megatron calls the state that its optimizers keep for a key: "optimizer.state.exp_avg.KEY".
inline constexpr std::string_view state_prefix = "optimizer.state.";
inline constexpr std::string_view first_moment_state_name = "exp_avg", second_moment_state_name = "exp_avg_sq";
// The masters: of the distributed optimizer, the plain mixed-precision one (and older files), the precision-aware one.
inline constexpr std::string_view master_state_name = "param", older_master_state_name = "fp32_param",
                                  precise_master_state_name = "master_param";

// Numbers of layers, by physical index, other than by items.
std::vector<int> symbol_numbers(const std::vector<PatternLayer>& layers);  // every symbol has its own
// As a transformer counts: a mixer and the MLP or experts after it are one layer.
std::vector<int> block_numbers(const std::vector<PatternLayer>& layers);

}  // namespace weft
