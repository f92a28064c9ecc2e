// Checkpoints of a run: DIR/iter_NNNNNNN, each complete or not there, and DIR/latest_checkpointed_iteration.txt, which
// names the last, as Megatron's does. (manifest.h: what a checkpoint holds.) A model without a run is one such folder.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint_reader.h"
#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/model_description.h"
#include "weft/checkpoint/new_folder.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/model/parameters.h"

namespace weft {

inline constexpr const char* tracker_name = "latest_checkpointed_iteration.txt";

// The number in "iter_0000012"; nothing for any other name.
std::optional<std::int64_t> iteration_in(const std::string& name);
std::filesystem::path checkpoint_folder(const std::filesystem::path& dir, std::int64_t iteration);  // DIR/iter_0000012
// The iterations of the complete-looking checkpoints (those with a manifest), ascending.
std::vector<std::int64_t> checkpoints_in(const std::filesystem::path& dir);
// What the tracker names; nothing where there is no tracker. UserError where it does not hold a number.
std::optional<std::int64_t> latest_checkpoint(const std::filesystem::path& dir);

// The checkpoint to open where DIR is given: what the tracker names, or DIR itself if it is one. Nothing where there is
// neither.
std::optional<std::filesystem::path> checkpoint_in(const std::filesystem::path& dir);

// A complete checkpoint. Opening checks that the files are there and have their sizes. A file is opened when the first tensor
// of it is read, since a rank needs few of as many files as there were ranks; every box is checked against its checksum when it
// is first read.
class RunCheckpoint : public CheckpointReader {
 public:
  explicit RunCheckpoint(const std::filesystem::path& folder);

  const Manifest& manifest() const { return manifest_; }
  ModelDescription description() const;
  std::optional<SavedRun> run() const;  // nothing: a model without a run
  bool has(const std::string& name) const { return manifest_.tensors.contains(name); }
  std::optional<StoredType> type_of(const std::string& name) const;  // nothing: there is no such tensor
  // Writes the elements that the part holds to their places in its tensor.
  void read(const std::string& name, const ParameterPart& part, HostTensor& tensor) const;
  // Writes the whole tensor, [shape] of `type`, row-major: bit for bit where it is stored in that type. `shape` may have
  // fewer rows than are stored: then it is the first ones.
  void read(const std::string& name, const Shape& shape, StoredType type, std::byte* out) const;
  // The bytes of a tensor that one file holds whole.
  std::span<const std::byte> bytes_of(const std::string& name) const;
  SideFiles side_files() const;

  const std::filesystem::path& folder() const override { return folder_; }
  bool of_run() const override { return run().has_value(); }
  RunPosition position() const override;
  std::string pattern() const override;
  Json arguments() const override;
  bool has(Content content, const ParameterIdentity& identity) const override {
    return has(tensor_name(content, identity));
  }
  void read(Content content, const ParameterPart& part, HostTensor& tensor) const override {
    read(tensor_name(content, part.identity), part, tensor);
  }
  std::vector<CheckpointTensor> tensors() const override;
  std::vector<std::string> others(const std::set<ParameterIdentity>& model) const override;
  void open_files()
      const;  // all of them: their headers are checked, and they can be read whatever happens to their names
  void verify() const override { verify({}); }  // every file and box
  // The same; `verified` is told the bytes of each.
  void verify(const std::function<void(std::size_t bytes)>& verified) const;

 private:
  const ManifestTensor& described(const std::string& name) const;
  // Tells which elements of a box's tensor are wanted: `count` from `first` on, and where they go.
  using Visit = std::function<void(const TensorEntry& from, std::int64_t first, const BoxRun& wanted)>;
  void each_run(const std::string& name, const ManifestTensor& tensor, const BoxRuns& wanted, const Visit& visit) const;
  const SafetensorsFile& file(const std::string& name) const;
  const TensorEntry& entry(const std::string& name, const ManifestTensor& tensor, const ManifestBox& box) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;  // those that were opened
  mutable std::set<const ManifestBox*> checked_;
};

}  // namespace weft
