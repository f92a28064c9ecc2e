// Saving beside steps: errors, runs that end before it is done, and kills at any moment.
#include "weft/train/checkpoint_saver.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/checkpoint/failing_files.h"
#include "tests/data/temporary_folder.h"
#include "tests/execute/ranks.h"
#include "weft/base/file.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/train/digest.h"
#include "weft/train/save_load.h"

namespace weft {
namespace {

using testing::HasSubstr;

RankCase saved_case(int ranks, int expert_ranks) {
  RankCase c = small_case("[*E]-");
  c.ranks = ranks;
  c.expert_ranks = expert_ranks;
  c.micro_batches = 1;
  c.dtype = DType::f32;
  c.overlap_updates = true;
  return c;
}

void step(Session& session, const RankCase& c, std::int64_t number) {
  session.step(std::vector{batch_of(c, number, session.options().layout.shard_of(0))}, 1e-2, 0.1);
}

std::int64_t begin(Session& session, const std::filesystem::path& dir) {
  if (const auto place = find_checkpoint(dir))
    return load_checkpoint(session, *open_checkpoint(*place, session.options().config)).iteration;
  session.initialise_parameters(5);
  return 0;
}

// On every rank; the digest after it.
std::string on_ranks(const RankCase& c, const std::function<void(Session&)>& body) {
  std::string digest;
  LocalCluster(c.ranks).run([&](World& world) {
    CpuDevice device;
    Session session(device, options_of(c, &world));
    body(session);
    const std::string own = weight_digest(session);
    if (world.rank().value == 0) digest = own;
  });
  return digest;
}

// What steps compute while the copy is being written is not in the checkpoint.
TEST(CheckpointSaver, WritesTheStateOfTheMomentItWasCopied) {
  const TemporaryFolder folder;
  const RankCase c = saved_case(2, 2);
  std::string at_save;
  on_ranks(c, [&](Session& session) {
    session.initialise_parameters(5);
    CheckpointSaver saver(session, {folder.file("run")});
    step(session, c, 0);
    saver.begin({1, 2, 1}, "{}");
    EXPECT_TRUE(saver.pending());
    const std::string digest = weight_digest(session);
    if (session.options().layout.rank().value == 0) at_save = digest;
    std::optional<std::int64_t> complete;
    for (int i = 1; i < 100'000 && !complete; ++i) {
      step(session, c, i);
      complete = saver.poll();
    }
    EXPECT_EQ(complete, 1);
    EXPECT_FALSE(saver.pending());
  });
  EXPECT_EQ(on_ranks(c, [&](Session& session) { EXPECT_EQ(begin(session, folder.file("run")), 1); }), at_save);
}

TEST(CheckpointSaver, AnErrorOfTheWritingEndsTheRun) {
  const TemporaryFolder folder;
  const RankCase c = saved_case(2, 1);
  const FailingFiles files(FaultKind::full, 3);
  const std::string error = message_of<RunError>([&] {
    on_ranks(c, [&](Session& session) {
      session.initialise_parameters(5);
      save_checkpoint(session, {folder.file("run")}, {1, 2, 1}, "{}");
      CheckpointSaver saver(session, {.dir = folder.file("run"), .files = &files});
      saver.begin({2, 4, 1}, "{}");
      for (int i = 0;; ++i) {
        step(session, c, i);
        saver.poll();
      }
    });
  });
  EXPECT_THAT(error, HasSubstr("cannot write " + folder.file("run/iter_0000002.tmp/rank-0000")));
  EXPECT_THAT(error, HasSubstr("No space left on device"));
  EXPECT_EQ(latest_checkpoint(folder.file("run")), 1);
  RunCheckpoint(folder.file("run/iter_0000001")).verify();
}

TEST(CheckpointSaver, IsGivenUpWithARunThatEnds) {
  const TemporaryFolder folder;
  const RankCase c = saved_case(2, 1);
  const std::string error = message_of<RunError>([&] {
    on_ranks(c, [&](Session& session) {
      session.initialise_parameters(5);
      CheckpointSaver saver(session, {folder.file("run")});
      saver.save({1, 2, 0}, "{}");
      saver.begin({2, 4, 0}, "{}");
      if (session.options().layout.rank().value == 1) throw RunError("lost");
      for (int i = 0;; ++i) step(session, c, i);
    });
  });
  EXPECT_THAT(error, HasSubstr("lost"));
  EXPECT_EQ(latest_checkpoint(folder.file("run")), 1);
}

TEST(CheckpointSaver, ALostFolderIsAnError) {
  const TemporaryFolder folder;
  const RankCase c = saved_case(1, 1);
  CpuDevice device;
  Session session(device, options_of(c, nullptr));
  session.initialise_parameters(5);
  CheckpointSaver saver(session, {folder.file("run")});
  saver.save({1, 2, 0}, "{}");
  std::filesystem::rename(folder.file("run"), folder.file("elsewhere"));
  write_file_atomically(folder.file("run"), "in the way");
  EXPECT_THAT(message_of<RunError>([&] {
                saver.save({2, 4, 0}, "{}");
              }),
              HasSubstr("cannot make the folder " + folder.file("run")));
  RunCheckpoint(folder.file("elsewhere/iter_0000001")).verify();
}

// A run that saves again and again, until it is killed. Tells through the pipe that it has begun, and of every checkpoint.
[[noreturn]] void run_until_killed(const RankCase& c, const std::string& dir, bool beside, int pipe) {
  try {
    on_ranks(c, [&](Session& session) {
      std::int64_t iteration = begin(session, dir);
      CheckpointSaver saver(session, {.dir = dir, .keep = 2});
      const auto tell = [&] {
        if (session.options().layout.rank().value == 0 && ::write(pipe, "x", 1) != 1) ::_exit(3);
      };
      tell();
      for (;; ++iteration) {
        step(session, c, iteration);
        const RunPosition position{iteration + 1, 2 * iteration + 2, session.steps_taken()};
        if (!beside) saver.save(position, "{}");
        if (!beside || saver.poll()) tell();
        if (beside && !saver.pending()) saver.begin(position, "{}");
      }
    });
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  ::_exit(2);
}

void kill_at_random_moments(const RankCase& c, bool beside, int kills) {
  const TemporaryFolder folder;
  const std::string dir = folder.file("run");
  std::int64_t last = 0;
  for (int i = 0; i < kills; ++i) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    if (child == 0) run_until_killed(c, dir, beside, pipe[1]);
    ::close(pipe[1]);
    const std::uint64_t key = random_key(static_cast<std::uint64_t>(i), beside ? "kill" : "end");
    bool runs = true;
    char told = 0;
    for (std::uint64_t k = 0, wanted = 1 + random_below(key, 0, 3); k < wanted; ++k)
      runs &= ::read(pipe[0], &told, 1) == 1;
    ::close(pipe[0]);
    std::this_thread::sleep_for(std::chrono::microseconds(random_below(key, 1, 10'000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(runs && WIFSIGNALED(status)) << "kill " << i;
    const std::optional<std::int64_t> latest = latest_checkpoint(dir);
    ASSERT_TRUE(latest || last == 0) << "kill " << i;
    if (!latest) continue;
    ASSERT_GE(*latest, last);
    last = *latest;
    for (std::int64_t iteration : checkpoints_in(dir)) RunCheckpoint(checkpoint_folder(dir, iteration)).verify();
  }
  EXPECT_GT(last, kills / 2);
  const std::string straight = on_ranks(c, [&](Session& session) {
    session.initialise_parameters(5);
    for (std::int64_t i = 0; i < last; ++i) step(session, c, i);
  });
  EXPECT_EQ(on_ranks(c, [&](Session& session) { EXPECT_EQ(begin(session, dir), last); }), straight);
}

// Of each kind; a nightly run asks for more.
int kills() {
  const char* text = std::getenv("WEFT_KILLS");
  return text ? std::atoi(text) / 2 : 50;
}

TEST(KilledSaves, leave_a_complete_checkpoint_that_resumes_bit_for_bit) {
  kill_at_random_moments(saved_case(2, 2), false, kills());
}

TEST(KilledSaves, beside_steps_leave_a_complete_checkpoint_that_resumes_bit_for_bit) {
  kill_at_random_moments(saved_case(4, 2), true, kills());
}

}  // namespace
}  // namespace weft
