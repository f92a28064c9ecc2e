#include "weft/base/random.h"

#include <cmath>
#include <numbers>

namespace weft {

std::uint64_t random_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3u;
  // splitmix64 finalizer, so that neighbouring seeds give unrelated keys
  std::uint64_t z = hash + seed * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter), c1 = static_cast<std::uint32_t>(counter >> 32), c2 = 0,
                c3 = 0;
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

namespace {

std::array<double, 2> two_uniforms(std::uint64_t key, std::uint64_t counter) {
  const auto w = philox(key, counter);
  const auto to_unit = [](std::uint32_t hi, std::uint32_t lo) {
    const std::uint64_t bits = ((std::uint64_t{hi} << 32) | lo) >> 11;  // 53 bits
    return (static_cast<double>(bits) + 0.5) * 0x1p-53;
  };
  return {to_unit(w[0], w[1]), to_unit(w[2], w[3])};
}

}  // namespace

double random_uniform(std::uint64_t key, std::uint64_t index) { return two_uniforms(key, index / 2)[index % 2]; }

double random_normal(std::uint64_t key, std::uint64_t index) {
  const auto u = two_uniforms(key, index / 2);
  const double radius = std::sqrt(-2.0 * std::log(u[0]));
  const double angle = 2.0 * std::numbers::pi * u[1];
  return index % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
}

std::uint64_t random_below(std::uint64_t key, std::uint64_t index, std::uint64_t bound) {
  const auto w = philox(key, index);
  const std::uint64_t bits = (std::uint64_t{w[0]} << 32) | w[1];
  return static_cast<std::uint64_t>((static_cast<__uint128_t>(bits) * bound) >> 64);
}

}  // namespace weft
