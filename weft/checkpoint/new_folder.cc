#include "weft/checkpoint/new_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/base/text.h"

namespace weft {
namespace {

// "a/b/" is "a/b".
std::filesystem::path without_slash(const std::filesystem::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // what cannot be opened cannot be synced either; the files in it are
  ::fsync(fd);
  ::close(fd);
}

bool is_side_file(const std::filesystem::directory_entry& entry) {
  if (std::error_code error; !entry.is_regular_file(error)) return false;
  const std::string name = entry.path().filename().string(), extension = entry.path().extension().string();
  constexpr std::array weights = {".safetensors", ".bin",  ".pt",      ".pth", ".ckpt",
                                  ".gguf",        ".onnx", ".msgpack", ".h5",  ".npz"};
  return !name.ends_with(".index.json") &&
         std::none_of(weights.begin(), weights.end(), [&](const char* end) { return extension == end; });
}

}  // namespace

void require_new_folder(const std::string& flag, const std::filesystem::path& folder) {
  const std::filesystem::path path = without_slash(folder), parent = path.parent_path();
  std::error_code error;  // what cannot be looked at is not there
  if (path.empty()) throw UserError("{}: name a folder", flag);
  if (!parent.empty() && !std::filesystem::is_directory(parent, error))
    throw UserError("{} {}: there is no folder {}; make it first", flag, folder.string(), parent.string());
  if (!std::filesystem::exists(path, error)) return;
  if (!std::filesystem::is_directory(path, error))
    throw UserError("{} {}: this is a file; name a folder that does not exist yet", flag, folder.string());
  if (!std::filesystem::is_empty(path, error))
    throw UserError("{} {}: the folder is not empty; nothing is overwritten, so name another", flag, folder.string());
}

void require_free_space(const std::string& flag, const std::filesystem::path& folder, std::int64_t bytes) {
  std::filesystem::path there = without_slash(folder);
  std::error_code error;
  if (!std::filesystem::exists(there, error)) there = there.has_parent_path() ? there.parent_path() : ".";
  const std::filesystem::space_info space = std::filesystem::space(there, error);
  if (error || space.available >= static_cast<std::uintmax_t>(bytes)) return;  // not every file system tells
  throw UserError("{} {}: it takes {}, and {} are free there; free space, or name a folder on another disk", flag,
                  folder.string(), human_bytes(static_cast<double>(bytes)),
                  human_bytes(static_cast<double>(space.available)));
}

NewFolder::NewFolder(const std::filesystem::path& folder) : folder_(without_slash(folder)) {
  const std::string name = fmt::format("{}.tmp-{}", folder_.string(), ::getpid());
  temporary_ = name;
  std::error_code error;
  // One that exists is left from a process that had this number, and may hold a whole model.
  for (int number = 2; std::filesystem::exists(temporary_, error); ++number)
    temporary_ = fmt::format("{}-{}", name, number);
  listed_.emplace(temporary_);
  if (!std::filesystem::create_directory(temporary_, error))
    throw RunError("cannot make the folder {}: {}", temporary_.string(), error ? error.message() : "it exists");
}

NewFolder::~NewFolder() {
  std::error_code error;  // the folder cannot be removed: then it stays
  if (!whole_) std::filesystem::remove_all(temporary_, error);
}

void NewFolder::commit() {
  sync_folder(temporary_);
  whole_ = true;
  int failure = 0;
  listed_->release([&] {
    if (::rename(temporary_.c_str(), folder_.c_str()) != 0) failure = errno;  // takes the place of an empty folder
  });
  if (failure != 0)
    throw RunError("cannot rename {} to {}: {}; {} is whole and stays: rename it by hand", temporary_.string(),
                   folder_.string(), std::strerror(failure), temporary_.string());
  sync_folder(folder_.has_parent_path() ? folder_.parent_path() : ".");
}

SideFiles read_side_files(const std::filesystem::path& folder) {
  SideFiles files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (is_side_file(entry)) files.emplace_back(entry.path().filename().string(), read_file(entry.path()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

void write_side_files(const std::filesystem::path& folder, const SideFiles& files) {
  for (const auto& [name, bytes] : files) write_file_atomically(folder / name, bytes);
}

std::vector<std::vector<TensorToWrite>> split_into_shards(std::vector<TensorToWrite> tensors, std::int64_t max_bytes) {
  std::vector<std::vector<TensorToWrite>> shards;
  std::int64_t filled = 0;
  for (TensorToWrite& tensor : tensors) {
    const auto bytes = static_cast<std::int64_t>(bytes_of(tensor));
    if (shards.empty() || (filled > 0 && filled + bytes > max_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

std::size_t write_shards(const std::filesystem::path& folder, std::vector<TensorToWrite> tensors,
                         const ShardOptions& options) {
  std::int64_t parameters = 0;
  std::size_t bytes = 0;
  for (const TensorToWrite& tensor : tensors) {
    parameters += tensor.shape.elements();
    bytes += bytes_of(tensor);
  }
  std::vector<std::vector<TensorToWrite>> shards = split_into_shards(std::move(tensors), options.max_bytes);
  std::map<std::string, std::string> places;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (options.discard) {
      fill_without_writing(std::move(shards[i]));
      continue;
    }
    const std::string file = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    for (const TensorToWrite& tensor : shards[i]) places[tensor.name] = file;
    WriteTarget target;
    target.written = options.written;
    write_safetensors(folder / file, std::move(shards[i]), target);
  }
  if (shards.size() > 1 && !options.discard) {
    const Json index = {{"metadata", {{"total_parameters", parameters}, {"total_size", bytes}}},
                        {"weight_map", places}};
    write_file_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  return shards.size();
}

}  // namespace weft
