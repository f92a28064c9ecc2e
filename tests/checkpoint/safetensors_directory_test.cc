#include "weft/checkpoint/safetensors_directory.h"

#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"

namespace weft {
namespace {

// The golden llama in two shards: names below and above "model.layers.1".
class ShardedFolder : public ModelFolder {
 public:
  ShardedFolder() {
    for (const auto& [name, tensor] : raw_tensors(golden_folder("llama") / "model.safetensors")) {
      const bool first = name < "model.layers.1";
      (first ? low : high)[name] = tensor;
      index["weight_map"][name] = first ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
    }
    write_all();
  }
  void write_all() const {
    write_raw(file("model-00001-of-00002.safetensors"), low);
    write_raw(file("model-00002-of-00002.safetensors"), high);
    write("model.safetensors.index.json", index.dump());
  }
  std::string complaint() const {
    const std::string message = message_of<UserError>([&] { SafetensorsDirectory{path()}; });
    const std::string folder = path().string();
    EXPECT_EQ(message.find(folder), 0u) << message;
    return message.substr(std::min(message.size(), folder.size()));
  }

  RawTensors low, high;
  Json index;
};

TEST(SafetensorsDirectory, ShardsHoldWhatOneFileHolds) {
  const ShardedFolder folder;
  const SafetensorsDirectory sharded(folder.path()), single(golden_folder("llama"));
  ASSERT_EQ(sharded.entries().size(), single.entries().size());
  for (std::size_t i = 0; i < single.entries().size(); ++i) {
    const TensorEntry &a = *single.entries()[i], &b = *sharded.entries()[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_TRUE(std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end())) << a.name;
  }
  EXPECT_EQ(sharded.find("lm_head.weight")->shape, (Shape{96, 32}));
  EXPECT_EQ(sharded.find("lm_head"), nullptr);
}

TEST(SafetensorsDirectory, OneFileGoesBeforeAnIndex) {
  const ModelFolder folder("llama");
  folder.write("model.safetensors.index.json", "not even JSON");
  EXPECT_EQ(SafetensorsDirectory(folder.path()).entries().size(), 21u);
}

TEST(SafetensorsDirectory, NoWeights) {
  const ModelFolder folder;
  const std::string where = folder.path().string();
  EXPECT_EQ(message_of<UserError>([&] { SafetensorsDirectory{folder.path()}; }),
            where + ": neither model.safetensors nor model.safetensors.index.json is there");
  folder.write("pytorch_model.bin", "");
  EXPECT_EQ(message_of<UserError>([&] { SafetensorsDirectory{folder.path()}; }),
            where +
                ": neither model.safetensors nor model.safetensors.index.json is there; pytorch_model.bin is not "
                "read: save the model as safetensors first");
}

TEST(SafetensorsDirectory, AMissingShard) {
  const ShardedFolder folder;
  std::filesystem::remove(folder.file("model-00002-of-00002.safetensors"));
  EXPECT_EQ(folder.complaint(),
            "/model.safetensors.index.json: the shard model-00002-of-00002.safetensors (10 tensors) is missing from " +
                folder.path().string());
}

TEST(SafetensorsDirectory, ATensorThatIsNotWhereTheIndexSays) {
  ShardedFolder folder;
  folder.low.erase("lm_head.weight");
  folder.write_all();
  EXPECT_EQ(folder.complaint(),
            "/model-00001-of-00002.safetensors: tensor 'lm_head.weight' is not in this file, in which "
            "model.safetensors.index.json lists it");
}

TEST(SafetensorsDirectory, ATensorThatTheIndexDoesNotList) {
  ShardedFolder folder;
  folder.index["weight_map"].erase("model.norm.weight");
  folder.write_all();
  EXPECT_EQ(folder.complaint(),
            "/model-00002-of-00002.safetensors: tensor 'model.norm.weight' is in this file, but "
            "model.safetensors.index.json does not list it there");
  // The same tensor in two shards.
  ShardedFolder twice;
  twice.high["lm_head.weight"] = twice.low.at("lm_head.weight");
  twice.write_all();
  EXPECT_EQ(twice.complaint(),
            "/model-00002-of-00002.safetensors: tensor 'lm_head.weight' is in this file, but "
            "model.safetensors.index.json does not list it there");
}

TEST(SafetensorsDirectory, IndexesThatAreNone) {
  const ShardedFolder folder;
  const auto with_index = [&](const std::string& text) {
    folder.write("model.safetensors.index.json", text);
    return folder.complaint();
  };
  const std::string lacks = "/model.safetensors.index.json: lacks the object 'weight_map' (tensor name -> file)";
  EXPECT_EQ(with_index("{}"), lacks);
  EXPECT_EQ(with_index("[]"), lacks);
  EXPECT_EQ(with_index(R"({"weight_map":[]})"), lacks);
  const std::string not_a_file =
      "/model.safetensors.index.json: weight_map['a'] must be the name of a file in this folder";
  EXPECT_EQ(with_index(R"({"weight_map":{"a":1}})"), not_a_file);
  EXPECT_EQ(with_index(R"({"weight_map":{"a":"../llama/model.safetensors"}})"), not_a_file);
  EXPECT_EQ(with_index(R"({"weight_map":{"a":".."}})"), not_a_file);
  EXPECT_EQ(with_index(R"({"weight_map":{"a":""}})"), not_a_file);
  EXPECT_EQ(with_index(R"({"weight_map":{"a":"x","a":"y"}})"),
            "/model.safetensors.index.json: the key 'a' occurs twice in one object");
  EXPECT_EQ(with_index("{").find("/model.safetensors.index.json: not valid JSON: "), 0u);
}

TEST(SafetensorsDirectory, ADamagedShardIsNamed) {
  const ShardedFolder folder;
  const std::string whole = read_file(folder.file("model-00001-of-00002.safetensors"));
  folder.write("model-00001-of-00002.safetensors", whole.substr(0, whole.size() - 1));
  EXPECT_EQ(folder.complaint().find("/model-00001-of-00002.safetensors: truncated: tensor "), 0u);
}

}  // namespace
}  // namespace weft
