#include "weft/checkpoint/safetensors_writer.h"

#include <cstring>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"

namespace weft {
namespace {

TEST(SafetensorsWriter, WhatWasWrittenIsRead) {
  const ModelFolder folder;
  const std::vector<double> doubles = {1, -2.5, 1e300};
  const std::vector<float> floats = {0.5f, 3};
  const std::vector<bfloat16> brains = {bfloat16(1.5f)};
  const std::vector<std::int32_t> integers = {7, -8, 9};
  const std::uint8_t byte = 5;
  write_safetensors(folder.file("x"), {tensor_in_memory("bytes", DType::u8, {1}, &byte),
                                       tensor_in_memory("a \"name\"\n\xc3\xa9", DType::i32, {3, 1}, integers.data()),
                                       tensor_in_memory("brains", DType::bf16, {}, brains.data()),
                                       tensor_in_memory("floats", DType::f32, {1, 2}, floats.data()),
                                       tensor_in_memory("none", DType::f32, {0, 4}, nullptr),
                                       tensor_in_memory("doubles", DType::f64, {3}, doubles.data())});
  const SafetensorsFile file(folder.file("x"));
  ASSERT_EQ(file.entries().size(), 6u);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  std::vector<double> read(3);
  read_as(file.at("doubles"), DType::f64, read.data());
  EXPECT_EQ(read, doubles);
  std::vector<std::int32_t> read_integers(3);
  read_as(file.at("a \"name\"\n\xc3\xa9"), DType::i32, read_integers.data());
  EXPECT_EQ(read_integers, integers);
  EXPECT_EQ(file.at("brains").shape, Shape{});
  EXPECT_EQ(file.at("none").shape, (Shape{0, 4}));
  for (const TensorEntry& entry : file.entries()) {
    const auto address = reinterpret_cast<std::uintptr_t>(entry.bytes.data());
    EXPECT_EQ(address % static_cast<std::uintptr_t>(bits_of(entry.type) / 8), 0u) << entry.name;
  }
}

TEST(SafetensorsWriter, HeadersFillEightBytes) {
  const ModelFolder folder;
  for (const std::string name : {"", "a", "ab", "abc", "abcdefgh"}) {
    const float one = 1;
    write_safetensors(folder.file("x"), {tensor_in_memory(name, DType::f32, {1}, &one)});
    const std::string bytes = read_file(folder.file("x"));
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    EXPECT_EQ(length % 8, 0u);
    EXPECT_EQ(bytes.size(), 8 + length + 4);
  }
  write_safetensors(folder.file("x"), {}, {.metadata = {}});
  EXPECT_EQ(read_file(folder.file("x")), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
}

TEST(SafetensorsWriter, RewritesTheReferenceWritersFilesByteForByte) {
  const ModelFolder folder;
  for (const std::string& model : golden_models) {
    for (const char* name : {"model.safetensors", "golden.safetensors"}) {
      const std::filesystem::path original = golden_folder(model) / name;
      const SafetensorsFile file(original);
      std::vector<TensorToWrite> tensors;
      for (const TensorEntry& entry : file.entries()) {
        tensors.push_back({entry.name, entry.type, entry.shape,
                           [&entry](std::byte* out) { std::memcpy(out, entry.bytes.data(), entry.bytes.size()); }});
      }
      write_safetensors(folder.file("x"), tensors, {.metadata = file.metadata()});
      EXPECT_TRUE(read_file(folder.file("x")) == read_file(original)) << original;
    }
  }
}

TEST(SafetensorsWriter, FailuresLeaveWhatWasThere) {
  const ModelFolder folder;
  folder.write("x", "before");
  const TensorToWrite bad{"t", StoredType::f32, {1}, [](std::byte*) { throw RunError("no data"); }};
  EXPECT_EQ(message_of<RunError>([&] { write_safetensors(folder.file("x"), {bad}); }), "no data");
  EXPECT_EQ(read_file(folder.file("x")), "before");
  const auto files = std::distance(std::filesystem::directory_iterator(folder.path()), {});
  EXPECT_EQ(files, 1);
  const std::string nowhere = (folder.path() / "no/such/folder/x").string();
  EXPECT_EQ(message_of<RunError>([&] { write_safetensors(nowhere, {}); }),
            "cannot write " + nowhere + ": open: No such file or directory");
}

TEST(SafetensorsWriter, ANameCanStandOnlyOnce) {
  const ModelFolder folder;
  const float one = 1;
  const TensorToWrite t = tensor_in_memory("t", DType::f32, {1}, &one);
  EXPECT_THROW(write_safetensors(folder.file("x"), {t, t}), BugError);
  EXPECT_THROW(write_safetensors(folder.file("x"), {tensor_in_memory("__metadata__", DType::f32, {1}, &one)}),
               BugError);
}

TEST(SafetensorsWriter, OneTensorIsInMemoryAtATime) {
  const ModelFolder folder;
  std::vector<TensorToWrite> tensors;
  std::vector<std::byte*> buffers;
  for (int i = 0; i < 3; ++i) {
    tensors.push_back({std::string(1, static_cast<char>('a' + i)), StoredType::f32, {256}, [&buffers](std::byte* out) {
                         std::memset(out, 0, 1024);
                         buffers.push_back(out);
                       }});
  }
  write_safetensors(folder.file("x"), tensors);
  ASSERT_EQ(buffers.size(), 3u);
  EXPECT_EQ(buffers[0], buffers[1]);
  EXPECT_EQ(buffers[1], buffers[2]);
}

}  // namespace
}  // namespace weft
