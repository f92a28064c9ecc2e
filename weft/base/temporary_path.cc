#include "weft/base/temporary_path.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <vector>

namespace weft {

namespace {

struct Listed {
  std::mutex mutex;
  std::vector<std::string> paths;
};

// It is never destroyed: threads may outlive main.
Listed& listed() {
  static Listed* const all = new Listed;
  return *all;
}

}  // namespace

TemporaryPath::TemporaryPath(std::string path) : path_(std::move(path)) {
  const std::lock_guard lock(listed().mutex);
  listed().paths.push_back(path_);
}

TemporaryPath::~TemporaryPath() {
  const std::lock_guard lock(listed().mutex);
  forget();
}

void TemporaryPath::release(const std::function<void()>& rename) {
  const std::lock_guard lock(listed().mutex);
  rename();
  forget();
}

void TemporaryPath::forget() {
  std::vector<std::string>& paths = listed().paths;
  if (const auto at = std::find(paths.begin(), paths.end(), path_); at != paths.end()) paths.erase(at);
}

void remove_temporary_paths() {
  listed().mutex.lock();  // and never unlocked
  for (const std::string& path : listed().paths) {
    std::error_code error;  // what cannot be removed stays
    std::filesystem::remove_all(path, error);
  }
}

}  // namespace weft
