#include "weft/checkpoint/hugging_face.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/hf_family.h"
#include "weft/checkpoint/manifest.h"

namespace weft {
namespace {

using NameThere = std::function<bool(const std::string& name)>;

struct Described {
  HuggingFaceFamily family;
  ModelConfig config;
};

void add_depths(const HuggingFaceFamily& family, const ConfigReader& reader, ModelConfig& config) {
  const std::int64_t depths = family.mtp->depths(reader);
  const std::string part = depths > 0 ? family.mtp->part(reader) : "";
  if (part.find('E') != std::string::npos && config.experts.experts == 0)
    throw UserError("{}: MTP has experts and the model has none, which Weft does not support", reader.where());
  for (std::int64_t depth = 0; depth < depths; ++depth) config.pattern += fmt::format("/{}", part);
}

// Every expert has names in memory before a weight is looked for.
void check_experts_in_all(const ModelConfig& config, const std::string& file) {
  constexpr std::int64_t most = 1 << 19;
  const std::int64_t layers = std::count(config.pattern.begin(), config.pattern.end(), 'E');
  if (layers * config.experts.experts > most)
    throw UserError("{}: {} layers of {} experts have {} in all; Weft reads models of at most {}", file, layers,
                    config.experts.experts, layers * config.experts.experts, most);
}

// wants_mtp: asked with the main part's config.
Described read_config(const std::filesystem::path& dir,
                      const std::function<bool(const HuggingFaceFamily&, const ModelConfig&)>& wants_mtp) {
  require_readable_folder(dir, "a Hugging Face model is a folder with config.json and safetensors");
  const std::string file = (dir / "config.json").string();
  const Json json = read_json(file);
  const ConfigReader reader(json, file);
  HuggingFaceFamily family = family_named(reader.text("model_type"), file);
  refuse_unsupported(reader);
  ModelConfig config = family.config(reader);
  check_experts_in_all(config, file);
  if (family.mtp && wants_mtp(family, config)) add_depths(family, reader, config);
  check_experts_in_all(config, file);
  return {std::move(family), config};
}

Described read_config(const std::filesystem::path& dir) {
  return read_config(dir, [](const auto&, const auto&) { return false; });
}

// Of the forms of experts, the one most of whose names are on disk.
ExpertsForm experts_on_disk(const Described& described, const NameThere& there) {
  if (described.config.pattern.find('E') == std::string::npos) return ExpertsForm::none;
  WEFT_CHECK(!described.family.experts.empty(), "{} has no names for experts", described.family.name);
  ExpertsForm best = described.family.experts[0].form;
  double best_share = -1;
  for (const ExpertsNames& names : described.family.experts) {
    HuggingFaceFamily only = described.family;
    only.names = {};
    only.experts = {names};
    const std::vector<DiskTensor> tensors = family_tensors(only, described.config, names.form);
    const auto found =
        std::count_if(tensors.begin(), tensors.end(), [&](const DiskTensor& t) { return there(t.name); });
    const double share = tensors.empty() ? 0 : static_cast<double>(found) / static_cast<double>(tensors.size());
    if (share > best_share) {
      best = names.form;
      best_share = share;
    }
  }
  return best;
}

std::string head_name(const HuggingFaceFamily& family) {
  for (const NameTable& table : family.names) {
    for (const NameRule& rule : table) {
      if (rule.role == Role::head) return std::string(rule.name);
    }
  }
  WEFT_CHECK(false, "family {} has no name for the head", family.name);
}

DiskTensor& embedding_of(const HuggingFaceFamily& family, std::vector<DiskTensor>& tensors) {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [](const DiskTensor& t) {
    return t.parts[0].identity.role == Role::embedding && !t.copy;
  });
  WEFT_CHECK(at != tensors.end(), "family {} has no name for the embedding", family.name);
  return *at;
}

// Which of the possible forms the files have.
HuggingFaceForm form_on_disk(const Described& described, const NameThere& there) {
  HuggingFaceForm form;
  form.experts = experts_on_disk(described, there);
  std::vector<DiskTensor> tensors = family_tensors(described.family, described.config, form.experts);
  for (const DiskTensor& tensor : tensors) {
    if (tensor.copy && there(tensor.name)) form.copies.push_back(tensor.name);
  }
  // A tied model keeps its one matrix under the embedding's name, the head's, or both.
  if (const std::string head = head_name(described.family); described.config.tied_embeddings && there(head)) {
    if (there(embedding_of(described.family, tensors).name)) {
      form.copies.push_back(head);
    } else {
      form.tied_as_head = true;
    }
  }
  return form;
}

std::vector<DiskTensor> tensors_in(const HuggingFaceForm& form, const HuggingFaceFamily& family,
                                   const ModelConfig& config) {
  std::vector<DiskTensor> tensors = family_tensors(family, config, form.experts);
  const std::set<std::string> copies(form.copies.begin(), form.copies.end());
  std::erase_if(tensors, [&](const DiskTensor& t) { return t.copy && !copies.contains(t.name); });
  if (!config.tied_embeddings) return tensors;
  const std::string head = head_name(family);
  if (form.tied_as_head) {
    embedding_of(family, tensors).name = head;
  } else if (copies.contains(head)) {
    DiskTensor copy = embedding_of(family, tensors);
    copy.name = head;
    copy.copy = true;
    tensors.push_back(std::move(copy));
  }
  return tensors;
}

HuggingFaceModel model_in(const HuggingFaceForm& form, const Described& described) {
  return {std::string(described.family.name), described.config, form,
          tensors_in(form, described.family, described.config)};
}

HuggingFaceModel describe(const std::filesystem::path& dir, const SafetensorsDirectory& files) {
  const NameThere there = [&](const std::string& name) { return files.find(name) != nullptr; };
  const Described described = read_config(
      dir, [&](const HuggingFaceFamily& family, const ModelConfig& config) { return has_mtp(family, config, there); });
  HuggingFaceModel model = model_in(form_on_disk(described, there), described);
  for (DiskTensor& tensor : model.tensors) {
    if (const TensorEntry* entry = files.find(tensor.name)) {
      check_shape(*entry, tensor);
      tensor.type = entry->type;
    }
  }
  return model;
}

// The folder's name, once its config has been read: a wrong family is a better complaint than missing weights.
std::string folder_of_model(const std::filesystem::path& dir) {
  std::error_code error;  // what cannot be looked at, reading the config complains of
  if (std::filesystem::exists(dir / manifest_name, error))
    throw UserError("{}: this is a Weft checkpoint, not a Hugging Face model; read it with --from weft", dir.string());
  read_config(dir);
  return dir.string();
}

}  // namespace

ModelConfig config_of_family(const HuggingFaceFamily& family, const Json& json, bool mtp) {
  const ConfigReader reader(json, fmt::format("config.json of {}", family.name));
  ModelConfig config = family.config(reader);
  if (mtp && family.mtp) add_depths(family, reader, config);
  return config;
}

std::string_view name_of(ExpertsForm form) {
  switch (form) {
    case ExpertsForm::none:
      return "none";
    case ExpertsForm::separate:
      return "separate";
    case ExpertsForm::fused:
      return "fused";
  }
  return "";
}

void require_readable_folder(const std::filesystem::path& dir, const std::string& kind) {
  std::error_code error;
  const std::filesystem::directory_iterator files(dir, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory)
    throw UserError("{}: not a folder; {}", dir.string(), kind);
  // A folder may be listed and yet not entered.
  if (!error) static_cast<void>(std::filesystem::status(dir / "config.json", error));
  if (error == std::errc::no_such_file_or_directory || error == std::errc::too_many_symbolic_link_levels) return;
  if (error) throw UserError("cannot read the folder {}: {}", dir.string(), error.message());
}

bool has_safetensors(const std::filesystem::path& dir) {
  std::error_code error;
  const std::filesystem::directory_iterator files(dir, error);
  return std::any_of(begin(files), end(files),
                     [](const auto& file) { return file.path().extension() == ".safetensors"; });
}

HuggingFaceModel read_hugging_face_config(const std::filesystem::path& dir) {
  const Described described = read_config(dir);
  HuggingFaceForm form;
  form.experts = experts_on_disk(described, [](const std::string&) { return false; });
  return model_in(form, described);
}

HuggingFaceModel read_hugging_face(const std::filesystem::path& dir) {
  const SafetensorsDirectory files(folder_of_model(dir));
  return describe(dir, files);
}

HuggingFaceModel hugging_face_model(const std::string& family, const ModelConfig& config, const HuggingFaceForm& form) {
  return model_in(form, {family_named(family, "the checkpoint"), config});
}

HuggingFaceModel with_experts(const HuggingFaceModel& model, ExpertsForm experts) {
  const HuggingFaceFamily family = family_named(model.family, "config.json");
  if (model.form.experts == ExpertsForm::none)
    throw UserError("--experts {}: this {} model has no experts; drop the flag", name_of(experts), model.family);
  if (std::none_of(family.experts.begin(), family.experts.end(),
                   [&](const ExpertsNames& names) { return names.form == experts; }))
    throw UserError("--experts {}: {} models have their experts {} only; drop the flag", name_of(experts), model.family,
                    name_of(family.experts[0].form));
  HuggingFaceForm form = model.form;
  form.experts = experts;
  return model_in(form, {family, model.config});
}

HuggingFaceWeights::HuggingFaceWeights(const std::filesystem::path& dir)
    : dir_(folder_of_model(dir)), files_(dir), model_(describe(dir, files_)) {
  check_tensor_names(files_, model_.tensors, family_named(model_.family, dir_).ignored, dir_,
                     fmt::format("config.json ({})", model_.family));
  stored_ = std::make_unique<StoredWeights>(files_, model_.tensors, model_.config.tied_embeddings);
}

std::vector<const TensorEntry*> HuggingFaceWeights::other_tensors() const {
  std::set<std::string_view> known;
  for (const DiskTensor& tensor : model_.tensors) known.insert(tensor.name);
  std::vector<const TensorEntry*> others;
  for (const TensorEntry* entry : files_.entries()) {
    if (!known.contains(entry->name)) others.push_back(entry);
  }
  return others;
}

}  // namespace weft
