#include "tests/checkpoint/torch_dist/torch_python.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/torch_dist/sha256.h"
#include "weft/base/json.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"
#include "weft/checkpoint/torch_dist/torch_item.h"

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

Json shape_json(const Shape& shape) {
  Json extents = Json::array();
  for (int d = 0; d < shape.dims(); ++d) extents.push_back(shape[d]);
  return extents;
}

void expect_same(const TorchDistCheckpoint& checkpoint, const Json& read) {
  const Json& ways = read.at("ways");
  ASSERT_GE(ways.size(), 3u);
  for (const auto& [way, tensors] : ways.items()) {
    EXPECT_EQ(tensors.size(), checkpoint.tensors().size()) << way;
    for (const ShardedTensor& tensor : checkpoint.tensors()) {
      const Json about = tensors.value(tensor.name, Json());
      ASSERT_TRUE(about.is_object()) << way << ": " << tensor.name;
      std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of(tensor.shape, tensor.type).value()));
      checkpoint.read(tensor, Box::whole(tensor.shape), bytes);
      EXPECT_EQ(about.at("dtype"), torch_names_of(tensor.type)->dtype) << way << ": " << tensor.name;
      EXPECT_EQ(about.at("shape"), shape_json(tensor.shape)) << way << ": " << tensor.name;
      EXPECT_EQ(about.at("sha256"), sha256(bytes)) << way << ": " << tensor.name;
    }
    const Json& state = read.at("state").at(way);
    EXPECT_EQ(state.at("iteration"), checkpoint.iteration()) << way;
    for (const auto& [name, value] : checkpoint.args().items()) EXPECT_EQ(state.at("args").at(name), value) << way;
  }
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

}  // namespace

std::string why_no_torch() {
  static const std::string why = [] {
    const auto [status, output] = run(fmt::format("{} -c 'import torch.distributed.checkpoint'", python()));
    return status == 0 ? std::string()
                       : fmt::format("{} has no PyTorch (name one that has in WEFT_TORCH_PYTHON)", python());
  }();
  return why;
}

void expect_torch_reads(const std::vector<std::filesystem::path>& folders) {
  const Json read = read_with_torch(folders);
  ASSERT_TRUE(read.contains("versions"));
  std::printf("%s\n", read.at("versions").dump().c_str());
  for (const std::filesystem::path& folder : folders) {
    SCOPED_TRACE(folder);
    expect_same(TorchDistCheckpoint(folder), read.at("folders").at(folder.string()));
  }
}

}  // namespace weft
