#include "weft/checkpoint/weft_checkpoint.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/checkpoint/canonical_names.h"

namespace weft {
namespace {

constexpr const char* format_name = "weft checkpoint";
constexpr int format_version = 1;

WeftDescription read_description(const std::filesystem::path& dir) {
  require_readable_folder(dir, "a Weft checkpoint is a folder with weft.json and safetensors");
  if (!std::filesystem::exists(dir / "weft.json"))
    throw UserError(
        "{}: there is no weft.json, so this is no Weft checkpoint{}", dir.string(),
        std::filesystem::exists(dir / "config.json") ? "; a Hugging Face model is read with --from hf" : "");
  return parse_description(read_json(dir / "weft.json"), (dir / "weft.json").string());
}

// The older and newer names of the final norm and of MTP's layers are both read.
void take_other_spellings(const SafetensorsDirectory& files, std::vector<DiskTensor>& tensors) {
  constexpr std::pair<std::string_view, std::string_view> spellings[] = {
      {"decoder.final_norm.", "decoder.final_layernorm."},
      {"decoder.final_layernorm.", "decoder.final_norm."},
      {".mtp_model_layer.layers.0.", ".transformer_layer."},
  };
  for (DiskTensor& tensor : tensors) {
    if (files.find(tensor.name) != nullptr) continue;
    for (const auto& [ours, other] : spellings) {
      const std::size_t at = tensor.name.find(ours);
      if (at == std::string::npos) continue;
      std::string name = tensor.name;
      name.replace(at, ours.size(), other);
      if (files.find(name) != nullptr) tensor.name = name;
    }
  }
}

}  // namespace

Json to_json(const WeftDescription& description) {
  Json hugging_face = {{"family", description.family}};
  if (description.form.experts != ExpertsForm::none) hugging_face["experts"] = name_of(description.form.experts);
  if (description.form.tied_as_head) hugging_face["tied_as_head"] = true;
  if (!description.form.copies.empty()) hugging_face["copies"] = description.form.copies;
  if (!description.others.empty()) hugging_face["other_tensors"] = description.others;
  for (const auto& [name, type] : description.types) hugging_face["dtypes"][name] = name_of(type);
  return {{"format", format_name},
          {"version", format_version},
          {"pattern", description.pattern},
          {"hugging_face", hugging_face}};
}

WeftDescription parse_description(const Json& json, const std::string& where) {
  try {
    if (json.at("format") != format_name) throw UserError("{}: 'format' must be \"{}\"", where, format_name);
    if (json.at("version") != format_version)
      throw UserError("{}: 'version' is {}; this Weft reads version {}", where, json["version"].dump(), format_version);
    WeftDescription description;
    description.pattern = json.at("pattern").get<std::string>();
    const Json& there = json.at("hugging_face");
    description.family = there.at("family").get<std::string>();
    const std::string experts = there.value("experts", "none");
    for (const ExpertsForm form : {ExpertsForm::none, ExpertsForm::separate, ExpertsForm::fused})
      if (name_of(form) == experts) description.form.experts = form;
    if (name_of(description.form.experts) != experts)
      throw UserError("{}: 'experts' is \"{}\"; it is separate or fused", where, experts);
    description.form.tied_as_head = there.value("tied_as_head", false);
    description.form.copies = there.value("copies", std::vector<std::string>());
    description.others = there.value("other_tensors", std::vector<std::string>());
    if (there.contains("dtypes")) {
      for (const auto& [name, value] : there["dtypes"].items()) {
        const std::optional<StoredType> type = stored_type_of(value.get<std::string>());
        if (!type || !is_float(*type)) throw UserError("{}: 'dtypes' of {} is {}", where, name, value.dump());
        description.types[name] = *type;
      }
    }
    return description;
  } catch (const Json::exception& error) {
    throw UserError("{}: not a description of a Weft checkpoint: {}", where, reason_of(error));
  }
}

WeftWeights::WeftWeights(const std::filesystem::path& dir)
    : description_(read_description(dir)),
      files_(dir),
      model_(read_hugging_face(dir, description_.form, description_.pattern.find('/') != std::string::npos)),
      tensors_(canonical_tensors(model_.config)) {
  const std::string file = (dir / "weft.json").string();
  if (model_.family != description_.family || model_.config.pattern != description_.pattern)
    throw UserError("{}: describes {} {}, but config.json beside it {} {}", file, description_.family,
                    description_.pattern, model_.family, model_.config.pattern);
  take_other_spellings(files_, tensors_);
  const std::vector<std::string_view> others(description_.others.begin(), description_.others.end());
  check_tensor_names(files_, tensors_, others, dir.string(), "weft.json");
  stored_ = std::make_unique<StoredWeights>(files_, tensors_, model_.config.tied_embeddings);
  for (DiskTensor& tensor : model_.tensors) {
    const auto at = description_.types.find(tensor.name);
    tensor.type = at != description_.types.end() ? at->second : stored_->type_of(tensor.parts[0].identity);
  }
}

std::vector<const TensorEntry*> WeftWeights::other_tensors() const {
  std::vector<const TensorEntry*> others;
  for (const std::string& name : description_.others) {
    const TensorEntry* const entry = files_.find(name);
    if (entry == nullptr) throw UserError("weft.json names the tensor '{}', but no file holds it", name);
    others.push_back(entry);
  }
  return others;
}

}  // namespace weft
