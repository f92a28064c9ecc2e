// Ctrl-C and SIGTERM in the middle of writing: no temporary file or folder is left, and what was there before stays.
#include <csignal>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

bool has_temporary(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().find(".tmp-") != std::string::npos) return true;
  return false;
}

void write_text(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

// A llama of 540 MB of zeros, which take no place on disk: converting it takes a while.
void make_large_model(const fs::path& folder) {
  constexpr int layers = 4, hidden = 2048, ffn = 8192, vocabulary = 256;
  fs::create_directory(folder);
  nlohmann::json config = nlohmann::json::parse(read_file(golden("llama/config.json")));
  config["hidden_size"] = hidden;
  config["intermediate_size"] = ffn;
  config["num_hidden_layers"] = layers;
  config["num_attention_heads"] = config["num_key_value_heads"] = 16;
  config["head_dim"] = hidden / 16;
  config["vocab_size"] = vocabulary;
  config["tie_word_embeddings"] = false;
  write_text(folder / "config.json", config.dump());

  nlohmann::json header;
  std::uint64_t at = 0;
  const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& shape) {
    std::uint64_t bytes = 2;
    for (const std::uint64_t size : shape) bytes *= size;
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  };
  add("model.embed_tokens.weight", {vocabulary, hidden});
  add("lm_head.weight", {vocabulary, hidden});
  add("model.norm.weight", {hidden});
  for (int layer = 0; layer < layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add(prefix + norm + ".weight", {hidden});
    for (const char* name : {"q", "k", "v", "o"})
      add(fmt::format("{}self_attn.{}_proj.weight", prefix, name), {hidden, hidden});
    for (const char* name : {"gate", "up"}) add(fmt::format("{}mlp.{}_proj.weight", prefix, name), {ffn, hidden});
    add(prefix + "mlp.down_proj.weight", {hidden, ffn});
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::ofstream out(folder / "model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof(length));
  out << text;
  out.close();
  fs::resize_file(folder / "model.safetensors", sizeof(length) + length + at);
}

TEST(Interrupts, ConvertLeavesNothing) {
  const TemporaryFolder work;
  make_large_model(work.file("model"));
  for (const int signal : {SIGINT, SIGTERM}) {
    const fs::path place = work.file(fmt::format("place-{}", signal));
    fs::create_directory(place);
    const Outcome outcome = run_weft_until(
        {"convert", "--from", "hf", "--to", "weft", "--in", work.file("model"), "--out", (place / "out").string()},
        [&] { return has_temporary(place); }, signal);
    EXPECT_EQ(outcome.code, 128 + signal) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    EXPECT_TRUE(fs::is_empty(place));
  }
}

TEST(Interrupts, TokenizeKeepsWhatWasThere) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TemporaryFolder work;
    write_text(work.file("x.bin"), "old tokens");
    write_text(work.file("x.idx"), "old index");
    const Outcome outcome = run_weft_until(
        {"tokenize", "--stories", "100M", "--output-prefix", work.file("x"), "--overwrite"},
        [&] { return has_temporary(work.file(".")); }, signal);
    EXPECT_EQ(outcome.code, 128 + signal) << outcome.err;
    EXPECT_FALSE(has_temporary(work.file(".")));
    EXPECT_EQ(read_file(work.file("x.bin")), "old tokens");
    EXPECT_EQ(read_file(work.file("x.idx")), "old index");
  }
}

TEST(Interrupts, TrainingEndsAsEver) {
  const TemporaryFolder work;
  const std::string log = work.file("metrics");
  const Outcome outcome = run_weft_until(
      Words{"train", "--metrics", log, "--train-iters", "1000000"} + tiny_model,
      [&] { return fs::exists(log) && fs::file_size(log) > 0; }, SIGINT);
  EXPECT_EQ(outcome.code, 130);
  EXPECT_FALSE(has_temporary(work.file(".")));
}

}  // namespace
}  // namespace weft
