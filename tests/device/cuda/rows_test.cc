// Router, sorting rows by expert, moving rows, the embedding, sums, conversions.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tests/device/cuda/beside.h"
#include "weft/base/random.h"

namespace weft {
namespace {

class RowOperations : public Beside {};

HostTensor random_integers(const Shape& shape, std::int64_t below, const char* name, int none_every = 0) {
  HostTensor x(DType::i32, shape);
  const std::uint64_t key = random_key(7, name);
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    const double u = std::abs(random_normal(key, static_cast<std::uint64_t>(i))) * 1e6;
    const bool none = none_every > 0 && i % none_every == none_every - 1;
    x.set(i, none ? -1 : static_cast<double>(static_cast<std::int64_t>(u) % below));
  }
  return x;
}

TEST_F(RowOperations, RouterForwardAndBackward) {
  struct Case {
    std::int64_t tokens, experts;
    RouterSpec spec;
    bool bias;
  };
  using Score = RouterSpec::Score;
  const Case cases[] = {{1, 4, {Score::softmax, true, false, 1, 2}, false},
                        {37, 8, {Score::softmax, false, false, 2.5, 2}, false},
                        {65, 60, {Score::softmax, false, true, 1, 4}, false},
                        {50, 128, {Score::sigmoid, false, true, 2.5, 8}, true},
                        {33, 64, {Score::sigmoid, false, false, 1, 6}, false},
                        {40, 256, {Score::sigmoid, false, true, 1, 8, 8, 4, 2}, true},
                        {21, 512, {Score::softmax, true, false, 1, 10}, false},
                        {9, 3, {Score::softmax, true, false, 1, 3}, false}};
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{} tokens, {} experts", c.tokens, c.experts));
    const std::int64_t k = c.spec.k;
    const HostTensor logits = HostTensor::normal(DType::f32, {c.tokens, c.experts}, "logits", 2);
    const HostTensor bias = c.bias ? HostTensor::normal(DType::f32, {c.experts}, "bias", 0.1) : HostTensor();
    const HostTensor scores(DType::f32, {c.tokens, c.experts}), weights(DType::f32, {c.tokens, k});
    const HostTensor indices(DType::i32, {c.tokens, k}), dweights = HostTensor::normal(DType::f32, {c.tokens, k}, "dw");
    const HostTensor dlogits = HostTensor::normal(DType::f32, {c.tokens, c.experts}, "dl"), added = dlogits;
    run([&](const Operations& ops, Stream& stream, const At& at) {
      ops.router(stream, {c.spec, at(logits), at(bias), at(scores), at(weights), at(indices)});
      ops.router_backward(stream, {c.spec, at(scores), at(weights), at(indices), at(dweights), at(dlogits)});
      ops.router_backward(stream, {c.spec, at(scores), at(weights), at(indices), at(dweights), at(added), Store::add});
    });
    expect_same(indices);
    for (const HostTensor* x : {&scores, &weights, &dlogits, &added}) expect(*x, c.experts + 30);
  }
}

TEST_F(RowOperations, RouteRows) {
  struct Case {
    std::int64_t tokens, k, experts, alignment;
    int none_every;
  };
  for (const Case& c : {Case{1, 1, 1, 1, 0}, Case{1, 2, 4, 16, 0}, Case{37, 4, 60, 1, 5}, Case{1000, 8, 64, 8, 0},
                        Case{700, 6, 1500, 1, 7}, Case{513, 1, 3, 128, 0}}) {
    SCOPED_TRACE(fmt::format("{} x {} to {}, alignment {}", c.tokens, c.k, c.experts, c.alignment));
    const std::int64_t rows = c.tokens * c.k + c.experts * (c.alignment - 1) + 4;
    const HostTensor indices =
        random_integers({c.tokens, c.k}, std::max<std::int64_t>(c.experts - 1, 1), "i", c.none_every);
    HostTensor counts(DType::i32, {c.experts}), offsets(DType::i32, {c.experts + 1}),
        row_of_slot(DType::i32, {c.tokens, c.k});
    HostTensor slot_of_row(DType::i32, {rows}), used(DType::i32, {1});
    slot_of_row.fill(-7);
    run([&](const Operations& ops, Stream& stream, const At& at) {
      ops.route_rows(stream,
                     {at(indices), at(counts), at(offsets), at(row_of_slot), at(slot_of_row), at(used), c.alignment});
    });
    for (const HostTensor* x : {&counts, &offsets, &row_of_slot, &slot_of_row, &used}) expect_same(*x);
  }
}

// More slots than parts of the smallest size hold.
TEST_F(RowOperations, RouteManyRows) {
  const std::int64_t tokens = 20000, k = 4, experts = 130;
  const HostTensor indices = random_integers({tokens, k}, experts, "i", 11);
  HostTensor counts(DType::i32, {experts}), offsets(DType::i32, {experts + 1}), row_of_slot(DType::i32, {tokens, k});
  HostTensor slot_of_row(DType::i32, {tokens * k + experts * 8}), used(DType::i32, {1});
  slot_of_row.fill(-7);
  run([&](const Operations& ops, Stream& stream, const At& at) {
    ops.route_rows(stream, {at(indices), at(counts), at(offsets), at(row_of_slot), at(slot_of_row), at(used), 8});
  });
  for (const HostTensor* x : {&counts, &offsets, &row_of_slot, &slot_of_row, &used}) expect_same(*x);
}

TEST_F(RowOperations, ArrangeRows) {
  for (std::int64_t sources : {1, 3, 8})
    for (std::int64_t experts : {1, 5, 40})
      for (std::int64_t alignment : {1, 16}) {
        SCOPED_TRACE(fmt::format("{} sources, {} experts, alignment {}", sources, experts, alignment));
        const HostTensor from = random_integers({sources, experts}, 9, "from");
        const std::int64_t room = sources * experts * 9, rows = room + experts * alignment;
        HostTensor counts(DType::i32, {experts}), offsets(DType::i32, {experts + 1}), received(DType::i32, {rows}),
            row(DType::i32, {room}), used(DType::i32, {1}), received_used(DType::i32, {1});
        received.fill(-7);
        row.fill(-7);
        run([&](const Operations& ops, Stream& stream, const At& at) {
          ops.arrange_rows(stream, {at(from), at(counts), at(offsets), at(received), at(row), at(used),
                                    at(received_used), alignment});
        });
        for (const HostTensor* x : {&counts, &offsets, &received, &row, &used, &received_used}) expect_same(*x);
      }
}

TEST_F(RowOperations, GatherSumAndEmbedding) {
  for (DType type : model_types)
    for (std::int64_t columns : {1, 3, 8, 72, 264, 513, 2056})
      for (std::int64_t rows : {1, 45}) {
        SCOPED_TRACE(fmt::format("{} {} x {}", name_of(type), rows, columns));
        const std::int64_t k = 3;
        const HostTensor x = HostTensor::normal(type, {rows, columns}, "x", 1, columns + 8);
        const HostTensor index = random_integers({rows * k}, rows * k, "index", 6),
                         choice = random_integers({rows, k}, rows, "c", 4);
        const HostTensor y(type, {rows * k, columns}), part = HostTensor::normal(type, {rows * k, columns}, "part");
        const HostTensor used = HostTensor::integers({static_cast<std::int32_t>(rows)});
        const HostTensor sum(type, {rows, columns}, columns + 3), wide(DType::f32, {rows, columns});
        const HostTensor residual = HostTensor::normal(type, {rows, columns}, "residual");
        const HostTensor extra = HostTensor::normal(type, {rows, columns}, "extra");
        const HostTensor weight = HostTensor::normal(type, {11, columns}, "weight"), embedded(type, {rows, columns});
        const HostTensor tokens = random_integers({rows}, 11, "tokens", 9);
        const HostTensor gradient = HostTensor::normal(DType::f32, {11, columns}, "g"), written = gradient;
        run([&](const Operations& ops, Stream& stream, const At& at) {
          ops.gather_rows(stream, {at(x), at(index), at(y), {}, k});
          ops.gather_rows(stream, {at(x), at(index), at(part), at(used), k});
          ops.sum_rows(stream, {at(x), at(choice), at(sum), at(residual), at(extra)});
          ops.sum_rows(stream, {at(x), at(choice), at(wide), {}, {}});
          ops.embedding(stream, {at(tokens), at(weight), at(embedded)});
          ops.embedding_gradient(stream, {at(tokens), at(x), at(gradient), Store::add});
          ops.embedding_gradient(stream, {at(tokens), at(x), at(written), Store::write});
        });
        for (const HostTensor* t : {&y, &part, &embedded}) expect_same(*t);
        for (const HostTensor* t : {&sum, &wide, &gradient, &written}) expect(*t, 45);
      }
}

TEST_F(RowOperations, GatherToPlaces) {
  struct Case {
    std::int64_t tokens, k, experts, alignment, capacity;
    int none_every;
  };
  for (DType type : model_types)
    for (std::int64_t columns : {3, 256, 264, 2056, 4608})
      for (const Case& c :
           {Case{1, 2, 4, 16, 0, 0}, Case{45, 3, 7, 1, 0, 5}, Case{100, 8, 16, 8, 0, 0}, Case{33, 2, 5, 4, 40, 3}}) {
        SCOPED_TRACE(fmt::format("{} {} x {} columns {}", name_of(type), c.tokens, c.k, columns));
        const std::int64_t rows = (c.capacity > 0 ? c.experts * c.capacity : c.tokens * c.k) + c.experts * c.alignment;
        const HostTensor x = HostTensor::normal(type, {c.tokens, columns}, "x", 1, columns + 8);
        const HostTensor indices = random_integers({c.tokens, c.k}, c.experts, "i", c.none_every);
        HostTensor counts(DType::i32, {c.experts}), offsets(DType::i32, {c.experts + 1}),
            places(DType::i32, {c.tokens, c.k}), index(DType::i32, {rows}), used(DType::i32, {1});
        index.fill(-7);
        const HostTensor y = HostTensor::normal(type, {rows, columns}, "y", 1, columns + 8);
        run([&](const Operations& ops, Stream& stream, const At& at) {
          ops.route_rows(
              stream, {at(indices), at(counts), at(offsets), at(places), at(index), at(used), c.alignment, c.capacity});
          ops.gather_rows(stream, {at(x), at(index), at(y), at(used), c.k, at(places)});
        });
        for (const HostTensor* t : {&places, &index, &counts, &offsets, &used}) expect_same(*t);
        expect_same(y);
      }
}

TEST_F(RowOperations, Shift) {
  const HostTensor x = random_integers({24}, 1000, "x"), y(DType::i32, {24}), z = y;
  const HostTensor boundaries =
      HostTensor::integers({0, 0, 0, 3, 3, 3, 3, 3, 3, 9, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 20, 20, 20, 20});
  run([&](const Operations& ops, Stream& stream, const At& at) {
    ops.shift(stream, {at(x), at(y), {}, 2, -1, 8});
    ops.shift(stream, {at(x), at(z), at(boundaries), 1, 7, 0});
  });
  expect_same(y);
  expect_same(z);
}

TEST_F(RowOperations, LocalTokens) {
  const HostTensor tokens = random_integers({300}, 1000, "tokens"), y(DType::i32, {300});
  run([&](const Operations& ops, Stream& stream, const At& at) {
    ops.local_tokens(stream, {at(tokens), at(y), 250, 500});
  });
  expect_same(y);
}

TEST_F(RowOperations, CopyChoices) {
  HostTensor indices = random_integers({40, 3}, 16, "indices");
  indices.set(5, -1);
  const HostTensor y(DType::i32, {40, 12});
  run([&](const Operations& ops, Stream& stream, const At& at) {
    ops.copy_choices(stream, {at(indices), at(y), 2, 4});
  });
  expect_same(y);
}

TEST_F(RowOperations, GroupedBias) {
  for (DType type : model_types)
    for (DType bias_type : {type, DType::f32})
      for (std::int64_t columns : {1, 40, 300}) {
        const HostTensor counts = HostTensor::integers({3, 0, 1, 70}),
                         offsets = HostTensor::integers({0, 8, 8, 16, 88});
        const HostTensor y = HostTensor::normal(type, {90, columns}, "y", 1, columns + 3);
        const HostTensor dy = HostTensor::normal(type, {90, columns}, "dy");
        const HostTensor bias = HostTensor::normal(bias_type, {4, columns}, "bias");
        const HostTensor scale = HostTensor::normal(DType::f32, {90}, "scale"),
                         dscale = HostTensor::normal(DType::f32, {90}, "ds");
        const HostTensor dbias = HostTensor::normal(DType::f32, {4, columns}, "db"), written = dbias;
        run([&](const Operations& ops, Stream& stream, const At& at) {
          const Groups groups{at(counts), at(offsets)};
          ops.grouped_bias(stream, {at(y), at(bias), at(scale), groups});
          ops.grouped_bias_gradient(stream, {at(dy), at(scale), at(dbias), groups, Store::add});
          ops.grouped_bias_gradient(stream, {at(dy), at(scale), at(written), groups, Store::write});
          ops.grouped_bias_scale_gradient(stream, {at(dy), at(bias), at(dscale), groups});
        });
        expect(y, 3);
        for (const HostTensor* t : {&dbias, &written})
          expect(*t, 70, std::vector<double>(static_cast<std::size_t>(4 * columns), 300));
        expect(dscale, columns, std::vector<double>(90, 4.0 * static_cast<double>(columns)));
      }
}

TEST_F(RowOperations, BalanceOfExperts) {
  using Score = RouterSpec::Score;
  for (Score score : {Score::softmax, Score::sigmoid})
    for (std::int64_t experts : {3, 64, 130})
      for (std::int64_t sequences : {1, 4}) {
        SCOPED_TRACE(fmt::format("{} experts, {} sequences", experts, sequences));
        const std::int64_t tokens = 48, k = 2;
        const HostTensor logits = HostTensor::normal(DType::f32, {tokens, experts}, "logits", 2);
        HostTensor scores(DType::f32, {tokens, experts});
        for (std::int64_t i = 0; i < scores.elements(); ++i) scores.set(i, 1 / (1 + std::exp(-logits.at(i))));
        const HostTensor indices = random_integers({tokens, k}, experts, "indices", 7);
        const HostTensor weights = HostTensor::normal(DType::f32, {tokens, k}, "weights");
        const HostTensor counts(DType::f64, {sequences, experts}), chosen(DType::f32, {sequences, experts});
        HostTensor before(DType::f64, {sequences, experts});
        before.fill(2);
        const HostTensor dlogits = HostTensor::normal(DType::f32, {tokens, experts}, "d");
        const HostTensor balance = HostTensor::of(DType::f64, {1}, {0.5}), z = balance, scale = balance;
        const HostTensor kept(DType::i32, {tokens, k}), earliest = kept;
        HostTensor bias = HostTensor::normal(DType::f32, {experts}, "bias"), sums(DType::f64, {experts}),
                   values(DType::f64, {StepValues::count});
        for (std::int64_t e = 0; e < experts; ++e) sums.set(e, static_cast<double>(e * 7 % 5));
        values.set(StepValues::finite, 1);
        run([&](const Operations& ops, Stream& stream, const At& at) {
          ops.count_experts(stream, {at(indices), {}, at(counts), at(before), k, sequences});
          ops.count_experts(stream, {{}, at(scores), at(chosen), {}, k, sequences, Store::add});
          BalanceLosses losses{score,       at(scores), at(logits), at(counts), at(scale), at(dlogits),
                               at(balance), at(z),      sequences,  0.3,        0.2};
          losses.store = Store::add;
          ops.balance_losses(stream, losses);
          ops.drop_choices(stream,
                           {DropChoices::Policy::probabilities, at(indices), at(weights), at(kept), experts, 5});
          ops.drop_choices(stream, {DropChoices::Policy::position, at(indices), at(weights), at(earliest), experts, 3});
          ops.update_expert_bias(stream, {at(bias), at(sums), at(values), 1e-2});
        });
        for (const HostTensor* t : {&counts, &chosen, &kept, &earliest}) expect_same(*t);
        for (const HostTensor* t : {&dlogits, static_cast<const HostTensor*>(&bias)}) expect(*t, experts + 30);
        for (const HostTensor* t : {&balance, &z}) EXPECT_NEAR(got(*t).at(0) / want(*t)[0], 1, 1e-5);
      }
}

TEST_F(RowOperations, LatentHeads) {
  for (DType type : model_types)
    for (RotaryStyle style : {RotaryStyle::half_split, RotaryStyle::interleaved})
      for (std::int64_t still : {0, 10}) {
        const std::int64_t heads = 3, turning = 8, tokens = 14, width = still + turning;
        const HostTensor q = HostTensor::normal(type, {tokens, heads * width}, "q", 1, heads * width + 4), dq = q;
        const HostTensor own = still > 0 ? HostTensor::normal(type, {tokens, heads * still}, "own") : HostTensor();
        const HostTensor down = still > 0 ? HostTensor(type, {tokens, heads * still}) : HostTensor();
        const HostTensor shared = HostTensor::normal(type, {tokens, turning}, "shared", 1, turning + 5),
                         dshared(type, {tokens, turning});
        const HostTensor k(type, {tokens, heads * width}), dk = HostTensor::normal(type, {tokens, heads * width}, "dk");
        const HostTensor cosine = HostTensor::normal(DType::f32, {7, turning / 2}, "cos"),
                         sine = HostTensor::normal(DType::f32, {7, turning / 2}, "sin");
        run([&](const Operations& ops, Stream& stream, const At& at) {
          ops.latent_heads(
              stream, {at(q), at(own), at(shared), at(k), at(cosine), at(sine), {}, heads, still, turning, 7, style});
          ops.latent_heads_backward(
              stream,
              {at(dq), at(dk), at(down), at(dshared), at(cosine), at(sine), {}, heads, still, turning, 7, style});
        });
        for (const HostTensor* t : {&q, &k, &dq, &dshared}) expect(*t, 8);
        if (still > 0) expect_same(down);
      }
}

TEST_F(RowOperations, AddCastFill) {
  for (DType a_type : model_types)
    for (DType b_type : model_types)
      for (DType y_type : model_types)
        for (std::int64_t columns : {1, 7, 64})
          for (std::int64_t pad : {0, 8, 3}) {
            const HostTensor a = HostTensor::normal(a_type, {37, columns}, "a", 1, columns + pad);
            const HostTensor b = HostTensor::normal(b_type, {37, columns}, "b", 1, columns + pad);
            const HostTensor y(y_type, {37, columns}, columns + pad), z = y, one = y, zero = a;
            run([&](const Operations& ops, Stream& stream, const At& at) {
              ops.add(stream, {at(a), at(b), at(y)});
              ops.cast(stream, {at(a), at(z)});
              ops.fill(stream, {at(one), 1.5});
              ops.fill(stream, {at(zero), 0});
            });
            expect(y, 1);
            expect(z, 1);
            expect_same(one);
            expect_same(zero);
          }
}

}  // namespace
}  // namespace weft
