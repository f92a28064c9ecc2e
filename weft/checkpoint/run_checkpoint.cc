#include "weft/checkpoint/run_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <stdio.h>
#include <unistd.h>

#include "weft/base/checksum.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text.h"
#include "weft/checkpoint/safetensors_writer.h"

namespace weft {
namespace {

constexpr std::string_view prefix = "iter_";

[[noreturn]] void fail(const std::string& what) { throw RunError("{}: {}", what, std::strerror(errno)); }

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) fail(fmt::format("cannot open the folder {}", folder.string()));
  const bool synced = ::fsync(fd) == 0;
  ::close(fd);
  if (!synced) fail(fmt::format("cannot write the folder {} to disk", folder.string()));
}

void remove_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) throw RunError("cannot remove {}: {}", folder.string(), error.message());
}

// The number in "iter_0000012"; nothing for any other name.
std::optional<std::int64_t> iteration_in(const std::string& name) {
  std::int64_t iteration = 0;
  if (!name.starts_with(prefix) || !parse_int(std::string_view(name).substr(prefix.size()), iteration) || iteration < 0)
    return std::nullopt;
  return iteration;
}

}  // namespace

std::filesystem::path checkpoint_folder(const std::filesystem::path& dir, std::int64_t iteration) {
  return dir / fmt::format("{}{:07}", prefix, iteration);
}

std::vector<std::int64_t> checkpoints_in(const std::filesystem::path& dir) {
  std::vector<std::int64_t> iterations;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error))
    if (const auto iteration = iteration_in(entry.path().filename().string()))
      if (std::filesystem::exists(entry.path() / manifest_name)) iterations.push_back(*iteration);
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

std::optional<std::int64_t> latest_checkpoint(const std::filesystem::path& dir) {
  const std::filesystem::path file = dir / tracker_name;
  std::error_code error;  // what cannot be looked at is not there
  if (!std::filesystem::exists(file, error)) return std::nullopt;
  std::string text = read_file(file);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::int64_t iteration = 0;
  if (!parse_int(text, iteration) || iteration < 0)
    throw UserError("{} holds '{}', not the number of an iteration; write one there, or name it with --ckpt-step",
                    file.string(), text);
  return iteration;
}

std::optional<std::filesystem::path> checkpoint_in(const std::filesystem::path& dir) {
  if (const std::optional<std::int64_t> latest = latest_checkpoint(dir)) return checkpoint_folder(dir, *latest);
  std::error_code error;  // what cannot be looked at is not there
  if (std::filesystem::exists(dir / manifest_name, error)) return dir;
  return std::nullopt;
}

CheckpointInProgress::CheckpointInProgress(std::filesystem::path dir, std::int64_t iteration)
    : dir_(std::move(dir)), iteration_(iteration) {}

std::filesystem::path CheckpointInProgress::temporary() const {
  return checkpoint_folder(dir_, iteration_).string() + ".tmp";
}

void CheckpointInProgress::begin() const {
  std::error_code error;
  std::filesystem::create_directories(dir_, error);
  if (error) throw RunError("cannot make the folder {}: {}", dir_.string(), error.message());
  // What a killed run has left, of this or another iteration.
  for (const auto& entry : std::filesystem::directory_iterator(dir_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".tmp") && iteration_in(name.substr(0, name.size() - 4))) remove_folder(entry.path());
  }
  std::filesystem::create_directory(temporary(), error);
  if (error) throw RunError("cannot make the folder {}: {}", temporary().string(), error.message());
}

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
    tensor.boxes = {{written.file, box.box, 0}};
    const std::size_t bytes = static_cast<std::size_t>(box.box.extent.elements()) * size_of(box.dtype);
    std::uint64_t* const checksum = &tensor.boxes[0].checksum;
    out.push_back({box.name, tensor.type, box.box.extent, [bytes, checksum, fill = std::move(box.fill)](std::byte* to) {
                     fill(to);
                     *checksum = checksum_of(std::span<const std::byte>(to, bytes));
                   }});
  }
  const std::filesystem::path file = temporary() / written.file;
  write_safetensors(file, std::move(out));
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
  for (const auto& [name, bytes] : side_files) manifest.side_files[name] = {std::ssize(bytes), checksum_of(bytes)};
  write_side_files(temporary(), side_files);
  for (const Written& written : of_ranks) {
    if (written.file.empty()) continue;  // a rank that owns nothing
    manifest.files[written.file] = written.bytes;
    add_tensors(manifest.tensors, written.tensors);
  }
  write_file_atomically(temporary() / manifest_name, to_text(manifest));
  sync_folder(temporary());
  const std::filesystem::path folder = checkpoint_folder(dir_, iteration_);
  if (std::filesystem::exists(folder)) {  // saved before: the two change places at once
    if (::renameat2(AT_FDCWD, temporary().c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0)
      fail(fmt::format("cannot replace {}", folder.string()));
    sync_folder(dir_);
    remove_folder(temporary());
  } else {
    if (::rename(temporary().c_str(), folder.c_str()) != 0) fail(fmt::format("cannot rename to {}", folder.string()));
    sync_folder(dir_);
  }
  write_file_atomically(dir_ / tracker_name, fmt::format("{}", iteration_));
}

RunCheckpoint::RunCheckpoint(const std::filesystem::path& folder) : folder_(folder) {
  const std::filesystem::path file = folder / manifest_name;
  if (!std::filesystem::exists(file))
    throw UserError("{}: there is no {}, so this is not a complete checkpoint of Weft", folder.string(), manifest_name);
  manifest_ = parse_manifest(read_file(file), file.string());
  for (const auto& [name, bytes] : manifest_.files) {
    const std::filesystem::path path = folder / name;
    std::error_code error;
    const auto there = std::filesystem::file_size(path, error);
    if (error) throw UserError("{}: {}, which {} names", path.string(), error.message(), manifest_name);
    if (static_cast<std::int64_t>(there) != bytes)
      throw UserError("{}: it has {} bytes, but {} says {}: the checkpoint is damaged or mixed with another",
                      path.string(), there, manifest_name, bytes);
    files_[name] = std::make_unique<SafetensorsFile>(path);
  }
}

ModelDescription RunCheckpoint::description() const {
  const std::string where = (folder_ / manifest_name).string();
  if (manifest_.model == "{}") throw UserError("{}: it does not say which model it holds", where);
  return model_description_of(parse_json(manifest_.model, where), where);
}

std::optional<SavedRun> RunCheckpoint::run() const {
  if (manifest_.run == "{}") return std::nullopt;
  const std::string where = (folder_ / manifest_name).string();
  return saved_run_of(parse_json(manifest_.run, where), where);
}

// The box's tensor in its file, after a look at its checksum.
const TensorEntry& RunCheckpoint::entry(const std::string& name, const ManifestTensor& tensor,
                                        const ManifestBox& box) const {
  const TensorEntry& entry = files_.at(box.file)->at(name);
  if (entry.type != tensor.type || entry.shape != box.box.extent)
    throw UserError("{}: tensor '{}' is {} {}, but {} says {} {}", entry.file, name, name_of(entry.type),
                    to_text(entry.shape), manifest_name, name_of(tensor.type), to_text(box.box.extent));
  {
    const std::lock_guard lock(mutex_);
    if (checked_.contains(&box)) return entry;
  }
  if (checksum_of(entry.bytes) != box.checksum)
    throw UserError("{}: tensor '{}' does not have the checksum of {}: the file is damaged", entry.file, name,
                    manifest_name);
  const std::lock_guard lock(mutex_);
  checked_.insert(&box);
  return entry;
}

const ManifestTensor& RunCheckpoint::described(const std::string& name) const {
  const auto at = manifest_.tensors.find(name);
  if (at == manifest_.tensors.end()) throw UserError("{}: there is no tensor '{}'", folder_.string(), name);
  return at->second;
}

std::optional<StoredType> RunCheckpoint::type_of(const std::string& name) const {
  const auto at = manifest_.tensors.find(name);
  return at == manifest_.tensors.end() ? std::nullopt : std::optional(at->second.type);
}

void RunCheckpoint::each_run(const std::string& name, const ManifestTensor& tensor, const BoxRuns& wanted,
                             const Visit& visit) const {
  for (const ManifestBox& box : tensor.boxes) {
    const BoxRuns stored(tensor.shape, box.box, {});
    const TensorEntry* from = nullptr;  // looked up where there is something to read
    for (std::int64_t r = 0; r < stored.size(); ++r) {
      const BoxRun run = stored[r];
      wanted.within(run.logical, run.count, [&](const BoxRun& here) {
        if (!from) from = &entry(name, tensor, box);
        visit(*from, run.tensor + here.logical - run.logical, here);
      });
    }
    if (from) forget_pages(from->bytes);
  }
}

void RunCheckpoint::read(const std::string& name, const ParameterPart& part, HostTensor& values) const {
  const ManifestTensor& tensor = described(name);
  if (tensor.shape != part.shape)
    throw UserError("{}: tensor '{}' has the shape {}, but the model asks for {}", folder_.string(), name,
                    to_text(tensor.shape), to_text(part.shape));
  each_run(name, tensor, part.runs(), [&](const TensorEntry& from, std::int64_t first, const BoxRun& wanted) {
    read_range(from, first, wanted.count, values.dtype, values.at(wanted.tensor));
  });
}

void RunCheckpoint::read(const std::string& name, const Shape& shape, StoredType type, std::byte* out) const {
  const ManifestTensor& tensor = described(name);
  bool fits = shape.dims() == tensor.shape.dims();
  for (int d = 0; fits && d < shape.dims(); ++d)
    fits = d == 0 ? shape[d] <= tensor.shape[d] : shape[d] == tensor.shape[d];
  if (!fits)
    throw UserError("{}: tensor '{}' has the shape {}, but {} is asked for", folder_.string(), name,
                    to_text(tensor.shape), to_text(shape));
  const std::size_t size = static_cast<std::size_t>(bits_of(type)) / 8;
  HostTensor values(tensor.type == StoredType::f64 ? DType::f64 : DType::f32, 0);
  each_run(name, tensor, BoxRuns(tensor.shape, Box::whole(shape), {}),
           [&](const TensorEntry& from, std::int64_t first, const BoxRun& wanted) {
             std::byte* const to = out + static_cast<std::size_t>(wanted.tensor) * size;
             const auto count = static_cast<std::size_t>(wanted.count);
             if (tensor.type == type) {
               std::memcpy(to, from.bytes.data() + static_cast<std::size_t>(first) * size, count * size);
               return;
             }
             values.bytes.resize(count * size_of(values.dtype));
             read_range(from, first, wanted.count, values.dtype, values.bytes.data());
             store(values.dtype, values.bytes.data(), type, to, wanted.count);
           });
}

std::span<const std::byte> RunCheckpoint::bytes_of(const std::string& name) const {
  const ManifestTensor& tensor = described(name);
  if (tensor.boxes.size() != 1)
    throw UserError("{}: tensor '{}' lies in {} pieces", folder_.string(), name, tensor.boxes.size());
  return entry(name, tensor, tensor.boxes[0]).bytes;
}

SideFiles RunCheckpoint::side_files() const {
  SideFiles files;
  for (const auto& [name, file] : manifest_.side_files) {
    const std::filesystem::path path = folder_ / name;
    std::string bytes = read_file(path);
    if (std::ssize(bytes) != file.bytes || checksum_of(bytes) != file.checksum)
      throw UserError("{}: it is not the file that {} describes: it is damaged, or mixed with another checkpoint's",
                      path.string(), manifest_name);
    files.emplace_back(name, std::move(bytes));
  }
  return files;
}

void RunCheckpoint::verify() const {
  for (const auto& [name, tensor] : manifest_.tensors)
    for (const ManifestBox& box : tensor.boxes) forget_pages(entry(name, tensor, box).bytes);
  side_files();
}

RunPosition RunCheckpoint::position() const {
  const std::optional<SavedRun> record = run();
  return record ? record->position : RunPosition{};
}

std::string RunCheckpoint::pattern() const { return manifest_.model == "{}" ? "" : description().config.pattern; }

Json RunCheckpoint::arguments() const {
  const std::optional<SavedRun> record = run();
  return record ? parse_json(record->arguments, (folder_ / manifest_name).string()) : Json::object();
}

std::vector<CheckpointTensor> RunCheckpoint::tensors() const {
  std::vector<CheckpointTensor> all;
  for (const auto& [name, tensor] : manifest_.tensors) all.push_back({name, tensor.type, tensor.shape});
  return all;
}

std::vector<std::string> RunCheckpoint::others(const std::set<ParameterIdentity>& model) const {
  std::set<std::string> known;
  for (const ParameterIdentity& identity : model)
    for (Content content : {Content::weight, Content::first_moment, Content::second_moment})
      known.insert(tensor_name(content, identity));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : manifest_.tensors)
    if (!known.contains(name) && !name.starts_with(other_tensor_prefix)) names.push_back(name);
  return names;
}

void remove_old_checkpoints(const std::filesystem::path& dir, std::int64_t keep, std::int64_t retained) {
  std::vector<std::int64_t> iterations = checkpoints_in(dir);
  if (std::ssize(iterations) <= keep) return;
  iterations.resize(iterations.size() - static_cast<std::size_t>(keep));
  for (std::int64_t iteration : iterations) {
    if (retained > 0 && iteration % retained == 0) continue;
    // First another name, so that a checkpoint that is half removed does not look like one.
    const std::filesystem::path folder = checkpoint_folder(dir, iteration), gone = folder.string() + ".tmp";
    if (::rename(folder.c_str(), gone.c_str()) != 0) fail(fmt::format("cannot rename {}", folder.string()));
    remove_folder(gone);
  }
}

}  // namespace weft
