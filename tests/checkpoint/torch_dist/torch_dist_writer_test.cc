#include "weft/checkpoint/torch_dist/torch_dist_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/torch_dist/rewritten.h"
#include "tests/checkpoint/torch_dist/written.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"

namespace weft {
namespace {

std::vector<std::byte> read_all(const TorchDistCheckpoint& checkpoint, const ShardedTensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.shape.elements() * bits_of(tensor.type) / 8));
  checkpoint.read(tensor, Box::whole(tensor.shape), bytes);
  return bytes;
}

std::vector<std::byte> noise(const std::string& name, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(random_below(random_key(1, name), i, 256));
  return bytes;
}

// What lies in a box of a tensor with these bytes.
void copy_box(const std::vector<std::byte>& whole, const Shape& shape, std::size_t size, const Box& box,
              std::byte* out) {
  const BoxRuns runs(shape, box, {});
  for (std::int64_t r = 0; r < runs.size(); ++r) {
    const BoxRun run = runs[r];
    std::memcpy(out + static_cast<std::size_t>(run.tensor) * size,
                whole.data() + static_cast<std::size_t>(run.logical) * size,
                static_cast<std::size_t>(run.count) * size);
  }
}

constexpr std::array types = {StoredType::boolean,     StoredType::u8,          StoredType::i8,  StoredType::f8_e5m2,
                              StoredType::f8_e4m3,     StoredType::f8_e8m0,     StoredType::i16, StoredType::u16,
                              StoredType::f8_e4m3fnuz, StoredType::f8_e5m2fnuz, StoredType::f16, StoredType::bf16,
                              StoredType::i32,         StoredType::u32,         StoredType::f32, StoredType::c64,
                              StoredType::f64,         StoredType::i64,         StoredType::u64};

TEST(TorchDistWriter, every_type_is_read_back_bit_for_bit) {
  const ModelFolder folder;
  TorchDistWriter writer(folder.path());
  for (const StoredType type : types) {
    const std::string name(name_of(type));
    writer.write(whole_sharded_tensor(name, type, {3, 5}, [&](std::byte* out) {
      const auto bytes = noise(name, static_cast<std::size_t>(15 * bits_of(type) / 8));
      std::memcpy(out, bytes.data(), bytes.size());
    }));
  }
  EXPECT_EQ(writer.finish().tensors, types.size());
  const TorchDistCheckpoint checkpoint(folder.path());
  for (const StoredType type : types) {
    const std::string name(name_of(type));
    EXPECT_EQ(checkpoint.at(name).type, type);
    EXPECT_EQ(read_all(checkpoint, checkpoint.at(name)), noise(name, static_cast<std::size_t>(15 * bits_of(type) / 8)))
        << name;
  }
}

TEST(TorchDistWriter, any_tiling_is_read_back_bit_for_bit) {
  const ModelFolder folder;
  const Shape shape = {7, 4, 5};
  const auto bytes = noise("t", 7 * 4 * 5 * 4);
  const std::vector<Box> boxes = {{{0, 0, 0}, {3, 4, 5}},
                                  {{3, 0, 0}, {4, 1, 5}},
                                  {{3, 1, 0}, {4, 3, 2}},
                                  {{3, 1, 2}, {4, 3, 3}},
                                  {{7, 0, 0}, {0, 4, 5}}};
  ShardedTensorToWrite tensor{"t", StoredType::f32, shape, {}};
  for (const Box& box : boxes)
    tensor.chunks.push_back({box, [&, box](std::byte* out) { copy_box(bytes, shape, 4, box, out); }});
  TorchDistWriter writer(folder.path());
  writer.write(tensor);
  writer.finish();
  const TorchDistCheckpoint checkpoint(folder.path());
  EXPECT_EQ(checkpoint.at("t").chunks.size(), 4u);  // the empty one is left out
  EXPECT_EQ(read_all(checkpoint, checkpoint.at("t")), bytes);
}

TEST(TorchDistWriter, scalars_and_empty_tensors_are_read_back) {
  const ModelFolder folder;
  TorchDistWriter writer(folder.path());
  writer.write(whole_sharded_tensor("scalar", StoredType::i64, {}, [](std::byte* out) {
    const std::int64_t value = -5;
    std::memcpy(out, &value, sizeof value);
  }));
  writer.write(whole_sharded_tensor("empty", StoredType::bf16, {0, 3}, [](std::byte*) {}));
  writer.finish();
  const TorchDistCheckpoint checkpoint(folder.path());
  EXPECT_EQ(checkpoint.at("empty").shape, (Shape{0, 3}));
  EXPECT_TRUE(read_all(checkpoint, checkpoint.at("empty")).empty());
  std::int64_t value = 0;
  checkpoint.read(checkpoint.at("scalar"), Box::whole({}), std::as_writable_bytes(std::span(&value, 1)));
  EXPECT_EQ(value, -5);
}

TEST(TorchDistWriter, storage_files_are_bounded_and_progress_is_told) {
  const ModelFolder folder;
  std::size_t told = 0;
  TorchDistWriter writer(folder.path(),
                         {.max_file_bytes = 10000, .written = [&](std::size_t bytes) { told += bytes; }});
  for (int i = 0; i < 10; ++i)
    writer.write(whole_sharded_tensor(fmt::format("t{}", i), StoredType::f32, {500},
                                      [i](std::byte* out) { std::memset(out, i, 2000); }));
  writer.write(
      whole_sharded_tensor("large", StoredType::u8, {30000}, [](std::byte* out) { std::memset(out, 7, 30000); }));
  const auto written = writer.finish();
  EXPECT_EQ(written.bytes, 50000u);
  EXPECT_EQ(told, 50000u);
  EXPECT_EQ(written.files, 5u);  // three of the small ones fit in one
  for (int f = 0; f < 4; ++f)
    EXPECT_LE(std::filesystem::file_size(folder.file(fmt::format("__0_{}.distcp", f))), 12000u);
  const TorchDistCheckpoint checkpoint(folder.path());
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(read_all(checkpoint, checkpoint.at(fmt::format("t{}", i))),
              std::vector<std::byte>(2000, static_cast<std::byte>(i)));
  EXPECT_EQ(read_all(checkpoint, checkpoint.at("large")), std::vector<std::byte>(30000, std::byte{7}));
}

TEST(TorchDistWriter, shared_state_is_there_for_old_and_new_readers) {
  const ModelFolder folder;
  TorchDistWriter writer(folder.path());
  writer.write_shared_state(PythonValue::fields(
      {{"args", PythonValue::name_space({{"num_layers", 2}, {"data_path", PythonValue::list({"0.3", "a"})}})},
       {"iteration", 12}}));
  writer.finish();
  const std::vector<std::string> files = listing(folder.path());
  EXPECT_EQ(std::set(files.begin(), files.end()),
            (std::set<std::string>{".metadata", "__0_0.distcp", "common.pt", "metadata.json"}));
  for (const bool with_file : {true, false}) {
    if (!with_file) std::filesystem::remove(folder.file("common.pt"));
    const TorchDistCheckpoint checkpoint(folder.path());
    EXPECT_EQ(checkpoint.args(), Json::parse(R"({"num_layers": 2, "data_path": ["0.3", "a"]})"));
    EXPECT_EQ(checkpoint.iteration(), 12);
  }
  EXPECT_EQ(read_file(folder.file("metadata.json")),
            R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})");
}

TEST(TorchDistWriter, without_its_end_a_checkpoint_is_not_complete) {
  const ModelFolder folder;
  {
    TorchDistWriter writer(folder.path());
    writer.write(whole_sharded_tensor("t", StoredType::u8, {1}, [](std::byte* out) { *out = {}; }));
  }
  EXPECT_EQ(listing(folder.path()), std::vector<std::string>{});
}

TEST(TorchDistWriter, what_cannot_be_read_is_not_written) {
  const ModelFolder folder;
  TorchDistWriter writer(folder.path());
  const auto nothing = [](std::byte*) {};
  EXPECT_EQ(message_of<UserError>([&] { writer.write(whole_sharded_tensor("f4", StoredType::f4, {2}, nothing)); }),
            "tensor 'f4' has type F4, which PyTorch lacks; it cannot be in a torch_dist checkpoint");
  ShardedTensorToWrite hole{"hole", StoredType::u8, {4}, {}};
  hole.chunks.push_back({{{0}, {2}}, nothing});
  EXPECT_THROW(writer.write(hole), BugError);
  writer.write(whole_sharded_tensor("t", StoredType::u8, {0}, nothing));
  EXPECT_THROW(writer.write_object("t", 1), BugError);
}

TEST(TorchDistWriter, the_golden_checkpoints_are_written_again) {
  for (const char* const golden : {"hybrid", "gpt", "flat_bf16"}) {
    const ModelFolder folder;
    rewrite_checkpoint(golden_folder("torch_dist") / golden, folder.path());
    const TorchDistCheckpoint before(golden_folder("torch_dist") / golden), after(folder.path());
    ASSERT_EQ(after.tensors().size(), before.tensors().size());
    for (const ShardedTensor& tensor : before.tensors()) {
      EXPECT_EQ(after.at(tensor.name).type, tensor.type);
      EXPECT_EQ(after.at(tensor.name).shape, tensor.shape);
      EXPECT_EQ(after.at(tensor.name).chunks.size(), tensor.chunks.size());
      EXPECT_EQ(read_all(after, after.at(tensor.name)), read_all(before, tensor)) << tensor.name;
    }
    EXPECT_EQ(after.shared_state().at("iteration"), 7);
    EXPECT_EQ(after.args().at("hidden_size"), before.args().at("hidden_size"));
  }
}

}  // namespace
}  // namespace weft
