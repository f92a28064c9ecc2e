// Folders from one format to another and back: every golden model, every byte.
#include "weft/checkpoint/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/weft_checkpoint.h"

namespace weft {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

const std::vector<std::string> all_models = {"llama",         "llama_b",         "mixtral",      "mixtral_b",
                                             "qwen3_moe",     "qwen3_moe_b",     "gpt_oss",      "deepseek_v3",
                                             "deepseek_v3_b", "deepseek_v3_mtp", "deepseek_v32", "mamba2",
                                             "nemotron_h",    "nemotron_h_moe",  "qwen3_next"};

ConvertResult convert(CheckpointFormat from, const std::filesystem::path& in, CheckpointFormat to,
                      const std::filesystem::path& out, std::optional<ExpertsForm> experts = {},
                      std::int64_t max_shard_bytes = 1 << 30) {
  ConvertOptions options;
  options.from = from;
  options.to = to;
  options.in = in;
  options.out = out;
  options.experts = experts;
  options.max_shard_bytes = max_shard_bytes;
  return convert_checkpoint(options);
}
constexpr CheckpointFormat hf = CheckpointFormat::hugging_face, own = CheckpointFormat::weft;

void expect_same_tensors(const RawTensors& ours, const RawTensors& theirs) {
  EXPECT_EQ(ours.size(), theirs.size());
  for (const auto& [name, tensor] : theirs) {
    ASSERT_TRUE(ours.contains(name)) << name;
    EXPECT_EQ(ours.at(name).type, tensor.type) << name;
    EXPECT_EQ(ours.at(name).shape, tensor.shape) << name;
    EXPECT_TRUE(ours.at(name).bytes == tensor.bytes) << name;
  }
}

// There and back.
void expect_round_trip(const std::filesystem::path& model) {
  const ModelFolder work;
  convert(hf, model, own, work.file("weft"));
  convert(own, work.file("weft"), hf, work.file("back"));
  expect_same_tensors(raw_tensors(work.file("back/model.safetensors")), raw_tensors(model / "model.safetensors"));
  EXPECT_EQ(read_file(work.file("back/config.json")), read_file(model / "config.json"));
}

std::vector<std::string> names_of(const RawTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

class Convert : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return golden_folder(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Golden, Convert, ::testing::ValuesIn(all_models),
                         [](const auto& golden) { return golden.param; });

TEST_P(Convert, ThereAndBackIsTheSameFile) {
  const ModelFolder work;
  const ConvertResult there = convert(hf, folder(), own, work.file("weft"));
  const ConvertResult back = convert(own, work.file("weft"), hf, work.file("back"));
  EXPECT_TRUE(read_file(work.file("back/model.safetensors")) == read_file(folder() / "model.safetensors"));
  EXPECT_EQ(read_file(work.file("back/config.json")), read_file(folder() / "config.json"));
  EXPECT_FALSE(std::filesystem::exists(work.file("back/weft.json")));
  EXPECT_EQ(there.parameters, back.parameters);
  EXPECT_EQ(there.tensors_in, back.tensors_out);
  EXPECT_EQ(there.tensors_out, back.tensors_in);
}

class ConvertShards : public Convert {};
INSTANTIATE_TEST_SUITE_P(Golden, ConvertShards, ::testing::Values("llama_b", "gpt_oss", "nemotron_h_moe"),
                         [](const auto& golden) { return golden.param; });

TEST_P(ConvertShards, HaveAnIndex) {
  const ModelFolder work;
  const std::size_t files = convert(hf, folder(), own, work.file("weft"), {}, 40'000).files;
  EXPECT_GT(files, 1u);
  EXPECT_FALSE(std::filesystem::exists(work.file("weft/model.safetensors")));
  std::size_t bytes = 0;
  for (std::size_t i = 1; i <= files; ++i) {
    const auto shard = raw_tensors(work.file(fmt::format("weft/model-{:05}-of-{:05}.safetensors", i, files)));
    std::size_t size = 0;
    for (const auto& [name, tensor] : shard) size += tensor.bytes.size();
    EXPECT_TRUE(size <= 40'000 || shard.size() == 1) << "a tensor that is too large has a file of its own";
    bytes += size;
  }
  const std::string index = read_file(work.file("weft/model.safetensors.index.json"));
  EXPECT_EQ(parse_json(index, "index").at("metadata").at("total_size"), bytes);
  EXPECT_TRUE(index.starts_with("{\n  \"metadata\": {\n    \"total_parameters\": ")) << "as Hugging Face writes it";
  EXPECT_TRUE(index.ends_with("}\n"));
  convert(own, work.file("weft"), hf, work.file("back"));
  EXPECT_TRUE(read_file(work.file("back/model.safetensors")) == read_file(folder() / "model.safetensors"));
}

class ConvertExperts : public Convert {};
INSTANTIATE_TEST_SUITE_P(Golden, ConvertExperts,
                         ::testing::Values("mixtral", "qwen3_moe_b", "deepseek_v3_mtp", "deepseek_v32",
                                           "nemotron_h_moe", "qwen3_next"),
                         [](const auto& golden) { return golden.param; });

TEST_P(ConvertExperts, FusedAndSeparatedAgain) {
  const ModelFolder work;
  convert(hf, folder(), hf, work.file("fused"), ExpertsForm::fused);
  const RawTensors separate = raw_tensors(folder() / "model.safetensors"),
                   fused = raw_tensors(work.file("fused/model.safetensors"));
  EXPECT_LT(fused.size(), separate.size());
  for (const auto& [name, tensor] : fused) EXPECT_EQ(name.find("experts.0."), std::string::npos) << name;
  // The same values, read from either.
  const HuggingFaceWeights a(folder()), b(work.file("fused"));
  EXPECT_EQ(b.model().form.experts, ExpertsForm::fused);
  for (const DiskTensor& tensor : a.model().tensors) {
    for (const DiskPart& part : tensor.parts) {
      std::vector<double> x(static_cast<std::size_t>(part.parameter.elements())), y(x);
      a.read(part.identity, part.parameter, DType::f64, x.data());
      b.read(part.identity, part.parameter, DType::f64, y.data());
      EXPECT_EQ(x, y) << tensor.name;
    }
  }
  convert(hf, work.file("fused"), hf, work.file("separate"), ExpertsForm::separate);
  EXPECT_TRUE(read_file(work.file("separate/model.safetensors")) == read_file(folder() / "model.safetensors"));
  convert(hf, work.file("separate"), hf, work.file("fused_again"), ExpertsForm::fused);
  EXPECT_TRUE(read_file(work.file("fused_again/model.safetensors")) == read_file(work.file("fused/model.safetensors")));
}

TEST_P(ConvertExperts, AWeftCheckpointRemembersTheForm) {
  const ModelFolder work;
  convert(hf, folder(), hf, work.file("fused"), ExpertsForm::fused);
  convert(hf, work.file("fused"), own, work.file("weft"));
  convert(own, work.file("weft"), hf, work.file("back"));
  EXPECT_TRUE(read_file(work.file("back/model.safetensors")) == read_file(work.file("fused/model.safetensors")));
  convert(own, work.file("weft"), hf, work.file("separate"), ExpertsForm::separate);
  EXPECT_TRUE(read_file(work.file("separate/model.safetensors")) == read_file(folder() / "model.safetensors"));
}

TEST(ConvertNames, AreMegatrons) {
  const ModelFolder work;
  convert(hf, golden_folder("mixtral"), own, work.file("mixtral"));
  const RawTensors mixtral = raw_tensors(work.file("mixtral/model.safetensors"));
  for (const char* name :
       {"embedding.word_embeddings.weight", "output_layer.weight", "decoder.final_layernorm.weight",
        "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight",
        "decoder.layers.1.self_attention.linear_qkv.weight", "decoder.layers.1.self_attention.linear_proj.weight",
        "decoder.layers.1.pre_mlp_layernorm.weight", "decoder.layers.1.mlp.router.weight",
        "decoder.layers.1.mlp.experts.experts.linear_fc1.weight",
        "decoder.layers.1.mlp.experts.experts.linear_fc2.weight"})
    EXPECT_THAT(names_of(mixtral), Contains(name));
  EXPECT_EQ(mixtral.size(), 3u + 2u * 7u);
  EXPECT_EQ(mixtral.at("decoder.layers.0.mlp.experts.experts.linear_fc1.weight").shape, (Shape{4, 80, 32}));

  convert(hf, golden_folder("nemotron_h"), own, work.file("nemotron_h"));
  const RawTensors nemotron = raw_tensors(work.file("nemotron_h/model.safetensors"));
  EXPECT_THAT(names_of(nemotron), Contains("decoder.final_norm.weight")) << "a flat pattern has the hybrid's name";
  for (const char* part : {"in_proj.weight.z", "in_proj.weight.x", "in_proj.weight.B", "in_proj.weight.C",
                           "in_proj.weight.dt", "conv1d.weight.x", "conv1d.bias.B", "A_log", "dt_bias", "D",
                           "norm.weight", "out_proj.weight", "in_proj.layer_norm_weight"})
    EXPECT_THAT(names_of(nemotron), Contains(fmt::format("decoder.layers.0.mixer.{}", part)));

  convert(hf, golden_folder("deepseek_v3_mtp"), own, work.file("mtp"));
  for (const char* name :
       {"decoder.layers.0.input_layernorm.weight", "decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
        "decoder.layers.1.self_attention.linear_kv_up_proj.layer_norm_weight",
        "decoder.layers.1.mlp.router.expert_bias", "decoder.layers.2.mlp.shared_experts.linear_fc1.weight",
        "mtp.layers.0.enorm.weight", "mtp.layers.1.hnorm.weight", "mtp.layers.1.eh_proj.weight",
        "mtp.layers.1.final_layernorm.weight",
        "mtp.layers.1.mtp_model_layer.layers.0.mlp.experts.experts.linear_fc2.weight"})
    EXPECT_THAT(names_of(raw_tensors(work.file("mtp/model.safetensors"))), Contains(name));

  convert(hf, golden_folder("deepseek_v32"), own, work.file("sparse"));
  for (const char* name : {"self_attention.q_layernorm.weight", "self_attention.kv_layernorm.weight",
                           "self_attention.core_attention.indexer.k_norm.bias"})
    EXPECT_THAT(names_of(raw_tensors(work.file("sparse/model.safetensors"))),
                Contains(fmt::format("decoder.layers.0.{}", name)));
  convert(hf, golden_folder("gpt_oss"), own, work.file("gpt_oss"));
  EXPECT_THAT(names_of(raw_tensors(work.file("gpt_oss/model.safetensors"))),
              Contains("decoder.layers.0.self_attention.core_attention.softmax_offset"));
}

// Rows [first, first + count) of a matrix.
std::string rows(const RawTensor& tensor, std::int64_t first, std::int64_t count) {
  const std::size_t row = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]);
  return tensor.bytes.substr(static_cast<std::size_t>(first) * row, static_cast<std::size_t>(count) * row);
}

TEST(ConvertNames, QueriesKeysAndValuesLieGroupByGroup) {
  for (const std::string model : {"llama", "qwen3_next"}) {
    const ModelFolder work;
    convert(hf, golden_folder(model), own, work.file("weft"));
    const AttentionSpec a = read_hugging_face(golden_folder(model)).config.attention;
    const int layer = model == "llama" ? 1 : 3;  // the fourth attends
    const RawTensors theirs = raw_tensors(golden_folder(model) / "model.safetensors"),
                     ours = raw_tensors(work.file("weft/model.safetensors"));
    const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
    ASSERT_TRUE(theirs.contains(prefix + "q_proj.weight")) << model;
    const RawTensor &q = theirs.at(prefix + "q_proj.weight"), &k = theirs.at(prefix + "k_proj.weight"),
                    &v = theirs.at(prefix + "v_proj.weight");
    const std::int64_t d = a.head_dim, each = a.heads / a.kv_heads;
    std::string expected;
    for (std::int64_t group = 0; group < a.kv_heads; ++group) {
      std::string queries, gates;
      for (std::int64_t head = group * each; head < (group + 1) * each; ++head) {
        if (a.output_gate) {  // there: head by head, queries before gates
          queries += rows(q, 2 * head * d, d);
          gates += rows(q, (2 * head + 1) * d, d);
        } else {
          queries += rows(q, head * d, d);
        }
      }
      expected += queries + gates + rows(k, group * d, d) + rows(v, group * d, d);
    }
    EXPECT_TRUE(ours.at(fmt::format("decoder.layers.{}.self_attention.linear_qkv.weight", layer)).bytes == expected)
        << model;
  }
}

TEST(ConvertNames, GateAboveUpExpertByExpert) {
  const ModelFolder work;
  convert(hf, golden_folder("qwen3_moe"), own, work.file("weft"));
  const RawTensors theirs = raw_tensors(golden_folder("qwen3_moe") / "model.safetensors"),
                   ours = raw_tensors(work.file("weft/model.safetensors"));
  const RawTensor& fc1 = ours.at("decoder.layers.0.mlp.experts.experts.linear_fc1.weight");
  std::string expected;
  for (std::int64_t e = 0; e < fc1.shape[0]; ++e)
    for (const char* name : {"gate_proj", "up_proj"})
      expected += theirs.at(fmt::format("model.layers.0.mlp.experts.{}.{}.weight", e, name)).bytes;
  EXPECT_TRUE(fc1.bytes == expected);
}

TEST(ConvertTypes, EveryTensorKeepsItsOwn) {
  const ModelFolder model("qwen3_moe");
  RawTensors tensors = raw_tensors(model.file("model.safetensors"));
  const auto retype = [&](const std::string& name, StoredType type) {
    RawTensor& tensor = tensors.at(name);
    const std::vector<float> floats = floats_of(tensor);
    const std::vector<double> values(floats.begin(), floats.end());
    tensor.type = type;
    tensor.bytes.resize(values.size() * static_cast<std::size_t>(bits_of(type)) / 8);
    store_doubles(values.data(), type, reinterpret_cast<std::byte*>(tensor.bytes.data()), std::ssize(values));
  };
  for (auto& [name, tensor] : tensors) retype(name, StoredType::bf16);
  RawTensors changed = tensors;
  tensors = raw_tensors(model.file("model.safetensors"));
  for (const auto& [name, type] : {std::pair("model.norm.weight", StoredType::f32),
                                   {"model.layers.0.mlp.gate.weight", StoredType::f64},
                                   // Beside others of one tensor here:
                                   {"model.layers.0.self_attn.k_proj.weight", StoredType::f16},
                                   {"model.layers.1.mlp.experts.2.up_proj.weight", StoredType::f64}}) {
    retype(name, type);
    changed[name] = tensors[name];
  }
  write_raw(model.file("model.safetensors"), changed);
  expect_round_trip(model.path());
  const ModelFolder work;
  convert(hf, model.path(), own, work.file("weft"));
  const RawTensors ours = raw_tensors(work.file("weft/model.safetensors"));
  EXPECT_EQ(ours.at("decoder.layers.1.self_attention.linear_qkv.weight").type, StoredType::bf16);
  EXPECT_EQ(ours.at("decoder.layers.0.self_attention.linear_qkv.weight").type, StoredType::f32) << "holds both";
  EXPECT_THAT(message_of<UserError>([&] { convert(hf, model.path(), hf, work.file("fused"), ExpertsForm::fused); }),
              HasSubstr("'model.layers.1.mlp.experts.gate_up_proj' would hold elements of F64 and BF16"));
  EXPECT_FALSE(std::filesystem::exists(work.file("fused")));
}

TEST(ConvertTypes, BitsThatAreNoNumbersStay) {
  const ModelFolder model("llama");
  RawTensors tensors = raw_tensors(model.file("model.safetensors"));
  std::string& bytes = tensors.at("model.layers.0.self_attn.q_proj.weight").bytes;
  const std::uint32_t odd[] = {0x7fc12345u, 0xff800001u, 0x80000000u, 0x00000001u};  // NaNs with a load, -0, a denormal
  std::memcpy(bytes.data(), odd, sizeof odd);
  write_raw(model.file("model.safetensors"), tensors);
  expect_round_trip(model.path());
}

TEST(ConvertForms, TiedModels) {
  const RawTensors plain = raw_tensors(golden_folder("llama_b") / "model.safetensors");
  ASSERT_FALSE(plain.contains("lm_head.weight"));
  RawTensors both = plain, head = plain;
  both["lm_head.weight"] = head["lm_head.weight"] = plain.at("model.embed_tokens.weight");
  head.erase("model.embed_tokens.weight");
  for (const RawTensors* tensors : {&both, &head}) {
    const ModelFolder model("llama_b");
    write_raw(model.file("model.safetensors"), *tensors);
    expect_round_trip(model.path());
  }
}

TEST(ConvertForms, CopiesThatAreThereAndThoseThatAreNot) {
  const ModelFolder model("deepseek_v3_mtp");
  RawTensors tensors = raw_tensors(model.file("model.safetensors"));
  tensors.erase("model.layers.3.embed_tokens.weight");
  tensors.erase("model.layers.4.shared_head.head.weight");
  write_raw(model.file("model.safetensors"), tensors);
  expect_round_trip(model.path());
}

TEST(ConvertForms, TensorsThatAreNoParametersComeAlong) {
  const ModelFolder model("llama");
  RawTensors tensors = raw_tensors(model.file("model.safetensors"));
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {StoredType::i64, {2}, std::string(16, 'x')};
  write_raw(model.file("model.safetensors"), tensors);
  expect_round_trip(model.path());
  const ModelFolder work;
  convert(hf, model.path(), hf, work.file("out"));
  expect_same_tensors(raw_tensors(work.file("out/model.safetensors")), tensors);
}

TEST(ConvertFolders, OtherFilesAreCopied) {
  const ModelFolder model("llama"), work;
  model.write("tokenizer.json", "{\"a\": 1}");
  model.write("generation_config.json", "{}");
  model.write("LICENSE", "as it was");
  model.write("pytorch_model.bin", "weights of another format");
  std::filesystem::create_directory(model.file("original"));
  convert(hf, model.path(), own, work.file("weft"));
  convert(own, work.file("weft"), hf, work.file("back"));
  for (const char* name : {"tokenizer.json", "generation_config.json", "LICENSE", "config.json"})
    EXPECT_EQ(read_file(work.file("back") / name), read_file(model.file(name))) << name;
  EXPECT_FALSE(std::filesystem::exists(work.file("back/pytorch_model.bin")));
  EXPECT_FALSE(std::filesystem::exists(work.file("back/original")));
}

TEST(ConvertFolders, NothingIsOverwrittenAndNothingHalfWritten) {
  const ModelFolder work;
  work.write("file", "");
  std::filesystem::create_directory(work.file("full"));
  work.write("full/something", "");
  const auto message = [&](const std::string& out) {
    return message_of<UserError>([&] { convert(hf, golden_folder("llama"), own, work.file(out)); });
  };
  EXPECT_THAT(message("full"), HasSubstr("the folder is not empty"));
  EXPECT_THAT(message("file"), HasSubstr("this is a file"));
  EXPECT_THAT(message("none/out"), HasSubstr("there is no folder"));
  const ModelFolder damaged("llama");
  std::filesystem::resize_file(damaged.file("model.safetensors"), 5000);
  EXPECT_THAT(message_of<UserError>([&] { convert(hf, damaged.path(), own, work.file("out")); }),
              HasSubstr("truncated"));
  EXPECT_THAT(listing(work.path()), ::testing::UnorderedElementsAre("file", "full"));
  std::filesystem::create_directory(work.file("empty"));
  convert(hf, golden_folder("llama"), own, work.file("empty/"));
  EXPECT_TRUE(std::filesystem::exists(work.file("empty/weft.json")));
  EXPECT_THAT(listing(work.path()), ::testing::UnorderedElementsAre("file", "full", "empty"));
}

TEST(ConvertFolders, FormsThatAFamilyDoesNotHave) {
  const ModelFolder work;
  const auto message = [&](const char* model, ExpertsForm form) {
    return message_of<UserError>([&] { convert(hf, golden_folder(model), hf, work.file("out"), form); });
  };
  EXPECT_THAT(message("gpt_oss", ExpertsForm::separate), HasSubstr("gpt_oss models have their experts fused only"));
  EXPECT_THAT(message("llama", ExpertsForm::fused), HasSubstr("this llama model has no experts"));
  EXPECT_THAT(message("nemotron_h", ExpertsForm::fused), HasSubstr("has no experts"));
  EXPECT_TRUE(listing(work.path()).empty());
}

class DamagedCheckpoint : public ::testing::Test {
 protected:
  DamagedCheckpoint() { convert(hf, golden_folder("llama"), own, work_.file("weft")); }
  std::string message() {
    return message_of<UserError>([&] { convert(own, work_.file("weft"), hf, work_.file("out")); });
  }
  std::string message_with(const Json& patch) {
    Json description = read_json(work_.file("weft/weft.json"));
    description.merge_patch(patch);
    work_.write("weft/weft.json", description.dump());
    return message();
  }
  ModelFolder work_;
};

TEST_F(DamagedCheckpoint, IsRefusedWithAReason) {
  EXPECT_EQ(message(), "");
  std::filesystem::remove_all(work_.file("out"));
  EXPECT_THAT(message_with({{"version", 2}}), HasSubstr("'version' is 2; this Weft reads version 1"));
  EXPECT_THAT(message_with({{"version", 1}, {"format", "tar"}}), HasSubstr("'format' must be \"weft checkpoint\""));
  EXPECT_THAT(message_with({{"format", "weft checkpoint"}, {"pattern", "[*-]"}}), HasSubstr("describes llama [*-]"));
  EXPECT_THAT(message_with({{"pattern", nullptr}}), HasSubstr("not a description"));
  EXPECT_THAT(message_of<UserError>([&] { HuggingFaceWeights weights(work_.file("weft")); }),
              HasSubstr("this is a Weft checkpoint, not a Hugging Face model"));
  EXPECT_THAT(message_of<UserError>([&] { convert(own, golden_folder("llama"), hf, work_.file("out")); }),
              HasSubstr("there is no weft.json, so this is no Weft checkpoint; a Hugging Face model is read with"));
}

TEST_F(DamagedCheckpoint, TensorsMissingOrTooMany) {
  RawTensors tensors = raw_tensors(work_.file("weft/model.safetensors"));
  tensors["decoder.layers.7.input_layernorm.weight"] = tensors.at("decoder.final_layernorm.weight");
  tensors.erase("output_layer.weight");
  write_raw(work_.file("weft/model.safetensors"), tensors);
  EXPECT_THAT(message(), HasSubstr("missing 1 tensor: output_layer.weight; unexpected 1 tensor: decoder.layers.7"));
}

TEST_F(DamagedCheckpoint, TheOtherNameOfTheFinalNormIsRead) {
  RawTensors tensors = raw_tensors(work_.file("weft/model.safetensors"));
  tensors["decoder.final_norm.weight"] = tensors.at("decoder.final_layernorm.weight");
  tensors.erase("decoder.final_layernorm.weight");
  write_raw(work_.file("weft/model.safetensors"), tensors);
  EXPECT_EQ(message(), "");
  EXPECT_TRUE(read_file(work_.file("out/model.safetensors")) ==
              read_file(golden_folder("llama") / "model.safetensors"));
}

}  // namespace
}  // namespace weft
