#include "weft/checkpoint/run_checkpoint.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "weft/base/checksum.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text.h"

namespace weft {
namespace {

constexpr std::string_view prefix = "iter_";

// Of a large tensor some MiB at a time are in memory.
std::uint64_t checksum_in_pieces(std::span<const std::byte> bytes) {
  constexpr std::size_t most = 4 << 20;
  if (bytes.size() <= most) return checksum_of(bytes);
  Checksum sum;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(most, bytes.size()))) {
    const std::span<const std::byte> piece = bytes.first(std::min(most, bytes.size()));
    sum.add(piece);
    forget_pages(piece);
  }
  return sum.value();
}

}  // namespace

std::optional<std::int64_t> iteration_in(const std::string& name) {
  std::int64_t iteration = 0;
  if (!name.starts_with(prefix) || !parse_int(std::string_view(name).substr(prefix.size()), iteration) || iteration < 0)
    return std::nullopt;
  return iteration;
}

std::filesystem::path checkpoint_folder(const std::filesystem::path& dir, std::int64_t iteration) {
  return dir / fmt::format("{}{:07}", prefix, iteration);
}

std::vector<std::int64_t> checkpoints_in(const std::filesystem::path& dir) {
  std::vector<std::int64_t> iterations;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error))
    if (const auto iteration = iteration_in(entry.path().filename().string()))
      if (std::error_code unseen; std::filesystem::exists(entry.path() / manifest_name, unseen))
        iterations.push_back(*iteration);
  std::sort(iterations.begin(), iterations.end());
  return iterations;
}

std::optional<std::int64_t> latest_checkpoint(const std::filesystem::path& dir) {
  const std::filesystem::path file = dir / tracker_name;
  std::error_code error;  // of the folder: whoever needs it reports it
  if (!std::filesystem::is_directory(dir, error) || !is_there(file)) return std::nullopt;
  std::string text = read_regular_file(file);
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

RunCheckpoint::RunCheckpoint(const std::filesystem::path& folder) : folder_(folder) {
  const std::filesystem::path file = folder / manifest_name;
  if (!is_there(file))
    throw UserError("{}: there is no {}, so this is not a complete checkpoint of Weft", folder.string(), manifest_name);
  manifest_ = parse_manifest(read_regular_file(file), file.string());
  for (const auto& [name, bytes] : manifest_.files) {
    const std::filesystem::path path = folder / name;
    std::error_code error;
    const auto there = std::filesystem::file_size(path, error);
    if (error) throw UserError("{}: {}, which {} names", path.string(), error.message(), manifest_name);
    if (static_cast<std::int64_t>(there) != bytes)
      throw UserError("{}: it has {} bytes, but {} says {}: the checkpoint is damaged or mixed with another",
                      path.string(), there, manifest_name, bytes);
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

const SafetensorsFile& RunCheckpoint::file(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<SafetensorsFile>& file = files_[name];
  if (!file) file = std::make_unique<SafetensorsFile>(folder_ / name);
  return *file;
}

// The box's tensor in its file, after a look at its checksum.
const TensorEntry& RunCheckpoint::entry(const std::string& name, const ManifestTensor& tensor,
                                        const ManifestBox& box) const {
  const TensorEntry& entry = file(box.file).at(name);
  if (entry.type != tensor.type || entry.shape != box.box.extent)
    throw UserError("{}: tensor '{}' is {} {}, but {} says {} {}", entry.file, name, name_of(entry.type),
                    to_text(entry.shape), manifest_name, name_of(tensor.type), to_text(box.box.extent));
  {
    const std::lock_guard lock(mutex_);
    if (checked_.contains(&box)) return entry;
  }
  if (checksum_in_pieces(entry.bytes) != box.checksum)
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
  if (wanted.size() == 0) return;
  const BoxRun last = wanted[wanted.size() - 1];
  const std::int64_t begin = wanted[0].logical, end = last.logical + last.count;
  for (const ManifestBox& box : tensor.boxes) {
    const TensorEntry* from = nullptr;  // looked up where there is something to read
    BoxRuns(tensor.shape, box.box, {}).within(begin, end - begin, [&](const BoxRun& run) {
      wanted.within(run.logical, run.count, [&](const BoxRun& here) {
        if (!from) from = &entry(name, tensor, box);
        visit(*from, run.tensor + here.logical - run.logical, here);
      });
    });
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
    std::string bytes = read_regular_file(path);
    if (std::ssize(bytes) != file.bytes || checksum_of(bytes) != file.checksum)
      throw UserError("{}: it is not the file that {} describes: it is damaged, or mixed with another checkpoint's",
                      path.string(), manifest_name);
    files.emplace_back(name, std::move(bytes));
  }
  return files;
}

void RunCheckpoint::open_files() const {
  for (const auto& [name, bytes] : manifest_.files) file(name);
}

void RunCheckpoint::verify(const std::function<void(std::size_t bytes)>& verified) const {
  open_files();
  for (const auto& [name, tensor] : manifest_.tensors)
    for (const ManifestBox& box : tensor.boxes) {
      const std::span<const std::byte> bytes = entry(name, tensor, box).bytes;
      forget_pages(bytes);
      if (verified) verified(bytes.size());
    }
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
  for (const ParameterIdentity& identity : model) {
    known.insert(tensor_name(Content::weight, identity));
    for (const Content state : optimizer_states) known.insert(tensor_name(state, identity));
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : manifest_.tensors)
    if (!known.contains(name) && !name.starts_with(other_tensor_prefix)) names.push_back(name);
  return names;
}

}  // namespace weft
