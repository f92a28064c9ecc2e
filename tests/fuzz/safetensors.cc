// A safetensors file: eight bytes of length, header, data. The header is read also where the length does not fit.
#include "weft/checkpoint/safetensors.h"

#include <algorithm>

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  const std::string_view file = text_of(data, size), json = file.substr(std::min<std::size_t>(8, size));
  const std::size_t end = json.rfind('}');
  const std::string_view header = json.substr(0, end == std::string_view::npos ? json.size() : end + 1);
  read_or_refuse([&] {
    const SafetensorsHeader parsed = parse_safetensors_header(header, "x");
    check_safetensors_tiling(parsed, json.size() - header.size(), "x");
  });
  return 0;
}
