// Writes a checkpoint of Megatron's form torch_dist (torch_dist_checkpoint.h), which torch.distributed.checkpoint reads.
//
// Chunks and objects go to storage files as they come, one chunk in memory at a time. metadata.json, which says that the
// checkpoint is complete, is written last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/shape.h"
#include "weft/checkpoint/stored_type.h"
#include "weft/checkpoint/torch_dist/dcp_metadata.h"
#include "weft/checkpoint/torch_dist/python_value.h"

namespace weft {

struct ChunkToWrite {
  Box box;                                   // of the tensor
  std::function<void(std::byte* out)> fill;  // the box, row-major, in the tensor's type
};

struct ShardedTensorToWrite {
  std::string name;
  StoredType type = StoredType::f32;
  Shape shape;
  std::vector<ChunkToWrite> chunks;  // which tile it
};
// One chunk, the whole tensor.
ShardedTensorToWrite whole_sharded_tensor(std::string name, StoredType type, const Shape& shape,
                                          std::function<void(std::byte* out)> fill);

struct TorchDistWriterOptions {
  std::uint64_t max_file_bytes = 5'000'000'000;         // of a storage file; a larger chunk has one of its own
  std::function<void(std::size_t bytes)> written = {};  // told of bytes of tensors as they are written
};

// RunError when the file system fails; the folder is then not complete.
class TorchDistWriter {
 public:
  // The folder exists and is empty: a temporary one, renamed when all is written (new_folder.h).
  explicit TorchDistWriter(std::filesystem::path folder, TorchDistWriterOptions options = {});

  // Names are those of tensors or objects, each once.
  void write(const ShardedTensorToWrite& tensor);
  void write_object(const std::string& name, const PythonValue& value);
  void write_item(const std::string& name, std::span<const std::byte> item);  // what torch.save wrote for an object
  // The state that all ranks share: "args", "iteration", ...
  void write_shared_state(const PythonValue& state);

  struct Written {
    std::size_t tensors = 0, files = 0;  // storage files
    std::uint64_t bytes = 0;             // of tensors
  };
  Written finish();

 private:
  void claim(const std::string& name);
  void begin_place(std::size_t bytes);  // where the next item goes, of about so many bytes
  StoragePlace end_place();             // of the item that lies there now
  void put(std::span<const std::byte> bytes);

  std::filesystem::path folder_;
  TorchDistWriterOptions options_;
  DcpMetadata metadata_;
  std::set<std::string, std::less<>> names_;
  std::unique_ptr<NewFile> file_;           // the last of metadata_.files
  std::uint64_t position_ = 0, begin_ = 0;  // in it
  std::uint64_t bytes_ = 0;
};

}  // namespace weft
