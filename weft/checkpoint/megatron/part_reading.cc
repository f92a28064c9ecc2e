#include "weft/checkpoint/megatron/part_reading.h"

#include <algorithm>
#include <array>
#include <vector>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr std::int64_t bytes_at_a_time = 32 << 20;

// The dim of the stored box for each of the parameter's; all others of the box have one index. The parameter's rows are
// `rows` of the box.
std::array<int, Shape::max_dims> dims_of(const DiskPart& stored, std::int64_t rows) {
  std::array<int, Shape::max_dims> dims{};
  int at = stored.extent.dims() - 1;
  for (int d = stored.parameter.dims() - 1; d >= 0; --d, --at) {
    const std::int64_t extent = d == 0 ? rows : stored.parameter[d];
    while (at > 0 && stored.extent[at] == 1 && extent != 1) --at;
    WEFT_CHECK(at >= 0 && stored.extent[at] == extent, "{}: a box {} of {}", to_text(stored.identity),
               to_text(stored.extent), to_text(stored.parameter));
    dims[static_cast<std::size_t>(d)] = at;
  }
  return dims;
}

}  // namespace

void read_part(const TorchDistCheckpoint& files, const ShardedTensor& tensor, const DiskPart& stored,
               const ParameterPart& wanted, const VisitElements& visit) {
  const Shape& shape = wanted.shape;
  WEFT_CHECK(stored.parameter == shape && shape.dims() > 0 && !stored.transposed, "{}: {} here, {} in {}",
             to_text(wanted.identity), to_text(shape), to_text(stored.parameter), tensor.name);
  if (wanted.box.extent.elements() == 0 || stored.extent.elements() == 0) return;
  const std::int64_t row_elements = shape.elements() / shape[0];
  const std::int64_t first = stored.offset / row_elements, rows = stored.extent.elements() / row_elements;
  const std::int64_t begin = std::max(first, wanted.box.begin[0]);
  const std::int64_t end = std::min(first + rows, wanted.box.begin[0] + wanted.box.extent[0]);
  if (begin >= end) return;

  const std::array<int, Shape::max_dims> dims = dims_of(stored, rows);
  const BoxRuns places = wanted.runs();
  const std::int64_t element = bits_of(tensor.type) / 8;
  const std::int64_t row_bytes = wanted.box.extent.elements() / wanted.box.extent[0] * element;
  const std::int64_t rows_at_a_time = std::max<std::int64_t>(1, bytes_at_a_time / row_bytes);
  std::vector<std::byte> buffer;
  for (std::int64_t row = begin; row < end; row += rows_at_a_time) {
    const std::int64_t count = std::min(rows_at_a_time, end - row);
    Box box;  // of the tensor
    box.begin = stored.begin;
    Box here = wanted.box;  // of the parameter
    here.begin[0] = row;
    here.extent = {count};
    std::array<std::int64_t, Shape::max_dims> extents;
    extents.fill(1);
    for (int d = 0; d < shape.dims(); ++d) {
      const auto i = static_cast<std::size_t>(d), to = static_cast<std::size_t>(dims[i]);
      if (d > 0) here.extent.append(wanted.box.extent[d]);
      box.begin[to] += d == 0 ? row - first : here.begin[i];
      extents[to] = here.extent[d];
    }
    for (int d = 0; d < stored.extent.dims(); ++d) box.extent.append(extents[static_cast<std::size_t>(d)]);
    buffer.resize(static_cast<std::size_t>(here.extent.elements() * element));
    files.read(tensor, box, buffer);
    const BoxRuns read(shape, here, {});
    for (std::int64_t r = 0; r < read.size(); ++r) {
      const BoxRun run = read[r];
      places.within(run.logical, run.count, [&](const BoxRun& place) {
        visit(buffer.data() + (run.tensor + place.logical - run.logical) * element, place.tensor, place.count);
      });
    }
  }
}

void read_part(const TorchDistCheckpoint& files, const ShardedTensor& tensor, const DiskPart& stored,
               const ParameterPart& wanted, HostTensor& values) {
  read_part(files, tensor, stored, wanted, [&](const std::byte* from, std::int64_t to, std::int64_t count) {
    const bool fits = convert(tensor.type, from, values.dtype, values.at(to), count);
    WEFT_CHECK(fits, "{}: {} as {}", tensor.name, name_of(tensor.type), name_of(values.dtype));
  });
}

}  // namespace weft
