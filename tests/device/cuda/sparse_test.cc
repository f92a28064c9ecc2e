// Attention over chosen keys, the choice, and the indexer's loss.
#include <cmath>

#include <fmt/format.h>

#include "tests/device/cuda/beside.h"
#include "weft/base/random.h"

namespace weft {
namespace {

class SparseOperations : public Beside {};

struct Case {
  std::int64_t batch, length, heads, kv_heads, dim, value_dim, index_heads, index_dim, K;
  bool documents = false;
};
const Case cases[] = {{1, 1, 1, 1, 1, 1, 1, 1, 1},         {2, 9, 2, 1, 3, 5, 1, 2, 4},
                      {1, 70, 3, 3, 17, 6, 5, 9, 11},      {2, 33, 4, 2, 8, 8, 3, 4, 100},
                      {1, 130, 2, 2, 5, 4, 2, 3, 7, true}, {1, 300, 2, 1, 192, 260, 2, 64, 40}};

// Whole numbers: every score is exact in every type and order of sums, and many are equal.
HostTensor whole(DType dtype, const Shape& shape, const std::string& name) {
  HostTensor x(dtype, shape, shape[1] + 2);
  const std::uint64_t key = random_key(3, name);
  for (std::int64_t i = 0; i < x.elements(); ++i)
    x.set(i, static_cast<double>(random_below(key, static_cast<std::uint64_t>(i), 5)) - 2);
  return x;
}

HostTensor documents(const Case& c) {
  if (!c.documents) return {};
  std::vector<std::int32_t> starts;
  for (std::int32_t t = 0, begin = 0; t < c.batch * c.length; ++t) {
    if (t == 1 || t == 61 || t == 63) begin = t;
    starts.push_back(begin);
  }
  return HostTensor::integers(starts);
}

TEST_F(SparseOperations, ChosenKeys) {
  for (DType type : model_types)
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} {}x{} K {}", name_of(type), c.batch, c.length, c.K));
      const std::int64_t T = c.batch * c.length;
      const HostTensor q = whole(type, {T, c.index_heads * c.index_dim}, "q"), k = whole(type, {T, c.index_dim}, "k"),
                       w = whole(type, {T, c.index_heads}, "w");
      HostTensor bad = k;  // scores that are NaN come last
      if (T > 5) bad.set(4, 0, NAN);
      const HostTensor keys(DType::i32, {T, c.K}, c.K + 3), worse = keys, starts = documents(c);
      run([&](const Operations& ops, Stream& stream, const At& at) {
        for (const auto& [key, to] :
             {std::pair{&k, &keys}, std::pair<const HostTensor*, const HostTensor*>{&bad, &worse}}) {
          ChooseKeys op{{at(q), at(*key), at(w), c.index_heads, c.index_dim, 0.5}, at(*to), at(starts)};
          op.length = c.length;
          ops.choose_keys(stream, op);
        }
      });
      expect_same(keys);
      expect_same(worse);
    }
}

TEST_F(SparseOperations, AttentionAndIndexerLoss) {
  for (DType type : model_types)
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} {}x{} heads {}/{} dims {}/{} K {}", name_of(type), c.batch, c.length, c.heads,
                               c.kv_heads, c.dim, c.value_dim, c.K));
      const std::int64_t T = c.batch * c.length;
      const auto matrix = [&](const char* name, std::int64_t columns) {
        return HostTensor::normal(type, {T, columns}, name, 1, columns + 3);
      };
      const HostTensor iq = whole(type, {T, c.index_heads * c.index_dim}, "iq"),
                       ik = whole(type, {T, c.index_dim}, "ik"), iw = whole(type, {T, c.index_heads}, "iw");
      const HostTensor q = matrix("q", c.heads * c.dim), k = matrix("k", c.kv_heads * c.dim),
                       v = matrix("v", c.kv_heads * c.value_dim), out = matrix("out", c.heads * c.value_dim),
                       dout = matrix("dout", c.heads * c.value_dim);
      const HostTensor dq = matrix("dq", c.heads * c.dim), dk = matrix("dk", c.kv_heads * c.dim),
                       dv = matrix("dv", c.kv_heads * c.value_dim);
      const HostTensor diq = matrix("diq", c.index_heads * c.index_dim), dik = matrix("dik", c.index_dim),
                       diw = matrix("diw", c.index_heads);
      const HostTensor lse(DType::f32, {c.heads, T}), delta(DType::f32, {c.heads, T}), slopes(DType::f32, {T, c.K + 1});
      const HostTensor keys(DType::i32, {T, c.K}), starts = documents(c);
      const HostTensor scale = HostTensor::of(DType::f64, {1}, {0.25}), loss = HostTensor::of(DType::f32, {1}, {2.0});
      const HostTensor means(DType::f32, {T, c.K}), part_loss(DType::f32, {1}), pdiq = diq, pdik = dik, pdiw = diw;
      const double score_scale = 1 / std::sqrt(static_cast<double>(c.dim));
      run([&](const Operations& ops, Stream& stream, const At& at) {
        const Indexer indexer{at(iq), at(ik), at(iw), c.index_heads, c.index_dim, 0.0625};
        ChooseKeys choose{indexer, at(keys), at(starts)};
        choose.length = c.length;
        ops.choose_keys(stream, choose);
        Attention a{at(q), at(k), at(v), at(out), at(lse)};
        a.boundaries = at(starts);
        a.length = c.length;
        a.heads = c.heads;
        a.kv_heads = c.kv_heads;
        a.dim = c.dim;
        a.value_dim = c.value_dim;
        a.scale = score_scale;
        const SparseAttention sparse{a, at(keys)};
        ops.sparse_attention(stream, sparse);
        ops.sparse_attention_backward(stream, {sparse, at(dout), at(dq), at(dk), at(dv), at(delta)});
        ops.indexer_loss(
            stream, {indexer, sparse, at(scale), at(loss), at(diq), at(dik), at(diw), at(slopes), 0.5, Store::add});
        // Of the middle queries alone, from means over all heads.
        ops.attention_means(stream, {sparse, at(means), c.heads});
        IndexerLoss part{indexer,  sparse,   at(scale),  at(part_loss), at(pdiq),
                         at(pdik), at(pdiw), at(slopes), 0.5,           Store::write};
        part.first = T / 4, part.queries = T / 2;
        part.means = at(means).slice_rows(part.first, part.queries);
        ops.indexer_loss(stream, part);
      });
      expect_same(keys);
      // Scores are sums of dim terms, results of K or T; in bf16 backward reads the rounded out.
      const std::int64_t length = 4 * (c.dim + c.value_dim + c.length + c.index_heads * c.index_dim);
      const double extra = type == DType::bf16 ? 2 : 0;
      const auto fits = [&](const HostTensor& x, double magnitude, double roundings) {
        expect(x, length, std::vector<double>(static_cast<std::size_t>(x.elements()), magnitude), roundings);
      };
      fits(out, 4, 0);
      fits(lse, 8, 0);
      const double group = static_cast<double>(c.heads / c.kv_heads);
      fits(dq, 16, extra);
      fits(dk, 16 * group, extra);
      fits(dv, 12 * group, extra);
      fits(loss, 4 + static_cast<double>(T), 0);
      for (const HostTensor* t : {&diq, &dik, &diw, &pdiq, &pdik, &pdiw}) fits(*t, 4, 0);
      fits(means, 1, 0);
      fits(part_loss, 4 + static_cast<double>(T), 0);
    }
}

}  // namespace
}  // namespace weft
