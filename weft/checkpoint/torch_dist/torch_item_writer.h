// Writes what torch.save writes: of a tensor, and of an object without tensors. (torch_item.h reads it.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "weft/base/shape.h"
#include "weft/checkpoint/stored_type.h"
#include "weft/checkpoint/torch_dist/python_value.h"
#include "weft/checkpoint/torch_dist/zip_writer.h"

namespace weft {

// A contiguous tensor on the CPU; `elements` are its bytes, row-major. Returns how many bytes were put. BugError for a type
// that PyTorch lacks.
std::uint64_t put_saved_tensor(const PutBytes& put, StoredType type, const Shape& shape,
                               std::span<const std::byte> elements);
// `root`: the folder of the archive's entries. torch.save to a file takes its name, to a stream "archive".
std::string saved_object(const PythonValue& value, const std::string& root = "archive");

}  // namespace weft
