#include "weft/checkpoint/inspect.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text.h"
#include "weft/checkpoint/torch_dist/megatron_folder.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::int64_t size_of_file(const fs::path& file) {
  std::error_code error;  // it was there a moment ago
  const auto size = fs::file_size(file, error);
  return error ? 0 : static_cast<std::int64_t>(size);
}

std::optional<std::int64_t> integer_in(const Json& object, const char* key) {
  if (!object.is_object()) return std::nullopt;
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_integer()) return std::nullopt;
  return at->get<std::int64_t>();
}

std::string text_in(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

void open_run(OpenedCheckpoint& opened) {
  opened.form = FolderForm::weft;
  opened.run = std::make_unique<RunCheckpoint>(opened.folder);
  opened.run->open_files();
  const Manifest& manifest = opened.run->manifest();
  opened.tensors = view_of(*opened.run);
  opened.files.assign(manifest.files.begin(), manifest.files.end());
  try {
    if (const std::optional<SavedRun> run = opened.run->run()) {
      opened.iteration = run->position.iteration;
      opened.consumed_samples = run->position.consumed_samples;
      opened.optimizer_steps = run->position.optimizer_steps;
      opened.ranks = run->ranks;
      opened.arguments = parse_json(run->arguments, (opened.folder / manifest_name).string());
    }
    const ModelDescription model = opened.run->description();
    opened.pattern = model.config.pattern;
    if (model.hugging_face) opened.family = model.hugging_face->family;
    if (model.compute) opened.compute = name_of(*model.compute);
  } catch (const UserError& error) {
    opened.problem = error.what();
  }
}

void open_hugging_face(OpenedCheckpoint& opened) {
  opened.form = FolderForm::hugging_face;
  opened.safetensors = std::make_unique<SafetensorsDirectory>(opened.folder);
  opened.tensors = view_of(*opened.safetensors);
  std::set<std::string> files;
  for (const TensorEntry* entry : opened.safetensors->entries()) files.insert(entry->file);
  for (const std::string& file : files) opened.files.emplace_back(fs::path(file).filename(), size_of_file(file));
  try {
    opened.family = text_in(read_json(opened.folder / "config.json"), "model_type");
    opened.weights = std::make_unique<HuggingFaceWeights>(opened.folder);
    opened.pattern = opened.weights->model().config.pattern;
  } catch (const UserError& error) {
    opened.problem = error.what();
  }
}

void open_megatron(OpenedCheckpoint& opened, const fs::path& path) {
  opened.form = FolderForm::megatron;
  opened.torch_dist = std::make_unique<TorchDistCheckpoint>(path);
  opened.folder = opened.torch_dist->folder();
  opened.tensors = view_of(*opened.torch_dist);
  opened.iteration = opened.torch_dist->iteration();
  opened.arguments = opened.torch_dist->args();
  opened.consumed_samples = integer_in(opened.arguments, "consumed_train_samples");
  opened.ranks = integer_in(opened.arguments, "world_size");
  for (const char* key : {"hybrid_layer_pattern", "hybrid_override_pattern"})
    if (opened.pattern.empty()) opened.pattern = text_in(opened.arguments, key);
  for (fs::directory_iterator at(opened.folder), end; at != end; ++at)
    if (at->path().extension() == ".distcp") opened.files.emplace_back(at->path().filename(), size_of_file(at->path()));
  std::sort(opened.files.begin(), opened.files.end());
}

bool has_hugging_face_files(const fs::path& folder) {
  return is_there(folder / "config.json") || is_there(folder / "model.safetensors") ||
         is_there(folder / "model.safetensors.index.json");
}

bool is_megatron(const fs::path& folder) {
  return is_there(folder / ".metadata") || is_there(folder / "metadata.json");
}

bool is_checkpoint(const fs::path& folder) {
  return is_there(folder / manifest_name) || is_megatron(folder) || has_hugging_face_files(folder);
}

// A folder whose reader tells better what is wrong with it: a legacy form, a save that was not finished.
bool looks_like_megatron(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with("mp_rank_") || name.ends_with(".distcp") || name == "latest_checkpointed_iteration.txt")
      return true;
  }
  return false;
}

constexpr std::string_view leftover_suffix = ".tmp";

// The number in "iter_0000012" and "iter_0000012.tmp".
std::optional<std::int64_t> iteration_of(std::string name) {
  if (name.ends_with(leftover_suffix)) name.resize(name.size() - leftover_suffix.size());
  return iteration_in(name);
}

std::int64_t bytes_in(const fs::path& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (std::error_code unseen; at->is_regular_file(unseen)) bytes += size_of_file(at->path());
  return bytes;
}

SavedIteration look_at(const fs::path& folder, std::int64_t iteration) {
  SavedIteration saved{.name = folder.filename(), .iteration = iteration};
  saved.bytes = bytes_in(folder);
  try {
    if (saved.name.ends_with(leftover_suffix)) {
      saved.problem = "left by a save that did not finish";
      return saved;
    }
    saved.form = is_there(folder / manifest_name) ? id_of(FolderForm::weft)
                 : is_megatron(folder)            ? id_of(FolderForm::megatron)
                                                  : "";
    const OpenedCheckpoint opened = open_checkpoint(folder);
    saved.complete = true;
    if (opened.iteration && *opened.iteration != iteration)
      saved.problem = fmt::format("it records iteration {}", *opened.iteration);
  } catch (const UserError& error) {
    saved.problem = error.what();
    if (const std::string where = folder.string() + ": "; saved.problem.starts_with(where))
      saved.problem.erase(0, where.size());
  }
  return saved;
}

}  // namespace

std::string_view name_of(FolderForm form) {
  switch (form) {
    case FolderForm::weft:
      return "Weft checkpoint";
    case FolderForm::hugging_face:
      return "Hugging Face folder";
    case FolderForm::megatron:
      return "Megatron torch_dist checkpoint";
  }
  return "";
}

std::string_view id_of(FolderForm form) {
  switch (form) {
    case FolderForm::weft:
      return "weft";
    case FolderForm::hugging_face:
      return "hf";
    case FolderForm::megatron:
      return "megatron";
  }
  return "";
}

OpenedCheckpoint open_checkpoint(const fs::path& path) {
  if (path.extension() == ".pt" && is_there(path)) find_megatron_folder(path);  // throws, with what to do
  require_readable_folder(path, "name the folder of a checkpoint, or one that --save wrote to");
  OpenedCheckpoint opened;
  opened.folder = path.lexically_normal();
  if (!opened.folder.has_filename()) opened.folder = opened.folder.parent_path();  // "run/"
  if (!is_checkpoint(opened.folder)) {
    try {
      if (const std::optional<std::int64_t> named = latest_checkpoint(opened.folder))
        opened.folder = checkpoint_folder(opened.folder, *named);
    } catch (const UserError&) {  // "release", in a folder of Megatron's
    }
  }
  if (is_there(opened.folder / manifest_name)) {
    open_run(opened);
  } else if (!is_megatron(opened.folder) && has_hugging_face_files(opened.folder)) {
    open_hugging_face(opened);
  } else if (holds_iterations(opened.folder)) {
    throw UserError(
        "{}: no latest_checkpointed_iteration.txt tells which of its checkpoints is meant; name a folder "
        "iter_...",
        opened.folder.string());
  } else if (is_megatron(opened.folder) || looks_like_megatron(opened.folder) || !is_there(opened.folder)) {
    open_megatron(opened, opened.folder);
  } else {
    throw UserError(
        "{}: not a checkpoint: one of Weft has {}, a Hugging Face folder config.json and safetensors, one of Megatron "
        ".metadata, a folder of --save folders iter_...",
        opened.folder.string(), manifest_name);
  }
  return opened;
}

bool verify_checksums(const OpenedCheckpoint& checkpoint, const std::function<void(std::size_t bytes)>& progress) {
  std::size_t done = 0;
  const auto advance = [&](std::size_t bytes) {
    done += bytes;
    if (progress) progress(done);
  };
  switch (checkpoint.form) {
    case FolderForm::weft:
      checkpoint.run->verify(advance);
      return true;
    case FolderForm::hugging_face:
      return false;
    case FolderForm::megatron:
      break;
  }
  const TorchDistCheckpoint& files = *checkpoint.torch_dist;
  const auto verify = [&](const StoragePlace& place, const std::string& name) {
    const std::span<const std::byte> bytes = files.stored_bytes(place);
    const std::string where = fmt::format("{}: '{}'", files.folder().string(), name);
    const ZipArchive archive(bytes, where);
    for (const ZipEntry& entry : archive.entries()) check_checksum(entry, where, Pages::give_back);
    advance(bytes.size());
  };
  for (const ShardedTensor& tensor : files.tensors())
    for (const TensorChunk& chunk : tensor.chunks) verify(chunk.place, tensor.name);
  for (const StoredObject& object : files.objects()) verify(object.place, object.name);
  return true;
}

std::int64_t bytes_of(const OpenedCheckpoint& checkpoint) {
  std::int64_t bytes = 0;
  for (const ViewedTensor& tensor : checkpoint.tensors->tensors()) bytes += bytes_of(tensor);
  return bytes;
}

std::string content_of(FolderForm form, std::string_view name) {
  switch (form) {
    case FolderForm::weft:
      return std::string(name.substr(0, name.find('/')));
    case FolderForm::hugging_face:
      return "weight";
    case FolderForm::megatron:
      break;
  }
  if (!name.starts_with("optimizer.")) return "weight";
  for (const auto& [part, content] : {std::pair{".exp_avg_sq.", "second_moment"},
                                      {".exp_avg.", "first_moment"},
                                      {".fp32_param.", "master_weight"},
                                      {".master_param.", "master_weight"},
                                      {".param.", "master_weight"}})
    if (name.find(part) != std::string_view::npos) return content;
  return "optimizer";
}

bool holds_iterations(const fs::path& dir) {
  if (is_checkpoint(dir)) return false;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error))
    if (iteration_of(at->path().filename().string())) return true;
  return false;
}

SavedIterations list_iterations(const fs::path& dir) {
  SavedIterations all;
  try {
    all.named = latest_checkpoint(dir);
  } catch (const UserError& error) {
    all.tracker_problem = error.what();
  }
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error))
    if (const auto iteration = iteration_of(at->path().filename().string()))
      all.iterations.push_back(look_at(at->path(), *iteration));
  std::sort(all.iterations.begin(), all.iterations.end(), [](const SavedIteration& a, const SavedIteration& b) {
    const auto order = [](const SavedIteration& s) {
      return std::tuple(s.name.ends_with(leftover_suffix), s.iteration, s.name);
    };
    return order(a) < order(b);
  });
  return all;
}

}  // namespace weft
