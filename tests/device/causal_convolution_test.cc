#include <cmath>

#include <fmt/format.h>

#include "tests/device/everywhere.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

struct Case {
  DType dtype;
  std::int64_t batch, length, channels, taps;
  bool bias = true, silu = true, documents = false;
  std::int64_t tokens() const { return batch * length; }
  std::string text() const {
    return fmt::format("{} {} x {} tokens, {} channels, {} taps, bias {} silu {} documents {}", name_of(dtype), batch,
                       length, channels, taps, bias, silu, documents);
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (DType dtype : storages) {
    all.push_back({dtype, 1, 1, 1, 4});
    all.push_back({dtype, 3, 2, 5, 4, false});
    all.push_back({dtype, 2, 131, 37, 4});
    all.push_back({dtype, 1, 70, 300, 3, true, false});
    all.push_back({dtype, 1, 150, 65, 4, true, true, true});
  }
  return all;
}

// A document every 7 or 30 tokens, never across sequences.
HostTensor boundaries(const Case& c) {
  if (!c.documents) return {};
  std::vector<std::int32_t> starts;
  for (std::int64_t t = 0, start = 0; t < c.tokens(); ++t) {
    if (t % c.length == 0 || t - start == (start % 2 == 0 ? 7 : 30)) start = t;
    starts.push_back(static_cast<std::int32_t>(start));
  }
  return HostTensor::integers(starts);
}

struct Data {
  HostTensor x, weight, bias, starts;
  explicit Data(const Case& c)
      : x(HostTensor::normal(c.dtype, Shape{c.tokens(), c.channels}, "x", 1, c.channels + 3)),
        weight(HostTensor::normal(c.dtype, Shape{c.channels, c.taps}, "weight", 0.6)),
        starts(boundaries(c)) {
    if (c.bias) bias = HostTensor::normal(c.dtype, Shape{c.channels}, "bias");
  }
  CausalConvolution op(const Case& c) const { return {x, weight, bias, {}, starts, c.length, c.silu}; }
};

double sum_at(const Case& c, const Data& d, std::int64_t t, std::int64_t channel) {
  const std::int64_t start = c.documents ? static_cast<std::int64_t>(d.starts.at(t)) : t - t % c.length;
  double sum = c.bias ? d.bias.at(channel) : 0;
  for (std::int64_t i = 0; i < c.taps; ++i)
    if (t - c.taps + 1 + i >= start) sum += d.weight.at(channel, i) * d.x.at(t - c.taps + 1 + i, channel);
  return sum;
}

TEST(CausalConvolution, ForwardIsTheFormula) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    const Data d(c);
    std::vector<double> want;
    for (std::int64_t t = 0; t < c.tokens(); ++t)
      for (std::int64_t channel = 0; channel < c.channels; ++channel) {
        const double sum = sum_at(c, d, t, channel);
        want.push_back(c.silu ? sum / (1 + std::exp(-sum)) : sum);
      }
    everywhere(
        [&](TestDevice& device) {
          HostTensor y(c.dtype, Shape{c.tokens(), c.channels}, c.channels + 1);
          CausalConvolution op = d.op(c);
          op.y = y;
          device.operations().causal_convolution(device.stream(), op);
          return std::vector<HostTensor>{y};
        },
        [&](const std::vector<HostTensor>& got) { expect_close(got[0], want, c.taps + 8); });
  }
}

std::vector<HostTensor> gradients(TestDevice& device, const Case& c, const Data& d, const HostTensor& dy) {
  const DType acc = accumulator_of(c.dtype);
  HostTensor dx(c.dtype, Shape{c.tokens(), c.channels}, c.channels + 2), dweight(acc, Shape{c.channels, c.taps}), dbias;
  if (c.bias) dbias = HostTensor(acc, Shape{c.channels});
  device.operations().causal_convolution_backward(device.stream(), {d.op(c), dy, dx});
  device.operations().causal_convolution_weight_gradient(device.stream(), {d.op(c), dy, dweight, dbias});
  HostTensor twice = dweight, bias_twice = dbias;
  device.operations().causal_convolution_weight_gradient(device.stream(), {d.op(c), dy, twice, bias_twice, Store::add});
  for (std::int64_t i = 0; i < dbias.elements(); ++i) EXPECT_EQ(bias_twice.at(i), 2 * dbias.at(i));
  for (std::int64_t i = 0; i < twice.elements(); ++i) EXPECT_EQ(twice.at(i), 2 * dweight.at(i));
  return {dx, dweight, dbias};
}

TEST(CausalConvolution, GradientsInOtherTypesAreThoseInDouble) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.text());
    const Data d(c);
    const HostTensor dy = HostTensor::normal(c.dtype, Shape{c.tokens(), c.channels}, "dy");
    Case wide = c;
    wide.dtype = DType::f64;
    const auto widened = [](const HostTensor& x, const Shape& shape) {
      return x.elements() > 0 ? HostTensor::of(DType::f64, shape, x.values()) : HostTensor();
    };
    Data exact(wide);
    exact.x = widened(d.x, Shape{c.tokens(), c.channels});
    exact.weight = widened(d.weight, Shape{c.channels, c.taps});
    exact.bias = widened(d.bias, Shape{c.channels});
    TestDevice one;
    const std::vector<HostTensor> want = gradients(one, wide, exact, widened(dy, Shape{c.tokens(), c.channels}));
    everywhere([&](TestDevice& device) { return gradients(device, c, d, dy); },
               [&](const std::vector<HostTensor>& got) {
                 expect_close(got[0], want[0].values(), 2 * c.taps + 16);
                 expect_close(got[1], want[1].values(), c.tokens() + c.taps + 16);
                 if (c.bias) expect_close(got[2], want[2].values(), c.tokens() + c.taps + 16);
               });
  }
}

TEST(CausalConvolution, GradientsAgreeWithDifferences) {
  TestDevice device;
  for (const Case& c : cases()) {
    if (c.dtype != DType::f64) continue;
    SCOPED_TRACE(c.text());
    Data d(c);
    const HostTensor dy = HostTensor::normal(c.dtype, Shape{c.tokens(), c.channels}, "dy");
    HostTensor y(c.dtype, Shape{c.tokens(), c.channels});
    const auto loss = [&] {
      CausalConvolution op = d.op(c);
      op.y = y;
      device.operations().causal_convolution(device.stream(), op);
      return weighted_sum(y, dy);
    };
    const std::vector<HostTensor> got = gradients(device, c, d, dy);
    check_gradient(loss, d.x, got[0].values(), 1e-6, 24);
    check_gradient(loss, d.weight, got[1].values(), 1e-6, 24);
    if (c.bias) check_gradient(loss, d.bias, got[2].values(), 1e-6, 24);
  }
}

}  // namespace
}  // namespace weft
