// A run that is saved, ended and loaded goes on bit for bit; and a checkpoint loads into any layout.
#include <filesystem>

#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/execute/ranks.h"
#include "weft/train/checkpoint_saver.h"
#include "weft/train/digest.h"
#include "weft/train/save_load.h"

namespace weft {
namespace {

struct Outcome {
  std::vector<double> losses;
  std::string weights, states;  // digests in the end
};

enum class Saves : std::uint8_t { none, at_the_end, at_every_step, beside_every_step };

// Runs steps [first, last) on all ranks of the case, from the checkpoint of `first` where there is one to load.
Outcome run(const RankCase& c, int first, int last, const std::filesystem::path& load,
            const std::filesystem::path& save, Saves saves = Saves::at_the_end) {
  Outcome outcome;
  const auto on_rank = [&](World* world) {
    CpuDevice device;
    const SessionOptions o = options_of(c, world);
    Session session(device, o);
    RunPosition position;
    if (load.empty())
      session.initialise_parameters(5);
    else
      position = load_checkpoint(session, *open_checkpoint(*find_checkpoint(load, first), c.config));
    EXPECT_EQ(position.iteration, first);
    CheckpointSaver saver(session, {save});
    std::vector<double> losses;
    for (int step = first; step < last; ++step) {
      std::vector<MicroBatch> batches;
      for (int m = 0; m < c.micro_batches; ++m) batches.push_back(batch_of(c, step, o.layout.shard_of(m)));
      losses.push_back(session.step(batches, 1e-2, 0.1).loss);
      const RunPosition there{step + 1, 10 * (step + 1), session.steps_taken()};
      if (saves == Saves::at_every_step) saver.save(there, "{}");
      saver.poll();
      if (saves == Saves::beside_every_step) saver.begin(there, "{}");
    }
    saver.finish();
    if (saves == Saves::at_the_end && !save.empty()) saver.save({last, 10 * last, session.steps_taken()}, "{}");
    const std::string weights = weight_digest(session), states = state_digest(session);
    if (!world || world->rank().value == 0) outcome = {losses, weights, states};
  };
  if (c.ranks == 1)
    on_rank(nullptr);
  else
    LocalCluster(c.ranks).run([&](World& world) { on_rank(&world); });
  return outcome;
}

RankCase resumed_case(int ranks, int expert_ranks, DType dtype) {
  RankCase c = small_case("M[*E]G-E/[*E]");
  c.config.experts.router.score = RouterSpec::Score::sigmoid;
  c.config.experts.expert_bias = true;
  c.config.experts.balance.bias_update_rate = 0.01;  // a parameter that no gradient changes
  c.ranks = ranks;
  c.expert_ranks = expert_ranks;
  c.dtype = dtype;
  return c;
}

// A straight run is the same with a save after each of its steps, and goes on from any of them as it did.
void expect_same_from_every_step(const RankCase& c, Saves saves) {
  constexpr int steps = 12;
  const TemporaryFolder folder;
  const Outcome straight = run(c, 0, steps, {}, {}, Saves::none);
  const Outcome saved = run(c, 0, steps, {}, folder.file("run"), saves);
  EXPECT_EQ(saved.losses, straight.losses);
  EXPECT_EQ(saved.weights, straight.weights);
  EXPECT_EQ(saved.states, straight.states);
  for (int stop = 1; stop < steps; ++stop) {
    const Outcome resumed = run(c, stop, steps, folder.file("run"), {}, Saves::none);
    EXPECT_EQ(resumed.losses, std::vector<double>(straight.losses.begin() + stop, straight.losses.end())) << stop;
    EXPECT_EQ(resumed.weights, straight.weights) << stop;
    EXPECT_EQ(resumed.states, straight.states) << stop;
  }
}

TEST(Resume, IsBitForBitAtEveryStepOfOneRank) {
  expect_same_from_every_step(resumed_case(1, 1, DType::f32), Saves::beside_every_step);
  RankCase late = resumed_case(1, 1, DType::bf16);
  late.overlap_updates = late.parallel = true;
  expect_same_from_every_step(late, Saves::at_every_step);
}

TEST(Resume, IsBitForBitAtEveryStepOfTwoRanks) {
  RankCase late = resumed_case(2, 1, DType::bf16);
  late.overlap_updates = late.parallel = true;
  expect_same_from_every_step(late, Saves::beside_every_step);
  RankCase experts = resumed_case(2, 2, DType::f32);
  experts.overlap_updates = true;
  experts.clip = 0;
  expect_same_from_every_step(experts, Saves::beside_every_step);
}

TEST(Resume, IsBitForBitAtEveryStepOfFourRanksWithExpertsSpread) {
  RankCase woven = resumed_case(4, 2, DType::bf16);
  woven.weave = woven.delay = woven.parallel = true;
  expect_same_from_every_step(woven, Saves::beside_every_step);
}

TEST(Resume, LoadsIntoAnyLayout) {
  const std::pair<int, int> layouts[] = {{1, 1}, {2, 1}, {2, 2}, {4, 2}, {4, 4}};
  for (const auto& [ranks, expert_ranks] : layouts) {
    const TemporaryFolder folder;
    RankCase from = resumed_case(ranks, expert_ranks, DType::f64);
    from.micro_batches = 4 / ranks;
    const Outcome saved = run(from, 0, 2, {}, folder.file("run"));
    std::vector<double> losses;  // of the next steps, on one rank
    for (const auto& [other_ranks, other_expert_ranks] : layouts) {
      RankCase to = resumed_case(other_ranks, other_expert_ranks, DType::f64);
      to.micro_batches = 4 / other_ranks;
      to.block = to.ranks == 1 ? ranks : 1;
      const Outcome loaded = run(to, 2, 2, folder.file("run"), {});
      EXPECT_EQ(loaded.weights, saved.weights) << ranks << " to " << other_ranks;
      EXPECT_EQ(loaded.states, saved.states) << ranks << " to " << other_ranks;
      const Outcome trained = run(to, 2, 4, folder.file("run"), {});
      if (losses.empty()) losses = trained.losses;
      for (std::size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(trained.losses[i] / losses[i], 1, 1e-9) << ranks << " to " << other_ranks;
    }
  }
}

// Sixteen layers of DeepSeek-V3's kind with MTP, as a transformer has them (groups) or as a hybrid model (flat).
RankCase deepseek_case(bool groups, int ranks, int expert_ranks) {
  std::string pattern = groups ? "[+-]" : "+-";
  for (int layer = 1; layer < 16; ++layer) pattern += groups ? "[+E]" : "+E";
  pattern += groups ? "/[+E]" : "/+E";
  RankCase c = small_case(pattern.c_str());
  c.config.latent_attention.heads = 2;
  c.config.latent_attention.q_rank = 8;
  c.config.latent_attention.kv_rank = 6;
  c.config.latent_attention.head_dim = c.config.latent_attention.value_dim = 4;
  c.config.latent_attention.rotary_dim = 2;
  c.config.experts.shared_ffn = 12;
  c.config.experts.router.score = RouterSpec::Score::sigmoid;
  c.config.experts.router.normalise = true;
  c.config.experts.expert_bias = true;
  c.config.experts.balance.bias_update_rate = 0.01;
  c.config.init_std = 0.1;
  c.ranks = ranks;
  c.expert_ranks = expert_ranks;
  c.micro_batches = 4 / ranks;
  c.dtype = DType::bf16;
  return c;
}

TEST(CrossLoading, groups_and_flat_patterns_go_on_from_each_other_bit_for_bit) {
  for (const bool groups : {true, false}) {
    for (const auto& [ranks, expert_ranks] : {std::pair{1, 1}, {4, 2}}) {
      const TemporaryFolder folder;
      const RankCase from = deepseek_case(groups, ranks, expert_ranks);
      const Outcome saved = run(from, 0, 1, {}, folder.file("first"));
      for (const auto& [to_ranks, to_expert_ranks] : {std::pair{1, 1}, {2, 2}}) {
        SCOPED_TRACE(fmt::format("{} of {} ranks, on {}", groups ? "groups" : "flat", ranks, to_ranks));
        const RankCase same = deepseek_case(groups, to_ranks, to_expert_ranks),
                       other = deepseek_case(!groups, to_ranks, to_expert_ranks);
        const Outcome loaded = run(other, 1, 1, folder.file("first"), {});
        EXPECT_EQ(loaded.weights, saved.weights);
        EXPECT_EQ(loaded.states, saved.states);
        // A step, and a save that the first form loads.
        const Outcome theirs = run(other, 1, 2, folder.file("first"), folder.file("second"));
        const Outcome own = run(same, 1, 2, folder.file("first"), {});
        EXPECT_EQ(theirs.losses, own.losses);
        EXPECT_EQ(theirs.weights, own.weights);
        EXPECT_EQ(theirs.states, own.states);
        const Outcome back = run(same, 2, 2, folder.file("second"), {});
        EXPECT_EQ(back.weights, own.weights);
        EXPECT_EQ(back.states, own.states);
      }
    }
  }
}

TEST(Resume, NamesWhatTheCheckpointLacks) {
  const TemporaryFolder folder;
  const RankCase c = small_case("[*-]");
  run(c, 0, 1, {}, folder.file("run"));
  const auto error_of = [&](const RankCase& other) -> std::string {
    CpuDevice device;
    Session session(device, options_of(other, nullptr));
    try {
      load_checkpoint(session, *open_checkpoint(*find_checkpoint(folder.file("run")), other.config));
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(small_case("[*-][*-]")),
            folder.file("run/iter_0000001") +
                ": 9 parameters of this model are not in the checkpoint, language.main.2.norm first; it was saved with "
                "--pattern [*-]");
  RankCase wider = c;
  wider.config.mlp.ffn = 48;
  EXPECT_EQ(error_of(wider), folder.file("run/iter_0000001") +
                                 ": tensor 'weight/language.main.1.gate' has the shape [24, 16], but the model asks "
                                 "for [48, 16]");
  EXPECT_FALSE(find_checkpoint(folder.file("nowhere")));
}

}  // namespace
}  // namespace weft
