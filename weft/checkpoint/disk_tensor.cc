#include "weft/checkpoint/disk_tensor.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "weft/base/error.h"

namespace weft {
namespace {

// `count` elements, evenly apart in the tensor on disk and in the parameter.
struct Run {
  std::int64_t disk = 0, disk_step = 1;
  std::int64_t parameter = 0, parameter_step = 1;
  std::int64_t count = 0;
};

// How many of the box's last dims make one run: 1, and one more as long as the inner ones span the tensor.
int dims_in_run(const Shape& disk, const DiskPart& part) {
  const int dims = disk.dims();
  if (part.transposed) return 1;
  int taken = 1;
  while (taken < dims) {
    const int inner = dims - taken;  // the outermost dim of the run so far
    const auto i = static_cast<std::size_t>(inner);
    if (part.begin[i] != 0 || part.step[i] != 1 || part.extent[inner] != disk[inner] || part.step[i - 1] != 1) break;
    ++taken;
  }
  return taken;
}

template <class Visit>
void for_each_run(const Shape& disk, const DiskPart& part, const Visit& visit) {
  const int dims = disk.dims();
  WEFT_CHECK(part.extent.dims() == dims, "a box {} of a tensor {}", to_text(part.extent), to_text(disk));
  if (part.extent.elements() == 0) return;
  if (dims == 0) return visit(Run{0, 1, part.offset, 1, 1});
  const int outer = dims - dims_in_run(disk, part);
  DiskPart::Index strides{};
  std::int64_t stride = 1;
  for (int d = dims - 1; d >= 0; --d) {
    strides[static_cast<std::size_t>(d)] = stride;
    stride *= disk[d];
  }
  Run run;
  run.count = 1;
  for (int d = outer; d < dims; ++d) run.count *= part.extent[d];
  run.disk_step = part.step[static_cast<std::size_t>(dims - 1)];
  const std::int64_t rows = dims >= 2 ? part.extent[-2] : 1, columns = part.extent[-1];
  const std::int64_t runs = part.extent.elements() / run.count;
  for (std::int64_t r = 0; r < runs; ++r) {
    run.disk = 0;
    std::int64_t rest = r;
    for (int d = dims - 1; d >= 0; --d) {
      const auto i = static_cast<std::size_t>(d);
      std::int64_t at = 0;
      if (d < outer) {
        at = rest % part.extent[d];
        rest /= part.extent[d];
      }
      run.disk += (part.begin[i] + at * part.step[i]) * strides[i];
    }
    if (part.transposed) {  // row r % rows of the box is a column of the parameter
      run.parameter = part.offset + r / rows * rows * columns + r % rows;
      run.parameter_step = rows;
    } else {
      run.parameter = part.offset + r * run.count;
    }
    visit(run);
  }
}

void check_range(const DiskPart& part) {
  WEFT_CHECK(part.offset >= 0 && part.offset + part.extent.elements() <= part.parameter.elements(),
             "{} {}: a box {} at {}", to_text(part.identity), to_text(part.parameter), to_text(part.extent),
             part.offset);
}

// Elements of `size` bytes, evenly apart on both sides.
template <std::size_t size>
void copy_elements(const std::byte* from, std::int64_t from_step, std::byte* to, std::int64_t to_step,
                   std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(to + static_cast<std::size_t>(i * to_step) * size,
                from + static_cast<std::size_t>(i * from_step) * size, size);
}

void copy_elements(const std::byte* from, std::int64_t from_step, std::byte* to, std::int64_t to_step,
                   std::int64_t count, std::size_t size) {
  if (from_step == 1 && to_step == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * size);
  } else if (size == 2) {
    copy_elements<2>(from, from_step, to, to_step, count);
  } else if (size == 4) {
    copy_elements<4>(from, from_step, to, to_step, count);
  } else {
    WEFT_CHECK(size == 8, "elements of {} bytes", size);
    copy_elements<8>(from, from_step, to, to_step, count);
  }
}

}  // namespace

void check_covered(const DiskTensor& tensor) {
  std::int64_t elements = 0;
  for (const DiskPart& part : tensor.parts) elements += part.extent.elements();
  WEFT_CHECK(elements == tensor.shape.elements(), "{} {}: its parts hold {} elements", tensor.name,
             to_text(tensor.shape), elements);
}

std::map<ParameterIdentity, std::vector<const DiskPart*>> parts_by_parameter(const DiskTensor& tensor) {
  std::map<ParameterIdentity, std::vector<const DiskPart*>> parts;
  for (const DiskPart& part : tensor.parts) parts[part.identity].push_back(&part);
  return parts;
}

void gather_part(const std::byte* tensor, const Shape& shape, const DiskPart& part, std::size_t size,
                 std::byte* parameter) {
  check_range(part);
  for_each_run(shape, part, [&](const Run& run) {
    copy_elements(tensor + static_cast<std::size_t>(run.disk) * size, run.disk_step,
                  parameter + static_cast<std::size_t>(run.parameter) * size, run.parameter_step, run.count, size);
  });
}

void scatter_part(const std::byte* parameter, const DiskPart& part, const Shape& shape, std::size_t size,
                  std::byte* tensor) {
  check_range(part);
  for_each_run(shape, part, [&](const Run& run) {
    copy_elements(parameter + static_cast<std::size_t>(run.parameter) * size, run.parameter_step,
                  tensor + static_cast<std::size_t>(run.disk) * size, run.disk_step, run.count, size);
  });
}

std::vector<DiskTensor> slices_of(const DiskTensor& tensor) {
  const bool stacked =
      tensor.shape.dims() > 1 && std::all_of(tensor.parts.begin(), tensor.parts.end(), [](const DiskPart& part) {
        return part.identity.expert >= 0 && part.extent[0] == 1;
      });
  if (!stacked) return {tensor};
  Shape shape{1};
  for (int d = 1; d < tensor.shape.dims(); ++d) shape.append(tensor.shape[d]);
  std::vector<DiskTensor> slices(static_cast<std::size_t>(tensor.shape[0]),
                                 DiskTensor{tensor.name, shape, {}, tensor.type, tensor.copy});
  for (DiskPart part : tensor.parts) {
    DiskTensor& slice = slices[static_cast<std::size_t>(part.begin[0])];
    part.begin[0] = 0;
    slice.parts.push_back(part);
  }
  return slices;
}

DiskTensor whole_tensor(std::string name, const ParameterIdentity& identity, const Shape& shape) {
  DiskPart part;
  part.identity = identity;
  part.parameter = shape;
  part.extent = shape;
  return {std::move(name), shape, {part}};
}

void read_part(const TensorEntry& entry, const DiskPart& part, const BoxRuns& wanted, DType target, std::byte* out) {
  check_range(part);
  const std::size_t size = size_of(target);
  const auto place = [&](std::int64_t element) { return out + static_cast<std::size_t>(element) * size; };
  if (wanted.size() == 0) return;
  const BoxRun last = wanted[wanted.size() - 1];
  const std::int64_t begin = wanted[0].logical, end = last.logical + last.count;
  std::vector<std::byte> buffer;
  for_each_run(entry.shape, part, [&](const Run& run) {
    if (run.disk_step == 1 && run.parameter_step == 1)
      return wanted.within(run.parameter, run.count, [&](const BoxRun& box) {
        read_range(entry, run.disk + box.logical - run.parameter, box.count, target, place(box.tensor));
      });
    // Elements apart on disk or in the parameter: the span of those between the first and the last wanted is read, and each
    // wanted one copied.
    const std::int64_t first = begin <= run.parameter ? 0 : (begin - run.parameter - 1) / run.parameter_step + 1;
    const std::int64_t past =
        end <= run.parameter ? 0 : std::min(run.count, (end - run.parameter - 1) / run.parameter_step + 1);
    if (first >= past) return;
    const std::int64_t span = (past - first - 1) * run.disk_step + 1;
    buffer.resize(static_cast<std::size_t>(span) * size);
    read_range(entry, run.disk + first * run.disk_step, span, target, buffer.data());
    const auto copy = [&](std::int64_t i, std::int64_t element) {
      std::memcpy(place(element), buffer.data() + static_cast<std::size_t>((i - first) * run.disk_step) * size, size);
    };
    if (run.parameter_step == 1)
      return wanted.within(run.parameter, run.count, [&](const BoxRun& box) {
        for (std::int64_t i = 0; i < box.count; ++i) copy(box.logical - run.parameter + i, box.tensor + i);
      });
    for (std::int64_t i = first; i < past; ++i)
      wanted.within(run.parameter + i * run.parameter_step, 1, [&](const BoxRun& box) { copy(i, box.tensor); });
  });
}

namespace {

void assemble(const DiskTensor& tensor, StoredType type, const ParameterSource& source, std::byte* out) {
  const std::size_t size = static_cast<std::size_t>(bits_of(type)) / 8;
  std::vector<std::byte> parameter;
  for (const auto& [identity, parts] : parts_by_parameter(tensor)) {
    parameter.resize(static_cast<std::size_t>(parts[0]->parameter.elements()) * size);
    source(identity, type, parameter);
    for (const DiskPart* part : parts) scatter_part(parameter.data(), *part, tensor.shape, size, out);
  }
}

}  // namespace

TensorToWrite tensor_to_write(const DiskTensor& tensor, StoredType type, const ParameterSource& source) {
  check_covered(tensor);
  TensorToWrite out{tensor.name, type, tensor.shape, {}};
  const auto slices = std::make_shared<const std::vector<DiskTensor>>(slices_of(tensor));
  out.slices = std::ssize(*slices);
  out.fill_slice = [slices, type, &source](std::int64_t i, std::byte* to) {
    assemble((*slices)[static_cast<std::size_t>(i)], type, source, to);
  };
  return out;
}

void write_tensors(const std::filesystem::path& file, const std::vector<DiskTensor>& tensors,
                   const WriteOptions& options, const ParameterSource& source, std::vector<TensorToWrite> extra) {
  for (const DiskTensor& tensor : tensors) {
    if (tensor.copy && !options.copies) continue;
    extra.push_back(tensor_to_write(tensor, options.type.value_or(tensor.type), source));
    extra.back().name = options.prefix + tensor.name;
  }
  write_safetensors(file, std::move(extra));
}

}  // namespace weft
