// What torch.save wrote: a zip archive with a pickle, whose tensors lie in the archive.
#include <nlohmann/json.hpp>

#include "tests/fuzz/fuzz.h"
#include "weft/checkpoint/torch_dist/pickle_json.h"
#include "weft/checkpoint/torch_dist/torch_item.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  read_or_refuse([&] {
    const ZipArchive archive(bytes_of(data, size), "x");
    for (const ZipEntry& entry : archive.entries()) read_or_refuse([&] { check_checksum(entry, "x", Pages::keep); });
  });
  read_or_refuse([&] {
    const TorchItem item(bytes_of(data, size), "x");
    read_or_refuse([&] { item.tensor(item.root()); });
    to_json(item.root(), item.pickle(), "x");
  });
  return 0;
}
