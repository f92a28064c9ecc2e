// Attention over one block of keys after another, as ranks that send each other keys do it.
#include <cmath>

#include <fmt/format.h>

#include "tests/device/cuda/beside.h"

namespace weft {
namespace {

class BlockOperations : public Beside {};

struct BlockCase {
  std::int64_t heads, kv_heads, dim, value_dim, window;
  bool sinks;
};

// Of 80 tokens in four chunks, the queries are those of the first and the last, the second block of keys the other two.
TEST_F(BlockOperations, AttentionOverTwoBlocksOfKeys) {
  constexpr std::int64_t T = 80, here = 40, chunk = 20;
  std::vector<std::int32_t> own, other;
  for (std::int32_t t = 0; t < T; ++t) (t / chunk == 0 || t / chunk == 3 ? own : other).push_back(t);
  const HostTensor places[] = {HostTensor::integers(own), HostTensor::integers(other)};
  for (const BlockCase& c : {BlockCase{2, 1, 16, 24, 0, true}, {4, 4, 64, 64, 33, false}, {2, 2, 192, 128, 0, true}})
    for (const DType type : model_types) {
      SCOPED_TRACE(fmt::format("{} heads {}/{} dims {}/{}", name_of(type), c.heads, c.kv_heads, c.dim, c.value_dim));
      const auto matrix = [&](const char* name, std::int64_t columns) {
        return HostTensor::normal(type, {here, columns}, name, 1, columns + 16);
      };
      const HostTensor q = matrix("q", c.heads * c.dim), dout = matrix("dout", c.heads * c.value_dim);
      const HostTensor k[] = {matrix("k0", c.kv_heads * c.dim), matrix("k1", c.kv_heads * c.dim)};
      const HostTensor v[] = {matrix("v0", c.kv_heads * c.value_dim), matrix("v1", c.kv_heads * c.value_dim)};
      const HostTensor out(DType::f32, {here, c.heads * c.value_dim}), lse(DType::f32, {c.heads, here}),
          delta(DType::f32, {c.heads, here}), dq(DType::f32, {here, c.heads * c.dim});
      const HostTensor dk[] = {HostTensor(DType::f32, {here, c.kv_heads * c.dim}),
                               HostTensor(DType::f32, {here, c.kv_heads * c.dim})};
      const HostTensor dv[] = {HostTensor(DType::f32, {here, c.kv_heads * c.value_dim}),
                               HostTensor(DType::f32, {here, c.kv_heads * c.value_dim})};
      const HostTensor first[] = {HostTensor(DType::i32, {here}), HostTensor(DType::i32, {here})};
      const HostTensor end[] = {HostTensor(DType::i32, {here}), HostTensor(DType::i32, {here})};
      const HostTensor sinks = c.sinks ? HostTensor::normal(type, {c.heads}, "sinks") : HostTensor();
      const HostTensor dsinks = c.sinks ? HostTensor(DType::f32, {c.heads}) : HostTensor();
      run([&](const Operations& ops, Stream& stream, const At& at) {
        AttentionBlock blocks[2];
        for (int i = 0; i < 2; ++i) {
          ops.visible_keys(stream, {at(places[0]), at(places[i]), {}, at(first[i]), at(end[i]), T, c.window});
          AttentionBlock& a = blocks[i];
          a.q = at(q), a.k = at(k[i]), a.v = at(v[i]), a.out = at(out), a.lse = at(lse);
          a.first = at(first[i]), a.end = at(end[i]);
          a.heads = c.heads, a.kv_heads = c.kv_heads, a.dim = c.dim, a.value_dim = c.value_dim;
          a.scale = 1 / std::sqrt(static_cast<double>(c.dim));
          AttentionBlock made = a;
          made.store = i == 0 ? Store::write : Store::add;
          if (i == 0) made.sinks = at(sinks);
          ops.attention_block(stream, made);
        }
        ops.attention_delta(stream,
                            {at(out), at(dout), at(lse), at(sinks), at(delta), at(dsinks), c.heads, c.value_dim});
        for (int i = 0; i < 2; ++i) {
          AttentionBlockBackward b{blocks[i], at(dout), at(delta), at(dq), at(dk[i]), at(dv[i])};
          b.store_queries = i == 0 ? Store::write : Store::add;
          ops.attention_block_backward(stream, b);
        }
      });
      const std::int64_t length = 4 * (c.dim + T);
      const auto fits = [&](const HostTensor& x, double magnitude) {
        expect(x, length, std::vector<double>(static_cast<std::size_t>(x.elements()), magnitude));
      };
      for (int i = 0; i < 2; ++i) {
        expect_same(first[i]);
        expect_same(end[i]);
        fits(dk[i], 32);
        fits(dv[i], 24);
      }
      fits(out, 4);
      fits(lse, 8);
      fits(dq, 16);
      if (c.sinks) fits(dsinks, 8.0 * T);
    }
}

}  // namespace
}  // namespace weft
