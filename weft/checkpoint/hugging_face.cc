#include "weft/checkpoint/hugging_face.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

struct Described {
  HuggingFaceFamily family;
  ModelConfig config;
};

// files: null where there are none; then there is no MTP either.
Described read_config(const std::filesystem::path& dir, const SafetensorsDirectory* files) {
  if (!std::filesystem::is_directory(dir)) {
    throw UserError("{}: not a folder; a Hugging Face model is a folder with config.json and safetensors",
                    dir.string());
  }
  const std::string file = (dir / "config.json").string();
  const Json json = read_json(file);
  const ConfigReader reader(json, file);
  HuggingFaceFamily family = family_named(reader.text("model_type"), file);
  refuse_unsupported(reader);
  ModelConfig config = family.config(reader);
  if (files != nullptr && !family.mtp_part.empty()) {
    const std::int64_t depths = family.mtp_depths(reader);
    if (depths > 0 && has_mtp(family, config, [&](const std::string& name) { return files->find(name) != nullptr; })) {
      for (std::int64_t depth = 0; depth < depths; ++depth) config.pattern += fmt::format("/{}", family.mtp_part);
    }
  }
  return {std::move(family), config};
}

// Of the ways to spell some of the names, the one most of whose names are on disk.
std::size_t spelling_on_disk(const Described& described, const SafetensorsDirectory& files) {
  std::size_t best = 0;
  double best_share = -1;
  for (std::size_t i = 0; i < described.family.spellings.size(); ++i) {
    const std::vector<DiskTensor> tensors =
        tensors_of(described.config, described.family.layer_prefix, {&described.family.spellings[i], 1});
    const auto found = std::count_if(tensors.begin(), tensors.end(),
                                     [&](const DiskTensor& t) { return files.find(t.name) != nullptr; });
    const double share = tensors.empty() ? 0 : static_cast<double>(found) / static_cast<double>(tensors.size());
    if (share > best_share) {
      best = i;
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

// A tied model keeps its one matrix under the embedding's name, the head's, or both.
void find_tied(const HuggingFaceFamily& family, const SafetensorsDirectory& files, std::vector<DiskTensor>& tensors) {
  const std::string head = head_name(family);
  if (files.find(head) == nullptr) return;
  const auto embedding = std::find_if(tensors.begin(), tensors.end(),
                                      [](const DiskTensor& t) { return t.parts[0].identity.role == Role::embedding; });
  WEFT_CHECK(embedding != tensors.end(), "family {} has no name for the embedding", family.name);
  if (files.find(embedding->name) == nullptr) {
    embedding->name = head;
  } else {
    DiskTensor copy = *embedding;
    copy.name = head;
    copy.copy = true;
    tensors.push_back(std::move(copy));
  }
}

HuggingFaceModel describe(const std::filesystem::path& dir, const SafetensorsDirectory* files) {
  const Described described = read_config(dir, files);
  const HuggingFaceFamily& family = described.family;
  std::vector<NameTable> tables = family.names;
  if (!family.spellings.empty()) {
    tables.push_back(family.spellings[files != nullptr ? spelling_on_disk(described, *files) : 0]);
  }
  HuggingFaceModel model{std::string(family.name), described.config,
                         tensors_of(described.config, family.layer_prefix, tables, family.mtp_names)};
  if (files != nullptr) {
    // Copies need not be there.
    std::erase_if(model.tensors, [&](const DiskTensor& t) { return t.copy && files->find(t.name) == nullptr; });
    if (model.config.tied_embeddings) find_tied(family, *files, model.tensors);
    for (DiskTensor& tensor : model.tensors) {
      if (const TensorEntry* entry = files->find(tensor.name)) tensor.type = entry->type;
    }
  }
  return model;
}

// The folder's name, once its config has been read: a wrong family is a better complaint than missing weights.
std::string folder_of_model(const std::filesystem::path& dir) {
  read_config(dir, nullptr);
  return dir.string();
}

// "3 tensors: a, b, c": at most five by name.
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t most = 5;
  const std::string shown = join(std::span(names).first(std::min(most, names.size())), ", ");
  return fmt::format("{} tensor{}: {}{}", names.size(), names.size() == 1 ? "" : "s", shown,
                     names.size() > most ? ", ..." : "");
}

}  // namespace

bool has_safetensors(const std::filesystem::path& dir) {
  if (!std::filesystem::is_directory(dir)) return false;
  const std::filesystem::directory_iterator files(dir);
  return std::any_of(begin(files), end(files),
                     [](const auto& file) { return file.path().extension() == ".safetensors"; });
}

HuggingFaceModel read_hugging_face_config(const std::filesystem::path& dir) { return describe(dir, nullptr); }

HuggingFaceModel read_hugging_face(const std::filesystem::path& dir) {
  const SafetensorsDirectory files(folder_of_model(dir));
  return describe(dir, &files);
}

HuggingFaceWeights::HuggingFaceWeights(const std::filesystem::path& dir)
    : dir_(folder_of_model(dir)), files_(dir), model_(describe(dir, &files_)) {
  check_names();
  for (const DiskTensor& tensor : model_.tensors) {
    const TensorEntry* const entry = files_.find(tensor.name);
    if (entry->shape != tensor.shape) {
      throw UserError("{}: tensor '{}' has the shape {}, but config.json asks for {}", entry->file, tensor.name,
                      to_text(entry->shape), to_text(tensor.shape));
    }
    if (!is_float(entry->type)) {
      throw UserError("{}: tensor '{}' has dtype {}; weights are read from F32, F64, BF16 and F16", entry->file,
                      tensor.name, name_of(entry->type));
    }
    if (tensor.copy) continue;
    for (const DiskPart& part : tensor.parts) places_[part.identity].push_back({entry, &part});
  }
  check_copies();
}

void HuggingFaceWeights::check_names() const {
  std::set<std::string_view> expected;
  std::vector<std::string> missing, unexpected;
  for (const DiskTensor& tensor : model_.tensors) {
    expected.insert(tensor.name);
    if (files_.find(tensor.name) == nullptr) missing.push_back(tensor.name);
  }
  const std::vector<std::string_view> ignored = family_named(model_.family, dir_).ignored;
  for (const TensorEntry* entry : files_.entries()) {
    const bool known = expected.contains(entry->name) || std::any_of(ignored.begin(), ignored.end(), [&](auto end) {
                         return entry->name.ends_with(end);
                       });
    if (!known) unexpected.push_back(entry->name);
  }
  if (missing.empty() && unexpected.empty()) return;
  std::string text = fmt::format("{}: the tensors are not those that config.json ({}) asks for", dir_, model_.family);
  if (!missing.empty()) text += "; missing " + listed(missing);
  if (!unexpected.empty()) text += "; unexpected " + listed(unexpected);
  throw UserError(text);
}

void HuggingFaceWeights::check_copies() const {
  for (const DiskTensor& tensor : model_.tensors) {
    if (!tensor.copy) continue;
    const DiskPart& part = tensor.parts[0];
    const TensorEntry& copy = *files_.find(tensor.name);
    const TensorEntry& original = *places_.at(part.identity)[0].entry;
    const std::int64_t columns = part.parameter[-1];
    std::vector<double> a(static_cast<std::size_t>(columns)), b(a);
    for (std::int64_t row = 0; row < part.parameter.rows(); ++row) {
      read_range(copy, row * columns, columns, DType::f64, a.data());
      read_range(original, row * columns, columns, DType::f64, b.data());
      if (a == b) continue;
      if (!model_.config.tied_embeddings)
        throw UserError("{}: '{}' must be a copy of '{}', but they differ", copy.file, copy.name, original.name);
      throw UserError(
          "{}: config.json says tie_word_embeddings, but '{}' and '{}' differ; if the model is not tied, say false "
          "there",
          copy.file, copy.name, original.name);
    }
  }
}

void HuggingFaceWeights::read(const ParameterIdentity& identity, const Shape& logical, DType target, void* out) const {
  const auto at = places_.find(identity);
  WEFT_CHECK(at != places_.end(), "{} has no parameter {}", dir_, to_text(identity));
  for (const Place& place : at->second) {
    WEFT_CHECK(place.part->parameter == logical, "{} is {} here, {} on disk", to_text(identity), to_text(logical),
               to_text(place.part->parameter));
    read_part(*place.entry, *place.part, target, out);
  }
}

}  // namespace weft
