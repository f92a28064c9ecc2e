#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

struct Types {
  DType weight, gradient;
};
const Types types[] = {
    {DType::f32, DType::f32},   {DType::f32, DType::bf16}, {DType::bf16, DType::f32},
    {DType::bf16, DType::bf16}, {DType::f64, DType::f64},
};

// A slab that owns its tensors.
struct Slab {
  HostTensor weight, remainder, m, v;
  bool decay;
  Slab(const Types& type, std::int64_t size, bool decays)
      : weight(HostTensor::normal(type.weight, Shape{size}, fmt::format("w{}", size))),
        m(accumulator_of(type.weight), Shape{size}),
        v(accumulator_of(type.weight), Shape{size}),
        decay(decays) {
    if (type.weight != DType::bf16) return;
    const HostTensor whole = HostTensor::normal(DType::f32, Shape{size}, fmt::format("w{}", size));
    remainder = HostTensor(DType::i16, Shape{size});
    for (std::int64_t i = 0; i < size; ++i) set(i, static_cast<float>(whole.at(i)));
  }
  void set(std::int64_t i, float x) {
    const SplitFloat split = split_float(x);
    weight.view().as<bfloat16>()[i] = split.weight;
    remainder.view().as<std::int16_t>()[i] = split.remainder;
  }
  // What is updated.
  HostTensor values() const {
    if (remainder.elements() == 0) return weight;
    HostTensor whole(DType::f32, Shape{weight.elements()});
    for (std::int64_t i = 0; i < weight.elements(); ++i)
      whole.view().as<float>()[i] =
          join_float({weight.view().as<bfloat16>()[i], remainder.view().as<std::int16_t>()[i]});
    return whole;
  }
  AdamSlab view(const HostTensor& gradient) const { return {weight, remainder, m, v, gradient, decay}; }
};

HostTensor step_values(double rate, double decay, int step, double clip, double beta1, double beta2) {
  HostTensor values(DType::f64, Shape{StepValues::count});
  values.set(StepValues::learning_rate, rate);
  values.set(StepValues::weight_decay, decay);
  values.set(StepValues::correction1, 1 - std::pow(beta1, step));
  values.set(StepValues::correction2, 1 - std::pow(beta2, step));
  values.set(StepValues::clip_factor, clip);
  values.set(StepValues::finite, 1);
  return values;
}

constexpr double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, rate = 1e-2, decay = 0.1;
constexpr int steps = 5;

HostTensor gradient_of(DType dtype, std::int64_t size, int step) {
  return HostTensor::normal(dtype, Shape{size}, fmt::format("g{} {}", size, step), 3);
}

TEST(AdamW, FollowsTheFormulaOverSteps) {
  const std::pair<std::int64_t, bool> slabs[] = {{1, true},   {3, false},    {17, true},
                                                 {65, false}, {40001, true}, {128, true}};
  for (const Types& type : types) {
    SCOPED_TRACE(fmt::format("{} gradient {}", name_of(type.weight), name_of(type.gradient)));
    everywhere(
        [&](TestDevice& device) {
          std::vector<Slab> owned;
          for (const auto& [size, decays] : slabs) owned.emplace_back(type, size, decays);
          for (int step = 1; step <= steps; ++step) {
            std::vector<HostTensor> gradients;
            std::vector<AdamSlab> views;
            for (const Slab& slab : owned)
              gradients.push_back(gradient_of(type.gradient, slab.weight.elements(), step));
            for (std::size_t i = 0; i < owned.size(); ++i) views.push_back(owned[i].view(gradients[i]));
            const HostTensor values = step_values(rate, decay, step, 1.0 / step, beta1, beta2);
            device.operations().adamw(device.stream(), {views, values, beta1, beta2, eps});
          }
          std::vector<HostTensor> results;
          for (const Slab& slab : owned) {
            results.push_back(slab.values());
            for (const HostTensor* tensor : {&slab.m, &slab.v}) results.push_back(*tensor);
          }
          return results;
        },
        [&](const std::vector<HostTensor>& got) {
          for (std::size_t s = 0; s < std::size(slabs); ++s) {
            const auto& [size, decays] = slabs[s];
            const HostTensor whole = Slab(type, size, decays).values();
            std::vector<double> w, m, v, w_bound, m_bound;
            for (std::int64_t i = 0; i < size; ++i) {
              w.push_back(whole.at(i));
              w_bound.push_back(std::abs(w.back()));
            }
            m.assign(w.size(), 0), v = m, m_bound = m;
            for (int step = 1; step <= steps; ++step) {
              const HostTensor gradient = gradient_of(type.gradient, size, step);
              const double c1 = 1 - std::pow(beta1, step), c2 = 1 - std::pow(beta2, step);
              for (std::size_t i = 0; i < w.size(); ++i) {
                const double g = gradient.at(static_cast<std::int64_t>(i)) / step;
                m[i] = beta1 * m[i] + (1 - beta1) * g;
                v[i] = beta2 * v[i] + (1 - beta2) * g * g;
                m_bound[i] = beta1 * m_bound[i] + (1 - beta1) * std::abs(g);
                const double root = std::sqrt(v[i] / c2) + eps, d = decays ? decay : 0;
                w_bound[i] += rate * (m_bound[i] / c1 / root + d * std::abs(w[i]));
                w[i] -= rate * (m[i] / c1 / root + d * w[i]);
              }
            }
            // Every step rounds some ten times.
            expect_close(got[3 * s], w, 12 * steps, w_bound);
            expect_close(got[3 * s + 1], m, 5 * steps, m_bound);
            expect_close(got[3 * s + 2], v, 6 * steps, v);
          }
        });
  }
}

TEST(AdamW, DoesNothingWhenNotFinite) {
  for_each_device([](TestDevice& device) {
    for (const Types& type : types) {
      const Slab before(type, 300, true);
      const Slab slab = before;
      HostTensor gradient = gradient_of(type.gradient, 300, 1);
      gradient.set(7, std::numeric_limits<double>::quiet_NaN());
      HostTensor values = step_values(rate, decay, 1, 1, beta1, beta2);
      values.set(StepValues::finite, 0);
      const AdamSlab view = slab.view(gradient);
      device.operations().adamw(device.stream(), {{&view, 1}, values, beta1, beta2, eps});
      EXPECT_TRUE(slab.weight.same_bits(before.weight) && slab.remainder.same_bits(before.remainder) &&
                  slab.m.same_bits(before.m) && slab.v.same_bits(before.v));
    }
  });
}

// A weight and its remainder go the way of a float, bit by bit, and the weight is that float rounded.
TEST(AdamW, SplitWeightsAreFloats) {
  constexpr std::int64_t size = 5000;
  for_each_device([](TestDevice& device) {
    for (const DType type : {DType::f32, DType::bf16}) {
      Slab split({DType::bf16, type}, size, true), whole({DType::f32, type}, size, true);
      // Of every size, so that updates cross halves, powers of two and zero.
      for (std::int64_t i = 0; i < size; ++i) {
        const auto x = static_cast<float>(std::ldexp(whole.weight.at(i), static_cast<int>(i % 40) - 36));
        whole.weight.view().as<float>()[i] = x;
        split.set(i, x);
      }
      for (int step = 1; step <= 50; ++step) {
        const HostTensor gradient = gradient_of(type, size, step);
        const HostTensor values = step_values(rate / step, decay, step, 0.7, beta1, beta2);
        const std::vector<AdamSlab> slabs{split.view(gradient), whole.view(gradient)};
        device.operations().adamw(device.stream(), {slabs, values, beta1, beta2, eps});
        ASSERT_TRUE(split.values().same_bits(whole.weight)) << "step " << step;
        ASSERT_TRUE(split.m.same_bits(whole.m) && split.v.same_bits(whole.v)) << "step " << step;
        for (std::int64_t i = 0; i < size; ++i)
          ASSERT_EQ(split.weight.view().as<bfloat16>()[i].bits,
                    split_float(whole.weight.view().as<float>()[i]).weight.bits)
              << "step " << step << ", element " << i;
      }
    }
  });
}

TEST(AdamW, WhatIsNotFiniteStaysSo) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity(),
              largest = std::numeric_limits<float>::max();
  for_each_device([&](TestDevice& device) {
    Slab slab({DType::bf16, DType::f32}, 40, false);
    for (std::int64_t i = 0; i < 40; i += 4) {
      slab.set(i, std::bit_cast<float>(i % 8 == 0 ? 0x7fffffffu : 0xffffffffu));
      slab.set(i + 1, i % 8 == 0 ? infinity : -infinity);
      slab.set(i + 2, i % 8 == 0 ? nan : -nan);
      slab.set(i + 3, i % 8 == 0 ? largest : -largest);
    }
    const HostTensor gradient = gradient_of(DType::f32, 40, 1), values = step_values(rate, decay, 1, 1, beta1, beta2);
    const AdamSlab view = slab.view(gradient);
    device.operations().adamw(device.stream(), {{&view, 1}, values, beta1, beta2, eps});
    const HostTensor now = slab.values();
    for (std::int64_t i = 0; i < 40; i += 4) {
      for (std::int64_t j : {i, i + 2}) EXPECT_TRUE(std::isnan(now.at(j)) && std::isnan(slab.weight.at(j))) << j;
      // Infinity less 0 infinity is NaN, by the formula.
      EXPECT_FALSE(std::isfinite(now.at(i + 1)) || std::isfinite(slab.weight.at(i + 1))) << i;
      EXPECT_EQ(now.at(i + 3), static_cast<double>(i % 8 == 0 ? largest : -largest)) << "a step of 0.01 is nothing";
    }
  });
}

TEST(AdamW, DecaysOnlyWhereItShould) {
  TestDevice device;
  const HostTensor gradient(DType::f64, Shape{4}), values = step_values(rate, decay, 1, 1, beta1, beta2);
  for (bool decays : {true, false}) {
    const Slab before({DType::f64, DType::f64}, 4, decays), slab = before;
    const AdamSlab view = slab.view(gradient);
    device.operations().adamw(device.stream(), {{&view, 1}, values, beta1, beta2, eps});
    for (int i = 0; i < 4; ++i)
      EXPECT_DOUBLE_EQ(slab.weight.at(i), before.weight.at(i) * (decays ? 1 - rate * decay : 1));
  }
}

// A rank's share of a parameter may have no elements.
TEST(AdamW, EmptySlabsChangeNothing) {
  const HostTensor values = step_values(rate, decay, 1, 1, beta1, beta2);
  for (const Types& type : types)
    for_each_device([&](TestDevice& device) {
      const Slab alone(type, 300, true), empty(type, 0, true);
      const Slab beside = alone;
      const HostTensor gradient = gradient_of(type.gradient, 300, 1), nothing(type.gradient, Shape{0});
      const AdamSlab one = alone.view(gradient), none = empty.view(nothing);
      const AdamSlab all[] = {none, beside.view(gradient), none, none};
      device.operations().adamw(device.stream(), {{&one, 1}, values, beta1, beta2, eps});
      device.operations().adamw(device.stream(), {all, values, beta1, beta2, eps});
      device.operations().adamw(device.stream(), {{&none, 1}, values, beta1, beta2, eps});
      device.operations().adamw(device.stream(), {{}, values, beta1, beta2, eps});
      EXPECT_TRUE(beside.values().same_bits(alone.values()) && beside.m.same_bits(alone.m) &&
                  beside.v.same_bits(alone.v));
    });
}

TEST(AdamW, RefusesSlabsThatDoNotFit) {
  TestDevice device;
  const HostTensor four(DType::f32, Shape{4}), three(DType::f32, Shape{3}), wide(DType::f64, Shape{4});
  const HostTensor values = step_values(rate, decay, 1, 1, beta1, beta2);
  const auto message = [&](const AdamSlab& slab) -> std::string {
    try {
      device.operations().adamw(device.stream(), {{&slab, 1}, values});
    } catch (const BugError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({four, {}, four, four, three}), "adamw: a slab's tensors differ in length");
  EXPECT_EQ(message({four, {}, wide, four, four}), "adamw: m or v are not f32 (f64 for f64 weights)");
  const HostTensor lower(DType::i16, Shape{4}), narrow(DType::bf16, Shape{4});
  EXPECT_EQ(message({four, lower, four, four, four}), "adamw: bf16 weights have remainders of i16, others none");
  EXPECT_EQ(message({narrow, four, four, four, four}), "adamw: bf16 weights have remainders of i16, others none");
  EXPECT_EQ(message({narrow, {}, four, four, four}), "adamw: bf16 weights have remainders of i16, others none");
  EXPECT_EQ(message({four, {}, four, four, wide}), "adamw: the gradient is neither acc nor bf16");
}

TEST(ClipFactor, ScalesDownAndSaysWhatIsFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for_each_device([&](TestDevice& device) {
    HostTensor values(DType::f64, Shape{StepValues::count});
    values.fill(-5);
    const auto clip = [&](const std::vector<double>& sums, double limit, const HostTensor& loss) {
      const HostTensor sum = HostTensor::of(DType::f64, Shape{static_cast<std::int64_t>(sums.size())}, sums);
      device.operations().clip_factor(device.stream(), {sum, loss, values, limit});
    };
    const auto value = [&](StepValues::Index index) { return values.at(index); };
    const HostTensor none, good = HostTensor::of(DType::f32, Shape{1}, {3});

    clip({16}, 1, none);
    EXPECT_DOUBLE_EQ(value(StepValues::gradient_norm), 4);
    EXPECT_DOUBLE_EQ(value(StepValues::clip_factor), 1 / (4 + 1e-6));
    EXPECT_EQ(value(StepValues::finite), 1);
    for (StepValues::Index host : {StepValues::learning_rate, StepValues::weight_decay, StepValues::correction1,
                                   StepValues::correction2, StepValues::router_loss_scale})
      EXPECT_EQ(value(host), -5) << "what the host wrote";
    clip({0.25}, 1, good);
    EXPECT_EQ(value(StepValues::clip_factor), 1);
    clip({9, 16}, 0, good);  // parts of the sum; no limit
    EXPECT_DOUBLE_EQ(value(StepValues::gradient_norm), 5);
    EXPECT_EQ(value(StepValues::clip_factor), 1);
    EXPECT_EQ(value(StepValues::finite), 1);

    for (double bad : {nan, infinity}) {
      clip({bad}, 1, good);
      EXPECT_EQ(value(StepValues::finite), 0);
      for (DType dtype : {DType::f32, DType::f64}) {
        clip({1}, 1, HostTensor::of(dtype, Shape{1}, {bad}));
        EXPECT_EQ(value(StepValues::finite), 0);
      }
    }
    clip({0}, 1, HostTensor::of(DType::f64, Shape{1}, {2}));
    EXPECT_EQ(value(StepValues::finite), 1);
    EXPECT_EQ(value(StepValues::clip_factor), 1);
  });
}

}  // namespace
}  // namespace weft
