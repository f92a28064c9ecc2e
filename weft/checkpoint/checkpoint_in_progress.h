// Writing a checkpoint of a run (run_checkpoint.h): complete, or not there.
//
// The first rank makes DIR/iter_NNNNNNN.tmp (`begin`); every rank writes its file into it (`write`), which flushes it to disk;
// then the first rank, which has been told what the others wrote, adds the manifest and gives the folder its name
// (`commit`). Whatever fails or is killed on the way, the checkpoints that were there before stay as they were, and what is
// left over has another name; the next `begin` removes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/base/file_system.h"
#include "weft/base/ids.h"
#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/new_folder.h"

namespace weft {

// A box that a rank writes.
struct BoxToWrite {
  std::string name;  // of the logical tensor
  Shape shape;       // its
  Box box;
  DType dtype = DType::f32;
  // Elements [first, first + count) of the box, row-major: in `buffer`, which has room for them, or where they lie.
  std::function<std::span<const std::byte>(std::int64_t first, std::int64_t count, std::span<std::byte> buffer)> read;
};

// As one rank sees it. RunError when the file system fails, and when a number to be written is not finite.
class CheckpointInProgress {
 public:
  CheckpointInProgress(std::filesystem::path dir, std::int64_t iteration, const FileSystem& files = machine_files());

  void begin() const;
  struct Written {
    std::string file, tensors;  // tensors: text of ManifestTensors
    std::int64_t bytes = 0;
  };
  // Keeps some MiB in memory, however much is written.
  Written write(RankId rank, std::vector<BoxToWrite> boxes) const;
  // model: as in Manifest; side_files: of the Hugging Face folder that it came from.
  void commit(const std::vector<Written>& of_ranks, const std::string& run, const std::string& model = "{}",
              const SideFiles& side_files = {}) const;
  // Removes what has been written, as far as possible. Only where no other rank is still writing.
  void give_up() const;

 private:
  std::filesystem::path temporary() const;

  std::filesystem::path dir_;
  std::int64_t iteration_;
  const FileSystem& files_;
};

// Removes all checkpoints but the last `keep` and those of iterations that `retained` divides (0: none). Those later than
// the one that the tracker names neither count nor go: a run that has gone back before them may not be meant to replace them.
void remove_old_checkpoints(const std::filesystem::path& dir, std::int64_t keep, std::int64_t retained,
                            const FileSystem& files = machine_files());

}  // namespace weft
