// A pickle, as plain data and as the .metadata of a distributed checkpoint.
#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"
#include "weft/checkpoint/torch_dist/dcp_metadata.h"
#include "weft/checkpoint/torch_dist/pickle_json.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  read_or_refuse([&] {
    const Pickle pickle(bytes_of(data, size), "x");
    to_json(pickle.root(), pickle, "x");
  });
  read_or_refuse([&] { parse_dcp_metadata(bytes_of(data, size), "x"); });
  return 0;
}
