// Models of no folder as models of a Hugging Face family: config.json and tensors.
#include "weft/checkpoint/hf_shape.h"

#include <cmath>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/model_description.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FamilyShapes : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Golden, FamilyShapes,
                         ::testing::Values("llama", "llama_b", "mixtral", "mixtral_b", "qwen3_moe", "qwen3_moe_b",
                                           "gpt_oss", "deepseek_v3", "deepseek_v3_b", "deepseek_v3_mtp", "deepseek_v32",
                                           "mamba2", "nemotron_h", "nemotron_h_moe", "qwen3_next"),
                         [](const auto& golden) { return golden.param; });

// Equal but for the rounding of numbers that are computed on the way.
void expect_same(const Json& ours, const Json& theirs, const std::string& field) {
  if (ours.is_object() && theirs.is_object()) {
    ASSERT_EQ(ours.size(), theirs.size()) << field;
    for (const auto& [key, value] : theirs.items()) expect_same(ours.value(key, Json()), value, field + "." + key);
  } else if (ours.is_number_float() && theirs.is_number_float()) {
    EXPECT_NEAR(ours.get<double>(), theirs.get<double>(), 4e-16 * std::abs(theirs.get<double>())) << field;
  } else {
    EXPECT_EQ(ours, theirs) << field;
  }
}

TEST_P(FamilyShapes, AConfigWrittenFromAModelReadsAsTheSameModel) {
  const ModelFolder golden(GetParam());
  const HuggingFaceModel theirs = read_hugging_face(golden.path());
  const FamilyShape shape = shape_of_family(theirs.config, "");
  EXPECT_EQ(shape.model.family, theirs.family) << "the only family that has such models";
  golden.write("config.json", shape.config.dump());
  const HuggingFaceWeights ours(golden.path());  // has all tensors, in their shapes
  expect_same(to_json(ours.model().config), to_json(theirs.config), "config");
  std::set<std::string> names, names_there;
  for (const DiskTensor& tensor : shape.model.tensors)
    if (!tensor.copy) names.insert(tensor.name);
  for (const DiskTensor& tensor : theirs.tensors)
    if (!tensor.copy) names_there.insert(tensor.name);
  EXPECT_EQ(names, names_there);
}

TEST_P(FamilyShapes, HaveTheKeysThatTransformersWants) {
  const Json theirs = read_json(golden_folder(GetParam()) / "config.json");
  const Json ours = shape_of_family(read_hugging_face(golden_folder(GetParam())).config, "").config;
  for (const char* key : {"architectures", "model_type"}) EXPECT_EQ(ours.at(key), theirs.at(key));
  for (const char* key : {"vocab_size", "hidden_size", "tie_word_embeddings", "initializer_range",
                          "num_attention_heads", "num_key_value_heads", "num_experts_per_tok", "hidden_act"}) {
    // What the family's models have but this one does not use may be left to the family's default.
    if (theirs.contains(key) && ours.contains(key)) {
      EXPECT_EQ(ours.at(key), theirs.at(key)) << key;
    }
  }
}

TEST_P(FamilyShapes, DoNotDependOnBracketsNorOnPadding) {
  ModelConfig config = read_hugging_face(golden_folder(GetParam())).config;
  const FamilyShape shape = shape_of_family(config, "");
  std::erase_if(config.pattern, [](char c) { return c == '[' || c == ']'; });
  config.padded_vocabulary = 128;
  const FamilyShape flat = shape_of_family(config, "");
  EXPECT_EQ(flat.config, shape.config);
  EXPECT_EQ(flat.model.config.pattern, shape.model.config.pattern);
  EXPECT_EQ(flat.model.config.embedding_rows(), 96);
}

TEST(FamilyShape, TypesAreTheGivenOneButForTheBiasOfTheChoice) {
  const ModelConfig config = read_hugging_face(golden_folder("deepseek_v3")).config;
  const HuggingFaceFolder folder = hugging_face_folder(config, StoredType::bf16, {});
  for (const DiskTensor& tensor : folder.model.tensors)
    EXPECT_EQ(tensor.type, tensor.name.ends_with("e_score_correction_bias") ? StoredType::f32 : StoredType::bf16)
        << tensor.name;
  EXPECT_EQ(parse_json(folder.side_files.at(0).second, "config.json").at("torch_dtype"), "bfloat16");
}

std::string refusal(const ModelConfig& config, const std::string& family = "") {
  return message_of<UserError>([&] { shape_of_family(config, family); });
}

TEST(FamilyShape, SaysWhatNoFamilyHas) {
  ModelConfig config = read_hugging_face(golden_folder("mixtral")).config;
  config.attention.sinks = true;
  EXPECT_THAT(refusal(config), AllOf(HasSubstr("no Hugging Face family that Weft knows has models of this shape"),
                                     HasSubstr("mixtral: `attention.sinks` is true, there false\n"),
                                     HasSubstr("gpt_oss: "), Not(HasSubstr("llama"))));
  EXPECT_THAT(refusal(config, "mixtral"),
              HasSubstr("mixtral has no models of this shape: `attention.sinks` is true, there false"));
  EXPECT_THAT(refusal(config, "llama"), HasSubstr("llama has no models of this shape: its layers are [*-]"));
  EXPECT_THAT(refusal(config, "gpt"), HasSubstr("--hf-family gpt: Weft does not know it; it knows llama, mixtral"));
  config.pattern = "[*E]GM";
  EXPECT_THAT(refusal(config), HasSubstr("has models with the layers [*E]GM: llama [*-], mixtral [*E]"));
}

TEST(FamilyShape, SeveralFamiliesMustBeToldApart) {
  ModelConfig config = read_hugging_face(golden_folder("mamba2")).config;
  config.mamba.groups = 1;
  EXPECT_EQ(refusal(config),
            "several families have models of this shape: mamba2, nemotron_h; choose one with --hf-family");
  EXPECT_EQ(shape_of_family(config, "mamba2").model.family, "mamba2");
}

}  // namespace
}  // namespace weft
