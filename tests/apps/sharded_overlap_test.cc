// The command lines of those who train sharded with overlap of experts (scenario A4), at the sizes of Megatron's tests
// (A2 and A3): losses and saved weights have the bits of the plain order with the same strategy.
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/base/text.h"

namespace weft {
namespace {

struct Model {
  const char* pattern;
  const char* shared_ffn;  // null: there is no shared expert
};
void PrintTo(const Model& model, std::ostream* out) {
  *out << model.pattern << " shared " << (model.shared_ffn ? model.shared_ffn : "none");
}

// Three steps of SGD on four ranks that hold different experts, of three micro-batches each.
Words run_of(const Model& model) {
  Words run = {"train",
               "--pattern",
               model.pattern,
               "--hidden-size",
               "512",
               "--num-attention-heads",
               "8",
               "--num-experts",
               "8",
               "--moe-ffn-hidden-size",
               "512",
               "--bf16",
               "--seq-length",
               "32",
               "--mock-data",
               "--vocab-size",
               "127",  // and one more that ends documents
               "--micro-batch-size",
               "1",
               "--global-batch-size",
               "12",
               "--train-iters",
               "3",
               "--eval-iters",
               "0",
               "--optimizer",
               "sgd",
               "--lr",
               "0.01",
               "--lr-decay-style",
               "constant",
               "--ranks",
               "4",
               "--expert-model-parallel-size",
               "4",
               "--threads",
               "4",
               "--device",
               "cpu"};
  if (std::string_view(model.pattern).find('M') != std::string_view::npos)
    run = run + Words{"--mamba-num-heads", "16", "--mamba-num-groups", "8"};
  if (model.shared_ffn) run = run + Words{"--moe-shared-expert-intermediate-size", model.shared_ffn};
  return run;
}

struct Trained {
  std::vector<std::string> losses;           // and norms, as the metrics have them
  std::map<std::string, std::string> files;  // of weights, by name: every rank saves the same parts with one strategy
};

Trained train(const Words& words) {
  const TemporaryFolder folder;
  const std::string metrics = folder.file("metrics"), dir = folder.file("run");
  const Outcome outcome = run_weft(words + Words{"--metrics", metrics, "--save", dir, "--no-save-optim"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;  // which notes that experts are not divided
  Trained trained;
  if (outcome.code != 0) return trained;
  for (const std::string& line : split(read_file(metrics), '\n'))
    if (!line.empty())
      if (const Json json = parse_json(line, metrics); json.contains("loss"))
        trained.losses.push_back(json.at("loss").dump() + " " + json.at("grad_norm").dump());
  for (const auto& entry : std::filesystem::directory_iterator(dir + "/iter_0000003"))
    if (entry.path().extension() == ".safetensors")
      trained.files[entry.path().filename().string()] = read_file(entry.path());
  EXPECT_EQ(trained.losses.size(), 3u);
  EXPECT_EQ(trained.files.size(), 4u);
  return trained;
}

class ShardedOverlap : public testing::TestWithParam<std::tuple<Model, const char*>> {};

TEST_P(ShardedOverlap, has_the_bits_of_the_plain_order) {
  const auto& [model, strategy] = GetParam();
  const Words sharded = run_of(model) + Words{"--use-megatron-fsdp", "--data-parallel-sharding-strategy", strategy};
  const Trained plain = train(sharded);
  const Words overlapped = sharded + Words{"--overlap-moe-expert-parallel-comm"};
  std::vector<Words> lines = {overlapped, overlapped + Words{"--delay-wgrad-compute"}};
  if (std::string_view(strategy) == "optim_grads_params")
    lines.push_back(overlapped + Words{"--delay-wgrad-compute", "--fsdp-double-buffer"});
  for (const Words& line : lines) {
    const Trained trained = train(line);
    EXPECT_EQ(trained.losses, plain.losses) << join(line, " ");
    EXPECT_TRUE(trained.files == plain.files) << join(line, " ");
  }
}

INSTANTIATE_TEST_SUITE_P(AtSize, ShardedOverlap,
                         testing::Combine(testing::Values(Model{"[*E][*E]", nullptr}, Model{"[M*E][M*E]", "512"},
                                                          Model{"[+E][+E]", "512"}),
                                          testing::Values("no_shard", "optim", "optim_grads", "optim_grads_params")),
                         [](const auto& of) { return fmt::format("{}_{}", of.index / 4, std::get<1>(of.param)); });

}  // namespace
}  // namespace weft
