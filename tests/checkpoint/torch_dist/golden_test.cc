// The checkpoints that PyTorch itself wrote (tests/golden/torch_dist).
#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/torch_dist/sha256.h"
#include "weft/base/random.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"

namespace weft {
namespace {

std::vector<std::byte> read_box(const TorchDistCheckpoint& checkpoint, const ShardedTensor& tensor, const Box& box) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(box.extent.elements() * bits_of(tensor.type) / 8));
  checkpoint.read(tensor, box, bytes);
  return bytes;
}

class TorchDistGolden : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const { return golden_folder("torch_dist") / GetParam(); }
  Json expected() const { return read_json(golden_folder("torch_dist") / "expected.json").at(GetParam()); }
};

TEST_P(TorchDistGolden, every_tensor_and_object_is_as_expected) {
  const TorchDistCheckpoint checkpoint(folder());
  const Json wanted = expected();
  EXPECT_EQ(checkpoint.tensors().size(), wanted.at("tensors").size());
  for (const auto& [name, about] : wanted.at("tensors").items()) {
    const ShardedTensor& tensor = checkpoint.at(name);
    EXPECT_EQ(name_of(tensor.type), about.at("dtype").get<std::string>()) << name;
    EXPECT_EQ(to_text(tensor.shape), to_text([&] {
                Shape shape;
                for (const Json& extent : about.at("shape")) shape.append(extent.get<std::int64_t>());
                return shape;
              }()))
        << name;
    EXPECT_EQ(tensor.chunks.size(), about.at("chunks").get<std::size_t>()) << name;
    EXPECT_EQ(sha256(read_box(checkpoint, tensor, Box::whole(tensor.shape))), about.at("sha256").get<std::string>())
        << name;
  }
  EXPECT_EQ(checkpoint.objects().size(), wanted.at("objects").size());
  for (const StoredObject& object : checkpoint.objects()) {
    const Json& about = wanted.at("objects").at(object.name);
    EXPECT_EQ(checkpoint.stored_bytes(object.place).size(), about.at("bytes").get<std::size_t>()) << object.name;
    EXPECT_EQ(sha256(checkpoint.stored_bytes(object.place)), about.at("sha256").get<std::string>()) << object.name;
    std::vector<std::string> records;
    const auto item = checkpoint.open(object);
    for (const ZipEntry& entry : item->archive().entries()) records.emplace_back(entry.name);
    EXPECT_EQ(records, about.at("records").get<std::vector<std::string>>()) << object.name;
  }
}

TEST_P(TorchDistGolden, arguments_and_iteration_are_as_expected) {
  const TorchDistCheckpoint checkpoint(folder());
  const Json wanted = expected();
  EXPECT_EQ(checkpoint.iteration(), wanted.at("iteration").get<std::int64_t>());
  for (const auto& [name, value] : wanted.at("args").items())
    EXPECT_EQ(checkpoint.args().value(name, Json()), value) << name;
  EXPECT_EQ(checkpoint.shared_state().at("num_floating_point_operations_so_far"), "123456789012345678901");
  const bool bf16 = wanted.at("args").at("bf16").get<bool>();
  EXPECT_EQ(checkpoint.args().at("params_dtype"), bf16 ? "torch.bfloat16" : "torch.float32");
}

TEST_P(TorchDistGolden, any_box_is_the_same_part_of_the_whole) {
  const TorchDistCheckpoint checkpoint(folder() / "iter_0000007/", ChunkChecks::sizes);
  std::uint64_t draws = 0;
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(random_below(random_key(5, "boxes"), draws++, static_cast<std::uint64_t>(bound)));
  };
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    const std::vector<std::byte> whole = read_box(checkpoint, tensor, Box::whole(tensor.shape));
    const auto size = static_cast<std::size_t>(bits_of(tensor.type) / 8);
    for (int trial = 0; trial < 8; ++trial) {
      Box box;
      for (int d = 0; d < tensor.shape.dims(); ++d) {
        const auto begin = below(tensor.shape[d]);
        box.begin[static_cast<std::size_t>(d)] = begin;
        box.extent.append(1 + below(tensor.shape[d] - begin));
      }
      const std::vector<std::byte> part = read_box(checkpoint, tensor, box);
      const BoxRuns runs(tensor.shape, box, {});
      for (std::int64_t r = 0; r < runs.size(); ++r) {
        const BoxRun run = runs[r];
        ASSERT_EQ(std::memcmp(whole.data() + static_cast<std::size_t>(run.logical) * size,
                              part.data() + static_cast<std::size_t>(run.tensor) * size,
                              static_cast<std::size_t>(run.count) * size),
                  0)
            << tensor.name << " " << to_text(box.extent);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, TorchDistGolden, ::testing::Values("hybrid", "gpt", "flat_bf16"),
                         [](const auto& folder) { return std::string(folder.param); });

TEST(TorchDistGoldenObjects, classes_of_megatron_are_kept_as_names) {
  const TorchDistCheckpoint checkpoint(golden_folder("torch_dist") / "gpt");
  EXPECT_EQ(checkpoint.args().at("attention_backend"),
            Json::parse(R"({"class": "megatron.core.transformer.enums.AttnBackend", "arguments": [5]})"));
}

TEST(TorchDistGoldenObjects, random_state_is_readable_as_plain_data) {
  const TorchDistCheckpoint checkpoint(golden_folder("torch_dist") / "hybrid");
  const auto at = std::find_if(checkpoint.objects().begin(), checkpoint.objects().end(),
                               [](const StoredObject& o) { return o.name == "rng_state/shard_0.0_1.1"; });
  ASSERT_NE(at, checkpoint.objects().end());
  const auto item = checkpoint.open(*at);
  EXPECT_TRUE(item->root().is(PickleKind::list));
}

}  // namespace
}  // namespace weft
