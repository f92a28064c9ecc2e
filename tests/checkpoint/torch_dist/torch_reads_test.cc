// PyTorch itself reads what Weft writes: its distributed checkpoint's reader, its converter, torch.load with weights_only,
// and Megatron Core's loader where that is installed.
#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/torch_dist/rewritten.h"
#include "tests/checkpoint/torch_dist/torch_python.h"
#include "weft/base/random.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/torch_dist/torch_dist_writer.h"

namespace weft {
namespace {

// Every type, scalars, tensors without elements, chunks of different sizes; a state of all kinds of values.
void write_everything(const std::filesystem::path& folder) {
  constexpr std::array types = {
      StoredType::boolean, StoredType::u8,  StoredType::i8,          StoredType::f8_e5m2,    StoredType::f8_e4m3,
      StoredType::f8_e8m0, StoredType::i16, StoredType::u16,         StoredType::f16,        StoredType::bf16,
      StoredType::i32,     StoredType::u32, StoredType::f32,         StoredType::c64,        StoredType::f64,
      StoredType::i64,     StoredType::u64, StoredType::f8_e4m3fnuz, StoredType::f8_e5m2fnuz};
  TorchDistWriter writer(folder, {.max_file_bytes = 4000});
  for (const StoredType type : types) {
    const std::string name(name_of(type));
    const auto fill = [&](std::byte* out, std::int64_t count) {
      for (std::int64_t i = 0; i < count * bits_of(type) / 8; ++i) {
        const auto drawn = random_below(random_key(3, name), static_cast<std::uint64_t>(i), 256);
        out[i] = static_cast<std::byte>(type == StoredType::boolean ? drawn % 2 : drawn);
      }
    };
    writer.write(whole_sharded_tensor(name + ".scalar", type, {}, [&](std::byte* out) { fill(out, 1); }));
    writer.write(whole_sharded_tensor(name + ".empty", type, {0, 3}, [](std::byte*) {}));
    ShardedTensorToWrite tensor{name, type, {5, 3}, {}};
    tensor.chunks.push_back({{{0, 0}, {1, 3}}, [&](std::byte* out) { fill(out, 3); }});
    tensor.chunks.push_back({{{1, 0}, {4, 2}}, [&](std::byte* out) { fill(out, 8); }});
    tensor.chunks.push_back({{{1, 2}, {4, 1}}, [&](std::byte* out) { fill(out, 4); }});
    writer.write(tensor);
  }
  const PythonValue args = PythonValue::name_space({{"hidden_size", 32},
                                                    {"lr", 1e-3},
                                                    {"bf16", true},
                                                    {"mtp_num_layers", {}},
                                                    {"params_dtype", PythonValue::global("torch", "bfloat16")},
                                                    {"large", std::int64_t{1} << 62},
                                                    {"name", "\xc3\xa4\xf0\x9f\x98\x80"},
                                                    {"data_path", PythonValue::list({"0.3", "a"})},
                                                    {"nothing", PythonValue::list({})},
                                                    {"betas", PythonValue::tuple({0.9, 0.95})}});
  writer.write_shared_state(
      PythonValue::fields({{"args", args}, {"iteration", 7}, {"empty", PythonValue::fields({})}}));
  writer.finish();
}

TEST(TorchReads, what_is_written_with_every_way_of_reading) {
  if (const std::string why = why_no_torch(); !why.empty()) GTEST_SKIP() << why;
  const ModelFolder everything, hybrid, gpt, flat;
  write_everything(everything.path());
  rewrite_checkpoint(golden_folder("torch_dist") / "hybrid", hybrid.path());
  rewrite_checkpoint(golden_folder("torch_dist") / "gpt", gpt.path());
  rewrite_checkpoint(golden_folder("torch_dist") / "flat_bf16", flat.path());
  const ModelFolder converted;
  for (const char* const golden : {"qwen3_moe", "qwen3_next", "deepseek_v3_mtp", "gpt_oss"}) {
    ConvertOptions options;
    options.out = converted.file(golden);
    options.megatron_stacked_layers = golden == std::string_view("qwen3_moe");
    write_megatron(*open_hugging_face(golden_folder(golden)), options);
  }
  std::vector<std::filesystem::path> folders = {everything.path(), hybrid.path(), gpt.path(), flat.path()};
  for (const std::string& golden : listing(converted.path())) folders.push_back(converted.file(golden) / "release");
  expect_torch_reads(folders);
}

}  // namespace
}  // namespace weft
