// Files and folders that have a temporary name until they are whole. The process lists them, as signals are sent to the
// process: who interrupts it finds none of them left.
#pragma once

#include <functional>
#include <string>

namespace weft {

// Lists a path as long as it lives; it need not exist. Removing it is left to the owner, as long as the process lives.
class TemporaryPath {
 public:
  explicit TemporaryPath(std::string path);
  ~TemporaryPath();
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  // Runs `rename`, which gives it its own name, and lists it no longer. An interrupt comes before both or after both.
  void release(const std::function<void()>& rename);

 private:
  void forget();

  std::string path_;
};

// For the end of the process: removes all that are listed. Whoever makes, releases or destroys one after that waits
// forever, so that nothing new appears and no error is reported.
void remove_temporary_paths();

}  // namespace weft
