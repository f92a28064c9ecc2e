#include "weft/comm/local/network.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <vector>

#include <sys/prctl.h>

#include "weft/base/text.h"

namespace weft {

namespace {

struct Unit {
  std::string_view name;
  double size;
};
constexpr Unit time_units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
constexpr Unit bandwidth_units[] = {{"B/s", 1},
                                    {"KB/s", 1e3},
                                    {"MB/s", 1e6},
                                    {"GB/s", 1e9},
                                    {"KiB/s", 1024},
                                    {"MiB/s", 1024.0 * 1024},
                                    {"GiB/s", 1024.0 * 1024 * 1024},
                                    {"Mbit/s", 1e6 / 8},
                                    {"Gbit/s", 1e9 / 8}};

[[noreturn]] void refuse(std::string_view text, std::size_t at, const std::string& why) {
  throw UserError("--emulate-network: {}; write for example latency=100us,bandwidth=2GB/s\n{}", why,
                  point_at(text, at));
}

std::string names_of(std::span<const Unit> units) {
  std::vector<std::string> names;
  for (const Unit& unit : units) names.emplace_back(unit.name);
  return join(names, ", ");
}

// A number and a unit, at `at` in the whole text.
double parse_quantity(std::string_view text, std::size_t at, std::string_view value, std::span<const Unit> units) {
  const std::size_t split_at = std::min(value.find_first_not_of("0123456789.eE+-"), value.size());
  // In "1e3B/s" the e belongs to the number; no unit begins with e.
  double number = 0;
  if (!parse_double(value.substr(0, split_at), number) || !std::isfinite(number) || number < 0)
    refuse(text, at, fmt::format("'{}' does not begin with a number", value));
  const std::string_view unit_name = value.substr(split_at);
  for (const Unit& unit : units)
    if (unit.name == unit_name) return number * unit.size;
  refuse(text, at + split_at,
         unit_name.empty() ? fmt::format("'{}' has no unit (one of {})", value, names_of(units))
                           : fmt::format("'{}' is not a known unit (one of {})", unit_name, names_of(units)));
}

std::string quantity_text(double value, std::span<const Unit> units) {
  const Unit* best = &units[0];
  for (const Unit& unit : units)
    if (unit.size <= value && unit.size >= best->size && value / unit.size >= 1) best = &unit;
  return fmt::format("{:.6g}{}", value / best->size, best->name);
}

}  // namespace

EmulatedNetwork parse_network(std::string_view text) {
  EmulatedNetwork network;
  bool has_latency = false, has_bandwidth = false;
  std::size_t at = 0;
  for (const std::string& part : split(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    if (equals == std::string::npos) refuse(text, at, fmt::format("'{}' is not key=value", part));
    const std::string_view value = std::string_view(part).substr(equals + 1);
    const auto once = [&](bool& seen) {
      if (seen) refuse(text, at, fmt::format("{} is given twice", key));
      seen = true;
    };
    if (key == "latency") {
      once(has_latency);
      network.latency = parse_quantity(text, at + equals + 1, value, time_units);
      if (network.latency > 60) refuse(text, at, "the latency is over a minute");
    } else if (key == "bandwidth") {
      once(has_bandwidth);
      network.bandwidth = parse_quantity(text, at + equals + 1, value, bandwidth_units);
      if (network.bandwidth < 1) refuse(text, at + equals + 1, "the bandwidth is below one byte per second");
    } else {
      refuse(text, at, fmt::format("'{}' is neither latency nor bandwidth", key));
    }
    at += part.size() + 1;
  }
  return network;
}

std::string to_text(const EmulatedNetwork& network) {
  std::string text = "latency=" + quantity_text(network.latency, time_units);
  // Powers of ten only: the first four units.
  if (std::isfinite(network.bandwidth))
    text += ",bandwidth=" + quantity_text(network.bandwidth, std::span(bandwidth_units).first(4));
  return text;
}

Link::Times Link::reserve(Nanoseconds start, std::int64_t bytes_out, std::int64_t bytes_in) {
  const auto occupy = [&](Nanoseconds& busy_until, std::int64_t bytes) {
    if (bytes == 0) return start;
    const double seconds = static_cast<double>(bytes) / network_.bandwidth;
    busy_until = std::max(start, busy_until) + static_cast<Nanoseconds>(std::llround(seconds * 1e9));
    return busy_until;
  };
  const std::lock_guard lock(mutex_);
  return Times{occupy(out_busy_until_, bytes_out), occupy(in_busy_until_, bytes_in)};
}

void Link::complete(Nanoseconds done_at, const std::atomic<bool>& ended) {
  constexpr Nanoseconds slice = 50'000'000;  // a failure elsewhere is noticed at most this late
  const Nanoseconds deadline = done_at + static_cast<Nanoseconds>(std::llround(network_.latency * 1e9));
  Nanoseconds now = now_ns();
  if (now < deadline) prctl(PR_SET_TIMERSLACK, 1UL);  // of this thread: wake on time, not 50 us late
  while (now < deadline && !ended.load()) {
    const Nanoseconds until = std::min(deadline, now + slice);
    const timespec at{static_cast<time_t>(until / 1'000'000'000), static_cast<long>(until % 1'000'000'000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
    now = now_ns();
  }
}

}  // namespace weft
