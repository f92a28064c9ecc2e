// The orders of a pipeline: who waits for whom, in which time, with how much memory.
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/plan/orders/order.h"

namespace weft {
namespace {

using Direction = ModelPass::Direction;

std::string text_of(const PassOrder& order) {
  std::string text;
  for (const ModelPass& pass : order) {
    const char letter = pass.direction == Direction::forward ? 'F' : pass.direction == Direction::backward ? 'B' : 'W';
    text += fmt::format("{}{}{} ", letter, pass.micro_batch, static_cast<char>('a' + pass.chunk));
  }
  return text;
}

// When every pass of every stage is done; -1: the stages wait for each other. times: of one chunk.
double time_of(PipelineStage s, const PassTimes& times) {
  std::vector<PassOrder> orders;
  for (s.stage = 0; s.stage < s.stages; ++s.stage) orders.push_back(pipeline_order(s));
  const int segments = s.stages * s.chunks;
  std::map<std::tuple<Direction, int, int>, double> done;  // by segment, micro-batch
  std::vector<std::size_t> next(orders.size());
  std::vector<double> clock(orders.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < orders.size(); ++r)
      while (next[r] < orders[r].size()) {
        const ModelPass& pass = orders[r][next[r]];
        const int segment = pass.chunk * s.stages + static_cast<int>(r), m = pass.micro_batch;
        std::vector<std::tuple<Direction, int, int>> needs;
        if (pass.direction == Direction::forward && segment > 0) needs.push_back({Direction::forward, segment - 1, m});
        if (pass.direction == Direction::backward) {
          needs.push_back({Direction::forward, segment, m});
          if (segment + 1 < segments) needs.push_back({Direction::backward, segment + 1, m});
        }
        if (pass.direction == Direction::weight_gradients) needs.push_back({Direction::backward, segment, m});
        if (pass.with_next) {
          const ModelPass& other = orders[r][next[r] + 1];
          const int its = other.chunk * s.stages + static_cast<int>(r);
          needs.push_back({Direction::forward, its, other.micro_batch});
          if (its + 1 < segments) needs.push_back({Direction::backward, its + 1, other.micro_batch});
        }
        double start = clock[r];
        bool ready = true;
        for (const auto& need : needs) {
          const auto at = done.find(need);
          ready &= at != done.end();
          if (at != done.end()) start = std::max(start, at->second);
        }
        if (!ready) break;
        const double takes = pass.direction == Direction::forward ? times.forward
                             : pass.direction == Direction::weight_gradients
                                 ? times.weight_gradients
                                 : times.backward + (pass.weights_later ? 0 : times.weight_gradients);
        clock[r] = done[{pass.direction, segment, m}] = start + takes;
        if (s.weights_after_passes && pass.direction == Direction::backward && !pass.weights_later)
          done[{pass.direction, segment, m}] -= times.weight_gradients;
        const bool paired = next[r] > 0 && orders[r][next[r] - 1].with_next;
        if (paired) {  // what the forward pass made leaves with the rest
          const ModelPass& other = orders[r][next[r] - 1];
          done[{Direction::forward, other.chunk * s.stages + static_cast<int>(r), other.micro_batch}] = clock[r];
        }
        ++next[r];
        moved = true;
      }
  }
  for (std::size_t r = 0; r < orders.size(); ++r)
    if (next[r] < orders[r].size()) return -1;
  return *std::max_element(clock.begin(), clock.end());
}

// Most chunks whose activations a stage keeps: from the forward pass until the weights have their gradients.
int kept(const PassOrder& order) {
  int now = 0, most = 0;
  for (const ModelPass& pass : order) {
    if (pass.direction == Direction::forward) most = std::max(most, ++now);
    if (pass.direction == Direction::weight_gradients || (pass.direction == Direction::backward && !pass.weights_later))
      --now;
  }
  return most;
}

TEST(Order, of_one_f_one_b) {
  EXPECT_EQ(text_of(pipeline_order({.stages = 4, .stage = 1, .micro_batches = 4})), "F0a F1a F2a B0a F3a B1a B2a B3a ");
  EXPECT_EQ(text_of(pipeline_order({.stages = 4, .stage = 3, .micro_batches = 3})), "F0a B0a F1a B1a F2a B2a ");
  EXPECT_EQ(text_of(pipeline_order({.micro_batches = 2})), "F0a B0a F1a B1a ");
}

TEST(Order, of_interleaved_stages) {
  EXPECT_EQ(text_of(pipeline_order({.stages = 2, .stage = 0, .chunks = 2, .micro_batches = 4})),
            "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a ");
  EXPECT_EQ(text_of(pipeline_order({.stages = 2, .stage = 1, .chunks = 2, .micro_batches = 4})),
            "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a ");
  // Groups of three, of which the last has two.
  EXPECT_EQ(text_of(pipeline_order({.stages = 2, .stage = 1, .chunks = 2, .micro_batches = 5, .group = 3})),
            "F0a F1a F2a F0b B0b F1b B1b F2b B2b F3a B0a F4a B1a F3b B2a B3b F4b B4b B3a B4a ");
}

TEST(Order, of_zero_bubble) {
  EXPECT_EQ(text_of(pipeline_order({.stages = 2, .stage = 1, .micro_batches = 3, .kind = OrderKind::zero_bubble})),
            "F0a B0a F1a B1a W0a F2a B2a W1a W2a ");
}

TEST(Order, takes_the_time_that_its_formula_says) {
  const PassTimes equal{1, 1, 1}, uneven{3, 4, 2};
  int dice = 0;
  for (const int stages : {1, 2, 3, 4, 8})
    for (const int micro_batches : {8, 16, 24})
      for (const int chunks : {1, 2, 3})
        for (const PassTimes& times : {equal, uneven})
          for (const OrderKind kind : {OrderKind::automatic, OrderKind::zero_bubble}) {
            PipelineStage s{.stages = stages, .chunks = chunks, .micro_batches = micro_batches, .kind = kind};
            if (kind == OrderKind::zero_bubble && chunks > 1) continue;
            if (stages == 1 && chunks > 1) continue;
            if (micro_batches % stages != 0) continue;
            const double work = micro_batches * (times.forward + times.backward + times.weight_gradients);
            s.weights_after_passes = dice++ % 2 == 0;
            const PassTimes of_chunk{times.forward / chunks, times.backward / chunks, times.weight_gradients / chunks};
            EXPECT_NEAR(time_of(s, of_chunk), work + bubble_of(s, times), 1e-9)
                << name_of(kind) << " " << stages << " stages " << chunks << " chunks " << micro_batches
                << " micro-batches " << times.forward << " weights later " << s.weights_after_passes;
          }
}

TEST(Order, of_zero_bubble_waits_a_third_of_one_f_one_b_and_keeps_no_more) {
  for (const int stages : {2, 4, 8})
    for (const int micro_batches : {1, 3, 8, 32}) {
      PipelineStage s{.stages = stages, .micro_batches = micro_batches};
      PipelineStage z = s;
      z.kind = OrderKind::zero_bubble;
      EXPECT_NEAR(bubble_of(z, {}), bubble_of(s, {}) / 3, 1e-12);
      const int most = kept(pipeline_order(s));  // of the first stage
      for (z.stage = 0; z.stage < stages; ++z.stage) EXPECT_LE(kept(pipeline_order(z)), most);
    }
}

TEST(Order, exists_for_every_stage_and_never_waits_for_itself) {
  int orders = 0;
  for (int seed = 0; seed < 2000; ++seed) {
    const std::uint64_t key = random_key(static_cast<std::uint64_t>(seed), "orders");
    const auto dice = [&](std::uint64_t at, int most) {
      return 1 + static_cast<int>(random_below(key, at, static_cast<std::uint64_t>(most)));
    };
    PipelineStage s{.stages = dice(0, 9), .chunks = dice(1, 4), .micro_batches = dice(2, 24), .woven = dice(3, 2) == 1};
    if (dice(4, 2) == 1) s.group = dice(5, 12);
    if (s.chunks == 1) s.kind = dice(6, 2) == 1 ? OrderKind::zero_bubble : OrderKind::automatic;
    if (s.chunks > 1 && s.group > 0 && s.group < s.stages) {
      EXPECT_THROW(pipeline_order(s), UserError);
      continue;
    }
    ++orders;
    EXPECT_GE(time_of(s, {}), 0) << "stages wait for each other, seed " << seed;
    for (s.stage = 0; s.stage < s.stages; ++s.stage) {
      const PassOrder order = pipeline_order(s);
      std::map<std::pair<Direction, int>, int> last;  // by chunk: micro-batches follow each other
      int passes = 0;
      for (std::size_t i = 0; i < order.size(); ++i) {
        const ModelPass& pass = order[i];
        const auto [at, is_new] = last.try_emplace({pass.direction, pass.chunk}, -1);
        EXPECT_EQ(at->second + 1, pass.micro_batch);
        at->second = pass.micro_batch;
        passes += pass.direction != Direction::weight_gradients;
        if (s.stage + 1 == s.stages && pass.chunk + 1 == s.chunks && pass.direction == Direction::forward) {
          const int back = last.try_emplace({Direction::backward, pass.chunk}, -1).first->second;
          EXPECT_LE(pass.micro_batch - back, s.woven ? 2 : 1)
              << "the head's gradient would get a later micro-batch first, seed " << seed;
        }
        if (!pass.with_next) continue;
        ASSERT_LT(i + 1, order.size());
        EXPECT_EQ(order[i + 1].direction, Direction::backward);
        EXPECT_FALSE(order[i + 1].micro_batch == pass.micro_batch && order[i + 1].chunk == pass.chunk)
            << "a pair needs itself, seed " << seed;
      }
      EXPECT_EQ(passes, 2 * s.chunks * s.micro_batches);
    }
  }
  EXPECT_GT(orders, 1000);
}

// 10 micro-batches for groups of 4: two groups of 5, rather than a last one of 2 that would let stages wait.
TEST(Order, of_interleaved_stages_takes_any_number_of_micro_batches) {
  const PipelineStage s{.stages = 4, .stage = 3, .chunks = 2, .micro_batches = 10};
  EXPECT_EQ(warm_up_passes(s), 5);
  EXPECT_EQ(text_of(pipeline_order(s)).substr(0, 15), "F0a F1a F2a F3a");
  for (const int micro_batches : {5, 6, 7, 9, 10, 11}) {
    const PipelineStage u{.stages = 4, .chunks = 2, .micro_batches = micro_batches};
    const double waits = time_of(u, {0.5, 0.5, 0.5}) - 3 * micro_batches;
    EXPECT_LT(waits, 2 * bubble_of(u, {})) << micro_batches;
  }
}

// Those of Megatron's documentation: 4 stages, 2 chunks, 8 micro-batches, a backward pass twice as long as a forward one.
TEST(Order, of_interleaved_stages_keeps_and_takes_what_megatron_does) {
  PipelineStage s{.stages = 4, .chunks = 2, .micro_batches = 8};
  EXPECT_NEAR(time_of(s, {1, 1, 1}), 57, 1e-9);
  EXPECT_NEAR(time_of({.stages = 4, .micro_batches = 8}, {2, 2, 2}), 66, 1e-9);
  for (const bool woven : {false, true})
    for (s.stage = 0; s.stage < 4; ++s.stage) {
      s.woven = woven;
      EXPECT_EQ(kept(pipeline_order(s)), 11 - 2 * s.stage + (woven ? 1 : 0));
    }
}

TEST(Order, of_one_f_one_b_keeps_as_many_as_stages_follow_and_one) {
  for (PipelineStage s{.stages = 8, .micro_batches = 32}; s.stage < 8; ++s.stage)
    EXPECT_EQ(kept(pipeline_order(s)), 8 - s.stage);
}

// Pairs run as one: both passes begin when both have what they need, and end together. One pass more of warm-up alone
// would let every pair wait for the neighbour's.
TEST(Order, that_is_woven_takes_no_longer) {
  const PassTimes times{1, 1, 1};
  for (const OrderKind kind : {OrderKind::one_f_one_b, OrderKind::zero_bubble}) {
    PipelineStage s{.stages = 4, .micro_batches = 16, .kind = kind};
    const double plain = time_of(s, times);
    EXPECT_EQ(plain, kind == OrderKind::one_f_one_b ? 57 : 51);
    s.woven = true;
    EXPECT_EQ(time_of(s, times), plain);
  }
  PipelineStage s{.stages = 4, .chunks = 2, .micro_batches = 16};
  const double plain = time_of(s, times);
  s.woven = true;
  EXPECT_LE(time_of(s, times), plain + 3 * 2);
}

TEST(Order, that_is_woven_warms_up_longer) {
  EXPECT_EQ(warm_up_passes({.stages = 4, .stage = 0, .micro_batches = 16, .woven = true}), 7);
  EXPECT_EQ(warm_up_passes({.stages = 4, .stage = 3, .micro_batches = 16, .woven = true}), 1);
  EXPECT_EQ(warm_up_passes({.stages = 4, .stage = 1, .chunks = 2, .micro_batches = 8, .woven = true}), 9);
  EXPECT_EQ(warm_up_passes({.stages = 4, .stage = 1, .chunks = 2, .micro_batches = 8}), 8);
}

TEST(Order, that_cannot_exist_is_refused_with_both_numbers) {
  const auto message = [](const PipelineStage& s) {
    try {
      pipeline_order(s);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message({.stages = 4, .chunks = 2, .micro_batches = 8, .group = 3}),
            "interleaved stages need at least as many micro-batches in a group as there are stages: 3 for 4 stages");
  EXPECT_EQ(message({.stages = 4, .chunks = 2, .micro_batches = 8, .kind = OrderKind::zero_bubble}),
            "the order zero-bubble takes one segment per stage, and there are 2; use interleaved");
  EXPECT_EQ(message({.stages = 4, .micro_batches = 1}), "");
  EXPECT_EQ(message({.stages = 4, .chunks = 2, .micro_batches = 3}), "");
  EXPECT_EQ(message({.stages = 4, .chunks = 2, .micro_batches = 10}), "");
}

}  // namespace
}  // namespace weft
