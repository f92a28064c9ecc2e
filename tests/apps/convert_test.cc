// `weft convert` and `weft train --save-hf`.
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/safetensors_writer.h"
#include "weft/checkpoint/stored_type.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

Words convert(const std::string& from, const std::string& in, const std::string& to, const std::string& out) {
  return {"convert", "--from", from, "--in", in, "--to", to, "--out", out};
}

class Convert : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  std::string weft_ = folder_.file("weft"), back_ = folder_.file("back");
};

TEST_F(Convert, ThereAndBack) {
  EXPECT_EQ(expect_done(convert("hf", golden("qwen3_moe"), "weft", weft_)),
            weft_ + ": qwen3_moe [*E][*E]\n" + "56.0 k parameters, 69 tensors from 69, 218.88 KiB in 1 file\n");
  const Json summary = parse_json(expect_done(convert("weft", weft_, "hf", back_) + Words{"--json"}), "summary");
  EXPECT_EQ(summary.at("family"), "qwen3_moe");
  EXPECT_EQ(summary.at("experts"), "separate");
  EXPECT_EQ(read_file(back_ + "/model.safetensors"), read_file(golden("qwen3_moe/model.safetensors")));
  EXPECT_EQ(read_file(back_ + "/config.json"), read_file(golden("qwen3_moe/config.json")));
}

TEST_F(Convert, AFusedModelIsTheSameModel) {
  expect_done(convert("hf", golden("mixtral"), "hf", back_) + Words{"--experts", "fused", "--max-shard-size", "20KB"});
  EXPECT_TRUE(std::filesystem::exists(back_ + "/model.safetensors.index.json"));
  const Words probe = {"probe", "--tokens", golden("mixtral/golden.safetensors"), "--json", "--hf"};
  EXPECT_EQ(expect_done(probe + Words{back_}), expect_done(probe + Words{golden("mixtral")}));
}

TEST_F(Convert, AWeftCheckpointIsTakenWhereAHuggingFaceModelIs) {
  expect_done(convert("hf", golden("deepseek_v3_mtp"), "weft", weft_));
  const Words probe = {"probe", "--tokens", golden("deepseek_v3_mtp/golden.safetensors"), "--json", "--hf"};
  EXPECT_EQ(expect_done(probe + Words{weft_}), expect_done(probe + Words{golden("deepseek_v3_mtp")}));
  EXPECT_THAT(expect_done({"check", "--hf", weft_, "--seq-length", "8"}), HasSubstr("[+-][+E][+E]/[+E]/[+E]"));
}

TEST_F(Convert, ToMegatronAndBackIsTheSameFolder) {
  const std::string megatron = folder_.file("megatron");
  for (const bool stacked : {false, true}) {
    EXPECT_THAT(expect_done(convert("hf", golden("qwen3_moe"), "megatron", megatron) +
                            (stacked ? Words{"--megatron-stacked-layers"} : Words{})),
                HasSubstr(": qwen3_moe [*E][*E]\n56.0 k parameters, "));
    EXPECT_EQ(read_file(megatron + "/latest_checkpointed_iteration.txt"), "release");
    expect_done(convert("megatron", megatron, "hf", back_));
    EXPECT_EQ(read_file(back_ + "/model.safetensors"), read_file(golden("qwen3_moe/model.safetensors")));
    EXPECT_EQ(read_file(back_ + "/config.json"), read_file(golden("qwen3_moe/config.json")));
    std::filesystem::remove_all(megatron);
    std::filesystem::remove_all(back_);
  }
}

TEST_F(Convert, MegatronsCheckpointsAreReadWithTheOptimizer) {
  const Words probe = {"probe", "--tokens", golden("qwen3_moe/golden.safetensors"), "--json", "--hf"};
  const auto loss_of = [&](const std::string& model) {
    return parse_json(expect_done(probe + Words{model}), "probe").at("loss").get<double>();
  };
  const double expected = loss_of(golden("qwen3_moe"));
  for (const std::string form : {"hybrid", "gpt", "flat_bf16"}) {
    const std::string out = folder_.file(form);
    EXPECT_THAT(expect_done(convert("megatron", golden("torch_dist/" + form), "weft", out)),
                HasSubstr(form == "flat_bf16" ? out + ": *E*E\n" : out + ": [*E][*E]\n"));
    if (form == "gpt") continue;                            // its model has an id more
    EXPECT_NEAR(loss_of(out) / expected, 1, 1e-6) << form;  // of flat_bf16 by its masters
  }
  // A run goes on from it, and has the flags from it.
  const Outcome trained = run_weft({"train", "--load", folder_.file("hybrid"), "--use-checkpoint-args", "--seq-length",
                                    "16", "--micro-batch-size", "1", "--train-iters", "8", "--mock-data",
                                    "--eval-iters", "0", "--log-interval", "1"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("note: --use-checkpoint-args: " + folder_.file("hybrid") + " gives --pattern"));
  EXPECT_THAT(trained.out, HasSubstr("loaded " + folder_.file("hybrid") + ", iteration 7"));
  EXPECT_THAT(trained.out, HasSubstr("iteration        8/"));
}

TEST_F(Convert, WrongRequests) {
  expect_refused({"convert"}, {"name both formats: --from hf --to weft"});
  expect_refused({"convert", "--from", "hf", "--to", "weft"}, {"name both folders: --in DIR --out DIR"});
  expect_refused(convert("hf", golden("qwen3_moe"), "megatron", back_) + Words{"--experts", "fused"},
                 {"--experts fused: a Megatron checkpoint has the experts of a layer in one tensor"});
  expect_refused(convert("hf", golden("qwen3_moe"), "weft", back_) + Words{"--megatron-stacked-layers"},
                 {"--megatron-stacked-layers is for --to megatron"});
  expect_refused(convert("hf", golden("qwen3_moe_b"), "megatron", back_) + Words{"--megatron-stacked-layers"},
                 {"cannot be stacked"});
  expect_refused(convert("megatron", golden("llama"), "weft", weft_),
                 {"--in " + golden("llama") + ": there is no checkpoint of Megatron's"});
  expect_refused({"convert", "--from", "gguf"}, {"--from"});
  expect_refused({"convert", "there"}, {"the folders are --in DIR and --out DIR"});
  expect_refused(convert("hf", golden("llama"), "weft", weft_) + Words{"--max-shard-size", "5 bananas"},
                 {"--max-shard-size 5 bananas is not a size; write 5GB, 500MB or 2GiB"});
  expect_refused(convert("hf", golden("mixtral"), "weft", weft_) + Words{"--experts", "fused"},
                 {"--experts fused: a Weft checkpoint has a tensor for each matrix of each expert"});
  expect_refused(convert("hf", golden("llama"), "hf", weft_) + Words{"--experts", "fused"}, {"has no experts"});
  expect_refused(convert("hf", folder_.file("none"), "weft", weft_), {"none: not a folder"});
  expect_refused(convert("weft", golden("llama"), "hf", weft_),
                 {"there is no manifest.json, so this is not a Weft checkpoint"});
  expect_refused(convert("hf", golden("llama"), "weft", folder_.file("none/out")), {"there is no folder"});
  EXPECT_EQ(folder_.entries(), 0u);
  expect_done(convert("hf", golden("llama"), "weft", weft_));
  expect_refused(convert("hf", golden("llama"), "weft", weft_), {"--out " + weft_ + ": the folder is not empty"});
  expect_refused(convert("hf", weft_, "weft", back_),
                 {"this is a Weft checkpoint, not a Hugging Face model; read it with --from weft"});
  EXPECT_THAT(expect_done({"convert", "--help"}), HasSubstr("--max-shard-size"));
}

class Save : public Convert {
 protected:
  Save() {
    std::string text;  // ids below 95, one document per paragraph
    for (int document = 1; document < 30; ++document) {
      for (int i = 0; i < 40; ++i) text += fmt::format("{} ", (document * i * 7 + i * i) % 95);
      text += "\n\n";
    }
    write_file_atomically(folder_.file("numbers"), text);
    expect_done({"tokenize", "--input", folder_.file("numbers"), "--tokenizer-type", "NullTokenizer", "--vocab-size",
                 "95", "--output-prefix", folder_.file("tokens")});
  }
  // Trains a golden model.
  Words train(const std::string& model, const std::string& iterations = "2") {
    return {"train",
            "--hf",
            model,
            "--data-path",
            folder_.file("tokens"),
            "--tokenizer-type",
            "NullTokenizer",
            "--split",
            "80,20,0",
            "--seq-length",
            "8",
            "--micro-batch-size",
            "1",
            "--train-iters",
            iterations,
            "--eval-iters",
            "1",
            "--threads",
            "1"};
  }
  double validation_loss(const Words& words) {
    const std::string file = folder_.file("metrics.jsonl");
    expect_done(words + Words{"--metrics", file});
    const std::string text = read_file(file), last = text.substr(text.rfind('\n', text.size() - 2) + 1);
    return parse_json(last, file).at("validation_loss").get<double>();
  }
  const Words still_ = {"--lr", "0", "--min-lr", "0", "--weight-decay", "0"};  // steps that change nothing
};

TEST_F(Save, WithoutTrainingEveryTensorIsAsItWas) {
  for (const char* model : {"llama_b", "mixtral_b", "gpt_oss", "deepseek_v3_mtp", "deepseek_v32", "mamba2",
                            "nemotron_h_moe", "qwen3_next"}) {
    const std::string out = folder_.file(model);
    EXPECT_THAT(expect_done(train(golden(model)) + still_ + Words{"--save-hf", out}), HasSubstr("model: " + out));
    EXPECT_TRUE(read_file(out + "/model.safetensors") == read_file(golden(model) + "/model.safetensors")) << model;
    EXPECT_EQ(read_file(out + "/config.json"), read_file(golden(model) + "/config.json"));
  }
  // What bf16 weights leave of a float is kept beside them; of an indexer that is not trained, it is in the old file.
  for (const char* model : {"mixtral_b", "nemotron_h_moe", "deepseek_v3", "deepseek_v32"}) {
    const std::string out = folder_.file(std::string(model) + ".bf16");
    expect_done(train(golden(model)) + still_ + Words{"--bf16", "--save-hf", out});
    EXPECT_TRUE(read_file(out + "/model.safetensors") == read_file(golden(model) + "/model.safetensors")) << model;
  }
}

TEST_F(Save, ATrainedModelLosesWhatItLost) {
  for (const Words& type : {Words{}, Words{"--bf16"}}) {
    const std::string out = back_ + std::to_string(type.size());
    const double before = validation_loss(train(golden("qwen3_moe")) + still_ + type);
    const double trained = validation_loss(train(golden("qwen3_moe")) + type + Words{"--lr", "1e-2", "--save-hf", out});
    EXPECT_NE(before, trained);
    EXPECT_EQ(validation_loss(train(out) + still_ + type), trained) << "float weights in a float file";
  }
}

TEST_F(Save, TheCheckpointOfARunIsAModelToo) {
  const Words ranks = {"--lr", "1e-2", "--ranks", "2", "--expert-model-parallel-size", "2", "--bf16"};
  const std::string run = folder_.file("run"), out = folder_.file("out");
  expect_done(train(golden("mixtral")) + ranks + Words{"--save", run, "--save-hf", out});
  expect_done(convert("weft", run, "hf", back_));
  EXPECT_TRUE(read_file(back_ + "/model.safetensors") == read_file(out + "/model.safetensors"));
  EXPECT_EQ(read_file(back_ + "/config.json"), read_file(golden("mixtral/config.json")));
  // The files of two ranks joined, with the optimizer's state: the run goes on from it, and so may another model.
  expect_done(convert("weft", run, "weft", weft_));
  expect_done(convert("weft", weft_, "hf", folder_.file("back_again")));
  EXPECT_TRUE(read_file(folder_.file("back_again") + "/model.safetensors") == read_file(out + "/model.safetensors"));
  const Words on = train(golden("mixtral"), "4") + ranks + Words{"--digest"};
  const auto digest = [](const std::string& log) { return log.substr(log.find("\ndigest ")); };
  EXPECT_EQ(digest(expect_done(on + Words{"--load", weft_})), digest(expect_done(on + Words{"--load", run})));
  EXPECT_THAT(expect_done(train(weft_) + ranks + Words{"--digest"}), HasSubstr("trained 2 iterations"));
}

TEST_F(Save, AConfigAloneBeginsWithRandomWeights) {
  std::filesystem::create_directory(folder_.file("config"));
  std::filesystem::copy_file(golden("mixtral/config.json"), folder_.file("config") + "/config.json");
  const std::string run = folder_.file("run");
  const std::string log = expect_done(train(folder_.file("config")) + Words{"--save", run, "--seed", "7"});
  EXPECT_THAT(log, HasSubstr("there are no weights in " + folder_.file("config") +
                             "; the run starts from random ones (--seed 7)"));
  expect_done(convert("weft", run, "hf", back_));
  EXPECT_EQ(read_file(back_ + "/config.json"), read_file(golden("mixtral/config.json")));
  EXPECT_EQ(SafetensorsFile(back_ + "/model.safetensors").entries().size(),
            SafetensorsFile(golden("mixtral/model.safetensors")).entries().size());
}

TEST_F(Save, AModelMadeOfFlagsIsOneOfAFamily) {
  const Words data = {"--data-path",
                      folder_.file("tokens"),
                      "--split",
                      "80,20,0",
                      "--seq-length",
                      "8",
                      "--micro-batch-size",
                      "1",
                      "--train-iters",
                      "2",
                      "--eval-iters",
                      "1",
                      "--threads",
                      "1",
                      "--tokenizer-type",
                      "NullTokenizer"};
  const Words model = {"train", "--pattern",     "[*E][*E]", "--hidden-size", "16", "--num-attention-heads",
                       "2",     "--num-experts", "4",        "--vocab-size",  "95"};
  const std::string run = folder_.file("run"), out = folder_.file("out");
  const double trained = validation_loss(model + data + Words{"--lr", "1e-2", "--save", run, "--save-hf", out});
  EXPECT_EQ(read_json(out + "/config.json").at("architectures").at(0), "MixtralForCausalLM");
  EXPECT_EQ(read_json(out + "/config.json").at("vocab_size"), 96) << "without the rows that pad it to 128";
  // Mixtral's router divides what this one sums to one in another way; else it is the same model.
  EXPECT_NEAR(validation_loss(Words{"train", "--hf", out} + data + still_), trained, 1e-5);
  expect_done(convert("weft", run, "hf", back_));
  EXPECT_TRUE(read_file(back_ + "/model.safetensors") == read_file(out + "/model.safetensors"));
  EXPECT_EQ(read_file(back_ + "/config.json"), read_file(out + "/config.json"));

  expect_done(model + data + Words{"--bf16", "--save-hf", folder_.file("bf16")});
  EXPECT_EQ(read_json(folder_.file("bf16") + "/config.json").at("torch_dtype"), "bfloat16");
  EXPECT_EQ(SafetensorsFile(folder_.file("bf16") + "/model.safetensors").at("lm_head.weight").type, StoredType::bf16);
  expect_done(convert("weft", run, "hf", folder_.file("half")) + Words{"--hf-dtype", "f16"});
  EXPECT_EQ(SafetensorsFile(folder_.file("half") + "/model.safetensors").at("lm_head.weight").type, StoredType::f16);
  expect_refused(model + data + Words{"--qk-layernorm", "--softmax-type", "learnable", "--save-hf", folder_.file("no")},
                 {"no Hugging Face family that Weft knows has models of this shape",
                  "mixtral: --qk-layernorm is true, there false; `attention.sinks` is true, there false"});
}

TEST_F(Save, UpdatesThatTheNextStepWouldHaveMadeAreIn) {
  for (const char* name : {"at_once", "beside"})
    expect_done(train(golden("mixtral")) + Words{"--lr", "1e-2", "--save-hf", folder_.file(name)} +
                (std::string(name) == "beside" ? Words{"--overlap-optimizer"} : Words{}));
  EXPECT_TRUE(read_file(folder_.file("at_once") + "/model.safetensors") ==
              read_file(folder_.file("beside") + "/model.safetensors"));
}

TEST_F(Save, ExpertsOfAllRanks) {
  const Words wide = {"--lr", "1e-2", "--global-batch-size", "2", "--fp64", "--ranks", "2"};
  for (const char* size : {"1", "2"}) {
    const std::string out = folder_.file(std::string("ep") + size);
    expect_done(train(golden("deepseek_v3")) + wide + Words{"--expert-model-parallel-size", size, "--save-hf", out});
  }
  const SafetensorsFile one(folder_.file("ep1") + "/model.safetensors"),
      two(folder_.file("ep2") + "/model.safetensors"), old(golden("deepseek_v3/model.safetensors"));
  ASSERT_EQ(one.entries().size(), old.entries().size());
  bool changed = false;
  for (const TensorEntry& entry : one.entries()) {
    const auto count = static_cast<std::size_t>(entry.shape.elements());
    std::vector<double> a(count), b(count), c(count);
    read_as(entry, DType::f64, a.data());
    read_as(two.at(entry.name), DType::f64, b.data());
    read_as(old.at(entry.name), DType::f64, c.data());
    changed = changed || a != c;
    // In double the layouts differ by rounding alone, and a float shows no more than its last bit of it.
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_NEAR(a[i], b[i], std::abs(a[i]) * 0x1p-23 + 1e-12) << entry.name << " " << i;
  }
  EXPECT_TRUE(changed);
}

TEST_F(Save, AFailureToDrawTheRunDoesNotCostTheModel) {
  // A name that the file system takes, but not with the suffix that it has while the file is written.
  const std::string page = folder_.file(std::string(250, 't'));
  const Outcome outcome = run_weft(train(golden("llama")) + Words{"--save-hf", back_, "--timeline", page});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot write " + page));
  EXPECT_THAT(outcome.out, HasSubstr("model: " + back_));
  EXPECT_EQ(SafetensorsFile(back_ + "/model.safetensors").entries().size(),
            SafetensorsFile(golden("llama/model.safetensors")).entries().size());
}

TEST_F(Save, WrongRequests) {
  expect_refused(Words{"train"} + tiny_run + Words{"--softmax-type", "learnable", "--save-hf", back_},
                 {"no Hugging Face family that Weft knows has models"});
  expect_refused(Words{"train"} + tiny_run + Words{"--hf-family", "llama"}, {"--hf-family", "set --save-hf DIR"});
  expect_refused(train(golden("llama")) + Words{"--save-hf", folder_.file("none/out")}, {"--save-hf", "no folder"});
  std::filesystem::create_directories(back_ + "/something");
  expect_refused(train(golden("llama")) + Words{"--save-hf", back_}, {"the folder is not empty"});
}

}  // namespace
}  // namespace weft
