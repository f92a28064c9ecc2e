// A torch_dist checkpoint read and written again, chunk by chunk.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace weft {

// Into `folder`, which exists. Without _extra_state; the shared state as plain data.
// name_of: what each tensor is called there; absent: as here.
void rewrite_checkpoint(const std::filesystem::path& from, const std::filesystem::path& folder,
                        const std::function<std::string(const std::string& name)>& name_of = {});

}  // namespace weft
