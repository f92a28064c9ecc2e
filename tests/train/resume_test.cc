// A run that is saved, ended and loaded goes on bit for bit; and a checkpoint loads into any layout.
#include <filesystem>

#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/train/resumed_runs.h"

namespace weft {
namespace {

// Runs steps [first, last) on all ranks of the case, from the checkpoint of `first` where there is one to load.
RunOutcome run(const RankCase& c, int first, int last, const std::filesystem::path& load,
               const std::filesystem::path& save) {
  return on_thread_ranks(c,
                         [&](World* world) { return run_steps(c, world, first, last, load, save, Saves::at_the_end); });
}

class ResumeOnRanks : public testing::TestWithParam<int> {};

// A straight run is the same with a save after each of its steps, and goes on from any of them as it did.
TEST_P(ResumeOnRanks, IsBitForBitAtEveryStep) {
  for (const ResumedCase& c : resumed_cases(GetParam())) {
    const TemporaryFolder folder;
    const auto straight = on_thread_ranks(c.run, [&](World* world) { return straight_lines(c, world); });
    EXPECT_EQ(on_thread_ranks(c.run, [&](World* world) { return resumed_lines(c, world, folder.file("run")); }),
              straight);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ResumeOnRanks, testing::Values(1, 2, 4), testing::PrintToStringParamName());

TEST(Resume, LoadsIntoAnyLayout) {
  const std::pair<int, int> layouts[] = {{1, 1}, {2, 1}, {2, 2}, {4, 2}, {4, 4}};
  for (const auto& [ranks, expert_ranks] : layouts) {
    const TemporaryFolder folder;
    RankCase from = resumed_case(ranks, expert_ranks, DType::f64);
    from.micro_batches = 4 / ranks;
    const RunOutcome saved = run(from, 0, 2, {}, folder.file("run"));
    std::vector<double> losses;  // of the next steps, on one rank
    for (const auto& [other_ranks, other_expert_ranks] : layouts) {
      RankCase to = resumed_case(other_ranks, other_expert_ranks, DType::f64);
      to.micro_batches = 4 / other_ranks;
      to.block = to.ranks == 1 ? ranks : 1;
      const RunOutcome loaded = run(to, 2, 2, folder.file("run"), {});
      EXPECT_EQ(loaded.weights, saved.weights) << ranks << " to " << other_ranks;
      EXPECT_EQ(loaded.states, saved.states) << ranks << " to " << other_ranks;
      const RunOutcome trained = run(to, 2, 4, folder.file("run"), {});
      if (losses.empty()) losses = trained.losses;
      for (std::size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(trained.losses[i] / losses[i], 1, 1e-9) << ranks << " to " << other_ranks;
    }
  }
}

// Stages, virtual stages, and an embedding that both ends of a pipeline hold.
TEST(Resume, LoadsIntoAnyStages) {
  struct Way {
    int stages, data, experts;
    ShardingStrategy sharding = ShardingStrategy::no_shard;
    const char* pattern = "M[*E]|G-|E|/[*E]";
  };
  using enum ShardingStrategy;
  const Way ways[] = {
      {1, 1, 1}, {2, 1, 1}, {4, 1, 1}, {2, 2, 2}, {2, 2, 1, optim_grads_params}, {1, 2, 2, optim, "M*EG-E/[*E]"}};
  const auto case_of = [](const Way& way) {
    RankCase c = resumed_case(way.stages * way.data, way.experts, DType::f64);
    c.config.pattern = way.pattern;
    c.config.tied_embeddings = true;
    c.stages = way.stages;
    c.sharding = way.sharding;
    c.micro_batches = 8 / way.data;
    c.parallel = way.stages > 1;
    return c;
  };
  for (const Way& one : ways) {
    const TemporaryFolder folder;
    const RunOutcome saved = run(case_of(one), 0, 2, {}, folder.file("run"));
    for (const Way& other : ways) {
      const RunOutcome loaded = run(case_of(other), 2, 2, folder.file("run"), {});
      EXPECT_EQ(loaded.weights, saved.weights) << one.stages << " to " << other.stages;
      EXPECT_EQ(loaded.states, saved.states) << one.stages << " to " << other.stages;
    }
    RankCase pipeline = case_of(ways[2]), alone = case_of(ways[0]);
    const RunOutcome a = run(pipeline, 2, 3, folder.file("run"), {}), b = run(alone, 2, 3, folder.file("run"), {});
    EXPECT_NEAR(a.losses.front() / b.losses.front(), 1, 1e-9);
  }
}

// Every strategy, and two instances of the optimizer that hold the same parts, or divide them.
TEST(Resume, LoadsWithAnyShardingStrategy) {
  using enum ShardingStrategy;
  struct Way {
    ShardingStrategy strategy;
    int instances;
    bool divided;
  };
  const Way ways[] = {{no_shard, 1, false},           {optim, 1, false}, {optim_grads, 1, false},
                      {optim_grads_params, 1, false}, {optim, 2, false}, {optim_grads_params, 2, true}};
  const auto case_of = [](const Way& way) {
    RankCase c = resumed_case(4, 2, DType::bf16);
    c.sharding = way.strategy;
    c.instances = way.instances;
    c.shard_over_instances = way.divided;
    return c;
  };
  for (const Way& saved_with : ways) {
    const TemporaryFolder folder;
    const RunOutcome saved = run(case_of(saved_with), 0, 2, {}, folder.file("run"));
    for (const Way& loaded_with : ways) {
      RankCase to = case_of(loaded_with);
      if (loaded_with.strategy == optim && loaded_with.instances == 1) to.ranks = 2;
      const RunOutcome loaded = run(to, 2, 2, folder.file("run"), {});
      const std::string text = fmt::format("{} in {} to {} in {}", name_of(saved_with.strategy), saved_with.instances,
                                           name_of(loaded_with.strategy), loaded_with.instances);
      EXPECT_EQ(loaded.weights, saved.weights) << text;
      EXPECT_EQ(loaded.states, saved.states) << text;
    }
  }
}

RankCase sgd_case(int ranks) {
  RankCase c = resumed_case(ranks, ranks == 1 ? 1 : 2, DType::bf16);
  c.optimizer.kind = OptimizerKind::sgd;
  c.micro_batches = 4 / ranks;
  if (ranks > 1) c.sharding = ranks == 2 ? ShardingStrategy::optim : ShardingStrategy::optim_grads_params;
  c.instances = ranks == 4 ? 2 : 1;
  c.shard_over_instances = ranks == 4;
  return c;
}

TEST(Resume, GoesOnWithSgdBitForBitAtEveryStep) {
  for (const int ranks : {1, 2, 4}) {
    RankCase c = sgd_case(ranks);
    c.weave = c.delay = c.overlap_updates = c.parallel = ranks == 4;
    if (ranks == 2) c.optimizer.momentum = 0;
    const ResumedCase resumed{fmt::format("{} rank(s), sgd", ranks), c,
                              ranks == 1 ? Saves::at_every_step : Saves::beside_every_step};
    const TemporaryFolder folder;
    const auto straight = on_thread_ranks(c, [&](World* world) { return straight_lines(resumed, world); });
    EXPECT_EQ(on_thread_ranks(c, [&](World* world) { return resumed_lines(resumed, world, folder.file("run")); }),
              straight);
  }
}

TEST(Resume, LoadsTheMomentumOfSgdIntoAnyLayout) {
  for (const int ranks : {1, 2, 4}) {
    const TemporaryFolder folder;
    const RunOutcome saved = run(sgd_case(ranks), 0, 2, {}, folder.file("run"));
    EXPECT_NE(saved.states, std::string(32, '0'));
    for (const int other : {1, 2, 4}) {
      const RunOutcome loaded = run(sgd_case(other), 2, 2, folder.file("run"), {});
      EXPECT_EQ(loaded.weights, saved.weights) << ranks << " to " << other;
      EXPECT_EQ(loaded.states, saved.states) << ranks << " to " << other;
    }
  }
}

TEST(Resume, NamesTheOptimizerThatTheStateIsOf) {
  const RankCase adam = small_case("[*-]");
  RankCase sgd = adam, descent = adam;
  sgd.optimizer.kind = descent.optimizer.kind = OptimizerKind::sgd;
  descent.optimizer.momentum = 0;
  const TemporaryFolder folder;
  const auto error_of = [&](const RankCase& saved, const RankCase& loaded, bool optimizer = true) -> std::string {
    const std::string dir = folder.file("run");
    std::filesystem::remove_all(dir);
    run(saved, 0, 1, {}, dir);
    CpuDevice device;
    Session session(device, options_of(loaded, nullptr));
    try {
      LoadOptions options;
      options.optimizer = optimizer;
      load_checkpoint(session, *open_checkpoint(*find_checkpoint(dir), loaded.config), options);
    } catch (const UserError& error) {
      return std::string(error.what()).substr(dir.size());
    }
    return "";
  };
  const auto other = [](const std::string& there, const std::string& here) {
    return fmt::format(
        "/iter_0000001: the optimizer's state in it is that of {}, and this run has {}: choose the same optimizer, or "
        "load the checkpoint with --no-load-optim or --finetune",
        there, here);
  };
  EXPECT_EQ(error_of(adam, sgd),
            other("--optimizer adam (the first moment of language.main.embedding)", "--optimizer sgd"));
  EXPECT_EQ(error_of(adam, descent), other("--optimizer adam (the first moment of language.main.embedding)",
                                           "--optimizer sgd --sgd-momentum 0"));
  const std::string momentum = "--optimizer sgd with --sgd-momentum above 0 (the momentum of language.main.embedding)";
  EXPECT_EQ(error_of(sgd, adam), other(momentum, "--optimizer adam"));
  EXPECT_EQ(error_of(sgd, descent), other(momentum, "--optimizer sgd --sgd-momentum 0"));
  EXPECT_EQ(error_of(descent, sgd),
            "/iter_0000001: the optimizer's state is not in the checkpoint (the momentum of language.main.embedding); "
            "load it "
            "with --no-load-optim or --finetune");
  EXPECT_EQ(error_of(descent, descent), "");
  const RankCase* const cases[] = {&adam, &sgd, &descent};
  for (const RankCase* saved : cases)
    for (const RankCase* loaded : cases) EXPECT_EQ(error_of(*saved, *loaded, false), "");
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
      const RunOutcome saved = run(from, 0, 1, {}, folder.file("first"));
      for (const auto& [to_ranks, to_expert_ranks] : {std::pair{1, 1}, {2, 2}}) {
        SCOPED_TRACE(fmt::format("{} of {} ranks, on {}", groups ? "groups" : "flat", ranks, to_ranks));
        const RankCase same = deepseek_case(groups, to_ranks, to_expert_ranks),
                       other = deepseek_case(!groups, to_ranks, to_expert_ranks);
        const RunOutcome loaded = run(other, 1, 1, folder.file("first"), {});
        EXPECT_EQ(loaded.weights, saved.weights);
        EXPECT_EQ(loaded.states, saved.states);
        // A step, and a save that the first form loads.
        const RunOutcome theirs = run(other, 1, 2, folder.file("first"), folder.file("second"));
        const RunOutcome own = run(same, 1, 2, folder.file("first"), {});
        EXPECT_EQ(theirs.losses, own.losses);
        EXPECT_EQ(theirs.weights, own.weights);
        EXPECT_EQ(theirs.states, own.states);
        const RunOutcome back = run(same, 2, 2, folder.file("second"), {});
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
