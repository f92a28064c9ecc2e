// Whatever fails while a checkpoint is saved, the folder holds a complete one, and the next save works.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/failing_files.h"
#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/checkpoint_in_progress.h"
#include "weft/checkpoint/run_checkpoint.h"

namespace weft {
namespace {

const Shape shape = {64, 32};

std::uint32_t bits_at(std::int64_t iteration, std::int64_t element) {
  return 0x3f000000u + static_cast<std::uint32_t>(iteration * 4099 + element);
}

// Rows [first, first + 32) of a tensor that is another in every iteration.
BoxToWrite box(std::int64_t iteration, std::int64_t first_row) {
  return {"weight/language.main.0.gate",
          shape,
          {{first_row, 0}, {32, 32}},
          DType::f32,
          [=](std::int64_t first, std::int64_t count, std::span<std::byte> buffer) -> std::span<const std::byte> {
            for (std::int64_t i = 0; i < count; ++i) {
              const std::uint32_t bits = bits_at(iteration, first_row * 32 + first + i);
              std::memcpy(buffer.data() + 4 * i, &bits, 4);
            }
            return buffer.first(static_cast<std::size_t>(4 * count));
          }};
}

void save(const std::string& dir, std::int64_t iteration, std::int64_t keep, const FileSystem& files) {
  const CheckpointInProgress checkpoint(dir, iteration, files);
  checkpoint.begin();
  std::vector<CheckpointInProgress::Written> written;
  written.push_back(checkpoint.write(RankId(0), {box(iteration, 0)}));
  written.push_back(checkpoint.write(RankId(1), {box(iteration, 32)}));
  checkpoint.commit(written, "{}");
  if (keep > 0) remove_old_checkpoints(dir, keep, 0, files);
}

void expect_complete(const std::string& dir, std::int64_t iteration) {
  const RunCheckpoint checkpoint(checkpoint_folder(dir, iteration));
  checkpoint.verify();
  ParameterPart part;
  part.shape = shape;
  part.box = Box::whole(shape);
  HostTensor values(DType::f32, shape.elements());
  checkpoint.read("weight/language.main.0.gate", part, values);
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, values.at(i), 4);
    ASSERT_EQ(bits, bits_at(iteration, i)) << iteration;
  }
}

bool has_left_overs(const std::string& dir) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir))
    if (entry.path().string().find(".tmp") != std::string::npos) return true;
  return false;
}

struct Scene {
  std::int64_t iteration, keep;  // of the save that fails; 5 and 6 are there
};

class SavingFaults : public testing::TestWithParam<FaultKind> {};

TEST_P(SavingFaults, leave_a_complete_checkpoint) {
  int faults = 0, reported = 0;
  for (const Scene& scene : {Scene{7, 0}, Scene{6, 0}, Scene{7, 1}}) {
    std::int64_t calls = 1;
    for (std::int64_t at = 0; at < calls; ++at) {
      SCOPED_TRACE(fmt::format("saving {}, keeping {}, call {}", scene.iteration, scene.keep, at));
      const TemporaryFolder folder;
      const std::string dir = folder.file("run");
      const FailingFiles good(FaultKind::none, 0);
      save(dir, 5, 0, good);
      save(dir, 6, 0, good);
      const FailingFiles files(GetParam(), at, static_cast<std::uint64_t>(97 * at + scene.iteration));
      const std::string error = message_of<RunError>([&] { save(dir, scene.iteration, scene.keep, files); });
      calls = std::max(calls, files.calls() + 1);
      if (files.failed()) ++faults;
      if (!error.empty()) ++reported;
      const std::optional<std::int64_t> latest = latest_checkpoint(dir);
      ASSERT_TRUE(latest);
      EXPECT_TRUE(*latest == 6 || *latest == scene.iteration);
      EXPECT_TRUE(!error.empty() || *latest == scene.iteration);
      const std::vector<std::int64_t> there = checkpoints_in(dir);
      EXPECT_THAT(there, testing::Contains(*latest));
      for (std::int64_t iteration : there) expect_complete(dir, iteration);
      save(dir, 8, 1, good);
      EXPECT_EQ(latest_checkpoint(dir), 8);
      expect_complete(dir, 8);
      EXPECT_EQ(checkpoints_in(dir), std::vector<std::int64_t>{8});
      EXPECT_FALSE(has_left_overs(folder.file("run")));
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GE(faults, 67);  // 200 of three kinds
  EXPECT_GE(reported, faults / 2);
}

std::string name_of(const testing::TestParamInfo<FaultKind>& kind) {
  switch (kind.param) {
    case FaultKind::error:
      return "of_one_call";
    case FaultKind::full:
      return "of_a_full_disk";
    case FaultKind::crash:
      return "of_power";
    case FaultKind::none:
      break;
  }
  return "none";
}
INSTANTIATE_TEST_SUITE_P(Any, SavingFaults, testing::Values(FaultKind::error, FaultKind::full, FaultKind::crash),
                         name_of);

TEST(SavingFault, NamesTheFileAndTheReason) {
  const TemporaryFolder folder;
  const FailingFiles files(FaultKind::full, 2);
  EXPECT_EQ(message_of<RunError>([&] { save(folder.file("run"), 1, 0, files); }),
            fmt::format("cannot write {}: write: No space left on device",
                        folder.file("run/iter_0000001.tmp/rank-00000.safetensors")));
}

TEST(SavingFault, NumbersThatAreNotFiniteAreNotSaved) {
  const TemporaryFolder folder;
  for (const float bad : {HUGE_VALF, -HUGE_VALF, NAN}) {
    BoxToWrite weights = box(1, 0);
    weights.read = [bad, read = weights.read](std::int64_t first, std::int64_t count, std::span<std::byte> buffer) {
      const std::span<const std::byte> values = read(first, count, buffer);
      std::memcpy(buffer.data() + 4 * 77, &bad, 4);
      return values;
    };
    const CheckpointInProgress checkpoint(folder.file("run"), 1);
    checkpoint.begin();
    EXPECT_EQ(message_of<RunError>([&] { checkpoint.write(RankId(0), {weights}); }),
              "the state of the run is not saved: numbers of 'weight/language.main.0.gate' are not finite; lower --lr");
  }
}

}  // namespace
}  // namespace weft
