// Attention over blocks of keys against attention over all of them, in double, for tokens that are dealt out as context ranks do.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/device/harness.h"
#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

struct Case {
  std::int64_t ranks = 2, batch = 1, length = 16, heads = 2, kv_heads = 1, dim = 8, value_dim = 8, window = 0;
  bool sinks = false;
  std::vector<std::int32_t> documents = {};  // lengths; empty: none
  DType dtype = DType::f64;
  std::int64_t tokens() const { return batch * length; }
};

std::string text(const Case& c) {
  return fmt::format("{} ranks, batch {} length {} heads {}/{} dim {}/{} window {} sinks {} documents {} {}", c.ranks,
                     c.batch, c.length, c.heads, c.kv_heads, c.dim, c.value_dim, c.window, c.sinks, c.documents.size(),
                     name_of(c.dtype));
}

// The tokens of a rank: of every sequence, chunks r and 2 ranks - 1 - r.
std::vector<std::int32_t> places_of(const Case& c, std::int64_t rank) {
  std::vector<std::int32_t> places;
  const std::int64_t chunk = c.length / (2 * c.ranks);
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (const std::int64_t which : {rank, 2 * c.ranks - 1 - rank})
      for (std::int64_t i = 0; i < chunk; ++i)
        places.push_back(static_cast<std::int32_t>(b * c.length + which * chunk + i));
  return places;
}

HostTensor rows_of(const HostTensor& all, std::int64_t columns, const std::vector<std::int32_t>& places) {
  HostTensor some(all.dtype(), {std::ssize(places), columns});
  for (std::size_t i = 0; i < places.size(); ++i)
    for (std::int64_t j = 0; j < columns; ++j) some.set(static_cast<std::int64_t>(i), j, all.at(places[i], j));
  return some;
}

// All tokens at once, in double, of the same numbers.
struct Whole {
  HostTensor q, k, v, out, lse, sinks, boundaries, dout, dq, dk, dv, dsinks, scratch;

  explicit Whole(const Case& c, TestDevice& device) {
    const std::int64_t t = c.tokens();
    const auto tensor = [&](std::int64_t columns, const char* name) {
      const HostTensor rounded = HostTensor::normal(c.dtype, {t, columns}, name);
      return HostTensor::of(DType::f64, {t, columns}, rounded.values());
    };
    q = tensor(c.heads * c.dim, "q"), k = tensor(c.kv_heads * c.dim, "k"), v = tensor(c.kv_heads * c.value_dim, "v");
    dout = tensor(c.heads * c.value_dim, "dout");
    out = dout, dq = q, dk = k, dv = v;
    lse = scratch = HostTensor(DType::f64, {c.heads, t});
    if (c.sinks) {
      sinks = HostTensor::of(DType::f64, {c.heads}, HostTensor::normal(c.dtype, {c.heads}, "sinks").values());
      dsinks = HostTensor(DType::f64, {c.heads});
    }
    if (!c.documents.empty()) {
      std::vector<std::int32_t> begins;
      for (const std::int32_t length : c.documents)
        begins.insert(begins.end(), static_cast<std::size_t>(length), static_cast<std::int32_t>(begins.size()));
      boundaries = HostTensor::integers(begins);
    }
    Attention op;
    op.q = q, op.k = k, op.v = v, op.out = out, op.lse = lse, op.sinks = sinks, op.boundaries = boundaries;
    op.length = c.documents.empty() ? c.length : 0;
    op.heads = c.heads, op.kv_heads = c.kv_heads, op.dim = c.dim, op.value_dim = c.value_dim, op.window = c.window;
    op.scale = 0.4;
    device.operations().attention(device.stream(), op);
    AttentionBackward backward{op, dout, dq, dk, dv, dsinks, scratch};
    device.operations().attention_backward(device.stream(), backward);
  }
};

// What one rank does with the keys of all, its own first.
struct Part {
  HostTensor q, out, lse, dout, delta, dq, dsinks;
};

void expect_rows(const HostTensor& got, const HostTensor& want, const std::vector<std::int32_t>& places,
                 std::int64_t columns, DType dtype, const char* what) {
  const HostTensor rows = rows_of(want, columns, places);
  const double limit = dtype == DType::f64 ? 1e-12 : 2e-5;  // sums are kept in acc whatever the model's type
  for (std::int64_t i = 0; i < rows.elements(); ++i)
    EXPECT_NEAR(got.at(i), rows.at(i), limit * (1 + std::abs(rows.at(i)))) << what << " " << i;
}

void check(const Case& c, TestDevice& device) {
  SCOPED_TRACE(text(c) + ", " + device.text());
  const Whole whole(c, device);
  const DType acc = accumulator_of(c.dtype);
  const auto of_type = [&](const HostTensor& all, std::int64_t columns, const std::vector<std::int32_t>& places) {
    return HostTensor::of(c.dtype, {std::ssize(places), columns}, rows_of(all, columns, places).values());
  };
  const std::int64_t key_width = c.kv_heads * c.dim, value_width = c.kv_heads * c.value_dim, wide = c.heads * c.dim,
                     value_wide = c.heads * c.value_dim, here = c.tokens() / c.ranks;
  std::vector<HostTensor> k, v, dk, dv;
  for (std::int64_t rank = 0; rank < c.ranks; ++rank) {
    k.push_back(of_type(whole.k, key_width, places_of(c, rank)));
    v.push_back(of_type(whole.v, value_width, places_of(c, rank)));
    dk.emplace_back(acc, Shape{here, key_width});
    dv.emplace_back(acc, Shape{here, value_width});
  }
  const HostTensor sinks = c.sinks ? HostTensor::of(c.dtype, {c.heads}, whole.sinks.values()) : HostTensor();
  std::vector<double> dsinks(static_cast<std::size_t>(c.heads));
  for (std::int64_t rank = 0; rank < c.ranks; ++rank) {
    const std::vector<std::int32_t> places = places_of(c, rank);
    const HostTensor own = HostTensor::integers(places);
    Part p{of_type(whole.q, wide, places),
           HostTensor(acc, {here, value_wide}),
           HostTensor(acc, {c.heads, here}),
           of_type(whole.dout, value_wide, places),
           HostTensor(acc, {c.heads, here}),
           HostTensor(acc, {here, wide}),
           c.sinks ? HostTensor(acc, {c.heads}) : HostTensor()};
    std::vector<HostTensor> first, end;
    const auto block = [&](std::int64_t step) {
      const auto source = static_cast<std::size_t>((rank + step) % c.ranks), s = static_cast<std::size_t>(step);
      AttentionBlock op;
      op.q = p.q, op.k = k[source], op.v = v[source], op.out = p.out, op.lse = p.lse;
      op.first = first[s], op.end = end[s];
      op.heads = c.heads, op.kv_heads = c.kv_heads, op.dim = c.dim, op.value_dim = c.value_dim, op.scale = 0.4;
      return op;
    };
    for (std::int64_t step = 0; step < c.ranks; ++step) {
      const HostTensor key_places = HostTensor::integers(places_of(c, (rank + step) % c.ranks));
      first.emplace_back(DType::i32, Shape{here});
      end.emplace_back(DType::i32, Shape{here});
      device.operations().visible_keys(
          device.stream(), {own, key_places, whole.boundaries, first.back(), end.back(), c.length, c.window});
      AttentionBlock op = block(step);
      op.store = step == 0 ? Store::write : Store::add;
      if (step == 0) op.sinks = sinks;
      device.operations().attention_block(device.stream(), op);
    }
    expect_rows(p.out, whole.out, places, value_wide, c.dtype, "out");
    device.operations().attention_delta(device.stream(),
                                        {p.out, p.dout, p.lse, sinks, p.delta, p.dsinks, c.heads, c.value_dim});
    for (std::int64_t step = 0; step < c.ranks; ++step) {
      const auto source = static_cast<std::size_t>((rank + step) % c.ranks);
      AttentionBlockBackward op{block(step), p.dout, p.delta, p.dq, dk[source], dv[source]};
      op.store_queries = step == 0 ? Store::write : Store::add;
      op.store_keys = rank == 0 ? Store::write : Store::add;
      device.operations().attention_block_backward(device.stream(), op);
    }
    expect_rows(p.dq, whole.dq, places, wide, c.dtype, "dq");
    for (std::int64_t h = 0; c.sinks && h < c.heads; ++h) dsinks[static_cast<std::size_t>(h)] += p.dsinks.at(h);
  }
  for (std::int64_t rank = 0; rank < c.ranks; ++rank) {
    expect_rows(dk[static_cast<std::size_t>(rank)], whole.dk, places_of(c, rank), key_width, c.dtype, "dk");
    expect_rows(dv[static_cast<std::size_t>(rank)], whole.dv, places_of(c, rank), value_width, c.dtype, "dv");
  }
  for (std::int64_t h = 0; c.sinks && h < c.heads; ++h)
    EXPECT_NEAR(dsinks[static_cast<std::size_t>(h)], whole.dsinks.at(h), c.dtype == DType::f64 ? 1e-12 : 2e-5);
}

const Case cases[] = {
    {},
    {.ranks = 4, .batch = 2, .length = 32, .sinks = true},
    {.ranks = 2, .length = 96, .heads = 4, .kv_heads = 2, .dim = 12, .value_dim = 5, .window = 7},
    {.ranks = 3, .batch = 2, .length = 60, .window = 3, .sinks = true},
    {.ranks = 4,
     .batch = 2,
     .length = 64,
     .heads = 3,
     .kv_heads = 3,
     .sinks = true,
     .documents = {5, 59, 1, 1, 30, 32}},
    {.ranks = 2, .length = 256, .heads = 2, .kv_heads = 2, .dim = 16, .value_dim = 24, .window = 70},
};

TEST(AttentionBlock, blocks_in_turn_do_what_attention_does_at_once) {
  for_each_device([](TestDevice& device) {
    for (Case c : cases)
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        c.dtype = dtype;
        check(c, device);
      }
  });
}

TEST(AttentionBlock, a_query_that_sees_no_key_gets_nothing) {
  TestDevice device;
  const HostTensor q = HostTensor::normal(DType::f32, {3, 8}, "q"), k = HostTensor::normal(DType::f32, {2, 8}, "k"),
                   v = HostTensor::normal(DType::f32, {2, 8}, "v"), first = HostTensor::integers({0, 0, 2}),
                   end = HostTensor::integers({0, 2, 2});
  HostTensor out(DType::f32, {3, 8}), lse(DType::f32, {1, 3});
  out.fill(7);
  device.operations().attention_block(device.stream(), {q, k, v, out, lse, first, end, {}, 1, 1, 8, 8, 1});
  for (std::int64_t c = 0; c < 8; ++c) {
    EXPECT_EQ(out.at(0, c), 0);
    EXPECT_EQ(out.at(2, c), 0);
  }
  EXPECT_EQ(lse.at(0), -std::numeric_limits<double>::infinity());
  EXPECT_GT(lse.at(1), -1e30);
  const std::vector<double> before = out.values();
  const HostTensor none = HostTensor::integers({0, 0, 0});
  device.operations().attention_block(device.stream(), {q, k, v, out, lse, none, none, {}, 1, 1, 8, 8, 1, Store::add});
  EXPECT_EQ(out.values(), before);  // what other keys have given stays, bit for bit
}

TEST(AttentionBlock, mismatched_arguments_are_refused) {
  TestDevice device;
  const HostTensor q = HostTensor::normal(DType::f32, {3, 8}, "q"), sinks = HostTensor::normal(DType::f32, {1}, "s"),
                   range = HostTensor::integers({0, 0, 0}), shorter = HostTensor::integers({0, 0});
  HostTensor out(DType::f32, {3, 8}), lse(DType::f32, {1, 3});
  AttentionBlock op{q, q, q, out, lse, range, shorter, {}, 1, 1, 8, 8, 1};
  EXPECT_THROW(device.operations().attention_block(device.stream(), op), BugError);
  op.end = range;
  op.sinks = sinks;
  op.store = Store::add;
  EXPECT_THROW(device.operations().attention_block(device.stream(), op), BugError);
}

}  // namespace
}  // namespace weft
