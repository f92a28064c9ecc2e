// `weft probe`: golden results, and model folders and token files that are damaged or ask for what Weft does not support.
#include <cmath>
#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/checkpoint/safetensors.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// A safetensors file by hand: this header, then this data.
std::string safetensors(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> 8 * i);
  return length + header + data;
}

// input_ids and labels [1, 4], of a dtype.
std::string token_file(const std::string& dtype, const std::string& data) {
  const std::size_t half = data.size() / 2;
  const auto entry = [&](const char* name, std::size_t begin) {
    return fmt::format(R"("{}":{{"dtype":"{}","shape":[1,4],"data_offsets":[{},{}]}})", name, dtype, begin,
                       begin + half);
  };
  return safetensors("{" + entry("input_ids", 0) + "," + entry("labels", half) + "}", data);
}

std::string i32(std::initializer_list<std::int32_t> values) {
  return {reinterpret_cast<const char*>(values.begin()), 4 * values.size()};
}

class Probe : public ::testing::Test {
 protected:
  Probe() {
    std::filesystem::create_directory(model_);
    for (const char* name : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(golden("llama/") + name, model_ + "/" + name);
  }

  void expect_bad_tokens(const std::string& bytes, std::initializer_list<std::string> parts) {
    write_file_atomically(tokens_, bytes);
    expect_refused({"probe", "--hf", model_, "--tokens", tokens_, "--out", out_}, parts);
    expect_no_result();
  }
  void expect_bad_weights(const std::string& bytes, std::initializer_list<std::string> parts) {
    write_file_atomically(model_ + "/model.safetensors", bytes);
    expect_bad_model(parts);
  }
  void expect_bad_config(const Json& patch, std::initializer_list<std::string> parts) {
    Json config = read_json(golden("llama/config.json"));
    for (const auto& [key, value] : patch.items()) {
      if (value == "REMOVED")
        config.erase(key);
      else
        config[key] = value;
    }
    write_file_atomically(model_ + "/config.json", config.dump());
    expect_bad_model(parts);
  }
  void expect_bad_model(std::initializer_list<std::string> parts) {
    expect_refused({"probe", "--hf", model_, "--tokens", golden("llama/golden.safetensors"), "--out", out_}, parts);
    expect_no_result();
  }
  void expect_no_result() {
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(out_).parent_path()))
      EXPECT_THAT(entry.path().filename().string(), ::testing::Not(::testing::StartsWith("out")));
  }

  TemporaryFolder folder_;
  std::string model_ = folder_.file("model"), tokens_ = folder_.file("tokens.safetensors"),
              out_ = folder_.file("out.safetensors");
};

TEST_F(Probe, MultiTokenPrediction) {
  const std::string model = golden("deepseek_v3_mtp");
  const Words probe = {"probe", "--hf", model, "--tokens", model + "/golden.safetensors", "--dtype", "f64"};
  const Json expected = read_json(model + "/golden.json");
  const Json result = parse_json(expect_done(probe + Words{"--mtp-loss-scaling-factor", "0.1", "--json"}), "probe");
  EXPECT_NEAR(result.at("loss").get<double>(), expected.at("loss").get<double>(), 1e-9);
  ASSERT_EQ(result.at("mtp_losses").size(), 2u);
  for (std::size_t d = 0; d < 2; ++d)
    EXPECT_NEAR(result["mtp_losses"][d].get<double>(), expected["mtp_losses"][d].get<double>(), 1e-9);
  EXPECT_THAT(expect_done(probe), HasSubstr("mtp 2  loss 4.79145"));
  expect_refused(probe + Words{"--mtp-loss-scaling-factor", "0"}, {"--mtp-loss-scaling-factor"});
}

TEST_F(Probe, AgreesWithHuggingFace) {
  const Words probe = {"probe", "--hf", golden("llama"), "--tokens", golden("llama/golden.safetensors")};
  const Json expected = read_json(golden("llama/golden.json"));
  const double loss = expected.at("loss").get<double>(), norm = expected.at("grad_norm").get<double>();
  const std::map<std::string, double> tolerances = {{"f32", 1e-5}, {"f64", 1e-9}};
  for (const auto& [dtype, tolerance] : tolerances) {
    const Json result = parse_json(expect_done(probe + Words{"--dtype", dtype, "--json"}), "probe");
    EXPECT_NEAR(result.at("loss").get<double>(), loss, tolerance * loss) << dtype;
    EXPECT_NEAR(result.at("grad_norm").get<double>(), norm, tolerance * norm) << dtype;
  }
  EXPECT_THAT(expect_done(probe), HasSubstr("loss 4.75223"));
}

TEST_F(Probe, WritesLogitsAndEveryGradient) {
  expect_done({"probe", "--hf", golden("llama"), "--tokens", golden("llama/golden.safetensors"), "--out", out_});
  const SafetensorsFile written(out_), wanted(golden("llama/golden.safetensors")),
      weights(golden("llama/model.safetensors"));
  EXPECT_EQ(written.entries().size(), weights.entries().size() + 1);
  for (const TensorEntry& entry : written.entries()) EXPECT_EQ(entry.shape, wanted.at(entry.name).shape) << entry.name;
  EXPECT_EQ(written.at("logits").type, StoredType::f32);
}

TEST_F(Probe, FollowsTheTrajectory) {
  const Words probe = {"probe",        "--hf", golden("llama"),  "--tokens",     golden("llama/golden.safetensors"),
                       "--trajectory", "--lr", "1e-3",           "--adam-beta1", "0.9",
                       "--adam-beta2", "0.95", "--weight-decay", "0.1",          "--decay-all",
                       "--clip-grad",  "1"};
  const Json expected = read_json(golden("llama/golden.json")).at("trajectory");
  const Json result = parse_json(expect_done(probe + Words{"--json"}), "probe");
  ASSERT_EQ(result.at("losses").size(), expected.at("losses").size());
  ASSERT_EQ(result.at("grad_norms").size(), expected.at("grad_norms").size());
  for (std::size_t i = 0; i < expected.at("losses").size(); ++i) {
    const double loss = expected["losses"][i].get<double>(), norm = expected["grad_norms"][i].get<double>();
    EXPECT_NEAR(result["losses"][i].get<double>(), loss, 1e-4 * loss) << i;
    EXPECT_NEAR(result["grad_norms"][i].get<double>(), norm, 1e-4 * norm) << i;
  }
  EXPECT_THAT(expect_done(probe), HasSubstr("step 5  loss 4.71"));
}

TEST_F(Probe, NeedsAModelAndTokens) {
  expect_refused({"probe"}, {"weft probe needs a model: --hf DIR"});
  expect_refused({"probe", "--hf", model_}, {"weft probe needs tokens: --tokens FILE.safetensors"});
  expect_refused({"probe", "--hf", folder_.file("none"), "--tokens", tokens_},
                 {"none: not a folder; a Hugging Face model is a folder with config.json and safetensors"});
  expect_refused({"probe", "--hf", model_, "--tokens", tokens_}, {"cannot read " + tokens_ + ": No such file"});
  expect_refused({"probe", "--hf", model_, "--tokens", golden("llama/golden.safetensors"), "--out",
                  folder_.file("none/out.safetensors")},
                 {"--out ", "there is no folder " + folder_.file("none") + "; make it first"});
}

TEST_F(Probe, DamagedTokenFiles) {
  const std::string ids = i32({1, 2, 3, 4}), good = token_file("I32", ids + ids);
  expect_bad_tokens("", {tokens_ + ": not a safetensors file: 0 bytes"});
  expect_bad_tokens(good.substr(0, 40), {tokens_ + ": truncated: the header is "});
  expect_bad_tokens(good.substr(0, good.size() - 4), {tokens_ + ": truncated: tensor 'labels' ends at byte 32 of the "
                                                                "data, and the file has 28"});
  expect_bad_tokens(good + "more", {tokens_ + ": 4 bytes after the last tensor belong to none"});
  expect_bad_tokens(
      safetensors("{}", "").replace(0, 8, std::string("\xff\xff\xff\xff\x00\x00\x00\x00", 8)),
      {tokens_ + ": not a safetensors file, or a damaged one: its header would be 4294967295 bytes long"});
  expect_bad_tokens(safetensors("{\"input_ids\":", ""), {tokens_ + ": header: "});
  expect_bad_tokens(
      safetensors(R"({"input_ids":{"dtype":"I32","shape":[1,4],"data_offsets":[0,16]},)"
                  R"("labels":{"dtype":"I32","shape":[1,4],"data_offsets":[8,24]}})",
                  std::string(24, '\0')),
      {tokens_ + ": tensors 'input_ids' and 'labels' overlap: one ends at byte 16 of the data, the other begins at 8"});
  expect_bad_tokens(safetensors(R"({"input_ids":{"dtype":"I32","shape":[1,5],"data_offsets":[0,16]}})", ids),
                    {tokens_ + ": tensor 'input_ids': data_offsets [0,16] hold 16 bytes, but [1, 5] of I32 take 20"});
}

TEST_F(Probe, TokensThatAreNoTokens) {
  const std::string ids = i32({1, 2, 3, 4});
  expect_bad_tokens(token_file("F32", ids + ids),
                    {tokens_ + ": input_ids is F32; token ids are integers (I32 or I64)"});
  expect_bad_tokens(token_file("I32", i32({1, 2, 96, 4}) + ids), {"token 96 is outside the vocabulary of 96"});
  expect_bad_tokens(token_file("I32", i32({1, 2, -1, 4}) + ids), {"token -1 is outside the vocabulary of 96"});
  expect_bad_tokens(token_file("I32", ids + i32({1, 2, 300, 4})), {"label 300 is outside the vocabulary of 96"});
  expect_bad_tokens(safetensors(R"({"labels":{"dtype":"I32","shape":[1,4],"data_offsets":[0,16]}})", ids),
                    {tokens_ + ": has no tensor 'input_ids'"});
  expect_bad_tokens(safetensors(R"({"input_ids":{"dtype":"I32","shape":[4],"data_offsets":[0,16]}})", ids),
                    {tokens_ + ": input_ids has shape [4], expected 2 dims"});
  expect_bad_tokens(safetensors(R"({"input_ids":{"dtype":"I32","shape":[1,4],"data_offsets":[0,16]},)"
                                R"("labels":{"dtype":"I32","shape":[2,2],"data_offsets":[16,32]}})",
                                ids + ids),
                    {tokens_ + ": input_ids [1, 4] and labels [2, 2] differ in shape"});
  expect_bad_tokens(safetensors(R"({"input_ids":{"dtype":"I32","shape":[0,4],"data_offsets":[0,0]},)"
                                R"("labels":{"dtype":"I32","shape":[0,4],"data_offsets":[0,0]}})",
                                ""),
                    {tokens_ + ": input_ids [0, 4] holds no token"});
  expect_refused({"probe", "--hf", model_, "--tokens", tokens_, "--trajectory"},
                 {tokens_ + ": has no tensor 'trajectory.tokens'"});
}

TEST_F(Probe, DamagedWeights) {
  const std::string file = model_ + "/model.safetensors", good = read_file(file);
  expect_bad_weights(good.substr(0, good.size() - 100), {file + ": truncated: "});
  // One name changed: a weight is missing, and there is one too many.
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  std::string renamed = good;
  const std::size_t at = renamed.find(name);
  ASSERT_NE(at, std::string::npos);
  renamed.replace(at, name.size(), "model.layers.0.self_attn.x_proj.weight");
  expect_bad_weights(renamed, {"model.layers.0.self_attn.", "_proj.weight"});
  std::string integers = good;
  integers.replace(integers.find("\"F32\""), 5, "\"I32\"");
  expect_bad_weights(integers, {model_, "I32"});
  std::filesystem::remove(file);
  expect_bad_model({model_ + ": neither model.safetensors nor model.safetensors.index.json is there"});
  write_file_atomically(model_ + "/model.safetensors.index.json", R"({"weight_map": {"a": "part-1.safetensors"}})");
  expect_bad_model(
      {"model.safetensors.index.json: the shard part-1.safetensors (1 tensors) is missing from " + model_});
}

TEST_F(Probe, ConfigsThatWeftDoesNotSupport) {
  const std::string file = model_ + "/config.json";
  expect_bad_config(
      {{"model_type", "gpt_neox"}},
      {file + ": 'model_type' is \"gpt_neox\", a family that Weft does not know; it knows llama, mixtral"});
  expect_bad_config({{"model_type", "REMOVED"}}, {file + ": lacks 'model_type'"});
  expect_bad_config({{"hidden_size", "REMOVED"}}, {file + ": lacks 'hidden_size'"});
  expect_bad_config({{"hidden_size", "32"}}, {file + ": 'hidden_size' is \"32\": it must be a whole number"});
  expect_bad_config({{"num_attention_heads", 0}}, {file + ": 'num_attention_heads' is 0: it must be at least 1"});
  expect_bad_config({{"num_key_value_heads", 3}},
                    {file + ": 'num_key_value_heads' is 3: it must divide num_attention_heads, 4"});
  expect_bad_config({{"head_dim", nullptr}, {"hidden_size", 30}},
                    {file + ": 'num_attention_heads' is 4: without 'head_dim' it must divide hidden_size, 30"});
  expect_bad_config({{"hidden_act", "gelu"}}, {file + ": 'hidden_act' is \"gelu\": ", "only with \"silu\""});
  expect_bad_config({{"attention_dropout", 0.1}},
                    {file + ": 'attention_dropout' is 0.1: Weft trains without dropout; set it to 0"});
  expect_bad_config({{"quantization_config", {{"bits", 4}}}}, {"quantised weights are not read; save the model as"});
  expect_bad_config({{"rope_parameters", {{"rope_type", "dynamic"}, {"rope_theta", 1e4}}}}, {file, "\"dynamic\""});
  expect_bad_config({{"hidden_size", 64}}, {model_, "[96, 32]", "[96, 64]"});
  write_file_atomically(file, "{\"model_type\": ");
  expect_bad_model({file + ": not valid JSON"});
  std::filesystem::remove(file);
  expect_bad_model({"config.json"});
}

}  // namespace
}  // namespace weft
