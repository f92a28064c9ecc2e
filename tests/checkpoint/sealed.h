// A manifest with the checksum of its contents, so that damage reaches the checks after that one.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "weft/base/checksum.h"

namespace weft {

inline std::string sealed(nlohmann::json manifest) {
  manifest.erase("checksum");
  manifest["checksum"] = checksum_text(checksum_of(manifest.dump()));
  return manifest.dump();
}

}  // namespace weft
