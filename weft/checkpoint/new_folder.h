// Folders with a model, written whole or not at all.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/temporary_path.h"
#include "weft/checkpoint/safetensors_writer.h"

namespace weft {

// UserError "FLAG FOLDER: ..." unless a folder can be made there: its parent exists, and it does not, or is empty.
void require_new_folder(const std::string& flag, const std::filesystem::path& folder);

// UserError "FLAG FOLDER: ..." where the disk that it is on, or is to be made on, has less free space.
void require_free_space(const std::string& flag, const std::filesystem::path& folder, std::int64_t bytes);

// A folder that has its name only once `commit` has returned. Until then it is next to it, under another name, and is
// removed with this object. One that is whole and cannot get its name stays where it is.
class NewFolder {
 public:
  explicit NewFolder(const std::filesystem::path& folder);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // to write into
  void commit();  // what was written is all; RunError when the file system fails

 private:
  std::filesystem::path folder_, temporary_;
  std::optional<TemporaryPath> listed_;
  bool whole_ = false;  // stays
};

// What a Hugging Face folder holds beside weights: config, tokenizer, licence. Weights of any format, indices and folders
// are left out.
using SideFiles = std::vector<std::pair<std::string, std::string>>;  // name, bytes
SideFiles read_side_files(const std::filesystem::path& folder);
void write_side_files(const std::filesystem::path& folder, const SideFiles& files);

struct ShardOptions {
  std::int64_t max_bytes = 50'000'000'000;              // of a shard; a larger tensor has one of its own
  std::function<void(std::size_t bytes)> written = {};  // told of bytes of tensors as they are written
  bool discard = false;                                 // fill all, write nothing: see fill_without_writing
};
// Consecutive tensors, each list of at most `max_bytes` or of one tensor.
std::vector<std::vector<TensorToWrite>> split_into_shards(std::vector<TensorToWrite> tensors, std::int64_t max_bytes);
// model.safetensors; or model-00001-of-0000N.safetensors and so on, with model.safetensors.index.json. Tensors go to
// shards in the order given. Returns the number of files with tensors.
std::size_t write_shards(const std::filesystem::path& folder, std::vector<TensorToWrite> tensors,
                         const ShardOptions& options);

}  // namespace weft
