#include <cmath>

#include <gtest/gtest.h>

#include "tests/device/harness.h"
#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

struct Case {
  std::int64_t batch = 1, length = 1, heads = 1, kv_heads = 1, dim = 8, value_dim = 8, window = 0;
  bool sinks = false, strided = false;
  std::vector<std::int32_t> documents = {};  // lengths; empty: none
  DType dtype = DType::f64;
  double size = 1;  // of q and k: large makes sharp softmaxes
  std::int64_t tokens() const { return batch * length; }
};

std::string text(const Case& c) {
  return fmt::format("batch {} length {} heads {}/{} dim {}/{} window {} sinks {} documents {} {}", c.batch, c.length,
                     c.heads, c.kv_heads, c.dim, c.value_dim, c.window, c.sinks, c.documents.size(), name_of(c.dtype));
}

// The tensors of forward and backward, and the formulas in double.
struct Problem {
  Case c;
  HostTensor q, k, v, out, lse, sinks, boundaries, dout, dq, dk, dv, dsinks, scratch;

  explicit Problem(const Case& x) : c(x) {
    const std::int64_t t = c.tokens();
    const auto tensor = [&](std::int64_t columns, const char* name, double size) {
      return HostTensor::normal(c.dtype, {t, columns}, name, size, c.strided ? columns + 7 : 0);
    };
    const DType acc = accumulator_of(c.dtype);
    q = tensor(c.heads * c.dim, "q", c.size);
    k = tensor(c.kv_heads * c.dim, "k", c.size);
    v = tensor(c.kv_heads * c.value_dim, "v", 1);
    out = tensor(c.heads * c.value_dim, "out", 1);
    dout = tensor(c.heads * c.value_dim, "dout", 1);
    dq = tensor(c.heads * c.dim, "dq", 1);
    dk = tensor(c.kv_heads * c.dim, "dk", 1);
    dv = tensor(c.kv_heads * c.value_dim, "dv", 1);
    lse = HostTensor(acc, {c.heads, t});
    scratch = HostTensor(acc, {c.heads, t});
    if (c.sinks) {
      sinks = HostTensor::normal(c.dtype, {c.heads}, "sinks");
      dsinks = HostTensor(acc, {c.heads});
    }
    if (!c.documents.empty()) {
      std::vector<std::int32_t> begins;
      for (std::int32_t length : c.documents)
        begins.insert(begins.end(), static_cast<std::size_t>(length), static_cast<std::int32_t>(begins.size()));
      boundaries = HostTensor::integers(begins);
    }
  }

  Attention forward() const {
    Attention op;
    op.q = q, op.k = k, op.v = v, op.out = out, op.lse = lse, op.sinks = sinks, op.boundaries = boundaries;
    op.length = c.documents.empty() ? c.length : 0;
    op.heads = c.heads, op.kv_heads = c.kv_heads, op.dim = c.dim, op.value_dim = c.value_dim, op.window = c.window;
    op.scale = scale();
    return op;
  }
  AttentionBackward backward() const {
    AttentionBackward op;
    op.forward = forward();
    op.dout = dout, op.dq = dq, op.dk = dk, op.dv = dv, op.dsinks = dsinks, op.scratch = scratch;
    return op;
  }
  void run(TestDevice& device) {
    device.operations().attention(device.stream(), forward());
    device.operations().attention_backward(device.stream(), backward());
  }

  double scale() const { return 1 / std::sqrt(static_cast<double>(c.dim)); }
  std::int64_t first_key(std::int64_t t) const {
    const std::int64_t begin =
        c.documents.empty() ? t / c.length * c.length : static_cast<std::int64_t>(boundaries.at(t));
    return c.window > 0 ? std::max(begin, t - c.window + 1) : begin;
  }

  // Values, and beside each the sum of the absolute values of everything that was added up for it.
  struct Sums {
    std::vector<double> value, size;
    explicit Sums(std::int64_t n) : value(static_cast<std::size_t>(n)), size(static_cast<std::size_t>(n)) {}
    void add(std::int64_t at, double x, double magnitude) {
      value[static_cast<std::size_t>(at)] += x;
      size[static_cast<std::size_t>(at)] += magnitude;
    }
  };
  struct Exact {
    Sums out, lse, dq, dk, dv, dsinks;
  };
  Exact exact() const {
    const std::int64_t t = c.tokens();
    Exact e{Sums(t * c.heads * c.value_dim),    Sums(c.heads * t),
            Sums(t * c.heads * c.dim),          Sums(t * c.kv_heads * c.dim),
            Sums(t * c.kv_heads * c.value_dim), Sums(c.heads)};
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < t; ++i) row(h, h / (c.heads / c.kv_heads), i, e);
    return e;
  }
  void row(std::int64_t h, std::int64_t g, std::int64_t i, Exact& e) const {
    const std::int64_t first = first_key(i);
    std::vector<double> p, dp, dp_size;
    double total = c.sinks ? std::exp(sinks.at(h)) : 0, delta = 0, delta_size = 0, largest = 1;
    for (std::int64_t j = first; j <= i; ++j) {
      double score = 0, size = 0;
      for (std::int64_t d = 0; d < c.dim; ++d) {
        const double term = scale() * q.at(i, h * c.dim + d) * k.at(j, g * c.dim + d);
        score += term;
        size += std::abs(term);
      }
      p.push_back(std::exp(score));
      total += p.back();
      largest = std::max(largest, size);
    }
    e.lse.add(h * c.tokens() + i, std::log(total), largest);
    for (std::size_t n = 0; n < p.size(); ++n) {
      const std::int64_t j = first + static_cast<std::int64_t>(n);
      p[n] /= total;
      dp.push_back(0);
      dp_size.push_back(0);
      for (std::int64_t d = 0; d < c.value_dim; ++d) {
        const double go = dout.at(i, h * c.value_dim + d), value = v.at(j, g * c.value_dim + d);
        // An error of a score is one of its size, and relative in p.
        e.out.add((i * c.heads + h) * c.value_dim + d, p[n] * value, p[n] * std::abs(value) * largest);
        e.dv.add((j * c.kv_heads + g) * c.value_dim + d, p[n] * go, p[n] * std::abs(go) * largest);
        dp[n] += go * value;
        dp_size[n] += std::abs(go * value);
      }
      delta += p[n] * dp[n];
      delta_size += p[n] * dp_size[n];
    }
    for (std::size_t n = 0; n < p.size(); ++n) {
      const std::int64_t j = first + static_cast<std::int64_t>(n);
      const double ds = scale() * p[n] * (dp[n] - delta), size = scale() * p[n] * (dp_size[n] + delta_size) * largest;
      for (std::int64_t d = 0; d < c.dim; ++d) {
        const double qd = q.at(i, h * c.dim + d), kd = k.at(j, g * c.dim + d);
        e.dq.add((i * c.heads + h) * c.dim + d, ds * kd, size * std::abs(kd));
        e.dk.add((j * c.kv_heads + g) * c.dim + d, ds * qd, size * std::abs(qd));
      }
    }
    const double sink = c.sinks ? std::exp(sinks.at(h)) / total : 0;
    e.dsinks.add(h, -sink * delta, sink * delta_size * largest);
  }
};

// Roundings on the way to a result: scores (dim terms), sums over keys, and for gradients of keys over queries and
// heads. bf16: backward reads the rounded out, so delta has an error of a bf16 unit, which is 2^16 units of float.
void check(const Case& c, TestDevice& device) {
  SCOPED_TRACE(text(c));
  Problem x(c);
  x.run(device);
  const Problem::Exact e = x.exact();
  const std::int64_t length = c.dim + c.tokens() + 8;
  const std::int64_t back =
      length + c.value_dim + c.tokens() * (c.heads / c.kv_heads) + (c.dtype == DType::bf16 ? 1 << 16 : 0);
  const auto compare = [](const char* name, const HostTensor& got, const Problem::Sums& want, std::int64_t roundings) {
    SCOPED_TRACE(name);
    expect_close(got, want.value, roundings, want.size);
  };
  compare("out", x.out, e.out, length);
  compare("lse", x.lse, e.lse, length);
  compare("dq", x.dq, e.dq, back);
  compare("dk", x.dk, e.dk, back);
  compare("dv", x.dv, e.dv, length + c.tokens() * (c.heads / c.kv_heads));
  if (c.sinks) compare("dsinks", x.dsinks, e.dsinks, back);
}

TEST(Attention, AgreesWithTheFormula) {
  for_each_device([](TestDevice& device) {
    for (DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      check({.length = 1, .dtype = dtype}, device);
      check({.batch = 3, .length = 17, .heads = 2, .kv_heads = 2, .dim = 5, .value_dim = 3, .dtype = dtype}, device);
      check({.batch = 1, .length = 130, .heads = 4, .kv_heads = 2, .dim = 20, .value_dim = 12, .dtype = dtype}, device);
      check({.batch = 2,
             .length = 70,
             .heads = 3,
             .kv_heads = 1,
             .dim = 16,
             .value_dim = 66,
             .window = 9,
             .sinks = true,
             .strided = true,
             .dtype = dtype},
            device);
      check({.length = 100, .heads = 2, .kv_heads = 1, .sinks = true, .documents = {1, 30, 2, 67}, .dtype = dtype},
            device);
      check({.length = 100, .window = 20, .documents = {50, 50}, .dtype = dtype}, device);
    }
  });
}

TEST(Attention, SpansOfManyBlocks) {
  for_each_device([](TestDevice& device) {
    check({.batch = 1, .length = 700, .dim = 6, .value_dim = 4, .dtype = DType::f32}, device);
    check({.batch = 1, .length = 700, .dim = 6, .value_dim = 4, .window = 150, .dtype = DType::f32}, device);
    check({.length = 1200, .dim = 4, .value_dim = 4, .documents = {3, 700, 1, 1, 400, 95}, .dtype = DType::f32},
          device);
  });
}

TEST(Attention, SharpSoftmaxNeitherOverflowsNorLosesKeys) {
  for_each_device([](TestDevice& device) {
    for (DType dtype : {DType::f64, DType::f32})
      check({.length = 90, .dim = 16, .value_dim = 8, .sinks = true, .dtype = dtype, .size = 12}, device);
  });
}

TEST(Attention, GradientsByDifferences) {
  TestDevice device(2);
  const Case cases[] = {
      {.batch = 2, .length = 9, .heads = 2, .kv_heads = 2, .dim = 4, .value_dim = 3},
      {.batch = 1, .length = 20, .heads = 4, .kv_heads = 2, .dim = 4, .value_dim = 6, .window = 5, .sinks = true},
      {.length = 24, .heads = 2, .kv_heads = 1, .dim = 4, .value_dim = 4, .sinks = true, .documents = {5, 1, 18}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(text(c));
    Problem x(c);
    x.run(device);
    const auto dq = x.dq.values(), dk = x.dk.values(), dv = x.dv.values(), dsinks = x.dsinks.values();
    const auto scalar = [&] {
      device.operations().attention(device.stream(), x.forward());
      return weighted_sum(x.out, x.dout);
    };
    check_gradient(scalar, x.q, dq);
    check_gradient(scalar, x.k, dk);
    check_gradient(scalar, x.v, dv);
    if (c.sinks) check_gradient(scalar, x.sinks, dsinks);
  }
}

// One team takes whole spans, another cuts them: the same bits.
TEST(Attention, BitsDoNotDependOnThreads) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (std::int64_t window : {0, 60}) {
      const Case c{.batch = 1,
                   .length = 800,
                   .heads = 4,
                   .kv_heads = 2,
                   .dim = 20,
                   .value_dim = 12,
                   .window = window,
                   .sinks = true,
                   .dtype = dtype};
      Problem one(c), five(c);
      TestDevice single(1), team(5);
      one.run(single);
      five.run(team);
      EXPECT_TRUE(one.out.same_bits(five.out));
      EXPECT_TRUE(one.lse.same_bits(five.lse));
      EXPECT_TRUE(one.dq.same_bits(five.dq));
      EXPECT_TRUE(one.dk.same_bits(five.dk));
      EXPECT_TRUE(one.dv.same_bits(five.dv));
      EXPECT_TRUE(one.dsinks.same_bits(five.dsinks));
    }
}

TEST(Attention, WrongArgumentsAreRefused) {
  TestDevice device;
  Problem x({.length = 10, .documents = {4, 6}});
  const auto message = [&](const Attention& op) -> std::string {
    try {
      device.operations().attention(device.stream(), op);
    } catch (const BugError& error) {
      return error.what();
    }
    return "nothing";
  };
  x.boundaries.set(7, 5);  // neither its own beginning nor its document's
  EXPECT_NE(message(x.forward()).find("attention: boundaries are not those of documents"), std::string::npos);
  Attention op = x.forward();
  op.heads = 3;
  op.kv_heads = 2;
  EXPECT_NE(message(op).find("attention: heads are not a multiple of kv_heads"), std::string::npos);
}

}  // namespace
}  // namespace weft
