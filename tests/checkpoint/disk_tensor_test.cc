#include "weft/checkpoint/disk_tensor.h"

#include <numeric>

#include <gtest/gtest.h>

#include "tests/checkpoint/in_doubles.h"
#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"

namespace weft {
namespace {

ParameterIdentity identity_of(Role role, int expert = -1) { return {0, 3, role, expert}; }

// Writes 0, 1, 2, ... as a tensor of this shape, and reads the part of it.
std::vector<double> read_from_counting(const Shape& disk, const DiskPart& part) {
  const ModelFolder folder;
  std::vector<float> values(static_cast<std::size_t>(disk.elements()));
  std::iota(values.begin(), values.end(), 0.0f);
  write_safetensors(folder.file("x"), {tensor_in_memory("t", DType::f32, disk, values.data())});
  const SafetensorsFile file(folder.file("x"));
  std::vector<double> parameter(static_cast<std::size_t>(part.parameter.elements()), -1);
  read_part(file.at("t"), part, BoxRuns(part.parameter, Box::whole(part.parameter), {}), DType::f64,
            reinterpret_cast<std::byte*>(parameter.data()));
  return parameter;
}

TEST(DiskTensor, AWholeTensorIsItsParameter) {
  const DiskTensor tensor = whole_tensor("t", identity_of(Role::q), {2, 3});
  EXPECT_EQ(read_from_counting({2, 3}, tensor.parts[0]), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  const DiskTensor vector = whole_tensor("t", identity_of(Role::norm), {3});
  EXPECT_EQ(read_from_counting({3}, vector.parts[0]), (std::vector<double>{0, 1, 2}));
  const DiskTensor scalar = whole_tensor("t", identity_of(Role::norm), {});
  EXPECT_EQ(read_from_counting({}, scalar.parts[0]), (std::vector<double>{0}));
  const DiskTensor empty = whole_tensor("t", identity_of(Role::norm), {0, 2});
  EXPECT_TRUE(read_from_counting({0, 2}, empty.parts[0]).empty());
}

TEST(DiskTensor, ABoxOfATensor) {
  DiskPart part;
  part.parameter = {2, 2};
  part.extent = {1, 2, 2};
  part.begin = {1, 1, 1};
  // [2, 4, 3]: rows 1 and 2 of the second matrix, columns 1 and 2.
  EXPECT_EQ(read_from_counting({2, 4, 3}, part), (std::vector<double>{16, 17, 19, 20}));
  part.extent = {1, 2, 3};
  part.begin = {1, 2, 0};
  part.parameter = {2, 3};
  EXPECT_EQ(read_from_counting({2, 4, 3}, part), (std::vector<double>{18, 19, 20, 21, 22, 23}));
  // A column of a matrix in each of several matrices.
  part.extent = {2, 4, 1};
  part.begin = {0, 0, 2};
  part.parameter = {8};
  EXPECT_EQ(read_from_counting({2, 4, 3}, part), (std::vector<double>{2, 5, 8, 11, 14, 17, 20, 23}));
}

TEST(DiskTensor, ABoxFillsARangeOfItsParameter) {
  DiskPart part;
  part.parameter = {3, 2};
  part.offset = 2;
  part.extent = {1, 2};
  part.begin = {1, 0};
  EXPECT_EQ(read_from_counting({2, 2}, part), (std::vector<double>{-1, -1, 2, 3, -1, -1}));
}

TEST(DiskTensor, EverySecondColumnTransposed) {
  // As gpt_oss keeps gate and up: [experts, hidden, 2 ffn], even and odd columns; the parameter is [ffn, hidden].
  DiskPart part;
  part.parameter = {2, 3};
  part.extent = {1, 3, 2};
  part.begin = {1, 0, 1};
  part.step = {1, 1, 2, 1, 1};
  part.transposed = true;
  EXPECT_EQ(read_from_counting({2, 3, 4}, part), (std::vector<double>{13, 17, 21, 15, 19, 23}));
  part.step = {1, 2, 1, 1, 1};
  part.extent = {1, 2, 3};
  part.transposed = false;
  EXPECT_EQ(read_from_counting({2, 3, 4}, part), (std::vector<double>{13, 14, 15, 21, 22, 23}));
}

// Two experts' gate and up in one tensor, the odd way of gpt_oss, and a down matrix; all parameters count from a start.
std::vector<DiskTensor> odd_tensors() {
  DiskTensor fused{"gate_up", {2, 3, 4}, {}};
  for (int e = 0; e < 2; ++e) {
    for (int odd = 0; odd < 2; ++odd) {
      DiskPart part;
      part.identity = identity_of(odd != 0 ? Role::up : Role::gate, e);
      part.parameter = {2, 3};
      part.extent = {1, 3, 2};
      part.begin = {e, 0, odd};
      part.step = {1, 1, 2, 1, 1};
      part.transposed = true;
      fused.parts.push_back(part);
    }
  }
  return {fused, whole_tensor("norm", identity_of(Role::norm), {2})};
}

void count_up(const ParameterIdentity& identity, double* out) {
  const double start =
      identity.role == Role::norm ? 1000 : 100 * identity.expert + (identity.role == Role::up ? 50 : 0);
  for (int i = 0; i < (identity.role == Role::norm ? 2 : 6); ++i) out[i] = start + i;
}

TEST(DiskTensor, WritingPutsEveryPartInItsPlace) {
  const ModelFolder folder;
  const double extra = 0.1;
  WriteOptions options;
  options.prefix = "grad.";
  options.type = StoredType::f64;
  const std::vector<DiskTensor> tensors = odd_tensors();
  write_tensors(folder.file("x"), tensors, options, in_doubles(count_up),
                {tensor_in_memory("logits", DType::f64, {1}, &extra)});
  const SafetensorsFile file(folder.file("x"));
  ASSERT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(file.at("grad.gate_up").type, StoredType::f64);
  std::vector<double> read(24);
  read_as(file.at("grad.gate_up"), DType::f64, read.data());
  // Expert, hidden, then gate and up of ffn 0, gate and up of ffn 1.
  EXPECT_EQ(read, (std::vector<double>{0,   50,  3,   53,  1,   51,  4,   54,  2,   52,  5,   55,
                                       100, 150, 103, 153, 101, 151, 104, 154, 102, 152, 105, 155}));
  read_as(file.at("logits"), DType::f64, read.data());
  EXPECT_EQ(read[0], 0.1);
  for (const DiskPart& part : tensors[0].parts) {
    std::vector<double> expected(6), parameter(6);
    count_up(part.identity, expected.data());
    read_part(file.at("grad.gate_up"), part, BoxRuns(part.parameter, Box::whole(part.parameter), {}), DType::f64,
              reinterpret_cast<std::byte*>(parameter.data()));
    EXPECT_EQ(parameter, expected);
  }
}

TEST(DiskTensor, AParameterIsAskedForOnceATensor) {
  // Rows of two parameters in turn, as qwen3_next keeps q, k, v and z of every head.
  DiskTensor tensor{"qk", {8, 1}, {}};
  for (int head = 0; head < 4; ++head) {
    for (const Role role : {Role::q, Role::k}) {
      DiskPart part;
      part.identity = identity_of(role);
      part.parameter = {4, 1};
      part.offset = head;
      part.extent = {1, 1};
      part.begin = {2 * head + (role == Role::k ? 1 : 0)};
      tensor.parts.push_back(part);
    }
  }
  const ModelFolder folder;
  int asked = 0;
  write_tensors(folder.file("x"), {tensor}, {}, in_doubles([&](const ParameterIdentity& identity, double* out) {
                  ++asked;
                  for (int i = 0; i < 4; ++i) out[i] = i + (identity.role == Role::k ? 10 : 0);
                }));
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(floats_of(raw_tensors(folder.file("x")).at("qk")), (std::vector<float>{0, 10, 1, 11, 2, 12, 3, 13}));
}

TEST(DiskTensor, TypesAndCopies) {
  std::vector<DiskTensor> tensors = odd_tensors();
  tensors[0].type = StoredType::bf16;
  tensors[1].type = StoredType::f16;
  tensors.push_back(tensors[1]);
  tensors.back().name = "copy";
  tensors.back().copy = true;
  const ModelFolder folder;
  write_tensors(folder.file("x"), tensors, {}, in_doubles(count_up));
  {
    const SafetensorsFile own(folder.file("x"));
    EXPECT_EQ(own.at("gate_up").type, StoredType::bf16);
    EXPECT_EQ(own.at("norm").type, StoredType::f16);
    EXPECT_EQ(own.find("copy"), nullptr);
    std::vector<float> norm(2);
    read_as(own.at("norm"), DType::f32, norm.data());
    EXPECT_EQ(norm, (std::vector<float>{1000, 1001}));
  }
  WriteOptions with_copies;
  with_copies.copies = true;
  write_tensors(folder.file("x"), tensors, with_copies, in_doubles(count_up));
  const RawTensors raw = raw_tensors(folder.file("x"));
  EXPECT_EQ(raw.at("copy").bytes, raw.at("norm").bytes);
}

// Ranks read their boxes alone: rows, columns, interleaved rows, from plain, strided and transposed parts.
TEST(DiskTensor, ABoxOfAParameterIsReadToItsPlace) {
  const ModelFolder folder;
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0f);
  write_safetensors(folder.file("x"), {tensor_in_memory("t", DType::f32, {6, 4}, values.data())});
  const SafetensorsFile file(folder.file("x"));
  DiskPart plain, strided, transposed;
  plain.parameter = plain.extent = {6, 4};
  strided.parameter = strided.extent = {6, 2};  // columns 1 and 3
  strided.begin = {0, 1};
  strided.step = {1, 2, 1, 1, 1};
  transposed.parameter = {4, 6};
  transposed.extent = {6, 4};
  transposed.transposed = true;
  for (const DiskPart& part : {plain, strided, transposed}) {
    const Shape& shape = part.parameter;
    std::vector<float> whole(static_cast<std::size_t>(shape.elements()));
    read_part(file.at("t"), part, BoxRuns(shape, Box::whole(shape), {}), DType::f32,
              reinterpret_cast<std::byte*>(whole.data()));
    const std::vector<std::pair<Box, BoxPlace>> boxes = {
        {{{2, 0}, {2, shape[1]}}, {3}},
        {{{0, 1}, {shape[0], 1}}, {0}},
        {{{0, 0}, {4, shape[1]}}, {0, 2, 4 * shape[1]}},
    };
    for (const auto& [box, place] : boxes) {
      const BoxRuns runs(shape, box, place);
      std::vector<float> expected(60, -1), read(60, -1);
      for (std::int64_t r = 0; r < runs.size(); ++r)
        std::copy_n(whole.begin() + runs[r].logical, runs[r].count, expected.begin() + runs[r].tensor);
      read_part(file.at("t"), part, runs, DType::f32, reinterpret_cast<std::byte*>(read.data()));
      EXPECT_EQ(read, expected);
    }
  }
}

TEST(DiskTensor, PartsThatDoNotFitAreOurBug) {
  const ModelFolder folder;
  std::vector<DiskTensor> tensors = odd_tensors();
  tensors[0].parts.pop_back();
  EXPECT_THROW(write_tensors(folder.file("x"), tensors, {}, in_doubles(count_up)), BugError);
  DiskPart part = odd_tensors()[1].parts[0];
  part.offset = 1;
  EXPECT_THROW(read_from_counting({2}, part), BugError);
}

}  // namespace
}  // namespace weft
