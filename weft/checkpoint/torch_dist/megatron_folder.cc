#include "weft/checkpoint/torch_dist/megatron_folder.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/checkpoint/torch_dist/dcp_metadata.h"
#include "weft/checkpoint/torch_dist/shown.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
constexpr const char* tracker_name = "latest_checkpointed_iteration.txt";

[[noreturn]] void fail_legacy(const fs::path& path) {
  throw UserError(
      "{}: is a Megatron checkpoint of the legacy form (--ckpt-format torch: mp_rank_00/model_optim_rng.pt), which "
      "Weft "
      "does not read; convert it with Megatron's --ckpt-convert-format torch_dist --ckpt-convert-save DIR, and read "
      "DIR",
      path.string());
}

// mp_rank_00, mp_rank_00_000, ...: a folder for every rank that saved.
bool has_legacy_ranks(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().filename().string().starts_with("mp_rank_")) return true;
  return false;
}

std::optional<std::int64_t> iteration_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  std::int64_t iteration = 0;
  if (name.starts_with("iter_") && parse_int(std::string_view(name).substr(5), iteration) && iteration >= 0) {
    return iteration;
  }
  return std::nullopt;
}

fs::path follow_tracker(const fs::path& folder) {
  const fs::path tracker = folder / tracker_name;
  const std::string text = read_regular_file(tracker);
  const std::string_view word = trim(text);
  std::int64_t iteration = 0;
  if (word == "release") return folder / "release";
  if (!parse_int(word, iteration) || iteration < 0) {
    throw UserError(
        "{}: must hold the number of an iteration or the word release, holds {}; name the folder iter_... "
        "itself",
        tracker.string(), shown(text));
  }
  fs::path named = folder / fmt::format("iter_{:07}", iteration);
  if (!is_there(named)) {
    throw UserError("{}: says iteration {}, and {} does not exist", tracker.string(), iteration, named.string());
  }
  return named;
}

void check_backend(const fs::path& folder) {
  const fs::path file = folder / "metadata.json";
  const Json json = read_json(file);
  const auto backend = json.is_object() ? json.find("sharded_backend") : json.end();
  if (backend == json.end() || !backend->is_string()) {
    throw UserError("{}: does not say which form the checkpoint has (sharded_backend)", file.string());
  }
  const std::string form = backend->get<std::string>();
  if (form != "torch_dist") {
    throw UserError(
        "{}: the checkpoint has the form {}, and Weft reads torch_dist; load it in Megatron and save it with "
        "--ckpt-format torch_dist",
        file.string(), shown(form));
  }
  const auto version = json.find("sharded_backend_version");
  if (version != json.end() && *version != 1) {
    throw UserError("{}: version {} of torch_dist; Weft reads version 1", file.string(), version->dump());
  }
}

// A folder with .metadata but without metadata.json.
[[noreturn]] void fail_without_marker(const fs::path& folder) {
  const fs::path file = folder / ".metadata";
  const MappedFile mapping(file);
  const DcpMetadata metadata = parse_dcp_metadata(mapping.bytes(), file.string());
  const auto is_fsdp = [](const ShardedTensor& tensor) { return is_fsdp_dtensor_name(tensor.name); };
  if (std::any_of(metadata.tensors.begin(), metadata.tensors.end(), is_fsdp)) {
    throw UserError(
        "{}: is a Megatron checkpoint of the form fsdp_dtensor, which Weft does not read; load it in Megatron "
        "and save it with --ckpt-format torch_dist, or save the model in Hugging Face's form",
        folder.string());
  }
  throw UserError(
      "{}: has no metadata.json, which Megatron writes last: the save was not finished, or this is not a "
      "checkpoint of Megatron's; read one that is complete",
      folder.string());
}

}  // namespace

bool is_fsdp_dtensor_name(std::string_view name) {
  return name.starts_with("model.module.") || name.starts_with("module.") ||
         name.starts_with("optimizer.state.module.");
}

MegatronFolder find_megatron_folder(const fs::path& path) {
  std::error_code error;
  if (!is_there(path)) throw UserError("{}: does not exist", path.string());
  if (!fs::is_directory(path, error)) {
    if (path.extension() == ".pt") fail_legacy(path);
    throw UserError("{}: is not a folder; a torch_dist checkpoint is the folder iter_... or the one above it",
                    path.string());
  }
  fs::path folder = path.lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "iter_0000007/"
  const auto is_checkpoint = [](const fs::path& f) {
    return is_there(f / ".metadata") || is_there(f / "metadata.json");
  };
  if (!is_checkpoint(folder) && is_there(folder / tracker_name)) folder = follow_tracker(folder);
  if (!is_checkpoint(folder)) {
    if (has_legacy_ranks(folder)) fail_legacy(folder);
    throw UserError("{}: is not a checkpoint of Megatron's: it has neither .metadata nor {}", folder.string(),
                    tracker_name);
  }
  if (!is_there(folder / "metadata.json")) fail_without_marker(folder);
  check_backend(folder);
  if (!is_there(folder / ".metadata")) {
    throw UserError(
        "{}: has metadata.json but no .metadata, which says where the tensors are: the checkpoint is "
        "incomplete",
        folder.string());
  }
  return {folder, iteration_of(folder)};
}

}  // namespace weft
