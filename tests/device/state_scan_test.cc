// The chunked state-space scan against the recurrence itself, a token at a time in double.
#include <cmath>

#include <fmt/format.h>

#include "tests/device/recurrences.h"

namespace weft {
namespace {

struct Case {
  DType dtype;
  std::int64_t batch, length, chunk, heads, groups, dim, state;
  bool skip = true, documents = false, limits = false;
  std::int64_t tokens() const { return batch * length; }
  std::int64_t chunks() const { return chunks_of(tokens(), length, chunk); }
  std::string text() const {
    return fmt::format("{} {} x {} tokens in {}, {} heads of {}, {} groups of {}, skip {} documents {} limits {}",
                       name_of(dtype), batch, length, chunk, heads, dim, groups, state, skip, documents, limits);
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType dtype : storages) {
    all.push_back({dtype, 0, 5, 8, 2, 1, 3, 5});  // no tokens
    all.push_back({dtype, 1, 1, 8, 1, 1, 1, 1});
    all.push_back({dtype, 2, 1, 128, 2, 2, 3, 5, false});
    all.push_back({dtype, 1, 37, 8, 1, 1, 7, 9});
    all.push_back({dtype, 2, 100, 64, 6, 2, 16, 12});
    all.push_back({dtype, 1, 130, 64, 4, 1, 5, 33, true, true});
    all.push_back({dtype, 2, 61, 16, 4, 4, 8, 4, true, true, true});
  }
  return all;
}

struct Data {
  HostTensor x, B, C, dt, A_log, dt_bias, D, starts;
  Data(const Case& c, DType dtype) : starts(documents_of(c)) {
    const DType acc = accumulator_of(dtype);
    const auto rows = [&](std::int64_t columns, const char* name) {
      return HostTensor::normal(dtype, Shape{c.tokens(), columns}, name, 1, columns + 3);
    };
    x = rows(c.heads * c.dim, "x");
    B = rows(c.groups * c.state, "B");
    C = rows(c.groups * c.state, "C");
    dt = rows(c.heads, "dt");
    A_log = HostTensor::normal(acc, Shape{c.heads}, "A_log", 0.5);
    dt_bias = HostTensor::normal(acc, Shape{c.heads}, "dt_bias");
    if (c.skip) D = HostTensor::normal(acc, Shape{c.heads}, "D");
  }
  std::vector<HostTensor*> all() { return {&x, &B, &C, &dt, &A_log, &dt_bias, &D}; }
  StateScan op(const Case& c, const Tensor& y, const Tensor& states) const {
    StateScan s{x, B, C, dt, A_log, dt_bias, D, y, states, starts};
    s.length = c.length;
    s.chunk = c.chunk;
    s.heads = c.heads;
    s.groups = c.groups;
    s.dim = c.dim;
    s.state = c.state;
    if (c.limits) {
      s.dt_least = 0.4;
      s.dt_most = 1.1;
    }
    return s;
  }
};

std::vector<double> recurrence(const Case& c, const Data& d) {
  std::vector<double> y(static_cast<std::size_t>(c.tokens() * c.heads * c.dim));
  for (std::int64_t h = 0; h < c.heads; ++h) {
    const std::int64_t group = h / (c.heads / c.groups);
    std::vector<double> H(static_cast<std::size_t>(c.dim * c.state));
    for (std::int64_t t = 0; t < c.tokens(); ++t) {
      const bool begins = c.documents ? static_cast<std::int64_t>(d.starts.at(t)) == t : t % c.length == 0;
      if (begins) std::fill(H.begin(), H.end(), 0.0);
      double step = std::log1p(std::exp(d.dt.at(t, h) + d.dt_bias.at(h)));
      if (c.limits) step = std::min(std::max(step, 0.4), 1.1);
      const double decay = std::exp(-step * std::exp(d.A_log.at(h)));
      for (std::int64_t p = 0; p < c.dim; ++p) {
        const double x = d.x.at(t, h * c.dim + p);
        double sum = c.skip ? d.D.at(h) * x : 0;
        for (std::int64_t n = 0; n < c.state; ++n) {
          double& state = H[static_cast<std::size_t>(p * c.state + n)];
          state = decay * state + step * x * d.B.at(t, group * c.state + n);
          sum += state * d.C.at(t, group * c.state + n);
        }
        y[static_cast<std::size_t>((t * c.heads + h) * c.dim + p)] = sum;
      }
    }
  }
  return y;
}

TEST(StateScan, ForwardIsTheRecurrence) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    const Data d(c, c.dtype);
    const std::vector<double> want = recurrence(c, d);
    everywhere(
        [&](TestDevice& device) {
          HostTensor y(c.dtype, Shape{c.tokens(), c.heads * c.dim}, c.heads * c.dim + 2);
          HostTensor states(accumulator_of(c.dtype), Shape{c.chunks(), c.heads * c.dim * c.state});
          device.operations().state_scan(device.stream(), d.op(c, y, states));
          return std::vector<HostTensor>{y};
        },
        [&](const std::vector<HostTensor>& got) {
          expect_close(got[0], want, std::min(c.chunk, c.length) + c.state + 16);
        });
  }
}

// In the order of Data::all.
std::vector<HostTensor> gradients(TestDevice& device, const Case& c, const Data& d, const HostTensor& dy) {
  const DType acc = accumulator_of(dy.dtype());
  HostTensor y(dy.dtype(), Shape{c.tokens(), c.heads * c.dim});
  HostTensor states(acc, Shape{c.chunks(), c.heads * c.dim * c.state}), dstates = states;
  HostTensor sums(acc, Shape{c.chunks(), 3 * c.heads});
  std::vector<HostTensor> out = {d.x, d.B, d.C, d.dt, d.A_log, d.dt_bias, d.D};
  const StateScan forward = d.op(c, y, states);
  device.operations().state_scan(device.stream(), forward);
  StateScanBackward op{forward, dy, out[0], out[1], out[2], out[3], out[4], out[5], out[6], dstates, sums};
  run_with_stores(op, out[4], [&](const StateScanBackward& back) {
    device.operations().state_scan_backward(device.stream(), back);
  });
  return out;
}

TEST(StateScan, GradientsAgreeWithDifferences) {
  TestDevice device;
  for (const Case& c : cases()) {
    if (c.dtype != DType::f64) continue;
    SCOPED_TRACE(c.text());
    Data d(c, c.dtype);
    const HostTensor dy = HostTensor::normal(c.dtype, Shape{c.tokens(), c.heads * c.dim}, "dy");
    HostTensor y(c.dtype, Shape{c.tokens(), c.heads * c.dim});
    HostTensor states(c.dtype, Shape{c.chunks(), c.heads * c.dim * c.state});
    const auto loss = [&] {
      device.operations().state_scan(device.stream(), d.op(c, y, states));
      return weighted_sum(y, dy);
    };
    const std::vector<HostTensor> got = gradients(device, c, d, dy);
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i].elements() == 0) continue;
      SCOPED_TRACE(i);
      if (c.limits && i == 5) {  // the bias moves all steps, some of them across a limit: it is the sum of dt's
        for (std::int64_t h = 0; h < c.heads; ++h) {
          double sum = 0;
          for (std::int64_t t = 0; t < c.tokens(); ++t) sum += got[3].at(t, h);
          EXPECT_NEAR(got[5].at(h), sum, 1e-12 * std::abs(sum));
        }
        continue;
      }
      check_gradient(loss, *d.all()[i], got[i].values(), 1e-6, 20);
    }
  }
}

TEST(StateScan, GradientsInOtherTypesAreThoseInDouble) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    expect_gradients_of_double<Data>(c, c.heads * c.dim, gradients, [&](std::size_t i) {
      // Those of parameters are sums over all tokens.
      const std::int64_t chunk = std::min(c.chunk, c.length);
      const std::int64_t terms = i > 3 ? c.tokens() * c.dim : i == 3 ? chunk * c.dim : chunk;
      return terms + c.state + 32;
    });
  }
}

}  // namespace
}  // namespace weft
