// Directories as they are found: fused experts, shards, ties, other dtypes, and what is wrong with them.
#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/checkpoint/in_doubles.h"
#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/hugging_face.h"

namespace weft {
namespace {

const char* const weights_file = "model.safetensors";

// Every parameter that both have must have the same values; there must be as many.
void expect_same_model(const std::filesystem::path& a, const std::filesystem::path& b) {
  const HuggingFaceWeights first(a), second(b);
  std::size_t parameters = 0, others = 0;
  for (const DiskTensor& tensor : second.model().tensors) others += tensor.copy ? 0 : tensor.parts.size();
  for (const DiskTensor& tensor : first.model().tensors) {
    for (const DiskPart& part : tensor.parts) {
      ++parameters;
      std::vector<float> x(static_cast<std::size_t>(part.parameter.elements())), y(x);
      first.read(part.identity, part.parameter, DType::f32, x.data());
      second.read(part.identity, part.parameter, DType::f32, y.data());
      EXPECT_EQ(x, y) << to_text(part.identity);
    }
  }
  EXPECT_EQ(parameters, others);
}

std::string complaint(const ModelFolder& folder) {
  const std::string message = message_of<UserError>([&] { HuggingFaceWeights{folder.path()}; });
  const std::string where = folder.path().string();
  EXPECT_EQ(message.find(where), 0u) << message;
  return message.substr(std::min(message.size(), where.size()));
}

// Puts the separate experts of a layer into the two tensors that transformers 5 has in memory.
void fuse_experts(RawTensors& tensors, const std::string& experts, const std::string& fused, const char* gate,
                  const char* up, const char* down, int count) {
  std::vector<float> gate_up, downs;
  Shape gate_shape, down_shape;
  const auto take = [&](int e, const char* part, std::vector<float>& into, Shape& shape) {
    const std::string name = experts + std::to_string(e) + "." + part + ".weight";
    const RawTensor& tensor = tensors.at(name);
    const std::vector<float> values = floats_of(tensor);
    into.insert(into.end(), values.begin(), values.end());
    shape = tensor.shape;
    tensors.erase(name);
  };
  for (int e = 0; e < count; ++e) {
    take(e, gate, gate_up, gate_shape);
    take(e, up, gate_up, gate_shape);
    take(e, down, downs, down_shape);
  }
  tensors[fused + "gate_up_proj"] = raw_of({count, 2 * gate_shape[0], gate_shape[1]}, gate_up);
  tensors[fused + "down_proj"] = raw_of({count, down_shape[0], down_shape[1]}, downs);
}

void expect_rewritten(const ModelFolder& folder) {
  const HuggingFaceWeights weights(folder.path());
  std::map<ParameterIdentity, Shape> shapes;
  for (const DiskTensor& tensor : weights.model().tensors) {
    for (const DiskPart& part : tensor.parts) shapes[part.identity] = part.parameter;
  }
  const ModelFolder out;
  write_tensors(out.file("x"), weights.model().tensors, {},
                in_doubles([&](const ParameterIdentity& identity, double* values) {
                  weights.read(identity, shapes.at(identity), DType::f64, values);
                }));
  EXPECT_TRUE(read_file(out.file("x")) == read_file(folder.file(weights_file)));
}

TEST(HuggingFaceDisk, FusedExpertsOfQwen3Moe) {
  const ModelFolder folder("qwen3_moe_b");
  RawTensors tensors = raw_tensors(folder.file(weights_file));
  for (const char* layer : {"1", "2"}) {
    const std::string prefix = std::string("model.layers.") + layer + ".mlp.experts.";
    fuse_experts(tensors, prefix, prefix, "gate_proj", "up_proj", "down_proj", 8);
  }
  write_raw(folder.file(weights_file), tensors);
  expect_same_model(golden_folder("qwen3_moe_b"), folder.path());
  expect_rewritten(folder);
}

TEST(HuggingFaceDisk, FusedExpertsOfMixtral) {
  const ModelFolder folder("mixtral");
  RawTensors tensors = raw_tensors(folder.file(weights_file));
  for (const char* layer : {"0", "1"}) {
    const std::string prefix = std::string("model.layers.") + layer;
    fuse_experts(tensors, prefix + ".block_sparse_moe.experts.", prefix + ".mlp.experts.", "w1", "w3", "w2", 4);
    auto router = tensors.extract(prefix + ".block_sparse_moe.gate.weight");
    router.key() = prefix + ".mlp.gate.weight";
    tensors.insert(std::move(router));
  }
  write_raw(folder.file(weights_file), tensors);
  expect_same_model(golden_folder("mixtral"), folder.path());
  expect_rewritten(folder);
}

TEST(HuggingFaceDisk, FusedExpertsOfTheWrongShape) {
  const ModelFolder folder("qwen3_moe");
  RawTensors tensors = raw_tensors(folder.file(weights_file));
  for (const char* layer : {"0", "1"}) {
    const std::string prefix = std::string("model.layers.") + layer + ".mlp.experts.";
    fuse_experts(tensors, prefix, prefix, "gate_proj", "up_proj", "down_proj", 8);
  }
  tensors.at("model.layers.1.mlp.experts.gate_up_proj").shape = {8, 32, 48};  // in x out
  write_raw(folder.file(weights_file), tensors);
  EXPECT_EQ(complaint(folder),
            "/model.safetensors: tensor 'model.layers.1.mlp.experts.gate_up_proj' has the shape [8, 32, 48], but "
            "config.json asks for [8, 48, 32]");
}

TEST(HuggingFaceDisk, Shards) {
  const ModelFolder folder("mixtral_b");
  Json index;
  std::vector<RawTensors> shards(3);
  int n = 0;
  for (const auto& [name, tensor] : raw_tensors(folder.file(weights_file))) {
    shards[static_cast<std::size_t>(n % 3)][name] = tensor;
    index["weight_map"][name] = "model-0000" + std::to_string(n++ % 3 + 1) + "-of-00003.safetensors";
  }
  for (int i = 0; i < 3; ++i) {
    write_raw(folder.file("model-0000" + std::to_string(i + 1) + "-of-00003.safetensors"),
              shards[static_cast<std::size_t>(i)]);
  }
  folder.write("model.safetensors.index.json", index.dump());
  std::filesystem::remove(folder.file(weights_file));
  expect_same_model(golden_folder("mixtral_b"), folder.path());
}

TEST(HuggingFaceDisk, HalfPrecisionOnDisk) {
  for (const StoredType type : {StoredType::bf16, StoredType::f16, StoredType::f64}) {
    const ModelFolder folder("llama_b");
    const HuggingFaceWeights golden(golden_folder("llama_b"));
    WriteOptions options;
    options.type = type;
    std::map<ParameterIdentity, Shape> shapes;
    for (const DiskTensor& tensor : golden.model().tensors) shapes[tensor.parts[0].identity] = tensor.shape;
    write_tensors(folder.file(weights_file), golden.model().tensors, options,
                  in_doubles([&](const ParameterIdentity& identity, double* values) {
                    golden.read(identity, shapes.at(identity), DType::f64, values);
                  }));
    const HuggingFaceWeights weights(folder.path());
    const double rounding = type == StoredType::bf16 ? 0x1p-8 : type == StoredType::f16 ? 0x1p-11 : 0;
    const double smallest = type == StoredType::f16 ? 0x1p-25 : 0;  // half a subnormal step
    for (const DiskTensor& tensor : weights.model().tensors) {
      EXPECT_EQ(tensor.type, type);
      std::vector<double> x(static_cast<std::size_t>(tensor.shape.elements())), y(x);
      golden.read(tensor.parts[0].identity, tensor.shape, DType::f64, x.data());
      weights.read(tensor.parts[0].identity, tensor.shape, DType::f64, y.data());
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], std::abs(x[i]) * rounding + smallest);
    }
  }
}

TEST(HuggingFaceDisk, ATiedModelUnderEitherNameOrBoth) {
  const ModelFolder folder("llama_b");
  RawTensors tensors = raw_tensors(folder.file(weights_file));
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  write_raw(folder.file(weights_file), tensors);
  expect_same_model(golden_folder("llama_b"), folder.path());
  const HuggingFaceModel both = read_hugging_face(folder.path());
  EXPECT_EQ(std::count_if(both.tensors.begin(), both.tensors.end(), [](const auto& t) { return t.copy; }), 1);
  EXPECT_TRUE(both.tensors.back().copy);
  EXPECT_EQ(both.tensors.back().name, "lm_head.weight");

  tensors.at("lm_head.weight").bytes[4 * 32 * 95] ^= 1;  // the last bit of a number of the last row
  write_raw(folder.file(weights_file), tensors);
  EXPECT_EQ(complaint(folder),
            "/model.safetensors: config.json has tie_word_embeddings, but 'lm_head.weight' and "
            "'model.embed_tokens.weight' differ; if the model is not tied, set it to false there");

  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  tensors.erase("model.embed_tokens.weight");
  write_raw(folder.file(weights_file), tensors);
  expect_same_model(golden_folder("llama_b"), folder.path());
  expect_rewritten(folder);
}

TEST(HuggingFaceDisk, BuffersOfOldFilesAreNotParameters) {
  const ModelFolder folder("llama");
  RawTensors tensors = raw_tensors(folder.file(weights_file));
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = raw_of({4}, {1, 2, 3, 4});
  write_raw(folder.file(weights_file), tensors);
  expect_same_model(golden_folder("llama"), folder.path());
}

TEST(HuggingFaceDisk, TensorsThatAreMissingOrTooMany) {
  const ModelFolder folder("llama");
  RawTensors tensors = raw_tensors(folder.file(weights_file));
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  write_raw(folder.file(weights_file), tensors);
  const std::string start = ": the tensors are not those that config.json (llama) asks for; ";
  EXPECT_EQ(complaint(folder), start + "missing 1 tensor: model.layers.1.mlp.up_proj.weight");
  tensors["model.layers.1.mlp.up_projection.weight"] = raw_of({1}, {1});
  write_raw(folder.file(weights_file), tensors);
  EXPECT_EQ(complaint(folder), start +
                                   "missing 1 tensor: model.layers.1.mlp.up_proj.weight; unexpected 1 tensor: "
                                   "model.layers.1.mlp.up_projection.weight");
  const ModelFolder longer("llama");
  longer.patch_config({{"num_hidden_layers", 3}});
  EXPECT_EQ(complaint(longer),
            start +
                "missing 9 tensors: model.layers.2.input_layernorm.weight, model.layers.2.self_attn.q_proj.weight, "
                "model.layers.2.self_attn.k_proj.weight, model.layers.2.self_attn.v_proj.weight, "
                "model.layers.2.self_attn.o_proj.weight, ...");
  const ModelFolder tied("llama");  // the head differs from the embedding there
  tied.patch_config({{"tie_word_embeddings", true}});
  EXPECT_NE(complaint(tied).find("'lm_head.weight' and 'model.embed_tokens.weight' differ"), std::string::npos);
  const ModelFolder untied("llama_b");
  untied.patch_config({{"tie_word_embeddings", false}});
  EXPECT_EQ(complaint(untied), start + "missing 1 tensor: lm_head.weight");
}

TEST(HuggingFaceDisk, ShapesAndTypesThatAreNotWhatTheConfigAsksFor) {
  const ModelFolder folder("llama");
  folder.patch_config({{"num_key_value_heads", 4}});
  EXPECT_EQ(complaint(folder),
            "/model.safetensors: tensor 'model.layers.0.self_attn.k_proj.weight' has the shape [16, 32], but "
            "config.json asks for [32, 32]");
  const ModelFolder integers("llama");
  RawTensors tensors = raw_tensors(integers.file(weights_file));
  tensors.at("model.norm.weight").type = StoredType::i32;
  write_raw(integers.file(weights_file), tensors);
  EXPECT_EQ(complaint(integers),
            "/model.safetensors: tensor 'model.norm.weight' has dtype I32; weights are read from F32, F64, BF16 and "
            "F16");
}

TEST(HuggingFaceDisk, AskingForWhatIsNotThereIsOurBug) {
  const HuggingFaceWeights weights(golden_folder("llama_b"));
  float value = 0;
  EXPECT_FALSE(weights.has({0, -1, Role::head}));
  EXPECT_THROW(weights.read({0, -1, Role::head}, {96, 32}, DType::f32, &value), BugError);
  EXPECT_THROW(weights.read({0, -1, Role::final_norm}, {33}, DType::f32, &value), BugError);
}

}  // namespace
}  // namespace weft
