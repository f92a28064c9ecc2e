// A torch_dist checkpoint read and written again, chunk by chunk.
#pragma once

#include <filesystem>

namespace weft {

// Into `folder`, which exists. Without _extra_state; the shared state as plain data.
void rewrite_checkpoint(const std::filesystem::path& from, const std::filesystem::path& folder);

}  // namespace weft
