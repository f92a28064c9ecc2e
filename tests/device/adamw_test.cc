#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

struct Types {
  DType weight;
  bool master;
  DType gradient;
};
const Types types[] = {
    {DType::f32, false, DType::f32},  {DType::f32, false, DType::bf16}, {DType::bf16, true, DType::f32},
    {DType::bf16, true, DType::bf16}, {DType::bf16, false, DType::f32}, {DType::f64, false, DType::f64},
    {DType::f32, true, DType::f32},
};

// A slab that owns its tensors.
struct Slab {
  HostTensor weight, master, m, v;
  bool decay;
  Slab(const Types& type, std::int64_t size, bool decays)
      : weight(HostTensor::normal(type.weight, Shape{size}, fmt::format("w{}", size))),
        m(accumulator_of(type.weight), Shape{size}),
        v(accumulator_of(type.weight), Shape{size}),
        decay(decays) {
    if (!type.master) return;
    master = HostTensor::normal(accumulator_of(type.weight), Shape{size}, fmt::format("w{}", size));
  }
  const HostTensor& updated() const { return master.elements() > 0 ? master : weight; }
  AdamSlab view(const HostTensor& gradient) const { return {weight, master, m, v, gradient, decay}; }
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
    SCOPED_TRACE(fmt::format("{} master {} gradient {}", name_of(type.weight), type.master, name_of(type.gradient)));
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
            for (const HostTensor* tensor : {&slab.updated(), &slab.m, &slab.v}) results.push_back(*tensor);
            if (!type.master) continue;
            HostTensor rounded = slab.weight;
            for (std::int64_t i = 0; i < rounded.elements(); ++i) rounded.set(i, slab.master.at(i));
            EXPECT_TRUE(rounded.same_bits(slab.weight)) << "the weight is the master, rounded";
          }
          return results;
        },
        [&](const std::vector<HostTensor>& got) {
          for (std::size_t s = 0; s < std::size(slabs); ++s) {
            const auto& [size, decays] = slabs[s];
            const Slab start(type, size, decays);
            std::vector<double> w, m, v, w_bound, m_bound;
            for (std::int64_t i = 0; i < size; ++i) {
              w.push_back(start.updated().at(i));
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
            // Every step rounds some ten times; a bf16 weight without a master is also rounded once a step.
            const HostTensor& weight = got[3 * s];
            if (weight.dtype() == DType::bf16)
              for (std::int64_t i = 0; i < size; ++i)
                EXPECT_NEAR(weight.at(i), w[static_cast<std::size_t>(i)],
                            steps * 0x1p-8 * w_bound[static_cast<std::size_t>(i)] + 1e-6);
            else
              expect_close(weight, w, 12 * steps, w_bound);
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
      EXPECT_TRUE(slab.weight.same_bits(before.weight) && slab.master.same_bits(before.master) &&
                  slab.m.same_bits(before.m) && slab.v.same_bits(before.v));
    }
  });
}

TEST(AdamW, DecaysOnlyWhereItShould) {
  TestDevice device;
  const HostTensor gradient(DType::f64, Shape{4}), values = step_values(rate, decay, 1, 1, beta1, beta2);
  for (bool decays : {true, false}) {
    const Slab before({DType::f64, false, DType::f64}, 4, decays), slab = before;
    const AdamSlab view = slab.view(gradient);
    device.operations().adamw(device.stream(), {{&view, 1}, values, beta1, beta2, eps});
    for (int i = 0; i < 4; ++i)
      EXPECT_DOUBLE_EQ(slab.weight.at(i), before.weight.at(i) * (decays ? 1 - rate * decay : 1));
  }
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
  EXPECT_EQ(message({four, {}, wide, four, four}), "adamw: m, v or master are not f32 (f64 for f64 weights)");
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
                                   StepValues::correction2, StepValues::loss_scale})
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
