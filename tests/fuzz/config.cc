// config.json of a Hugging Face folder: the model it describes and the tensors it asks for.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "weft/checkpoint/hugging_face.h"

namespace {

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / fmt::format("weft-fuzz-config-{}", ::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Folder folder;
  std::ofstream(folder.path() / "config.json", std::ios::binary) << weft::text_of(data, size);
  weft::read_or_refuse([&] { weft::read_hugging_face_config(folder.path()); });
  return 0;
}
