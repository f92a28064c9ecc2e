// The chunked gated delta rule against the recurrence itself, a token at a time in double.
#include <cmath>

#include <fmt/format.h>

#include "tests/device/recurrences.h"

namespace weft {
namespace {

struct Case {
  DType dtype;
  std::int64_t batch, length, chunk, heads, key_heads, dim, value_dim;
  bool documents = false;
  std::int64_t tokens() const { return batch * length; }
  std::int64_t chunks() const { return chunks_of(tokens(), length, chunk); }
  std::string text() const {
    return fmt::format("{} {} x {} tokens in {}, {} heads of {}, {} key heads of {}, documents {}", name_of(dtype),
                       batch, length, chunk, heads, value_dim, key_heads, dim, documents);
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType dtype : storages) {
    all.push_back({dtype, 0, 5, 64, 2, 1, 3, 5});  // no tokens
    all.push_back({dtype, 1, 1, 64, 1, 1, 1, 1});
    all.push_back({dtype, 2, 1, 64, 2, 1, 3, 5});
    all.push_back({dtype, 1, 37, 8, 1, 1, 7, 9});
    all.push_back({dtype, 2, 80, 64, 4, 2, 16, 12});
    all.push_back({dtype, 1, 150, 64, 3, 3, 5, 33, true});
  }
  return all;
}

struct Data {
  HostTensor q, k, v, a, b, A_log, dt_bias, starts;
  Data(const Case& c, DType dtype) : starts(documents_of(c)) {
    const DType acc = accumulator_of(dtype);
    const auto rows = [&](std::int64_t columns, const char* name, double scale) {
      return HostTensor::normal(dtype, Shape{c.tokens(), columns}, name, scale, columns + 3);
    };
    const double unit = 1 / std::sqrt(static_cast<double>(c.dim));  // keys of length one, about
    q = rows(c.key_heads * c.dim, "q", unit);
    k = rows(c.key_heads * c.dim, "k", unit);
    v = rows(c.heads * c.value_dim, "v", 1);
    a = rows(c.heads, "a", 1);
    b = rows(c.heads, "b", 1);
    A_log = HostTensor::normal(acc, Shape{c.heads}, "A_log", 0.5);
    dt_bias = HostTensor::normal(acc, Shape{c.heads}, "dt_bias");
    for (std::int64_t h = 0; h < c.heads; ++h) A_log.set(h, A_log.at(h) - 2);  // a memory of some tokens
  }
  std::vector<HostTensor*> all() { return {&q, &k, &v, &a, &b, &A_log, &dt_bias}; }
  DeltaRule op(const Case& c, const Tensor& y, const Tensor& states) const {
    return {q,      k,      v,        a,       b,       A_log,       dt_bias, y,
            states, starts, c.length, c.chunk, c.heads, c.key_heads, c.dim,   c.value_dim};
  }
};

std::vector<double> recurrence(const Case& c, const Data& d) {
  std::vector<double> y(static_cast<std::size_t>(c.tokens() * c.heads * c.value_dim));
  for (std::int64_t h = 0; h < c.heads; ++h) {
    const std::int64_t key = h / (c.heads / c.key_heads) * c.dim;
    std::vector<double> S(static_cast<std::size_t>(c.dim * c.value_dim));
    const auto state = [&](std::int64_t i, std::int64_t j) -> double& {
      return S[static_cast<std::size_t>(i * c.value_dim + j)];
    };
    for (std::int64_t t = 0; t < c.tokens(); ++t) {
      const bool begins = c.documents ? static_cast<std::int64_t>(d.starts.at(t)) == t : t % c.length == 0;
      if (begins) std::fill(S.begin(), S.end(), 0.0);
      const double decay = std::exp(-std::exp(d.A_log.at(h)) * std::log1p(std::exp(d.a.at(t, h) + d.dt_bias.at(h))));
      const double beta = 1 / (1 + std::exp(-d.b.at(t, h)));
      for (std::int64_t j = 0; j < c.value_dim; ++j) {
        double seen = 0, out = 0;
        for (std::int64_t i = 0; i < c.dim; ++i) {
          state(i, j) *= decay;
          seen += state(i, j) * d.k.at(t, key + i);
        }
        const double update = beta * (d.v.at(t, h * c.value_dim + j) - seen);
        for (std::int64_t i = 0; i < c.dim; ++i) {
          state(i, j) += d.k.at(t, key + i) * update;
          out += state(i, j) * d.q.at(t, key + i);
        }
        y[static_cast<std::size_t>((t * c.heads + h) * c.value_dim + j)] = out;
      }
    }
  }
  return y;
}

TEST(DeltaRule, ForwardIsTheRecurrence) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    const Data d(c, c.dtype);
    const std::vector<double> want = recurrence(c, d);
    everywhere(
        [&](TestDevice& device) {
          HostTensor y(c.dtype, Shape{c.tokens(), c.heads * c.value_dim}, c.heads * c.value_dim + 2);
          HostTensor states(accumulator_of(c.dtype), Shape{c.chunks(), c.heads * c.dim * c.value_dim});
          device.operations().delta_rule(device.stream(), d.op(c, y, states));
          return std::vector<HostTensor>{y};
        },
        [&](const std::vector<HostTensor>& got) {
          expect_close(got[0], want, 2 * std::min(c.chunk, c.length) + c.dim + 16);
        });
  }
}

// In the order of Data::all.
std::vector<HostTensor> gradients(TestDevice& device, const Case& c, const Data& d, const HostTensor& dy) {
  const DType acc = accumulator_of(dy.dtype());
  HostTensor y(dy.dtype(), Shape{c.tokens(), c.heads * c.value_dim});
  HostTensor states(acc, Shape{c.chunks(), c.heads * c.dim * c.value_dim}), sums(acc, Shape{c.chunks(), 2 * c.heads});
  std::vector<HostTensor> out = {d.q, d.k, d.v, d.a, d.b, d.A_log, d.dt_bias};
  const DeltaRule forward = d.op(c, y, states);
  device.operations().delta_rule(device.stream(), forward);
  DeltaRuleBackward op{forward, dy, out[0], out[1], out[2], out[3], out[4], out[5], out[6], sums};
  run_with_stores(op, out[5], [&](const DeltaRuleBackward& back) {
    device.operations().delta_rule_backward(device.stream(), back);
  });
  return out;
}

TEST(DeltaRule, GradientsAgreeWithDifferences) {
  TestDevice device;
  for (const Case& c : cases()) {
    if (c.dtype != DType::f64) continue;
    SCOPED_TRACE(c.text());
    Data d(c, c.dtype);
    const HostTensor dy = HostTensor::normal(c.dtype, Shape{c.tokens(), c.heads * c.value_dim}, "dy");
    HostTensor y(c.dtype, Shape{c.tokens(), c.heads * c.value_dim});
    HostTensor states(c.dtype, Shape{c.chunks(), c.heads * c.dim * c.value_dim});
    const auto loss = [&] {
      device.operations().delta_rule(device.stream(), d.op(c, y, states));
      return weighted_sum(y, dy);
    };
    const std::vector<HostTensor> got = gradients(device, c, d, dy);
    for (std::size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(i);
      check_gradient(loss, *d.all()[i], got[i].values(), 1e-6, 20);
    }
  }
}

TEST(DeltaRule, GradientsInOtherTypesAreThoseInDouble) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    expect_gradients_of_double<Data>(c, c.heads * c.value_dim, gradients, [&](std::size_t) {
      return 2 * std::min(c.chunk, c.length) + c.dim * c.value_dim + 32;
    });
  }
}

}  // namespace
}  // namespace weft
