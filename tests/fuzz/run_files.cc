// Stands in for libFuzzer where there is none: gives every file that it is told of, or finds below a folder, to the entry
// point.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "weft/base/file.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  try {
    std::vector<fs::path> files;
    for (int i = 1; i < argc; ++i) {
      if (!fs::is_directory(argv[i])) {
        files.emplace_back(argv[i]);
        continue;
      }
      for (const auto& entry : fs::recursive_directory_iterator(argv[i]))
        if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) {
      const std::string bytes = weft::read_file(file);
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    }
    std::printf("%zu files\n", files.size());
    return files.empty() ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
