#include "weft/checkpoint/safetensors_writer.h"

#include <algorithm>
#include <set>
#include <span>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft {
namespace {

// Built by hand to have the keys in the order in which the reference writer has them.
std::string header_of(const std::vector<TensorToWrite>& tensors, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += fmt::format("\"__metadata__\":{},", nlohmann::json(metadata).dump());
  std::set<std::string_view> names = {"__metadata__"};
  std::size_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    WEFT_CHECK(names.insert(tensor.name).second, "two tensors named '{}'", tensor.name);
    std::string shape;
    for (int i = 0; i < tensor.shape.dims(); ++i) shape += fmt::format("{}{}", i > 0 ? "," : "", tensor.shape[i]);
    const std::size_t end = at + bytes_of(tensor);
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                        nlohmann::json(tensor.name).dump(), name_of(tensor.type), shape, at, end);
    at = end;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void put_in_order(std::vector<TensorToWrite>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorToWrite& a, const TensorToWrite& b) {
    return a.type != b.type ? a.type > b.type : a.name < b.name;
  });
}

constexpr std::int64_t range_bytes = 4 << 20;  // large for a disk, small beside a cache

// Gives the tensors' bytes in their order, as many at a time as a tensor, its slice or a range has.
template <class Take>
void fill_all(const std::vector<TensorToWrite>& tensors, const Take& take) {
  std::vector<std::byte> buffer;
  for (const TensorToWrite& tensor : tensors) {
    if (tensor.read) {
      const std::int64_t size = bits_of(tensor.type) / 8, most = range_bytes / size, all = tensor.shape.elements();
      buffer.resize(static_cast<std::size_t>(std::min(most, all) * size));
      for (std::int64_t first = 0; first < all; first += most)
        take(tensor.read(first, std::min(most, all - first), buffer));
      continue;
    }
    if (tensor.slices == 0) {
      buffer.resize(bytes_of(tensor));
      tensor.fill(buffer.data());
      take(std::span<const std::byte>(buffer));
      continue;
    }
    buffer.resize(bytes_of(tensor) / static_cast<std::size_t>(tensor.slices));
    for (std::int64_t slice = 0; slice < tensor.slices; ++slice) {
      tensor.fill_slice(slice, buffer.data());
      take(std::span<const std::byte>(buffer));
    }
  }
}

}  // namespace

std::size_t bytes_of(const TensorToWrite& tensor) {
  return static_cast<std::size_t>(tensor.shape.elements()) * static_cast<std::size_t>(bits_of(tensor.type)) / 8;
}

void fill_without_writing(std::vector<TensorToWrite> tensors) {
  put_in_order(tensors);
  fill_all(tensors, [](std::span<const std::byte>) {});
}

void write_safetensors(const std::filesystem::path& file, std::vector<TensorToWrite> tensors,
                       const WriteTarget& target) {
  put_in_order(tensors);
  const std::string header = header_of(tensors, target.metadata);
  NewFile out(file, *target.files);
  const std::uint64_t length = header.size();
  out.write(std::as_bytes(std::span(&length, 1)));
  out.write(std::as_bytes(std::span(header)));
  fill_all(tensors, [&](std::span<const std::byte> bytes) {
    out.write(bytes);
    if (target.written) target.written(bytes.size());
  });
  out.commit();
}

}  // namespace weft
