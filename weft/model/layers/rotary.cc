// Rotary frequencies and their scalings (docs/numerics.md has the formulas).
#include "weft/model/layers/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

namespace weft {

namespace {

// One frequency per pair of dims, after scaling.
std::vector<double> frequencies(const RopeSpec& rope, std::int64_t width) {
  constexpr double two_pi = 2 * std::numbers::pi;
  const auto d = static_cast<double>(width);
  std::vector<double> f(static_cast<std::size_t>(width / 2));
  // yarn: the dim that makes this many turns within the original positions
  const auto dim_of_turns = [&](double turns) {
    return d * std::log(rope.original_positions / (two_pi * turns)) / (2 * std::log(rope.base));
  };
  double low = 0, high = 0;
  if (rope.scaling == RopeSpec::Scaling::yarn) {
    low = dim_of_turns(rope.beta_fast);
    high = dim_of_turns(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, d - 1);
    if (low == high) high += 0.001;  // the ramp divides by high - low
  }
  for (std::size_t i = 0; i < f.size(); ++i) {
    const double plain = std::pow(rope.base, -2.0 * static_cast<double>(i) / d);
    switch (rope.scaling) {
      case RopeSpec::Scaling::none:
        f[i] = plain;
        break;
      case RopeSpec::Scaling::linear:
        f[i] = plain / rope.factor;
        break;
      case RopeSpec::Scaling::llama3: {
        const double wavelength = two_pi / plain;
        const double smooth =
            (rope.original_positions / wavelength - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
        if (wavelength > rope.original_positions / rope.low_frequency) {
          f[i] = plain / rope.factor;
        } else if (wavelength < rope.original_positions / rope.high_frequency) {
          f[i] = plain;
        } else {
          f[i] = (1 - smooth) * plain / rope.factor + smooth * plain;
        }
        break;
      }
      case RopeSpec::Scaling::yarn: {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        f[i] = plain / rope.factor * ramp + plain * (1 - ramp);
        break;
      }
    }
  }
  return f;
}

std::string key_of(const RopeSpec& r, std::int64_t width) {
  return fmt::format("rope({},{},{},{},{},{},{},{},{},{},{})", static_cast<int>(r.scaling), r.base, width, r.factor,
                     r.original_positions, r.low_frequency, r.high_frequency, r.beta_fast, r.beta_slow, r.magnitude,
                     r.truncate);
}

}  // namespace

RotaryTables add_rotary_tables(ModuleBuilder& b, const RopeSpec& rope, std::int64_t head_dim) {
  RotaryTables tables;
  tables.positions = b.module().positions;
  tables.width = static_cast<std::int64_t>(std::llround(static_cast<double>(head_dim) * rope.fraction));
  const std::int64_t length = b.options().length;
  const auto fill = [rope, length, width = tables.width](double* out, double (*function)(double)) {
    const std::vector<double> f = frequencies(rope, width);
    for (std::int64_t position = 0; position < length; ++position)
      for (double frequency : f) *out++ = rope.magnitude * function(static_cast<double>(position) * frequency);
  };
  const Shape shape{length, tables.width / 2};
  const std::string key = key_of(rope, tables.width);
  tables.cosine =
      b.constant(key + ".cosine", shape, [fill](double* out) { fill(out, [](double a) { return std::cos(a); }); });
  tables.sine =
      b.constant(key + ".sine", shape, [fill](double* out) { fill(out, [](double a) { return std::sin(a); }); });
  return tables;
}

}  // namespace weft
