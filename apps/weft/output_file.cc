#include "apps/weft/output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

void require_folder_of(const std::string& flag, const std::string& file) {
  const std::filesystem::path path(file), folder = path.parent_path();
  std::error_code error;  // what cannot be looked at is not there
  if (!folder.empty() && !std::filesystem::is_directory(folder, error))
    throw UserError("{} {}: there is no folder {}; make it first", flag, file, folder.string());
  if (!file.empty() && std::filesystem::is_directory(path, error))
    throw UserError("{} {}: this is a folder; name a file in it", flag, file);
  const std::string place = std::filesystem::is_regular_file(path, error) ? file
                            : folder.empty()                              ? "."
                                                                          : folder.string();
  if (!file.empty() && !std::filesystem::is_other(std::filesystem::status(path, error)) &&
      ::access(place.c_str(), W_OK) != 0)
    throw UserError("{} {}: {} cannot be written to: {}; name another place", flag, file, place, std::strerror(errno));
}

void note_missing_outputs(const FlagTable& flags, const std::string& why, const std::vector<const char*>& outputs) {
  std::vector<std::string> missing;
  for (const char* output : outputs)
    if (flags.flag(output).origin.source == FlagOrigin::Source::command_line) missing.emplace_back(output);
  if (!missing.empty()) fmt::print(stderr, "note: {}; ignored: {}\n", why, join(missing, ", "));
}

}  // namespace weft
