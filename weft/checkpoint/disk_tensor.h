// Tensors as other systems keep them on disk, and which elements of which parameters they hold.
//
// A tensor on disk is one parameter, or several (experts in one tensor, gate and up in one matrix), or a copy of one
// that is stored elsewhere. Each part is a box of the tensor; its elements, row by row, are a range of the parameter's.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/shape.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/safetensors_writer.h"
#include "weft/model/parameters.h"

namespace weft {

struct DiskPart {
  using Index = std::array<std::int64_t, Shape::max_dims>;

  ParameterIdentity identity;
  Shape parameter;          // the parameter's logical shape
  std::int64_t offset = 0;  // first of its elements that this part holds
  // The box: for every dim d of the tensor, begin[d] + i * step[d] for i below extent[d].
  Shape extent;
  Index begin{}, step{1, 1, 1, 1, 1};
  bool transposed = false;  // the parameter has the box's last two dims exchanged
};

struct DiskTensor {
  std::string name;
  Shape shape;
  std::vector<DiskPart> parts;
  StoredType type = StoredType::f32;  // as found on disk
  bool copy = false;                  // of parameters that another tensor holds: checked when read, no gradient
};

// The whole tensor is the whole parameter.
DiskTensor whole_tensor(std::string name, const ParameterIdentity& identity, const Shape& shape);

// Reads the elements that both the part and `wanted` hold, as dtype `target`. `wanted` tells where each lies from `out` on.
void read_part(const TensorEntry& entry, const DiskPart& part, const BoxRuns& wanted, DType target, std::byte* out);

// The same without interpreting the elements, each of `size` bytes: from a tensor's memory to a parameter's, and back.
void gather_part(const std::byte* tensor, const Shape& shape, const DiskPart& part, std::size_t size,
                 std::byte* parameter);
void scatter_part(const std::byte* parameter, const DiskPart& part, const Shape& shape, std::size_t size,
                  std::byte* tensor);
// Groups the parts, to go through a tensor's parameters one after another.
std::map<ParameterIdentity, std::vector<const DiskPart*>> parts_by_parameter(const DiskTensor& tensor);
// Every element of the tensor must belong to a part: a gap would be written as whatever memory held.
void check_covered(const DiskTensor& tensor);
// A tensor that all experts share, as one tensor [1, ...] per expert; any other as it is.
std::vector<DiskTensor> slices_of(const DiskTensor& tensor);

// Fills `out` with all elements of a parameter, row-major, in that type.
using ParameterSource =
    std::function<void(const ParameterIdentity& identity, StoredType type, std::span<std::byte> out)>;

struct WriteOptions {
  std::string prefix;              // before every tensor's name: "grad."
  std::optional<StoredType> type;  // absent: every tensor's own
  bool copies = false;             // write them too
};
// Such a tensor, filled from parameters: of one that all experts share, one expert at a time. `source` must outlive it.
TensorToWrite tensor_to_write(const DiskTensor& tensor, StoredType type, const ParameterSource& source);
// The tensors and any others (whose names get no prefix) to one safetensors file. One tensor is in memory at a time,
// and one of its parameters beside it.
void write_tensors(const std::filesystem::path& file, const std::vector<DiskTensor>& tensors,
                   const WriteOptions& options, const ParameterSource& source, std::vector<TensorToWrite> extra = {});

}  // namespace weft
