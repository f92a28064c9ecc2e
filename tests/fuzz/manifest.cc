// manifest.json, as it is and with a checksum that fits, so that the checks after that one are reached.
#include "weft/checkpoint/manifest.h"

#include <string>

#include <nlohmann/json.hpp>

#include "tests/checkpoint/sealed.h"
#include "tests/fuzz/fuzz.h"
#include "weft/checkpoint/json_strict.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  const std::string text(text_of(data, size));
  read_or_refuse([&] { parse_manifest(text, "x"); });
  read_or_refuse([&] {
    const nlohmann::json json = parse_strict_json(text, "x");
    if (json.is_object()) parse_manifest(sealed(json), "x");
  });
  return 0;
}
