// Megatron's checkpoints as a user converts, loads and trains from them.
#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "tests/checkpoint/torch_dist/rewritten.h"
#include "tests/checkpoint/torch_dist/torch_python.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"

namespace weft {
namespace {

using testing::HasSubstr;
using testing::Not;

Words convert(const std::string& from, const std::string& in, const std::string& to, const std::string& out) {
  return {"convert", "--from", from, "--in", in, "--to", to, "--out", out};
}

std::string digest_in(const std::string& output) { return output.substr(output.find("\ndigest ") + 1); }

// Loss and norm of every iteration.
std::string numbers_in(const std::string& metrics) {
  std::string text;
  for (const std::string& line : split(read_file(metrics), '\n')) {
    if (line.empty()) continue;
    const Json json = parse_json(line, metrics);
    if (json.contains("loss")) text += json["iteration"].dump() + " " + json["loss"].dump() + json["grad_norm"].dump();
  }
  return text;
}

const Words small_run = {"train", "--device",     "cpu", "--hidden-size",      "16",    "--ffn-hidden-size",
                         "16",    "--seq-length", "16",  "--micro-batch-size", "2",     "--eval-iters",
                         "1",     "--threads",    "1",   "--stories",          "20000", "--digest"};
const Words experts = {"--num-experts", "4", "--moe-ffn-hidden-size", "8"};

class MegatronRuns : public testing::Test {
 protected:
  // A run that has saved two iterations: `model` in Weft's form in `dir`.
  void save_two(const Words& model, const std::string& dir) {
    expect_done(model + Words{"--train-iters", "4", "--exit-interval", "2", "--save", dir});
  }
  std::string digest_of_loaded(const Words& model, const std::string& dir) {
    return digest_in(expect_done(model + Words{"--train-iters", "2", "--load", dir}));
  }
  TemporaryFolder folder_;
};

// Weights, masters, moments, step, position: the run that goes on from Megatron's form is the one that goes on from Weft's.
TEST_F(MegatronRuns, AConvertedRunGoesOnBitForBit) {
  const Words groups = small_run + Words{"--pattern", "[*-][*E]/[*E]"} + experts;
  const Words ranks = groups + Words{"--ranks", "2", "--global-batch-size", "8", "--expert-model-parallel-size", "2"};
  const Words alike = small_run + Words{"--num-layers", "2"} + experts;
  const std::map<std::string, std::pair<Words, Words>> cases = {
      // name -> model, how it is converted
      {"f32", {groups, {}}},
      {"bf16", {groups + Words{"--bf16"}, {}}},
      {"bf16-ranks", {ranks + Words{"--bf16"}, {"--megatron-transformer"}}},
      {"f32-stacked", {alike, {"--megatron-stacked-layers"}}}};
  for (const auto& [name, how] : cases) {
    SCOPED_TRACE(name);
    const auto& [model, form] = how;
    const std::string run = folder_.file(name), megatron = run + ".megatron";
    save_two(model, run);
    expect_done(convert("weft", run, "megatron", megatron) + form);
    EXPECT_EQ(read_file(megatron + "/latest_checkpointed_iteration.txt"), "2");
    EXPECT_EQ(digest_of_loaded(model, megatron), digest_of_loaded(model, run));
    std::string expected_digest, expected_numbers;
    for (const std::string& from : {run, megatron}) {
      const std::string metrics = from + ".jsonl", saved = from + ".on";
      const std::string log =
          expect_done(model + Words{"--train-iters", "4", "--load", from, "--metrics", metrics, "--save", saved});
      EXPECT_THAT(log, HasSubstr("loaded " + from + "/iter_0000002, iteration 2\n"));
      if (expected_digest.empty()) {
        expected_digest = digest_in(log);
        expected_numbers = numbers_in(metrics);
        EXPECT_THAT(expected_numbers, HasSubstr("3 "));
      }
      EXPECT_EQ(digest_in(log), expected_digest);
      EXPECT_EQ(numbers_in(metrics), expected_numbers);
    }
    // Moments, too: what the two have saved is equal.
    for (const char* only : {"*", "second_moment/*"})
      EXPECT_THAT(
          expect_done({"inspect", "--diff", run + ".on/iter_0000004", megatron + ".on/iter_0000004", "--only", only}),
          HasSubstr(" equal bit for bit"));
  }
}

TEST(TorchReads, ARunThatWasConverted) {
  if (const std::string why = why_no_torch(); !why.empty()) GTEST_SKIP() << why;
  const TemporaryFolder folder;
  std::vector<std::filesystem::path> folders;
  for (const Words& type : {Words{}, Words{"--bf16"}}) {
    for (const Words& form : {Words{}, Words{"--megatron-transformer"}}) {
      const std::string name = folder.file(std::to_string(type.size()) + std::to_string(form.size()));
      expect_done(small_run + Words{"--pattern", "[*-][*E]/[*E]", "--train-iters", "1", "--save", name} + experts +
                  type);
      expect_done(convert("weft", name, "megatron", name + ".megatron") + form);
      folders.push_back(name + ".megatron/iter_0000001");
      const TorchDistCheckpoint written(folders.back());
      EXPECT_NE(written.find("optimizer.state.param.embedding.word_embeddings.weight"), nullptr);
    }
  }
  expect_torch_reads(folders);
}

// The same sixteen layers by a transformer's flags, as groups and flat: each loads what the others save, in both forms, with
// the optimizer's state; after each load there is a step, validation and a save.
class CrossLoading : public MegatronRuns {
 protected:
  using Models = std::map<std::string, Words>;
  // Returns the digest after the step, which all of them have.
  std::string expect_all_load(const Words& shape, const Models& models, const std::string& writer, const Words& form) {
    const std::string run = folder_.file(writer), megatron = run + ".megatron";
    expect_done(shape + models.at(writer) + Words{"--train-iters", "3", "--exit-interval", "1", "--save", run});
    expect_done(convert("weft", run, "megatron", megatron) + form);
    std::string expected;
    for (const auto& [reader, flags] : models) {
      for (const std::string& from : {run, megatron}) {
        SCOPED_TRACE(from + " as " + reader);
        const std::string saved = from + "." + reader;
        const std::string log =
            expect_done(shape + flags +
                        Words{"--train-iters", "3", "--exit-interval", "2", "--load", from, "--save", saved,
                              "--eval-interval", "1", "--dist-ckpt-strictness", "raise_all"});
        EXPECT_THAT(log, HasSubstr("loaded " + from + "/iter_0000001, iteration 1\n"));
        EXPECT_THAT(log, HasSubstr("validation loss at iteration 2"));
        EXPECT_THAT(log, HasSubstr("saved " + saved + "/iter_0000002 in "));
        if (expected.empty()) expected = digest_in(log);
        EXPECT_EQ(digest_in(log), expected);
      }
    }
    return expected;
  }
};

TEST_F(CrossLoading, OfDeepSeeksShape) {
  std::string groups, flat;
  for (int layer = 0; layer < 16; ++layer) {
    groups += layer < 3 ? "[+-]" : "[+E]";
    flat += layer < 3 ? "+-" : "+E";
  }
  const Words shape =
      small_run + experts + Words{"--kv-lora-rank",        "8", "--q-lora-rank", "8", "--qk-head-dim",         "8",
                                  "--qk-pos-emb-head-dim", "4", "--v-head-dim",  "8", "--num-attention-heads", "2"};
  const Models models = {{"transformer",
                          {"--num-layers", "16", "--multi-latent-attention", "--moe-layer-freq", "([0]*3+[1]*13)",
                           "--mtp-num-layers", "1"}},
                         {"groups", {"--pattern", groups + "/[+E]"}},
                         {"flat", {"--pattern", flat + "/+E"}}};
  // Under the keys of a hybrid model and of a transformer.
  const std::string digest = expect_all_load(shape, models, "transformer", {"--megatron-transformer"});
  EXPECT_EQ(expect_all_load(shape, models, "groups", {}), digest);
  EXPECT_EQ(expect_all_load(shape, models, "flat", {}), digest);
}

TEST_F(CrossLoading, OfEqualLayersInBf16) {
  std::string groups, flat;
  for (int layer = 0; layer < 16; ++layer) {
    groups += "[*E]";
    flat += "*E";
  }
  const Models models = {
      {"transformer", {"--num-layers", "16"}}, {"groups", {"--pattern", groups}}, {"flat", {"--pattern", flat}}};
  const Words shape = small_run + experts + Words{"--bf16"};
  const std::string digest = expect_all_load(shape, models, "transformer", {"--megatron-stacked-layers"});
  EXPECT_EQ(expect_all_load(shape, models, "flat", {"--megatron-transformer"}), digest);
}

TEST_F(MegatronRuns, MastersAreTakenUnlessTheFlagLeavesThem) {
  const Words model = small_run + Words{"--pattern", "[*E]", "--bf16"} + experts;
  const std::string run = folder_.file("run"), megatron = folder_.file("megatron");
  save_two(model, run);
  expect_done(convert("weft", run, "megatron", megatron));
  const std::string masters = digest_of_loaded(model, megatron);
  const std::string rounded = digest_of_loaded(model + Words{"--load-main-params-from-ckpt"}, megatron);
  EXPECT_NE(rounded, masters);
  EXPECT_EQ(rounded, digest_of_loaded(model + Words{"--no-load-optim"}, megatron));
  // With the optimizer's state, and a step from it.
  EXPECT_THAT(expect_done(model + Words{"--load-main-params-from-ckpt", "--train-iters", "3", "--load", megatron}),
              HasSubstr("trained 1 iterations"));
  // The same of a conversion.
  const std::string weights = folder_.file("weights");
  expect_done(convert("megatron", megatron, "weft", weights) + Words{"--no-load-optim"});
  EXPECT_EQ(digest_of_loaded(model + Words{"--no-load-optim"}, weights), rounded);
  expect_refused(model + Words{"--train-iters", "4", "--load", weights}, {"load it with --no-load-optim"});
}

// Megatron's default form of the optimizer's state cannot be read, and is not lost without a word.
TEST_F(MegatronRuns, OptimizerStateInBucketsIsRefused) {
  const std::string megatron = folder_.file("iter_0000007"), out = folder_.file("out");
  std::filesystem::create_directory(megatron);
  rewrite_checkpoint(golden("torch_dist/hybrid"), megatron, [](const std::string& name) {
    constexpr std::string_view state = "optimizer.state.";
    return name.starts_with(state) ? "optimizer.distributed.dp_group_idx_0." + name.substr(state.size()) : name;
  });
  for (const char* to : {"weft", "megatron"}) {
    expect_refused(convert("megatron", megatron, to, out),
                   {megatron + ": its optimizer's state has the form dp_reshardable", "--no-load-optim",
                    "--dist-ckpt-optim-fully-reshardable"});
    EXPECT_FALSE(std::filesystem::exists(out));
    expect_done(convert("megatron", megatron, to, out) + Words{"--no-load-optim"});
    std::filesystem::remove_all(out);
  }
  // There it would not be kept in any case.
  expect_done(convert("megatron", megatron, "hf", out) + Words{"--hf-family", "qwen3_moe"});
}

TEST_F(MegatronRuns, WrongRequestsOfAConversion) {
  const std::string out = folder_.file("out");
  expect_refused(convert("hf", golden("llama"), "weft", out) + Words{"--no-load-optim"},
                 {"--no-load-optim: a Hugging Face folder has no optimizer's state"});
  expect_refused(convert("weft", golden("llama"), "hf", out) + Words{"--no-load-optim"},
                 {"--no-load-optim: a Hugging Face folder gets no optimizer's state"});
  expect_refused(convert("hf", golden("qwen3_moe"), "weft", out) + Words{"--megatron-transformer"},
                 {"--megatron-transformer is for --to megatron"});
  expect_refused(convert("hf", golden("nemotron_h"), "megatron", out) + Words{"--megatron-transformer"},
                 {"is not that of a transformer of Megatron's"});
  // Without the file that names the checkpoint to take.
  const std::string megatron = folder_.file("megatron");
  std::filesystem::create_directory(megatron);
  std::filesystem::copy(golden("torch_dist/gpt/iter_0000007"), megatron + "/iter_0000007");
  expect_refused(convert("megatron", megatron, "weft", out),
                 {"there is no checkpoint of Megatron's; name a folder in it: --in " + megatron + "/iter_NNNNNNN"});
}

TEST_F(MegatronRuns, DeepSeeksLayersAreThoseOfATransformer) {
  const std::string megatron = folder_.file("megatron"), back = folder_.file("back");
  expect_done(convert("hf", golden("deepseek_v3_mtp"), "megatron", megatron) + Words{"--megatron-transformer"});
  expect_done(convert("megatron", megatron, "hf", back));
  EXPECT_EQ(read_file(back + "/model.safetensors"), read_file(golden("deepseek_v3_mtp/model.safetensors")));
  const Json shown = parse_json(expect_done({"inspect", megatron, "--tensors", "--json"}), "inspect");
  EXPECT_THAT(shown.dump(), HasSubstr("mtp.layers.1.transformer_layer.mlp.experts.experts.linear_fc1.weight"));
  EXPECT_THAT(shown.dump(), HasSubstr("decoder.layers.0.mlp.linear_fc1.weight"));
  // Its args make the model again.
  const Outcome trained = run_weft({"train", "--load", megatron, "--use-checkpoint-args", "--seq-length", "8",
                                    "--micro-batch-size", "1", "--train-iters", "1", "--mock-data", "--eval-iters", "0",
                                    "--threads", "1", "--dist-ckpt-strictness", "raise_all"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("--moe-layer-freq [0,1,1]"));
}

// Every kind, of both forms. The model lacks the experts of the second layer, the checkpoint its MLP.
TEST_F(MegatronRuns, EveryStrictness) {
  const Words saved = small_run + Words{"--pattern", "[*E][*E]"} + experts,
              other = small_run + Words{"--pattern", "[*E][*-]"} + experts + Words{"--train-iters", "3"},
              part = small_run + Words{"--pattern", "[*E]"} + experts + Words{"--train-iters", "3"};
  const std::string weft = folder_.file("weft"), megatron = folder_.file("megatron");
  save_two(saved, weft);
  expect_done(convert("weft", weft, "megatron", megatron));
  for (const std::string& from : {weft, megatron}) {
    SCOPED_TRACE(from);
    const std::string at = from + "/iter_0000002: ";
    const std::string theirs = from == weft ? "weight/language.main.3.router" : "decoder.layers.1.mlp.router.weight";
    const auto with = [&](const Words& model, const std::string& kind) {
      return model + Words{"--load", from, "--dist-ckpt-strictness", kind};
    };
    const std::string lacking = " parameters of this model are not in the checkpoint, language.main.3.",
                      initial = " parameters are not in the checkpoint and keep their initial values: language.main.3.",
                      foreign = " tensors of the checkpoint are not of this model: ";
    expect_refused(other + Words{"--load", from}, {at, lacking});  // the default
    for (const char* kind : {"assume_ok_unexpected", "raise_unexpected", "raise_all"})
      expect_refused(with(other, kind), {at, lacking});
    expect_refused(with(part, "raise_all"), {at, foreign, "--dist-ckpt-strictness raise_unexpected leaves them alone"});
    for (const char* kind : {"assume_ok_unexpected", "raise_unexpected", "log_unexpected", "ignore_all"})
      expect_done(with(part, kind));
    expect_done(with(other, "ignore_all"));
    const Outcome first = run_weft(with(other, "log_unexpected")), both = run_weft(with(other, "log_all"));
    for (const Outcome& outcome : {first, both}) {
      EXPECT_EQ(outcome.code, 0);
      EXPECT_THAT(outcome.err, HasSubstr("warning: " + at));
      EXPECT_THAT(outcome.err, HasSubstr(initial));
      EXPECT_THAT(outcome.out, HasSubstr("trained 1 iterations"));
    }
    EXPECT_THAT(first.err, Not(HasSubstr(foreign)));
    EXPECT_THAT(both.err, HasSubstr(foreign));
    // Whole lists, and the same run as with the warnings.
    for (const char* kind : {"return_unexpected", "return_all"}) {
      const bool all = std::string(kind) == "return_all";
      const std::string metrics = folder_.file(std::filesystem::path(from).filename().string() + kind);
      const std::string log = expect_done(with(other, kind) + Words{"--metrics", metrics});
      EXPECT_EQ(digest_in(log), digest_in(first.out));
      EXPECT_THAT(log, HasSubstr(" parameters are not in the checkpoint (unexpected):\n  language.main.3."));
      EXPECT_EQ(log.find("(missing)") != std::string::npos, all);
      const Json lists = parse_json(split(read_file(metrics), '\n')[0], metrics);
      EXPECT_EQ(lists.at("iteration"), 2);
      EXPECT_THAT(lists.at("unexpected").dump(), HasSubstr("\"language.main.3.down\""));
      EXPECT_EQ(lists.contains("missing"), all);
      for (const std::string name : {"unexpected", "missing"}) {
        if (!lists.contains(name)) continue;
        EXPECT_GT(lists.at(name).size(), name == "missing" ? 5u : 2u);
        for (const Json& item : lists.at(name)) EXPECT_THAT(log, HasSubstr("\n  " + item.get<std::string>() + "\n"));
      }
      if (all) {
        EXPECT_THAT(lists.at("missing").dump(), HasSubstr("\"" + theirs + "\""));
      }
    }
    const std::string nothing = expect_done(with(saved + Words{"--train-iters", "3"}, "return_all"));
    EXPECT_THAT(nothing, HasSubstr(at + "0 parameters are not in the checkpoint (unexpected)\n"));
    EXPECT_THAT(nothing, HasSubstr(at + "0 tensors of the checkpoint are not of this model (missing)\n"));
  }
  expect_refused(other + Words{"--load", weft, "--dist-ckpt-strictness", "some"},
                 {"--dist-ckpt-strictness", "return_all"});
}

}  // namespace
}  // namespace weft
