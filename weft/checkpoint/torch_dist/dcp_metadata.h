// The file `.metadata` of a checkpoint that torch.distributed.checkpoint wrote: which tensors there are, the chunks they
// are cut into, and where each lies in the storage files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/base/shape.h"
#include "weft/checkpoint/stored_type.h"
#include "weft/model/boxes.h"

namespace weft {

// `length` bytes of a storage file: what one call of torch.save wrote.
struct StoragePlace {
  std::size_t file = 0;  // in DcpMetadata::files
  std::uint64_t offset = 0, length = 0;
};

struct TensorChunk {
  Box box;  // of the whole tensor
  StoragePlace place;
};

struct ShardedTensor {
  std::string name;
  StoredType type = StoredType::f32;
  Shape shape;
  std::vector<TensorChunk> chunks;  // by their first element; those without elements are left out
  std::size_t first_chunk = 0;      // number of the first among all chunks of all tensors
};

// Anything but a tensor: a pickled Python object.
struct StoredObject {
  std::string name;
  StoragePlace place;
};

struct DcpMetadata {
  std::vector<ShardedTensor> tensors;  // by name
  std::vector<StoredObject> objects;   // by name
  std::vector<std::string> files;      // names in the checkpoint's folder
  std::size_t chunks = 0;              // of all tensors
};

// UserError that begins with `file`, and names the tensor where there is one: damage, a type or a form that Weft does not
// read, chunks that do not tile their tensor. What it returns is bounded by a multiple of the bytes.
DcpMetadata parse_dcp_metadata(std::span<const std::byte> bytes, const std::string& file);

}  // namespace weft
