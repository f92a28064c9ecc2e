#include "weft/checkpoint/checkpoint_in_progress.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include "weft/base/checksum.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/checkpoint/safetensors_writer.h"

namespace weft {
namespace {

constexpr const char* temporary_end = ".tmp";

[[noreturn]] void fail(const std::string& what) { throw RunError("{}: {}", what, std::strerror(errno)); }

bool is_left_over(const std::string& name) {
  return name.ends_with(temporary_end) && iteration_in(name.substr(0, name.size() - std::strlen(temporary_end)));
}

// The box as a tensor of a file. Its checksum is complete when all of it has been read.
TensorToWrite tensor_of(BoxToWrite box, std::uint64_t& checksum) {
  TensorToWrite out;
  out.name = box.name;
  out.type = stored_type_of(box.dtype);
  out.shape = box.box.extent;
  const auto sum = std::make_shared<Checksum>();
  out.read = [box = std::move(box), sum, &checksum](std::int64_t first, std::int64_t count,
                                                    std::span<std::byte> buffer) {
    const std::span<const std::byte> bytes = box.read(first, count, buffer);
    if (!all_finite(stored_type_of(box.dtype), bytes.data(), count))
      throw RunError("the state of the run is not saved: numbers of '{}' are not finite; lower --lr", box.name);
    sum->add(bytes);
    if (first + count == box.box.extent.elements()) checksum = sum->value();
    return bytes;
  };
  return out;
}

}  // namespace

CheckpointInProgress::CheckpointInProgress(std::filesystem::path dir, std::int64_t iteration, const FileSystem& files)
    : dir_(std::move(dir)), iteration_(iteration), files_(files) {}

std::filesystem::path CheckpointInProgress::temporary() const {
  return checkpoint_folder(dir_, iteration_).string() + temporary_end;
}

void CheckpointInProgress::begin() const {
  std::error_code error;
  std::filesystem::create_directories(dir_, error);
  if (error) throw RunError("cannot make the folder {}: {}", dir_.string(), error.message());
  // What a killed run has left, of this or another iteration.
  std::vector<std::filesystem::path> left;
  for (const auto& entry : std::filesystem::directory_iterator(dir_, error))
    if (is_left_over(entry.path().filename().string())) left.push_back(entry.path());
  for (const std::filesystem::path& folder : left) remove_folder(folder, files_);
  if (files_.mkdir(temporary().string()) != 0) fail(fmt::format("cannot make the folder {}", temporary().string()));
}

void CheckpointInProgress::give_up() const { files_.remove_all(temporary().string()); }

CheckpointInProgress::Written CheckpointInProgress::write(RankId rank, std::vector<BoxToWrite> boxes) const {
  Written written;
  if (boxes.empty()) return written;
  written.file = fmt::format("rank-{:05}.safetensors", rank.value);
  ManifestTensors tensors;
  std::vector<TensorToWrite> out;
  for (BoxToWrite& box : boxes) {
    ManifestTensor& tensor = tensors[box.name];
    WEFT_CHECK(tensor.boxes.empty(), "a rank writes two boxes of {}", box.name);
    tensor.type = stored_type_of(box.dtype);
    tensor.shape = box.shape;
    tensor.boxes = {{written.file, box.box, checksum_of(std::string_view())}};
    out.push_back(tensor_of(std::move(box), tensor.boxes[0].checksum));
  }
  const std::filesystem::path file = temporary() / written.file;
  WriteTarget target;
  target.files = &files_;
  write_safetensors(file, std::move(out), target);
  written.bytes = static_cast<std::int64_t>(std::filesystem::file_size(file));
  written.tensors = to_text(tensors);
  return written;
}

void CheckpointInProgress::commit(const std::vector<Written>& of_ranks, const std::string& run,
                                  const std::string& model, const SideFiles& side_files) const {
  Manifest manifest;
  manifest.iteration = iteration_;
  manifest.run = run;
  manifest.model = model;
  for (const auto& [name, bytes] : side_files) {
    manifest.side_files[name] = {std::ssize(bytes), checksum_of(bytes)};
    write_file_atomically(temporary() / name, bytes, files_);
  }
  for (const Written& written : of_ranks) {
    if (written.file.empty()) continue;  // a rank that owns nothing
    manifest.files[written.file] = written.bytes;
    add_tensors(manifest.tensors, written.tensors);
  }
  write_file_atomically(temporary() / manifest_name, to_text(manifest), files_);
  sync_folder(temporary(), files_);
  const std::filesystem::path folder = checkpoint_folder(dir_, iteration_);
  if (std::filesystem::exists(folder)) {  // saved before: the two change places at once
    if (files_.exchange(temporary().string(), folder.string()) != 0)
      fail(fmt::format("cannot replace {}", folder.string()));
    sync_folder(dir_, files_);
    remove_folder(temporary(), files_);
  } else {
    if (files_.rename(temporary().string(), folder.string()) != 0)
      fail(fmt::format("cannot rename to {}", folder.string()));
    sync_folder(dir_, files_);
  }
  write_file_atomically(dir_ / tracker_name, fmt::format("{}", iteration_), files_);
  sync_folder(dir_, files_);  // before old ones go away: a tracker must not name one of them
}

void remove_old_checkpoints(const std::filesystem::path& dir, std::int64_t keep, std::int64_t retained,
                            const FileSystem& files) {
  std::vector<std::int64_t> iterations = checkpoints_in(dir);
  const std::optional<std::int64_t> latest = latest_checkpoint(dir);
  if (latest) std::erase_if(iterations, [&](std::int64_t iteration) { return iteration > *latest; });
  if (std::ssize(iterations) <= keep) return;
  iterations.resize(iterations.size() - static_cast<std::size_t>(keep));
  for (std::int64_t iteration : iterations) {
    if ((retained > 0 && iteration % retained == 0) || iteration == latest) continue;
    // First another name, so that a checkpoint that is half removed does not look like one.
    const std::string folder = checkpoint_folder(dir, iteration).string(), gone = folder + temporary_end;
    if (files.rename(folder, gone) != 0) fail(fmt::format("cannot rename {}", folder));
    remove_folder(gone, files);
  }
}

}  // namespace weft
