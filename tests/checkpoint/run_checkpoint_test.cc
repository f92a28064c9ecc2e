// Checkpoints of runs: complete or not there, and never loaded damaged.
#include "weft/checkpoint/run_checkpoint.h"

#include <cstring>
#include <fstream>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text.h"
#include "weft/checkpoint/checkpoint_in_progress.h"
#include "weft/model/box_pieces.h"

namespace weft {
namespace {

using testing::HasSubstr;

constexpr const char* name = "weight/language.main.3.gate.7";

ParameterPart part_of(const Box& box, const BoxPlace& place = {}) {
  ParameterPart part;
  part.identity = {0, 3, Role::gate, 7};
  part.shape = {4, 6};
  part.box = box;
  part.place = place;
  return part;
}

float value_at(std::int64_t logical) { return 0.5f * static_cast<float>(logical) + 1; }

BoxToWrite box_to_write(const Box& box) {
  return {name,
          {4, 6},
          box,
          DType::f32,
          [box](std::int64_t first, std::int64_t count, std::span<std::byte> buffer) -> std::span<const std::byte> {
            const BoxRuns runs({4, 6}, box, {});
            for (std::int64_t i = 0; i < count; ++i) {
              const BoxRun run = runs[(first + i) / runs[0].count];
              const float value = value_at(run.logical + (first + i) % runs[0].count);
              std::memcpy(buffer.data() + 4 * i, &value, 4);
            }
            return buffer.first(static_cast<std::size_t>(4 * count));
          }};
}

// Two ranks, each with half of the columns, and a third that owns nothing.
void save(const std::filesystem::path& dir, std::int64_t iteration, const std::string& run = "{}") {
  const CheckpointInProgress checkpoint(dir, iteration);
  checkpoint.begin();
  std::vector<CheckpointInProgress::Written> written;
  written.push_back(checkpoint.write(RankId(0), {box_to_write({{0, 0}, {4, 3}})}));
  written.push_back(checkpoint.write(RankId(1), {box_to_write({{0, 3}, {4, 3}})}));
  written.push_back(checkpoint.write(RankId(2), {}));
  checkpoint.commit(written, run);
}

void expect_values(const RunCheckpoint& checkpoint, const ParameterPart& part) {
  for (DType dtype : {DType::f32, DType::f64}) {
    HostTensor tensor(dtype, 100);
    checkpoint.read(name, part, tensor);
    each_number(part, tensor, [&](std::int64_t index, double number) { EXPECT_EQ(number, value_at(index)) << index; });
  }
}

// Changes one byte of a file, or its length.
void damage(const std::string& file, std::size_t at, char with) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(with);
}

std::string error_of(const std::string& folder) {
  return message_of<UserError>([&] { RunCheckpoint(folder).verify(); });
}

TEST(RunCheckpoint, AnyBoxIsReadFromTheBoxesThatWereWritten) {
  const TemporaryFolder folder;
  save(folder.file("run"), 12, R"({"seed": 7})");
  EXPECT_EQ(latest_checkpoint(folder.file("run")), 12);
  EXPECT_EQ(read_file(folder.file("run/latest_checkpointed_iteration.txt")), "12");
  EXPECT_EQ(checkpoints_in(folder.file("run")), std::vector<std::int64_t>{12});
  const RunCheckpoint checkpoint(folder.file("run/iter_0000012"));
  EXPECT_EQ(checkpoint.manifest().iteration, 12);
  EXPECT_EQ(checkpoint.manifest().run, R"({"seed":7})");
  EXPECT_EQ(checkpoint.manifest().files.size(), 2u);
  checkpoint.verify();
  expect_values(checkpoint, part_of(Box::whole({4, 6})));
  expect_values(checkpoint, part_of({{1, 0}, {2, 6}}, {7}));
  expect_values(checkpoint, part_of({{0, 2}, {4, 2}}));
  expect_values(checkpoint, part_of(Box::whole({4, 6}), {0, 2, 24}));
  for (const std::int64_t most : {1, 2, 5, 6, 7, 12, 100})  // as a rank reads a large one
    for (const Box& piece : pieces_of({{0, 1}, {4, 4}}, most)) expect_values(checkpoint, part_of(piece));
}

// As many files as there were ranks: a rank opens those that it needs.
TEST(RunCheckpoint, OpensAFileWhenItIsNeeded) {
  const TemporaryFolder folder;
  save(folder.file("run"), 1);
  const std::string here = folder.file("run/iter_0000001"), rank1 = here + "/rank-00001.safetensors";
  damage(rank1, 3, 'x');  // the length of its header
  const RunCheckpoint checkpoint(here);
  expect_values(checkpoint, part_of({{0, 0}, {4, 3}}));
  HostTensor tensor(DType::f32, 4);
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(message_of<UserError>([&] {
                  checkpoint.read(name, part_of({{0, 3}, {4, 1}}), tensor);
                }),
                HasSubstr(rank1 + ": not a safetensors file"));
  EXPECT_THAT(error_of(here), HasSubstr(rank1));
}

TEST(RunCheckpoint, FilesThatAreOpenMayLoseTheirNames) {
  const TemporaryFolder folder;
  save(folder.file("run"), 1);
  const RunCheckpoint checkpoint(folder.file("run/iter_0000001"));
  checkpoint.open_files();
  std::filesystem::remove_all(folder.file("run"));
  expect_values(checkpoint, part_of(Box::whole({4, 6})));
}

TEST(RunCheckpoint, OfTheSameIterationIsReplaced) {
  const TemporaryFolder folder;
  save(folder.file("run"), 3, R"({"try": 1})");
  save(folder.file("run"), 3, R"({"try": 2})");
  EXPECT_EQ(RunCheckpoint(folder.file("run/iter_0000003")).manifest().run, R"({"try":2})");
  EXPECT_FALSE(std::filesystem::exists(folder.file("run/iter_0000003.tmp")));
}

TEST(RunCheckpoint, InProgressIsNotThere) {
  const TemporaryFolder folder;
  save(folder.file("run"), 3);
  const CheckpointInProgress checkpoint(folder.file("run"), 6);
  checkpoint.begin();
  checkpoint.write(RankId(0), {box_to_write(Box::whole({4, 6}))});
  EXPECT_EQ(latest_checkpoint(folder.file("run")), 3);
  EXPECT_EQ(checkpoints_in(folder.file("run")), std::vector<std::int64_t>{3});
  // What a killed run has left goes away with the next checkpoint.
  save(folder.file("run"), 9);
  EXPECT_FALSE(std::filesystem::exists(folder.file("run/iter_0000006.tmp")));
}

TEST(RunCheckpoint, OldOnesAreRemoved) {
  const TemporaryFolder folder;
  for (std::int64_t iteration : {2, 4, 5, 6, 8, 10}) save(folder.file("run"), iteration);
  remove_old_checkpoints(folder.file("run"), 2, 5);
  EXPECT_EQ(checkpoints_in(folder.file("run")), (std::vector<std::int64_t>{5, 8, 10}));
}

// A run that goes on from an earlier one leaves those after it, which are not the last ones of any run.
TEST(RunCheckpoint, LaterOnesThanTheLastNeitherCountNorGo) {
  const TemporaryFolder folder;
  for (std::int64_t iteration : {2, 4, 6, 8, 10, 5}) save(folder.file("run"), iteration);
  EXPECT_EQ(latest_checkpoint(folder.file("run")), 5);
  remove_old_checkpoints(folder.file("run"), 2, 0);
  EXPECT_EQ(checkpoints_in(folder.file("run")), (std::vector<std::int64_t>{4, 5, 6, 8, 10}));
}

TEST(RunCheckpoint, DamageIsNamed) {
  const TemporaryFolder folder;
  const std::string here = folder.file("run/iter_0000001"), rank0 = here + "/rank-00000.safetensors";
  const auto fresh = [&] {
    std::filesystem::remove_all(folder.file("run"));
    save(folder.file("run"), 1);
    EXPECT_EQ(error_of(here), "");
  };
  fresh();
  damage(rank0, std::filesystem::file_size(rank0) - 3, 'x');
  EXPECT_EQ(error_of(here), rank0 +
                                ": tensor 'weight/language.main.3.gate.7' does not have the checksum of manifest.json: "
                                "the file is damaged");
  fresh();
  std::filesystem::resize_file(rank0, std::filesystem::file_size(rank0) - 1);
  EXPECT_THAT(error_of(here), HasSubstr(": the checkpoint is damaged or mixed with another"));
  fresh();
  std::filesystem::remove(rank0);
  EXPECT_EQ(error_of(here), rank0 + ": No such file or directory, which manifest.json names");
  fresh();
  std::filesystem::remove(here + "/manifest.json");
  EXPECT_EQ(error_of(here), here + ": there is no manifest.json, so this is not a complete checkpoint of Weft");
  fresh();
  std::string text = read_file(here + "/manifest.json");
  text.replace(text.find("\"iteration\": 1"), 14, "\"iteration\": 2");
  write_file_atomically(here + "/manifest.json", text);
  EXPECT_EQ(error_of(here), here + "/manifest.json: its checksum does not fit its contents: the file is damaged");
  // Files of another checkpoint of the same shape.
  fresh();
  save(folder.file("other"), 1);
  damage(folder.file("other/iter_0000001/rank-00001.safetensors"), 200, 'y');
  std::filesystem::copy_file(folder.file("other/iter_0000001/rank-00001.safetensors"), here + "/rank-00001.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_NE(error_of(here), "");
  write_file_atomically(folder.file("run/latest_checkpointed_iteration.txt"), "");
  EXPECT_THAT(message_of<UserError>([&] { latest_checkpoint(folder.file("run")); }),
              HasSubstr("holds '', not the number of an iteration; write one there, or name it with --ckpt-step"));
}

// Whatever a byte of the manifest becomes, it is refused or means the same as before.
TEST(RunCheckpoint, ManifestsWithAnyByteChangedAreRefused) {
  const TemporaryFolder folder;
  save(folder.file("run"), 1);
  const std::string text = read_file(folder.file("run/iter_0000001/manifest.json"));
  const Manifest good = parse_manifest(text, "m");
  int refused = 0;
  for (std::size_t i = 0; i < text.size(); ++i)
    for (char with : {' ', '0', '"', '}', 'z', '\0'}) {
      std::string other = text;
      other[i] = with;
      try {
        const Manifest manifest = parse_manifest(other, "m");
        EXPECT_EQ(to_text(manifest), to_text(good)) << i;  // white space
      } catch (const UserError&) {
        ++refused;
      }
    }
  EXPECT_GT(refused, static_cast<int>(3 * text.size()));
  for (std::size_t length = 0; length + 2 < text.size(); ++length)
    EXPECT_THROW(parse_manifest(text.substr(0, length), "m"), UserError) << length;
}

TEST(RunCheckpoint, BoxesMustTileTheirTensor) {
  Manifest manifest;
  manifest.files["a"] = 1;
  ManifestTensor& tensor = manifest.tensors["t"];
  tensor.shape = {4, 6};
  tensor.boxes = {{"a", {{0, 0}, {4, 3}}, 0}};
  EXPECT_EQ(
      message_of<UserError>([&] { parse_manifest(to_text(manifest), "m"); }),
      "m: tensor 't': its boxes do not tile its shape [4, 6]: of [4, 6] from [0, 0] on some elements are in none");
  tensor.boxes.push_back({"a", {{0, 2}, {4, 3}}, 0});
  EXPECT_EQ(message_of<UserError>([&] { parse_manifest(to_text(manifest), "m"); }),
            "m: tensor 't': two of its boxes overlap: [4, 3] from [0, 0] on and [4, 3] from [0, 2] on");
  tensor.boxes.back() = {"b", {{0, 3}, {4, 3}}, 0};
  EXPECT_EQ(message_of<UserError>([&] { parse_manifest(to_text(manifest), "m"); }),
            "m: tensor 't': it is in b, which 'files' does not name");
}

}  // namespace
}  // namespace weft
