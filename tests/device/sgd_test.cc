#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "tests/device/everywhere.h"
#include "weft/base/error.h"
#include "weft/device/null/device.h"
#include "weft/device/operations.h"

namespace weft {
namespace {

constexpr double rate = 1e-2, decay = 0.1;

struct Types {
  DType weight, gradient;
};
const Types types[] = {
    {DType::f32, DType::f32},   {DType::f32, DType::bf16}, {DType::bf16, DType::f32},
    {DType::bf16, DType::bf16}, {DType::f64, DType::f64},
};

// A slab that owns its tensors. Its weights are floats (doubles), which a bf16 weight and a remainder make up.
struct Slab {
  HostTensor weight, remainder, momentum;
  bool decay;

  Slab(DType type, std::int64_t size, bool decays, bool keeps = true)
      : weight(HostTensor::normal(type, Shape{size}, fmt::format("w{}", size))), decay(decays) {
    if (keeps) momentum = HostTensor(type == DType::f64 ? DType::f64 : DType::f32, Shape{size});
    if (type != DType::bf16) return;
    remainder = HostTensor(DType::i16, Shape{size});
    const HostTensor whole = HostTensor::normal(DType::f32, Shape{size}, fmt::format("w{}", size));
    for (std::int64_t i = 0; i < size; ++i) {
      const SplitFloat split = split_float(static_cast<float>(whole.at(i)));
      weight.view().as<bfloat16>()[i] = split.weight;
      remainder.view().as<std::int16_t>()[i] = split.remainder;
    }
  }
  HostTensor values() const {
    if (remainder.elements() == 0) return weight;
    HostTensor whole(DType::f32, Shape{weight.elements()});
    for (std::int64_t i = 0; i < weight.elements(); ++i)
      whole.view().as<float>()[i] =
          join_float({weight.view().as<bfloat16>()[i], remainder.view().as<std::int16_t>()[i]});
    return whole;
  }
  SgdSlab view(const HostTensor& gradient) const { return {weight, remainder, momentum, gradient, decay}; }
};

HostTensor step_values(double clip, bool finite = true) {
  HostTensor values(DType::f64, Shape{StepValues::count});
  values.set(StepValues::learning_rate, rate);
  values.set(StepValues::weight_decay, decay);
  values.set(StepValues::clip_factor, clip);
  values.set(StepValues::finite, finite ? 1 : 0);
  return values;
}

HostTensor gradient_of(DType dtype, std::int64_t size, int step) {
  return HostTensor::normal(dtype, Shape{size}, fmt::format("g{} {}", size, step), 3);
}

TEST(Sgd, FollowsTheFormulaOverSteps) {
  constexpr int steps = 5;
  const std::pair<std::int64_t, bool> slabs[] = {{1, true},   {3, false},    {17, true},
                                                 {65, false}, {20001, true}, {128, true}};
  for (const Types& type : types)
    for (const double momentum : {0.9, 0.0}) {
      SCOPED_TRACE(fmt::format("{} gradient {} momentum {}", name_of(type.weight), name_of(type.gradient), momentum));
      everywhere(
          [&](TestDevice& device) {
            std::vector<Slab> owned;
            for (const auto& [size, decays] : slabs) owned.emplace_back(type.weight, size, decays, momentum != 0);
            for (int step = 1; step <= steps; ++step) {
              std::vector<HostTensor> gradients;
              std::vector<SgdSlab> views;
              for (const Slab& slab : owned)
                gradients.push_back(gradient_of(type.gradient, slab.weight.elements(), step));
              for (std::size_t i = 0; i < owned.size(); ++i) views.push_back(owned[i].view(gradients[i]));
              device.operations().sgd(device.stream(), {views, step_values(1.0 / step), momentum});
            }
            std::vector<HostTensor> results;
            for (const Slab& slab : owned) {
              results.push_back(slab.values());
              if (momentum != 0) results.push_back(slab.momentum);
            }
            return results;
          },
          [&](const std::vector<HostTensor>& got) {
            for (std::size_t s = 0, next = 0; s < std::size(slabs); ++s) {
              const auto& [size, decays] = slabs[s];
              const HostTensor start = Slab(type.weight, size, decays).values();
              std::vector<double> w = start.values(), b(w.size()), w_bound(w.size()), b_bound(w.size());
              for (std::size_t i = 0; i < w.size(); ++i) w_bound[i] = std::abs(w[i]);
              for (int step = 1; step <= steps; ++step) {
                const HostTensor gradient = gradient_of(type.gradient, size, step);
                for (std::size_t i = 0; i < w.size(); ++i) {
                  const double clipped = gradient.at(static_cast<std::int64_t>(i)) / step;
                  const double g = clipped + (decays ? decay : 0) * w[i];
                  b[i] = step == 1 ? g : momentum * b[i] + g;
                  b_bound[i] = momentum * b_bound[i] + std::abs(clipped) + decay * std::abs(w[i]);
                  w_bound[i] += rate * b_bound[i];
                  w[i] -= rate * b[i];
                }
              }
              // Every step rounds some six times.
              expect_close(got[next++], w, 8 * steps, w_bound);
              if (momentum != 0) expect_close(got[next++], b, 6 * steps, b_bound);
            }
          });
    }
}

// Weight decay goes through the momentum: without gradients a weight falls by more in the second step.
TEST(Sgd, DecayIsPartOfTheGradient) {
  TestDevice device;
  const HostTensor gradient(DType::f64, Shape{4}), values = step_values(1);
  for (bool decays : {true, false}) {
    const Slab before(DType::f64, 4, decays), slab = before;
    const SgdSlab view = slab.view(gradient);
    for (int step = 0; step < 2; ++step) device.operations().sgd(device.stream(), {{&view, 1}, values, 0.9});
    const double first = decays ? decay : 0, second = 0.9 * first + first * (1 - rate * first);
    for (int i = 0; i < 4; ++i)
      EXPECT_DOUBLE_EQ(slab.weight.at(i), before.weight.at(i) * (1 - rate * first - rate * second));
  }
}

TEST(Sgd, DoesNothingWhenNotFinite) {
  for_each_device([](TestDevice& device) {
    for (const Types& type : types) {
      const Slab before(type.weight, 300, true), slab = before;
      HostTensor gradient = gradient_of(type.gradient, 300, 1);
      gradient.set(7, std::numeric_limits<double>::quiet_NaN());
      const SgdSlab view = slab.view(gradient);
      device.operations().sgd(device.stream(), {{&view, 1}, step_values(1, false), 0.9});
      EXPECT_TRUE(slab.weight.same_bits(before.weight) && slab.remainder.same_bits(before.remainder) &&
                  slab.momentum.same_bits(before.momentum));
    }
  });
}

// A weight and its remainder go the way of a float, bit by bit.
TEST(Sgd, SplitWeightsAreFloats) {
  constexpr std::int64_t size = 5000;
  for_each_device([](TestDevice& device) {
    for (const DType type : {DType::f32, DType::bf16})
      for (const double momentum : {0.9, 0.0}) {
        const Slab split(DType::bf16, size, true, momentum != 0), whole(DType::f32, size, true, momentum != 0);
        for (int step = 1; step <= 20; ++step) {
          const HostTensor gradient = gradient_of(type, size, step);
          const std::vector<SgdSlab> slabs{split.view(gradient), whole.view(gradient)};
          device.operations().sgd(device.stream(), {slabs, step_values(0.7), momentum});
          ASSERT_TRUE(split.values().same_bits(whole.weight)) << "step " << step;
          ASSERT_TRUE(split.momentum.same_bits(whole.momentum)) << "step " << step;
        }
      }
  });
}

// A rank's share of a parameter may have no elements.
TEST(Sgd, EmptySlabsChangeNothing) {
  for (const Types& type : types)
    for_each_device([&](TestDevice& device) {
      const HostTensor values = step_values(1);
      const Slab alone(type.weight, 300, true), empty(type.weight, 0, true), beside = alone;
      const HostTensor gradient = gradient_of(type.gradient, 300, 1), nothing(type.gradient, Shape{0});
      const SgdSlab one = alone.view(gradient), none = empty.view(nothing);
      const SgdSlab all[] = {none, beside.view(gradient), none, none};
      device.operations().sgd(device.stream(), {{&one, 1}, values, 0.9});
      device.operations().sgd(device.stream(), {all, values, 0.9});
      device.operations().sgd(device.stream(), {{&none, 1}, values, 0.9});
      device.operations().sgd(device.stream(), {{}, values, 0.9});
      EXPECT_TRUE(beside.values().same_bits(alone.values()) && beside.momentum.same_bits(alone.momentum));
    });
}

TEST(Sgd, RefusesSlabsThatDoNotFit) {
  TestDevice device;
  const HostTensor four(DType::f32, Shape{4}), three(DType::f32, Shape{3}), wide(DType::f64, Shape{4});
  const HostTensor narrow(DType::bf16, Shape{4}), values = step_values(1);
  const auto message = [&](const SgdSlab& slab, double momentum) -> std::string {
    try {
      device.operations().sgd(device.stream(), {{&slab, 1}, values, momentum});
    } catch (const BugError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({four, {}, four, three}, 0.9), "sgd: a slab's tensors differ in length");
  EXPECT_EQ(message({four, {}, three, four}, 0.9), "sgd: a slab's tensors differ in length");
  EXPECT_EQ(message({four, {}, wide, four}, 0.9), "sgd: the momentum is not f32 (f64 for f64 weights)");
  EXPECT_EQ(message({narrow, {}, four, four}, 0.9), "sgd: bf16 weights have remainders of i16, others none");
  EXPECT_EQ(message({four, {}, four, wide}, 0.9), "sgd: the gradient is neither acc nor bf16");
  const std::string where = "sgd: slabs have momentum where its factor is not 0, and only there";
  EXPECT_EQ(message({four, {}, {}, four}, 0.9), where);
  EXPECT_EQ(message({four, {}, four, four}, 0), where);
  EXPECT_EQ(message({four, {}, {}, four}, 0), "");
}

TEST(Sgd, CostsItsBytes) {
  const HostTensor gradient(DType::f32, Shape{100});
  const auto cost = [&](const Slab& slab, double momentum) {
    const SgdSlab view = slab.view(gradient);
    return cost_of(Sgd{{&view, 1}, {}, momentum});
  };
  const Slab split(DType::bf16, 100, true), plain(DType::f32, 100, true, false);
  EXPECT_EQ(cost(split, 0.9).flops, 700);
  EXPECT_EQ(cost(split, 0.9).bytes, 100 * (4 + 2 * (2 + 2 + 4)));
  EXPECT_EQ(cost(plain, 0).flops, 500);
  EXPECT_EQ(cost(plain, 0).bytes, 100 * (4 + 2 * 4));
}

}  // namespace
}  // namespace weft
