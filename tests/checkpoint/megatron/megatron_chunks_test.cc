#include "weft/checkpoint/megatron/megatron_chunks.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/checkpoint/canonical_names.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/checkpoint/tiling.h"

namespace weft {
namespace {

std::vector<DiskTensor> tensors_of(const std::string& golden) {
  return canonical_tensors(read_hugging_face(golden_folder(golden)).config);
}

const DiskTensor& named(const std::vector<DiskTensor>& tensors, const std::string& name) {
  for (const DiskTensor& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::runtime_error(name);
}

std::vector<std::string> boxes_of(const DiskTensor& tensor) {
  std::vector<std::string> boxes;
  for (const MegatronChunk& chunk : megatron_chunks(tensor)) {
    std::string begin;
    for (int d = 0; d < chunk.box.extent.dims(); ++d)
      begin += fmt::format("{}{}", d > 0 ? " " : "", chunk.box.begin[static_cast<std::size_t>(d)]);
    boxes.push_back(fmt::format("{} at {}", to_text(chunk.box.extent), begin));
  }
  return boxes;
}

TEST(MegatronChunks, experts_and_halves_of_a_gated_projection_are_apart) {
  const std::vector<DiskTensor> tensors = tensors_of("qwen3_moe");
  const auto fc1 = boxes_of(named(tensors, "decoder.layers.0.mlp.experts.experts.linear_fc1.weight"));
  ASSERT_EQ(fc1.size(), 16u);
  EXPECT_EQ(fc1[0], "[1, 24, 32] at 0 0 0");
  EXPECT_EQ(fc1[1], "[1, 24, 32] at 0 24 0");
  EXPECT_EQ(fc1[15], "[1, 24, 32] at 7 24 0");
  EXPECT_EQ(boxes_of(named(tensors, "decoder.layers.1.mlp.experts.experts.linear_fc2.weight")).size(), 8u);
  const std::vector<DiskTensor> dense = tensors_of("llama");
  EXPECT_EQ(boxes_of(named(dense, "decoder.layers.0.mlp.linear_fc1.weight")).size(), 2u);
}

TEST(MegatronChunks, anything_else_is_in_one_piece) {
  const std::vector<DiskTensor> tensors = tensors_of("qwen3_moe");
  for (const char* const name :
       {"embedding.word_embeddings.weight", "decoder.layers.0.self_attention.linear_qkv.weight",
        "decoder.layers.0.mlp.router.weight", "decoder.final_layernorm.weight"})
    EXPECT_EQ(megatron_chunks(named(tensors, name)).size(), 1u) << name;
}

// Elements that tell where they are: the chunks of a tensor hold together what the tensor holds.
TEST(MegatronChunks, hold_what_the_tensor_holds) {
  for (const char* const golden :
       {"qwen3_moe", "llama_b", "qwen3_next", "nemotron_h", "deepseek_v3", "gpt_oss", "mamba2"}) {
    for (const DiskTensor& tensor : tensors_of(golden)) {
      const auto parameter_of = [](const ParameterIdentity& identity, std::int64_t elements) {
        std::vector<std::uint32_t> values(static_cast<std::size_t>(elements));
        const auto first = static_cast<std::uint32_t>(std::hash<std::string>()(to_text(identity)));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<std::uint32_t>(i);
        return values;
      };
      const ParameterSource source = [&](const ParameterIdentity& identity, StoredType, std::span<std::byte> out) {
        const auto values = parameter_of(identity, static_cast<std::int64_t>(out.size() / 4));
        std::memcpy(out.data(), values.data(), out.size());
      };
      const auto fill = [&](const DiskTensor& whole) {
        const TensorToWrite write = tensor_to_write(whole, StoredType::u32, source);
        std::vector<std::byte> bytes(bytes_of(write));
        if (write.slices == 0) {
          write.fill(bytes.data());
          return bytes;
        }
        for (std::int64_t i = 0; i < write.slices; ++i)
          write.fill_slice(
              i, bytes.data() + static_cast<std::size_t>(i) * bytes.size() / static_cast<std::size_t>(write.slices));
        return bytes;
      };
      const std::vector<std::byte> expected = fill(tensor);
      std::vector<std::byte> joined(expected.size());
      const std::vector<MegatronChunk> chunks = megatron_chunks(tensor);
      std::vector<const Box*> boxes;
      for (const MegatronChunk& chunk : chunks) {
        const std::vector<std::byte> part = fill(chunk.tensor);
        const BoxRuns runs(tensor.shape, chunk.box, {});
        for (std::int64_t r = 0; r < runs.size(); ++r)
          std::memcpy(joined.data() + runs[r].logical * 4, part.data() + runs[r].tensor * 4,
                      static_cast<std::size_t>(runs[r].count) * 4);
        boxes.push_back(&chunk.box);
      }
      check_tiling(tensor.shape, boxes, tensor.name, "chunks");
      EXPECT_TRUE(joined == expected) << golden << ": " << tensor.name;
    }
  }
}

}  // namespace
}  // namespace weft
