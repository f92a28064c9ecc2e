#include "tests/checkpoint/torch_dist/torch_python.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/model_folder.h"

namespace weft {
namespace {

std::string python() {
  const char* const named = std::getenv("WEFT_TORCH_PYTHON");
  return named != nullptr && *named != '\0' ? named : "python3";
}

// Exit status, and what it printed on either stream.
std::pair<int, std::string> run(const std::string& command) {
  std::string output;
  std::FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output += static_cast<char>(c);
  return {::pclose(pipe), output};
}

}  // namespace

std::string why_no_torch() {
  static const std::string why = [] {
    const auto [status, output] = run(fmt::format("{} -c 'import torch.distributed.checkpoint'", python()));
    return status == 0 ? std::string()
                       : fmt::format("{} has no PyTorch (name one that has in WEFT_TORCH_PYTHON)", python());
  }();
  return why;
}

Json read_with_torch(const std::vector<std::filesystem::path>& folders) {
  const ModelFolder folder;
  std::string command = fmt::format("{} {}/tests/checkpoint/torch_dist/read_with_torch.py {}", python(),
                                    WEFT_SOURCE_DIR, folder.file("out.json").string());
  for (const std::filesystem::path& path : folders) command += " " + path.string();
  const auto [status, output] = run(command);
  EXPECT_EQ(status, 0) << output;
  if (status != 0) return Json::object();
  return read_json(folder.file("out.json"));
}

}  // namespace weft
