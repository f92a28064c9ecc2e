// Folders from one format to another and back: every golden model, every byte.
#include "weft/checkpoint/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/model_source.h"
#include "weft/checkpoint/parameter_list.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/model/box_pieces.h"

namespace weft {
namespace {

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
  options.hugging_face.experts = experts;
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

class Convert : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return golden_folder(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Golden, Convert, ::testing::ValuesIn(all_models),
                         [](const auto& golden) { return golden.param; });

// As a rank reads large ones: transposed tensors, and those whose rows take turns, too.
TEST_P(Convert, EveryParameterIsReadInPieces) {
  const std::unique_ptr<ModelSource> source = open_model(folder());
  for (const ListedParameter& parameter : parameters_of(source->description().config)) {
    ParameterPart whole;
    whole.identity = parameter.identity;
    whole.shape = parameter.shape;
    whole.box = Box::whole(parameter.shape);
    HostTensor all(DType::f64, whole.elements()), together(DType::f64, 0);
    source->read(Content::weight, whole, all);
    for (const Box& box : pieces_of(whole.box, 61)) {
      ParameterPart piece = whole;
      piece.box = box;
      HostTensor values(DType::f64, piece.elements());
      source->read(Content::weight, piece, values);
      together.bytes.insert(together.bytes.end(), values.bytes.begin(), values.bytes.end());
    }
    ASSERT_TRUE(together.bytes == all.bytes) << to_text(parameter.identity);
  }
}

TEST_P(Convert, ThereAndBackIsTheSameFile) {
  const ModelFolder work;
  const ConvertResult there = convert(hf, folder(), own, work.file("weft"));
  const ConvertResult back = convert(own, work.file("weft"), hf, work.file("back"));
  EXPECT_TRUE(read_file(work.file("back/model.safetensors")) == read_file(folder() / "model.safetensors"));
  EXPECT_EQ(read_file(work.file("back/config.json")), read_file(folder() / "config.json"));
  EXPECT_FALSE(std::filesystem::exists(work.file("back/manifest.json")));
  EXPECT_EQ(there.parameters, back.parameters);
  EXPECT_EQ(there.tensors_in, back.tensors_out);
  EXPECT_EQ(there.tensors_out, back.tensors_in);
  RunCheckpoint(work.file("weft")).verify();
}

TEST_P(Convert, ADescriptionIsTheModelsConfig) {
  const ModelConfig config = read_hugging_face(folder()).config;
  const Json json = to_json(config);
  EXPECT_EQ(to_json(model_config_of(parse_json(json.dump(), "there"), "there")), json);
}

class ConvertShards : public Convert {};
INSTANTIATE_TEST_SUITE_P(Golden, ConvertShards, ::testing::Values("llama_b", "gpt_oss", "nemotron_h_moe"),
                         [](const auto& golden) { return golden.param; });

TEST_P(ConvertShards, HaveAnIndex) {
  const ModelFolder work;
  const std::size_t files = convert(hf, folder(), hf, work.file("shards"), {}, 40'000).files;
  EXPECT_GT(files, 1u);
  EXPECT_FALSE(std::filesystem::exists(work.file("shards/model.safetensors")));
  std::size_t bytes = 0;
  for (std::size_t i = 1; i <= files; ++i) {
    const auto shard = raw_tensors(work.file(fmt::format("shards/model-{:05}-of-{:05}.safetensors", i, files)));
    std::size_t size = 0;
    for (const auto& [name, tensor] : shard) size += tensor.bytes.size();
    EXPECT_TRUE(size <= 40'000 || shard.size() == 1) << "a tensor that is too large has a file of its own";
    bytes += size;
  }
  const std::string index = read_file(work.file("shards/model.safetensors.index.json"));
  EXPECT_EQ(parse_json(index, "index").at("metadata").at("total_size"), bytes);
  EXPECT_TRUE(index.starts_with("{\n  \"metadata\": {\n    \"total_parameters\": ")) << "as Hugging Face writes it";
  EXPECT_TRUE(index.ends_with("}\n"));
  EXPECT_GT(convert(hf, work.file("shards"), own, work.file("weft"), {}, 40'000).files, 1u);
  convert(own, work.file("weft"), own, work.file("joined"));
  EXPECT_EQ(RunCheckpoint(work.file("joined")).manifest().files.size(), 1u);
  convert(own, work.file("joined"), hf, work.file("back"));
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

TEST(ConvertNames, AreIdentities) {
  const ModelFolder work;
  convert(hf, golden_folder("mixtral"), own, work.file("mixtral"));
  const RunCheckpoint mixtral(work.file("mixtral"));
  for (const char* name :
       {"weight/language.main.embedding", "weight/language.main.0.q", "weight/language.main.1.router",
        "weight/language.main.3.gate.2", "weight/language.main.3.up.3"})
    EXPECT_TRUE(mixtral.has(name)) << name;
  EXPECT_EQ(mixtral.manifest().tensors.size(), 3u + 2u * (5 + 2 + 4 * 3));
  EXPECT_EQ(mixtral.manifest().tensors.at("weight/language.main.3.gate.2").shape, (Shape{40, 32}));
  EXPECT_FALSE(mixtral.run()) << "no run has saved it";
  EXPECT_EQ(mixtral.description().hugging_face->family, "mixtral");
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
  const RunCheckpoint ours(work.file("weft"));
  EXPECT_EQ(ours.type_of("weight/language.main.2.q"), StoredType::bf16);
  EXPECT_EQ(ours.type_of("weight/language.main.0.k"), StoredType::f16);
  EXPECT_EQ(ours.type_of("weight/language.main.3.up.2"), StoredType::f64);
  EXPECT_THAT(message_of<UserError>([&] { convert(hf, model.path(), hf, work.file("fused"), ExpertsForm::fused); }),
              HasSubstr("'model.layers.1.mlp.experts.gate_up_proj' would hold elements of BF16 and F64"));
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
  EXPECT_TRUE(std::filesystem::exists(work.file("empty/manifest.json")));
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
  // With another description of the model.
  std::string message_with(const Json& patch) {
    const std::string file = work_.file("weft/manifest.json").string();
    Manifest manifest = parse_manifest(read_file(file), file);
    Json model = parse_json(manifest.model, file);
    model.merge_patch(patch);
    manifest.model = model.dump();
    work_.write("weft/manifest.json", to_text(manifest));
    return message();
  }
  ModelFolder work_;
};

TEST_F(DamagedCheckpoint, IsRefusedWithAReason) {
  EXPECT_EQ(message(), "");
  std::filesystem::remove_all(work_.file("out"));
  EXPECT_THAT(message_of<UserError>([&] { HuggingFaceWeights weights(work_.file("weft")); }),
              HasSubstr("this is a Weft checkpoint, not a Hugging Face model"));
  EXPECT_THAT(
      message_of<UserError>([&] { convert(own, golden_folder("llama"), hf, work_.file("out")); }),
      HasSubstr("there is no manifest.json, so this is not a Weft checkpoint; a Hugging Face model is read with"));
  EXPECT_THAT(message_with({{"config", {{"wings", 2}}}}), HasSubstr("'wings' is not known to this Weft"));
  EXPECT_THAT(message_with({{"config", {{"wings", nullptr}, {"hidden", "wide"}}}}),
              HasSubstr("'hidden' is \"wide\": it must be a whole number"));
  EXPECT_THAT(
      message_with({{"config", {{"hidden", 32}, {"pattern", "[*-][*-][*-]"}}}}),
      HasSubstr("9 parameters of the model that it describes are not in it, 'weight/language.main.4.norm' first"));
  EXPECT_THAT(message_with({{"config", nullptr}}), HasSubstr("not the description of a model"));
}

TEST_F(DamagedCheckpoint, NamesFileAndTensor) {
  std::string bytes = read_file(work_.file("weft/tensors-00001-of-00001.safetensors"));
  bytes[bytes.size() - 100] ^= 1;
  work_.write("weft/tensors-00001-of-00001.safetensors", bytes);
  EXPECT_THAT(message(), testing::AllOf(HasSubstr("tensors-00001-of-00001.safetensors: tensor 'weight/language.main."),
                                        HasSubstr("does not have the checksum of manifest.json")));
  EXPECT_FALSE(std::filesystem::exists(work_.file("out")));
}

TEST_F(DamagedCheckpoint, OtherFilesAreCheckedToo) {
  work_.write("weft/config.json", "{}");
  EXPECT_THAT(message(), HasSubstr("weft/config.json: it is not the file that manifest.json describes"));
}

}  // namespace
}  // namespace weft
