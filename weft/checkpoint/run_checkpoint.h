// Checkpoints of a run: DIR/iter_NNNNNNN, each complete or not there, and DIR/latest_checkpointed_iteration.txt, which
// names the last, as Megatron's does. (manifest.h: what a checkpoint holds.)
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/model/parameters.h"

namespace weft {

std::filesystem::path checkpoint_folder(const std::filesystem::path& dir, std::int64_t iteration);  // DIR/iter_0000012
// The iterations of the complete-looking checkpoints (those with a manifest), ascending.
std::vector<std::int64_t> checkpoints_in(const std::filesystem::path& dir);
// What the tracker names; nothing where there is no tracker. UserError where it does not hold a number.
std::optional<std::int64_t> latest_checkpoint(const std::filesystem::path& dir);

// A box that a rank writes.
struct BoxToWrite {
  std::string name;  // of the logical tensor
  Shape shape;       // its
  Box box;
  DType dtype = DType::f32;
  std::function<void(std::byte* out)> fill;  // the box, row-major
};

// One checkpoint in the making, as one rank sees it. The first rank makes the folder (`begin`); then every rank writes its
// file; then the first rank, which has what the others wrote, commits. Until then it has another name. RunError when the
// file system fails; what was written is then left to the next `begin`, which removes it.
class CheckpointInProgress {
 public:
  CheckpointInProgress(std::filesystem::path dir, std::int64_t iteration);

  void begin() const;
  struct Written {
    std::string file, tensors;  // tensors: text of ManifestTensors
    std::int64_t bytes = 0;
  };
  Written write(RankId rank, std::vector<BoxToWrite> boxes) const;
  void commit(const std::vector<Written>& of_ranks, const std::string& run) const;

 private:
  std::filesystem::path temporary() const;

  std::filesystem::path dir_;
  std::int64_t iteration_;
};

// A complete checkpoint, open for reading by any number of threads. Opening checks that the files are there and have
// their sizes; every box is checked against its checksum when it is first read. UserError names file and tensor.
class RunCheckpoint {
 public:
  explicit RunCheckpoint(const std::filesystem::path& folder);

  const Manifest& manifest() const { return manifest_; }
  const std::filesystem::path& folder() const { return folder_; }
  bool has(const std::string& name) const { return manifest_.tensors.contains(name); }
  // Writes the elements that the part holds to their places in its tensor.
  void read(const std::string& name, const ParameterPart& part, HostTensor& tensor) const;
  void verify() const;  // every box

 private:
  const TensorEntry& entry(const std::string& name, const ManifestTensor& tensor, const ManifestBox& box) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  mutable std::mutex mutex_;
  mutable std::set<const ManifestBox*> checked_;
};

// Removes all checkpoints but the last `keep` and those of iterations that `retained` divides (0: none).
void remove_old_checkpoints(const std::filesystem::path& dir, std::int64_t keep, std::int64_t retained);

}  // namespace weft
