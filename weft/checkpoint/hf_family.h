// What Weft knows of a Hugging Face family: how its config reads, and under which names its tensors are stored.
// A family is one file with tables (hf_llama.cc, ...); nothing else knows a name.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/hf_config.h"
#include "weft/checkpoint/hf_config_writer.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/checkpoint/name_rules.h"

namespace weft {

// Names of `E` that differ between the forms.
struct ExpertsNames {
  ExpertsForm form;
  NameTable names;
};

// MTP, where the weights have it.
struct MtpNames {
  NameTable names;                                  // one per depth; {F}, {T}: numbers of its first and last layer
  std::string_view layer_prefix;                    // {L}: layer, counted through all depths
  bool continues = false;                           // the count continues after the main layers
  std::string (*part)(const ConfigReader& config);  // of the pattern: "[+E]"
  std::int64_t (*depths)(const ConfigReader& config);
};

struct HuggingFaceFamily {
  std::string_view name;          // model_type
  std::string_view architecture;  // the class in transformers
  std::string_view layers;        // of its models, for messages: "[*-]"
  ModelConfig (*config)(const ConfigReader& config);
  void (*write)(const ModelConfig& config, Json& json);  // the keys that `config` reads (hf_config_writer.h)
  std::string_view layer_prefix;                         // {L}: layer
  std::vector<NameTable> names;                          // of every such model
  std::vector<ExpertsNames> experts = {};                // the forms there are; the first is the usual one
  std::vector<std::string_view> ignored = {};            // ends of names of tensors that are not parameters
  std::optional<MtpNames> mtp = {};
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
std::string family_list();    // "llama, mixtral, ..."
std::string family_layers();  // "llama [*-], mixtral [*E], ..."
// UserError "WHERE: 'model_type' is ..." listing those there are.
HuggingFaceFamily family_named(const std::string& name, const std::string& where);
// UserError "--hf-family NAME: ...".
HuggingFaceFamily family_named(const std::string& name);
// The model that a config.json of the family describes. mtp: with the depths that it announces. (hugging_face.cc)
ModelConfig config_of_family(const HuggingFaceFamily& family, const Json& json, bool mtp);

// Tables that families share. (hf_names.cc)
NameTable transformer_names();              // embedding, final norm, head; attention with its norm
NameTable gated_mlp_names();                // `-`: mlp.{gate,up,down}_proj
NameTable mamba_names();                    // backbone.*: embedding, final norm, head; `M` (hf_mamba2.cc)
std::vector<ExpertsNames> experts_names();  // `E`: mlp.experts.{E}.*_proj or of all experts in one; router mlp.gate
ExpertsNames fused_experts_names();
void write_step_limits(const MambaSpec& mamba, Json& json);                // time_step_limit (hf_mamba2.cc)
std::string repeated_groups(std::int64_t layers, std::string_view group);  // "[*-][*-]"

// The tensors that a model has in this form, in the order of the model; of copies all that there may be.
std::vector<DiskTensor> family_tensors(const HuggingFaceFamily& family, const ModelConfig& config, ExpertsForm experts);
// Whether a tensor of the first MTP depth is among the names.
bool has_mtp(const HuggingFaceFamily& family, const ModelConfig& config,
             const std::function<bool(const std::string& name)>& there);

}  // namespace weft
