// Files that no writer of models makes: nested, huge, of contradictory sizes, or not files at all. Each is refused at once,
// with a message.
#include <chrono>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/torch_dist/counted_memory.h"
#include "weft/base/error.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/run_checkpoint.h"

namespace weft {
namespace {

using testing::HasSubstr;

// Generous for a sanitizer on a busy machine; what is guarded against takes minutes.
constexpr std::chrono::seconds at_once(10);

template <class Action>
void expect_quick(Action&& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds, at_once);
  testing::Test::RecordProperty("milliseconds", static_cast<int>(1000 * seconds.count()));
}

std::string nested(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

std::string safetensors_with(const std::string& header, std::size_t data = 0) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data, '\0');
}

std::string config_error(const ModelFolder& folder) {
  const std::string message = message_of<UserError>([&] { read_hugging_face(folder.path()); });
  const std::string where = folder.path().string() + "/";
  EXPECT_EQ(message.find(where), message.find('/')) << message;
  return message.empty() ? "" : message.substr(message.find(where) + where.size());
}

std::string patched(const std::string& golden, const Json& patch) {
  const ModelFolder folder(golden);
  folder.patch_config(patch);
  return config_error(folder);
}

TEST(HostileFiles, SafetensorsHeadersOfManyTensorsTakeLinearTime) {
  const ModelFolder folder;
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i)
    header += fmt::format(
        R"({}"model.layers.{}.mlp.experts.{}.up_proj.weight":{{"dtype":"BF16","shape":[1,2],"data_offsets":[{},{}]}})",
        i > 0 ? "," : "", i / 128, i % 128, 4 * i, 4 * i + 4);
  folder.write("x.safetensors", safetensors_with(header + "}", 400'000));
  expect_quick([&] { EXPECT_EQ(SafetensorsFile(folder.file("x.safetensors")).entries().size(), 100'000u); });
}

TEST(HostileFiles, NestedValuesAreRefused) {
  const std::string deep = nested(300'000), refused = ": not read as JSON: values nest more than 100 deep";
  const ModelFolder folder("llama");
  folder.write("config.json", R"({"model_type": )" + deep + "}");
  EXPECT_EQ(config_error(folder), "config.json" + refused);
  folder.write("x", safetensors_with(R"({"t": )" + deep + "}"));
  EXPECT_EQ(message_of<UserError>([&] { SafetensorsFile{folder.file("x")}; }),
            folder.file("x").string() + ": header" + refused);
  EXPECT_EQ(message_of<UserError>([&] { parse_manifest(R"({"run": )" + deep + "}", "m"); }), "m" + refused);
}

TEST(HostileFiles, TextAfterAZeroByteIsRefused) {
  const ModelFolder folder("llama");
  folder.write("config.json", read_file(folder.file("config.json")) + std::string("\0 and more", 10));
  EXPECT_EQ(config_error(folder), "config.json: not valid JSON: holds a zero byte");
}

TEST(HostileFiles, PipesInPlaceOfFilesDoNotKeepTheReader) {
  const ModelFolder folder("llama");
  for (const char* name : {"model.safetensors", "config.json"}) {
    std::filesystem::remove(folder.file(name));
    ASSERT_EQ(::mkfifo(folder.file(name).c_str(), 0600), 0);
    EXPECT_EQ(message_of<UserError>([&] { read_hugging_face(folder.path()); }),
              fmt::format("cannot read {}: not a regular file", folder.file(name).string()));
  }
  ASSERT_EQ(::mkfifo(folder.file("manifest.json").c_str(), 0600), 0);
  EXPECT_EQ(message_of<UserError>([&] { RunCheckpoint{folder.path()}; }),
            fmt::format("cannot read {}: not a regular file", folder.file("manifest.json").string()));
}

TEST(HostileFiles, LinksInALoopAreNamed) {
  const ModelFolder folder("llama");
  for (const char* name : {"model.safetensors", "config.json", "manifest.json", "latest_checkpointed_iteration.txt"}) {
    std::filesystem::remove(folder.file(name));
    std::filesystem::create_symlink(name, folder.file(name));
  }
  const auto expected = [&](const char* name) {
    return fmt::format("cannot read {}: Too many levels of symbolic links", folder.file(name).string());
  };
  EXPECT_EQ(message_of<UserError>([&] { read_hugging_face_config(folder.path()); }), expected("config.json"));
  EXPECT_EQ(message_of<UserError>([&] { SafetensorsDirectory{folder.path()}; }), expected("model.safetensors"));
  EXPECT_EQ(message_of<UserError>([&] { RunCheckpoint{folder.path()}; }), expected("manifest.json"));
  EXPECT_EQ(message_of<UserError>([&] { latest_checkpoint(folder.path()); }),
            expected("latest_checkpointed_iteration.txt"));
}

TEST(HostileFiles, NumbersOutOfRangeInAConfigAreNamed) {
  const auto rope = [](const Json& values) { return patched("llama", {{"rope_scaling", values}}); };
  EXPECT_EQ(patched("llama", {{"rms_norm_eps", -1}}), "config.json: 'rms_norm_eps' is -1: it must be above 0");
  EXPECT_EQ(patched("llama", {{"rms_norm_eps", 1e308}}),
            "config.json: 'rms_norm_eps' is 1e+308: its magnitude must be at most 1");
  EXPECT_EQ(patched("llama", {{"initializer_range", -0.5}}),
            "config.json: 'initializer_range' is -0.5: it must not be negative");
  EXPECT_EQ(rope({{"rope_type", "linear"}, {"factor", 1e308}}),
            "config.json: rope_scaling: 'factor' is 1e+308: its magnitude must be at most 1000000");
  EXPECT_EQ(rope({{"rope_type", "yarn"}, {"factor", 4}, {"beta_fast", -32}}),
            "config.json: rope_scaling: 'beta_fast' is -32: it must not be negative");
  EXPECT_EQ(rope({{"rope_type", "yarn"}, {"factor", 4}, {"attention_factor", 0}}),
            "config.json: rope_scaling: 'attention_factor' is 0: it must be above 0");
  EXPECT_EQ(patched("deepseek_v3", {{"routed_scaling_factor", -1.0}}),
            "config.json: 'routed_scaling_factor' is -1.0: it must be above 0");
}

TEST(HostileFiles, NumbersThatAskForMemoryAreRefusedBeforeItIsTaken) {
  const CountedMemory memory;
  for (const char* golden : {"deepseek_v3", "nemotron_h_moe"}) {
    EXPECT_EQ(patched(golden, {{"n_routed_experts", 1'000'000}}),
              "config.json: 'n_routed_experts' is 1000000: it must be at most 65536");
  }
  EXPECT_EQ(patched("deepseek_v3_mtp", {{"num_nextn_predict_layers", 1'000'000}}),
            "config.json: 'num_nextn_predict_layers' is 1000000: it must be at most 100");
  EXPECT_EQ(patched("qwen3_moe", {{"num_local_experts", nullptr}, {"num_experts", 65536}, {"num_hidden_layers", 5000}}),
            "config.json: 5000 layers of 65536 experts have 327680000 in all; Weft reads models of at most 524288");
  EXPECT_LT(memory.peak(), 4'000'000u);
}

TEST(HostileFiles, SizesThatContradictTheWeightsAreRefusedWithoutReadingThem) {
  EXPECT_EQ(patched("llama", {{"vocab_size", 97}}),
            "model.safetensors: tensor 'model.embed_tokens.weight' has the shape [96, 32], but config.json asks for "
            "[97, 32]");
}

Manifest large_manifest(std::int64_t tensors, std::int64_t boxes) {
  Manifest manifest;
  manifest.files["rank-00000.safetensors"] = 1;
  for (std::int64_t t = 0; t < tensors; ++t) {
    ManifestTensor& tensor = manifest.tensors[fmt::format("weight/language.main.{}.gate.{}", t / 128, t % 128)];
    // Boxes of a grid of two columns.
    const std::int64_t columns = boxes > 1 ? 2 : 1;
    tensor.shape = {boxes / columns, columns};
    for (std::int64_t b = 0; b < boxes; ++b)
      tensor.boxes.push_back({"rank-00000.safetensors", {{b / columns, b % columns}, {1, 1}}, 0x123456789abcdef0});
  }
  return manifest;
}

TEST(HostileFiles, ManifestsOfManyTensorsOrBoxesTakeLinearTime) {
  const std::string tensors = to_text(large_manifest(20'000, 1)), boxes = to_text(large_manifest(1, 20'000));
  expect_quick([&] { EXPECT_EQ(parse_manifest(tensors, "m").tensors.size(), 20'000u); });
  expect_quick([&] { EXPECT_EQ(parse_manifest(boxes, "m").tensors.begin()->second.boxes.size(), 20'000u); });
}

}  // namespace
}  // namespace weft
