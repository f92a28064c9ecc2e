// Runs that are saved after each of their steps, and go on from every one of them: the same on ranks of any kind.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "tests/execute/bitwise_cases.h"
#include "weft/train/checkpoint_saver.h"
#include "weft/train/digest.h"
#include "weft/train/save_load.h"

namespace weft {

struct RunOutcome {
  std::vector<double> losses;
  std::string weights, states;  // digests in the end
};

enum class Saves : std::uint8_t { none, at_the_end, at_every_step, beside_every_step };

// Runs steps [first, last) on this rank, from the checkpoint of `first` where there is one to load. The outcome is that of
// all ranks.
inline RunOutcome run_steps(const RankCase& c, World* world, int first, int last, const std::filesystem::path& load,
                            const std::filesystem::path& save, Saves saves) {
  CpuDevice device;
  const SessionOptions o = options_of(c, world);
  Session session(device, o);
  RunPosition position;
  if (load.empty())
    session.initialise_parameters(5);
  else
    position = load_checkpoint(session, *open_checkpoint(*find_checkpoint(load, first), c.config));
  WEFT_CHECK(position.iteration == first, "the checkpoint of {} is of iteration {}", first, position.iteration);
  CheckpointSaver saver(session, {save});
  RunOutcome outcome;
  for (int step = first; step < last; ++step) {
    std::vector<MicroBatch> batches;
    for (int m = 0; m < c.micro_batches; ++m) batches.push_back(batch_of(c, step, o.layout.shard_of(m)));
    outcome.losses.push_back(session.step(batches, 1e-2, 0.1).loss);
    const RunPosition there{step + 1, 10 * (step + 1), session.steps_taken()};
    if (saves == Saves::at_every_step) saver.save(there, "{}");
    saver.poll();
    if (saves == Saves::beside_every_step) saver.begin(there, "{}");
  }
  saver.finish();
  if (saves == Saves::at_the_end && !save.empty()) saver.save({last, 10 * last, session.steps_taken()}, "{}");
  outcome.weights = weight_digest(session);
  outcome.states = state_digest(session);
  return outcome;
}

// What `body` returns on the first of the case's ranks, which are threads.
template <class Body>
auto on_thread_ranks(const RankCase& c, const Body& body) {
  if (c.ranks == 1) return body(static_cast<World*>(nullptr));
  decltype(body(nullptr)) of_first;
  LocalCluster(c.ranks).run([&](World& world) {
    auto own = body(&world);
    if (world.rank().value == 0) of_first = std::move(own);
  });
  return of_first;
}

inline RankCase resumed_case(int ranks, int expert_ranks, DType dtype) {
  RankCase c = small_case("M[*E]G-E/[*E]");
  c.config.experts.router.score = RouterSpec::Score::sigmoid;
  c.config.experts.expert_bias = true;
  c.config.experts.balance.bias_update_rate = 0.01;  // a parameter that no gradient changes
  c.ranks = ranks;
  c.expert_ranks = expert_ranks;
  c.dtype = dtype;
  return c;
}

struct ResumedCase {
  std::string name;
  RankCase run;
  Saves saves;
};

// So many ranks, experts spread over two of them or not, in both types, in the plain order of a step and in the others.
inline std::vector<ResumedCase> resumed_cases(int ranks) {
  std::vector<ResumedCase> cases;
  const int expert_ranks = ranks == 1 ? 1 : 2;
  RankCase c = resumed_case(ranks, ranks == 4 ? 2 : 1, DType::f32);
  cases.push_back({"f32", c, Saves::beside_every_step});
  c = resumed_case(ranks, expert_ranks, DType::f32);
  c.overlap_updates = true;
  c.clip = 0;
  if (ranks < 4) cases.push_back({"f32, late updates, not clipped", c, Saves::at_every_step});
  c = resumed_case(ranks, expert_ranks, DType::bf16);
  c.weave = c.delay = c.overlap_updates = c.parallel = true;
  cases.push_back({"bf16, woven, delayed, late updates, parallel", c, Saves::beside_every_step});
  if (ranks > 1) {
    c.sharding = ranks == 2 ? ShardingStrategy::optim_grads_params : ShardingStrategy::optim;
    cases.push_back({"bf16, woven, delayed, late updates, parallel, sharded", c, Saves::beside_every_step});
  }
  for (ResumedCase& each : cases) each.name = fmt::format("{} rank(s), {}", ranks, each.name);
  return cases;
}

constexpr int resumed_steps = 12;

// One for each step that a run can go on from: what follows, in bits.
inline std::string line_of(const std::string& name, int from, const RunOutcome& outcome, int losses_from) {
  return fmt::format("{} from {}: losses {:016x} weights {} states {}", name, from,
                     bits_of(1, {outcome.losses.begin() + losses_from, outcome.losses.end()}), outcome.weights,
                     outcome.states);
}

// Of a run that was neither saved nor stopped.
inline std::vector<std::string> straight_lines(const ResumedCase& c, World* world) {
  const RunOutcome straight = run_steps(c.run, world, 0, resumed_steps, {}, {}, Saves::none);
  std::vector<std::string> lines;
  for (int from = 0; from < resumed_steps; ++from) lines.push_back(line_of(c.name, from, straight, from));
  return lines;
}

// Of one that is saved after each of its steps, and of those that go on from there. folder: empty, the same on all ranks.
inline std::vector<std::string> resumed_lines(const ResumedCase& c, World* world, const std::filesystem::path& folder) {
  std::vector<std::string> lines{line_of(c.name, 0, run_steps(c.run, world, 0, resumed_steps, {}, folder, c.saves), 0)};
  for (int from = 1; from < resumed_steps; ++from)
    lines.push_back(line_of(c.name, from, run_steps(c.run, world, from, resumed_steps, folder, {}, Saves::none), 0));
  return lines;
}

}  // namespace weft
