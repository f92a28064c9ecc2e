// Where a Megatron checkpoint is, and what kind it is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace weft {

struct MegatronFolder {
  std::filesystem::path path;             // with .metadata and metadata.json
  std::optional<std::int64_t> iteration;  // by the folder's name, iter_0000007; absent: another name
};

// `path` is that folder, or the one of --save, whose latest_checkpointed_iteration.txt names it. UserError for what is not
// a torch_dist checkpoint: a path with none, a save that was not finished, and the forms legacy torch, zarr and
// fsdp_dtensor, with what to do instead.
MegatronFolder find_megatron_folder(const std::filesystem::path& path);
// Whether the name of a tensor in a folder without metadata.json says that it is of fsdp_dtensor: the names of modules as
// they are in memory.
bool is_fsdp_dtensor_name(std::string_view name);

}  // namespace weft
