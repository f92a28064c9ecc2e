// What Weft knows of a Hugging Face family: how its config reads, and under which names its tensors stand on disk.
// A family is one file with tables (hf_llama.cc, ...); nothing else knows a name.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/disk_tensor.h"
#include "weft/checkpoint/hf_config.h"

namespace weft {

// Whether a tensor holds all experts of a layer; they are dim 0.
enum class Stacking : std::uint8_t {
  none,
  plain,       // every expert's matrix as it is; of two parameters, the second's rows below the first's
  transposed,  // [in, out]; of two parameters, columns in turns: first, second, first, ...
};

// One kind of tensor: where it stands and what it holds.
struct NameRule {
  std::optional<Symbol> symbol;  // one in each layer of this kind; absent: one in the model
  std::string_view name;         // in layers after the family's prefix; {E}: expert
  Role role;
  std::optional<Role> below = {};  // a second parameter in the same matrix; not stacked: head by head below the first's
  Stacking stacking = Stacking::none;
  // Further parameters of the same layer in the same tensor: their rows follow, or, by_head, take turns head by head.
  std::span<const Role> rest = {};
  bool by_head = false;
  bool depthwise = false;  // [channels, taps] stands there as [channels, 1, taps]
};
using NameTable = std::span<const NameRule>;

struct HuggingFaceFamily {
  std::string_view name;  // model_type
  ModelConfig (*config)(const ConfigReader& config);
  std::string_view layer_prefix;     // {L}: layer
  std::vector<NameTable> names;      // of every such model
  std::vector<NameTable> spellings;  // of the rest: one of them, whichever is on disk; the first is the usual one
  std::vector<std::string_view> ignored = {};  // ends of names of tensors that are not parameters
  // MTP, where the weights have it: its depths stand behind the main layers, counted on. Names without a symbol are one
  // a depth; embedding and head there are copies of the model's.
  NameTable mtp_names = {};
  std::string_view mtp_part = {};                               // of the pattern: "[+E]"
  std::int64_t (*mtp_depths)(const ConfigReader& config) = {};  // as the config says
};

HuggingFaceFamily llama_family();
HuggingFaceFamily mixtral_family();
HuggingFaceFamily qwen3_moe_family();
HuggingFaceFamily gpt_oss_family();
HuggingFaceFamily deepseek_v3_family();
HuggingFaceFamily deepseek_v32_family();
HuggingFaceFamily mamba2_family();
HuggingFaceFamily nemotron_h_family();
HuggingFaceFamily qwen3_next_family();
std::vector<HuggingFaceFamily> hugging_face_families();
// UserError listing those there are.
HuggingFaceFamily family_named(const std::string& name, const std::string& where);

// Tables that families share.
NameTable transformer_names();       // embedding, final norm, head; attention with its norm
NameTable gated_mlp_names();         // `-`: mlp.{gate,up,down}_proj
NameTable mamba_names();             // backbone.*: embedding, final norm, head; `M` (hf_mamba2.cc)
NameTable separate_experts_names();  // `E`: mlp.experts.{E}.{gate,up,down}_proj, router mlp.gate
NameTable fused_experts_names();     // `E`: mlp.experts.gate_up_proj and down_proj of all experts
std::string repeated_groups(std::int64_t layers, std::string_view group);  // "[*-][*-]"

// The logical shape of a role in a recurrent layer; nothing where it has no such parameter. (hf_recurrent_shapes.cc)
std::optional<Shape> mamba_shape(const MambaSpec& spec, std::int64_t hidden, Role role);
std::optional<Shape> delta_net_shape(const DeltaNetSpec& spec, std::int64_t hidden, Role role);

// The tensors that a model has under these rules, in the order of the model.
std::vector<DiskTensor> tensors_of(const ModelConfig& config, std::string_view layer_prefix,
                                   std::span<const NameTable> tables, NameTable mtp_names = {});
// Whether a tensor of the first MTP depth behind the main part's layers is among the names.
bool has_mtp(const HuggingFaceFamily& family, const ModelConfig& config,
             const std::function<bool(const std::string& name)>& there);

}  // namespace weft
