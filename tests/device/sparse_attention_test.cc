#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {
namespace {

std::size_t place(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Case {
  std::int64_t batch, length, heads, kv_heads, dim, value_dim, index_heads, index_dim, K;
  std::vector<std::int64_t> documents = {};  // their lengths; empty: sequences
};
const std::vector<Case> cases = {{1, 1, 1, 1, 1, 1, 1, 1, 1},
                                 {2, 9, 2, 1, 3, 5, 1, 2, 4},
                                 {1, 70, 3, 3, 17, 6, 5, 9, 11},
                                 {2, 33, 4, 2, 8, 8, 3, 4, 100},
                                 {1, 130, 2, 2, 5, 4, 2, 3, 7, {1, 60, 2, 67}}};

// Whole numbers: every score is exact in every type and order of sums, and many are equal.
HostTensor whole(DType dtype, const Shape& shape, std::string_view name) {
  HostTensor x(dtype, shape, shape[1] + 2);
  const std::uint64_t key = random_key(3, std::string(name));
  for (std::int64_t i = 0; i < x.elements(); ++i)
    x.set(i, static_cast<double>(random_below(key, static_cast<std::uint64_t>(i), 5)) - 2);
  return x;
}

struct Problem {
  Case c;
  std::int64_t tokens;
  HostTensor iq, ik, iw, q, k, v, keys, boundaries;
  static constexpr double index_scale = 0.5;

  Problem(const Case& shape, DType dtype, bool exact) : c(shape), tokens(c.batch * c.length) {
    const auto made = [&](const Shape& s, std::string_view name) {
      return exact ? whole(dtype, s, name) : HostTensor::normal(dtype, s, name, 1, s[1] + 2);
    };
    iq = made({tokens, c.index_heads * c.index_dim}, "iq");
    ik = made({tokens, c.index_dim}, "ik");
    iw = made({tokens, c.index_heads}, "iw");
    q = HostTensor::normal(dtype, {tokens, c.heads * c.dim}, "q", 1, c.heads * c.dim + 3);
    k = HostTensor::normal(dtype, {tokens, c.kv_heads * c.dim}, "k");
    v = HostTensor::normal(dtype, {tokens, c.kv_heads * c.value_dim}, "v");
    keys = HostTensor(DType::i32, {tokens, c.K});
    boundaries = HostTensor(DType::i32, {tokens});
    std::int64_t begin = 0, t = 0;
    for (std::int64_t length : c.documents.empty() ? std::vector(place(c.batch), c.length) : c.documents) {
      for (begin = t; t < begin + length; ++t) boundaries.set(t, static_cast<double>(begin));
    }
    choose();
  }

  Indexer indexer() const { return {iq, ik, iw, c.index_heads, c.index_dim, index_scale}; }
  Attention attention(const HostTensor& out, const HostTensor& lse) const {
    Attention a{.q = q, .k = k, .v = v, .out = out, .lse = lse};
    a.length = c.length, a.heads = c.heads, a.kv_heads = c.kv_heads, a.dim = c.dim, a.value_dim = c.value_dim;
    a.scale = 0.7;
    if (!c.documents.empty()) a.boundaries = boundaries;
    return a;
  }
  std::int64_t first(std::int64_t t) const { return static_cast<std::int64_t>(boundaries.at(t)); }
  double product(std::int64_t t, std::int64_t h, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t i = 0; i < c.index_dim; ++i) sum += iq.at(t, h * c.index_dim + i) * ik.at(j, i);
    return std::max(sum, 0.0);
  }
  double score(std::int64_t t, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t h = 0; h < c.index_heads; ++h) sum += iw.at(t, h) * product(t, h, j);
    return index_scale * sum;
  }
  // The plain choice.
  void choose() {
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<std::int64_t> order;
      std::vector<double> scores;
      for (std::int64_t j = first(t); j <= t; ++j) order.push_back(j), scores.push_back(score(t, j));
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        return scores[place(a - first(t))] > scores[place(b - first(t))];
      });
      if (std::ssize(order) > c.K) order.resize(place(c.K));
      std::sort(order.begin(), order.end());
      for (std::int64_t j = 0; j < c.K; ++j)
        keys.set(t, j, j < std::ssize(order) ? static_cast<double>(order[place(j)]) : -1.0);
    }
  }
  // Products of the indexer far from 0, where max(0, x) has no derivative: keys positive, query heads of one sign.
  void keep_off_the_kink() {
    for (std::int64_t i = 0; i < ik.elements(); ++i) ik.set(i, 0.5 + 0.2 * std::abs(ik.at(i)));
    for (std::int64_t i = 0; i < iq.elements(); ++i) {
      const double sign = i / c.index_dim % 3 == 0 ? -1 : 1;
      iq.set(i, sign * (0.5 + 0.2 * std::abs(iq.at(i))));
    }
    choose();
  }
  std::vector<std::int64_t> chosen(std::int64_t t) const {
    std::vector<std::int64_t> all;
    for (std::int64_t j = 0; j < c.K; ++j)
      if (keys.at(t, j) >= 0) all.push_back(static_cast<std::int64_t>(keys.at(t, j)));
    return all;
  }
};

TEST(ChooseKeys, TakesTheBestAndOfEqualOnesTheFirst) {
  for (DType dtype : storages)
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} length {} K {}", name_of(dtype), c.length, c.K));
      const Problem p(c, dtype, true);
      everywhere(
          [&](TestDevice& device) {
            HostTensor keys(DType::i32, {p.tokens, c.K});
            ChooseKeys op{p.indexer(), keys};
            op.length = c.length;
            if (!c.documents.empty()) op.boundaries = p.boundaries;
            device.operations().choose_keys(device.stream(), op);
            return std::vector<HostTensor>{keys};
          },
          [&](const std::vector<HostTensor>& got) { EXPECT_EQ(got[0].values(), p.keys.values()); });
    }
}

TEST(ChooseKeys, ScoresThatAreNoNumbersComeLast) {
  Problem p({1, 20, 1, 1, 1, 1, 2, 3, 6}, DType::f32, true);
  for (std::int64_t i = 0; i < 3; ++i) p.ik.set(4, i, std::numeric_limits<double>::quiet_NaN());
  TestDevice device;
  HostTensor keys(DType::i32, {p.tokens, 6});
  ChooseKeys op{p.indexer(), keys};
  op.length = 20;
  device.operations().choose_keys(device.stream(), op);
  for (std::int64_t t = 6; t < 20; ++t)
    for (std::int64_t j = 0; j < 6; ++j) EXPECT_NE(keys.at(t, j), 4) << t;
}

struct Results {
  HostTensor out, lse, dq, dk, dv, scratch, dout;

  Results(const Problem& p, DType dtype) {
    const Case& c = p.c;
    const DType acc = accumulator_of(dtype);
    out = HostTensor(dtype, {p.tokens, c.heads * c.value_dim}, c.heads * c.value_dim + 1);
    lse = HostTensor(acc, {c.heads, p.tokens});
    dout = HostTensor::normal(dtype, {p.tokens, c.heads * c.value_dim}, "dout");
    dq = HostTensor(dtype, {p.tokens, c.heads * c.dim});
    dk = HostTensor(dtype, {p.tokens, c.kv_heads * c.dim}, c.kv_heads * c.dim + 2);
    dv = HostTensor(dtype, {p.tokens, c.kv_heads * c.value_dim});
    scratch = HostTensor(acc, {c.heads, p.tokens});
  }
  void run(const Problem& p, TestDevice& device) {
    const SparseAttention forward{p.attention(out, lse), p.keys};
    device.operations().sparse_attention(device.stream(), forward);
    device.operations().sparse_attention_backward(device.stream(), {forward, dout, dq, dk, dv, scratch});
  }
};

TEST(SparseAttention, IsAttentionOverTheChosenKeys) {
  for (const Case& c : cases) {
    const Problem p(c, DType::f64, false);
    std::vector<double> out, lse(place(c.heads * p.tokens));
    for (std::int64_t t = 0; t < p.tokens; ++t)
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const std::int64_t kv = h / (c.heads / c.kv_heads);
        double total = 0;
        std::vector<double> sums(place(c.value_dim), 0);
        for (std::int64_t j : p.chosen(t)) {
          double score = 0;
          for (std::int64_t i = 0; i < c.dim; ++i) score += p.q.at(t, h * c.dim + i) * p.k.at(j, kv * c.dim + i);
          total += std::exp(0.7 * score);
          for (std::int64_t i = 0; i < c.value_dim; ++i)
            sums[place(i)] += std::exp(0.7 * score) * p.v.at(j, kv * c.value_dim + i);
        }
        for (double sum : sums) out.push_back(sum / total);
        lse[place(h * p.tokens + t)] = std::log(total);
      }
    everywhere(
        [&](TestDevice& device) {
          Results r(p, DType::f64);
          r.run(p, device);
          return std::vector<HostTensor>{r.out, r.lse, r.dq, r.dk, r.dv};
        },
        [&](const std::vector<HostTensor>& got) {
          EXPECT_TRUE(got[0].gaps_intact() && got[3].gaps_intact());
          expect_close(got[0], out, 200);
          expect_close(got[1], lse, 200);
        });
  }
}

TEST(SparseAttention, GradientsAreThoseOfDifferences) {
  TestDevice device(2);
  for (const Case& c : cases) {
    Problem p(c, DType::f64, false);
    Results r(p, DType::f64);
    r.run(p, device);
    const auto scalar = [&] {
      Results again(p, DType::f64);
      device.operations().sparse_attention(device.stream(), {p.attention(again.out, again.lse), p.keys});
      return weighted_sum(again.out, r.dout);
    };
    if (c.length > 1) check_gradient(scalar, p.q, r.dq.values(), 1e-6, 40);
    if (c.length > 1) check_gradient(scalar, p.k, r.dk.values(), 1e-6, 40);
    check_gradient(scalar, p.v, r.dv.values(), 1e-6, 40);
  }
}

// Rounding of inputs, of the softmax and of the sums, against the same in double.
TEST(SparseAttention, EveryTypeIsNearDouble) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Case& c : cases) {
      const Problem p(c, dtype, false);
      Problem wide = p;
      for (auto [to, from] : {std::pair{&wide.q, &p.q}, {&wide.k, &p.k}, {&wide.v, &p.v}})
        *to = HostTensor::of(DType::f64, from->view().shape, from->values());
      TestDevice device;
      Results want(wide, DType::f64);
      Results narrow(p, dtype);
      want.dout = HostTensor::of(DType::f64, narrow.dout.view().shape, narrow.dout.values());
      want.run(wide, device);
      everywhere(
          [&](TestDevice& each) {
            Results r(p, dtype);
            r.run(p, each);
            return std::vector<HostTensor>{r.out, r.dq, r.dk, r.dv};
          },
          [&](const std::vector<HostTensor>& got) {
            const HostTensor* wanted[] = {&want.out, &want.dq, &want.dk, &want.dv};
            for (std::size_t i = 0; i < got.size(); ++i) {
              const std::vector<double> a = got[i].values(), b = wanted[i]->values();
              double difference = 0, norm = 0;
              for (std::size_t e = 0; e < a.size(); ++e) {
                difference += (a[e] - b[e]) * (a[e] - b[e]);
                norm += b[e] * b[e];
              }
              // What is kept between forward and backward (out) is rounded too.
              EXPECT_LE(std::sqrt(difference), 8 * unit_roundoff(dtype) * std::sqrt(norm) + 1e-30) << i;
            }
          });
    }
}

TEST(SparseAttention, AllKeysChosenIsAttention) {
  TestDevice device;
  const Problem p({2, 33, 4, 2, 8, 8, 3, 4, 33}, DType::f64, false);
  Results sparse(p, DType::f64), dense(p, DType::f64);
  sparse.run(p, device);
  device.operations().attention(device.stream(), p.attention(dense.out, dense.lse));
  expect_close(sparse.out, dense.out.values(), 200);
  expect_close(sparse.lse, dense.lse.values(), 200);
}

struct Loss {
  HostTensor out, lse, loss, dq, dk, dw, scratch, scale;

  double run(const Problem& p, TestDevice& device, DType dtype, Store store = Store::write) {
    const Case& c = p.c;
    const DType acc = accumulator_of(dtype);
    out = HostTensor(dtype, {p.tokens, c.heads * c.value_dim});
    lse = HostTensor(acc, {c.heads, p.tokens});
    if (loss.elements() == 0) loss = HostTensor(acc, {1});
    dq = HostTensor(dtype, {p.tokens, c.index_heads * c.index_dim});
    dk = HostTensor(dtype, {p.tokens, c.index_dim}, c.index_dim + 1);
    dw = HostTensor(dtype, {p.tokens, c.index_heads}, c.index_heads + 4);
    scratch = HostTensor(acc, {p.tokens, c.K + 1});
    scale = HostTensor::of(DType::f64, {1}, {0.25});
    const SparseAttention attention{p.attention(out, lse), p.keys};
    device.operations().sparse_attention(device.stream(), attention);
    IndexerLoss op{p.indexer(), attention, scale, loss, dq, dk, dw, scratch, 3, store};
    device.operations().indexer_loss(device.stream(), op);
    return loss.at(0);
  }
};

TEST(IndexerLoss, IsTheDivergenceFromTheAttention) {
  for (const Case& c : cases) {
    const Problem p(c, DType::f64, false);
    TestDevice device;
    Loss loss;
    loss.run(p, device, DType::f64);
    double want = 0;
    for (std::int64_t t = 0; t < p.tokens; ++t) {
      std::vector<double> target, scores;
      for (std::int64_t j : p.chosen(t)) {
        double sum = 0;
        for (std::int64_t h = 0; h < c.heads; ++h) {
          double product = 0;
          for (std::int64_t i = 0; i < c.dim; ++i)
            product += p.q.at(t, h * c.dim + i) * p.k.at(j, h / (c.heads / c.kv_heads) * c.dim + i);
          sum += std::exp(0.7 * product - loss.lse.at(h, t));
        }
        target.push_back(sum / static_cast<double>(c.heads));
        scores.push_back(p.score(t, j));
      }
      EXPECT_NEAR(std::accumulate(target.begin(), target.end(), 0.0), 1, 1e-12);
      double total = 0;
      for (double score : scores) total += std::exp(score);
      for (std::size_t j = 0; j < target.size(); ++j)
        want += target[j] * (std::log(target[j]) - scores[j] + std::log(total));
    }
    EXPECT_NEAR(loss.loss.at(0), 0.75 * want, 1e-12 * (1 + std::abs(want)));
    const double once = loss.loss.at(0);
    EXPECT_NEAR(loss.run(p, device, DType::f64, Store::add), 2 * once, 1e-12 * (1 + std::abs(want)));
  }
}

TEST(IndexerLoss, GradientsAreThoseOfDifferences) {
  TestDevice device(2);
  for (const Case& c : cases) {
    if (c.length == 1) continue;  // one key has the probability 1 whatever it scores
    Problem p(c, DType::f64, false);
    p.keep_off_the_kink();
    Loss loss;
    loss.run(p, device, DType::f64);
    const auto scalar = [&] { return Loss().run(p, device, DType::f64); };
    check_gradient(scalar, p.iq, loss.dq.values(), 1e-6, 40);
    check_gradient(scalar, p.ik, loss.dk.values(), 1e-6, 40);
    check_gradient(scalar, p.iw, loss.dw.values(), 1e-6, 40);
  }
}

// Two ranks have half of the heads and of the queries each.
TEST(IndexerLoss, OfRanksAddsUpToTheWhole) {
  for (const Case& c : cases) {
    if (c.kv_heads % 2 != 0) continue;
    const Problem p(c, DType::f64, false);
    TestDevice device;
    const auto& ops = device.operations();
    Loss whole;
    whole.run(p, device, DType::f64);
    HostTensor means(DType::f64, {p.tokens, c.K}), part = means;
    const SparseAttention all{p.attention(whole.out, whole.lse), p.keys};
    for (const int half : {0, 1}) {
      SparseAttention some = all;
      Attention& a = some.attention;
      const auto columns = [&](const Tensor& t) { return t.slice_columns(half * t.columns() / 2, t.columns() / 2); };
      a.q = columns(a.q), a.k = columns(a.k), a.v = columns(a.v), a.out = columns(a.out);
      a.lse = a.lse.slice_rows(half * c.heads / 2, c.heads / 2);
      a.heads /= 2, a.kv_heads /= 2;
      ops.attention_means(device.stream(), {some, part, c.heads});
      for (std::int64_t i = 0; i < means.elements(); ++i) means.set(i, means.at(i) + part.at(i));
    }
    HostTensor dq(DType::f64, {p.tokens, c.index_heads * c.index_dim}), dk(DType::f64, {p.tokens, c.index_dim}),
        dw(DType::f64, {p.tokens, c.index_heads}), loss(DType::f64, {1});
    HostTensor sum_q = dq, sum_k = dk, sum_w = dw;
    const std::int64_t cut = p.tokens / 3;
    for (const bool first : {true, false}) {
      IndexerLoss op{p.indexer(), all, whole.scale,   loss, dq,
                     dk,          dw,  whole.scratch, 3,    first ? Store::write : Store::add};
      op.first = first ? 0 : cut, op.queries = first ? cut : p.tokens - cut;
      op.means = means.view().slice_rows(op.first, op.queries);
      ops.indexer_loss(device.stream(), op);
      for (const auto& [sum, own] : {std::pair{&sum_q, &dq}, {&sum_k, &dk}, {&sum_w, &dw}})
        for (std::int64_t i = 0; i < sum->elements(); ++i) sum->set(i, sum->at(i) + own->at(i));
    }
    EXPECT_NEAR(loss.at(0), whole.loss.at(0), 1e-12 * (1 + std::abs(whole.loss.at(0))));
    expect_close(sum_q, whole.dq.values(), 64);
    expect_close(sum_k, whole.dk.values(), 64 + p.tokens);
    expect_close(sum_w, whole.dw.values(), 64);
  }
}

TEST(IndexerLoss, DoesNotDependOnThreads) {
  for (DType dtype : storages)
    for (const Case& c : cases) {
      const Problem p(c, dtype, false);
      everywhere(
          [&](TestDevice& device) {
            Loss loss;
            loss.run(p, device, dtype);
            return std::vector<HostTensor>{loss.loss, loss.dq, loss.dk, loss.dw};
          },
          [](const std::vector<HostTensor>& got) { EXPECT_TRUE(got[2].gaps_intact() && got[3].gaps_intact()); });
    }
}

TEST(SparseAttention, KeysOfAnotherSequenceAreRefused) {
  TestDevice device;
  Problem p(cases[1], DType::f32, false);
  p.keys.set(17, 0, 3);
  Results r(p, DType::f32);
  EXPECT_THROW(r.run(p, device), BugError);
}

}  // namespace
}  // namespace weft
