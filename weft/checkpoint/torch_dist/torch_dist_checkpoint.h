// A checkpoint of Megatron's form torch_dist, as torch.distributed.checkpoint writes it:
//
//   .metadata            which tensors and objects there are, and where (dcp_metadata.h)
//   __R_N.distcp         storage files: chunks and objects one after another, each as torch.save writes it (torch_item.h)
//   common.pt            the state that all ranks share; in newer checkpoints the object common_state/shard_0_1 instead
//   metadata.json        written last
//
// Files are mapped, and only what is asked for is read. Whatever is wrong is a UserError that names the file
// and, where there is one, the tensor. Several threads may read.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/checkpoint/torch_dist/dcp_metadata.h"
#include "weft/checkpoint/torch_dist/torch_item.h"

namespace weft {

// How far a chunk is checked when elements of it are read. Its size, type and place are checked always.
enum class ChunkChecks {
  sizes,
  checksums,  // and all its bytes, once, against the checksum that torch.save wrote: reads the whole chunk
};

class TorchDistCheckpoint {
 public:
  // The folder iter_0000007, or the one above, whose latest_checkpointed_iteration.txt names it.
  explicit TorchDistCheckpoint(const std::filesystem::path& path, ChunkChecks checks = ChunkChecks::checksums);

  const std::filesystem::path& folder() const { return folder_; }
  std::optional<std::int64_t> iteration() const { return iteration_; }
  // The shared state as plain data (pickle_json.h): "args", "iteration", "opt_param_scheduler", ...; {} if there is none.
  const Json& shared_state() const { return shared_state_; }
  const Json& args() const { return args_; }  // of the run that wrote it; {} if there are none

  const std::vector<ShardedTensor>& tensors() const { return metadata_.tensors; }  // by name
  const std::vector<StoredObject>& objects() const { return metadata_.objects; }   // by name
  const ShardedTensor* find(std::string_view name) const;                          // null: no such tensor
  const ShardedTensor& at(std::string_view name) const;                            // UserError: no such tensor

  // Writes the elements of the box, row-major, in bytes of the tensor's type. Reads the chunks that it shares elements
  // with; beside `out` some MiB of mapped file are in memory at a time. The tensor must be one of tensors().
  void read(const ShardedTensor& tensor, const Box& box, std::span<std::byte> out) const;
  // What torch.save wrote for an object. It refers to the mapped file and must not outlive the checkpoint.
  std::unique_ptr<TorchItem> open(const StoredObject& object) const;
  // Of an object or a chunk, as they are in the storage file.
  std::span<const std::byte> stored_bytes(const StoragePlace& place) const;

 private:
  void check_places() const;
  void read_shared_state();
  std::filesystem::path file_of(const StoragePlace& place) const { return folder_ / metadata_.files[place.file]; }
  void read_chunk(const ShardedTensor& tensor, std::size_t chunk, const Box& box, std::byte* out) const;

  ChunkChecks checks_;
  std::filesystem::path folder_;
  std::optional<std::int64_t> iteration_;
  DcpMetadata metadata_;
  Json shared_state_, args_;
  mutable std::mutex mapping_mutex_;
  mutable std::vector<std::unique_ptr<MappedFile>> mappings_;  // null: not yet read from
  std::unique_ptr<std::atomic<bool>[]> verified_;              // of every chunk: its checksum was right
};

}  // namespace weft
