#include "weft/plan/draw/timeline.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/plan/draw/communication.h"

namespace weft {

namespace {

using Ranges = std::vector<TimeRange>;

Ranges united(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const TimeRange& a, const TimeRange& b) { return a.start < b.start; });
  Ranges out;
  for (const TimeRange& r : ranges) {
    if (!out.empty() && r.start <= out.back().end)
      out.back().end = std::max(out.back().end, r.end);
    else
      out.push_back(r);
  }
  return out;
}

double length_of(const Ranges& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), 0.0,
                         [](double s, const TimeRange& r) { return s + r.length(); });
}

// Of two sorted lists without overlaps.
double common_length(const Ranges& a, const Ranges& b) {
  double sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max(0.0, std::min(a[i].end, b[j].end) - std::max(a[i].start, b[j].start));
    if (a[i].end < b[j].end)
      ++i;
    else
      ++j;
  }
  return sum;
}

// Equal labels have equal keys; different labels almost never do.
std::string key_of(const TimelineLabel& label) {
  std::string key = fmt::format("{}|{}|{}|{}|{}|{}", label.name, static_cast<int>(label.lane),
                                static_cast<int>(label.phase), label.unit, label.flops, label.bytes);
  for (const TimelineUse& u : label.uses) key += fmt::format("|{}{}", static_cast<int>(u.access), u.buffer);
  return key;
}

TimelineLabel label_of(const Plan& plan, const Node& node) {
  const PlaceInfo& piece = plan.place_of(node);
  TimelineLabel label;
  label.name = piece.name;
  label.layer = piece.layer;
  label.lane = node.lane;
  label.phase = node.phase;
  label.unit = piece.unit;
  label.flops = node.flops;
  label.bytes = node.bytes;
  if (const auto collectives = plan.collectives_of(node); !collectives.empty()) {
    label.bytes = 0;
    for (const NodeCollective& c : collectives) label.bytes += static_cast<double>(c.bytes);
  }
  for (const BufferUse& use : plan.uses_of(node)) {
    const ValueInfo& value = plan.value_of(use.buffer);
    const bool parameter = value.storage == StorageClass::weight || value.storage == StorageClass::gathered;
    if (parameter && use.access == Access::read) {
      label.parameters.push_back(value.name);
      continue;
    }
    const std::int32_t micro_batch = plan.buffers[use.buffer.index()].micro_batch;
    const bool own = micro_batch >= 0 && micro_batch == node.micro_batch;
    label.uses.push_back(
        {own || micro_batch < 0 ? value.name : plan.name_of(use.buffer), use.access, own, value.bytes});
  }
  return label;
}

// Whether two nodes of one piece and phase have the same label, without making it.
bool alike(const Plan& plan, const Node& a, const Node& b) {
  const auto x = plan.uses_of(a), y = plan.uses_of(b);
  const auto p = plan.collectives_of(a), q = plan.collectives_of(b);
  const auto same_use = [&](const BufferUse& u, const BufferUse& v) {
    const Buffer &s = plan.buffers[u.buffer.index()], &t = plan.buffers[v.buffer.index()];
    return u.access == v.access && s.value == t.value &&
           (s.micro_batch < 0 ? t.micro_batch < 0 : s.micro_batch == a.micro_batch && t.micro_batch == b.micro_batch);
  };
  return a.kind == b.kind && a.lane == b.lane && a.flops == b.flops && a.bytes == b.bytes &&
         std::equal(x.begin(), x.end(), y.begin(), y.end(), same_use) &&
         std::equal(p.begin(), p.end(), q.begin(), q.end(),
                    [](const NodeCollective& c, const NodeCollective& d) { return c.bytes == d.bytes; });
}

}  // namespace

void check_timeline(const Timeline& timeline) {
  WEFT_CHECK(timeline.ranks >= 1, "a timeline of {} ranks", timeline.ranks);
  for (std::size_t i = 0; i < timeline.events.size(); ++i) {
    const TimelineEvent& e = timeline.events[i];
    WEFT_CHECK(e.rank >= 0 && e.rank < timeline.ranks, "event {}: rank {} of {}", i, e.rank, timeline.ranks);
    WEFT_CHECK(e.label >= 0 && static_cast<std::size_t>(e.label) < timeline.labels.size(), "event {}: label {} of {}",
               i, e.label, timeline.labels.size());
    WEFT_CHECK(std::isfinite(e.start) && std::isfinite(e.end) && e.start <= e.end, "event {}: from {} to {}", i,
               e.start, e.end);
  }
  WEFT_CHECK(timeline.memory.size() <= static_cast<std::size_t>(timeline.ranks), "memory curves of {} ranks, not {}",
             timeline.memory.size(), timeline.ranks);
  for (std::size_t r = 0; r < timeline.memory.size(); ++r) {
    double before = -HUGE_VAL;
    for (const MemoryPoint& p : timeline.memory[r]) {
      WEFT_CHECK(std::isfinite(p.time) && p.time >= before && std::isfinite(p.bytes) && p.bytes >= 0,
                 "memory of rank {}: {} bytes at {} after {}", r, p.bytes, p.time, before);
      before = p.time;
    }
  }
}

std::vector<std::int32_t> add_labels(Timeline& timeline, const Plan& plan) {
  std::unordered_multimap<std::string, std::int32_t> known;
  for (std::size_t i = 0; i < timeline.labels.size(); ++i)
    known.emplace(key_of(timeline.labels[i]), static_cast<std::int32_t>(i));
  std::vector<std::int32_t> labels;
  labels.reserve(plan.nodes.size());
  // Micro-batches repeat: a node like the last one of its piece and phase has the same label.
  std::vector<std::int32_t> like(plan.places.size() * phase_count, -1);
  for (const Node& node : plan.nodes) {
    std::int32_t& last = like[node.place.index() * phase_count + static_cast<std::size_t>(node.phase)];
    if (last >= 0 && alike(plan, plan.nodes[static_cast<std::size_t>(last)], node)) {
      labels.push_back(labels[static_cast<std::size_t>(last)]);
      continue;
    }
    last = static_cast<std::int32_t>(labels.size());
    TimelineLabel label = label_of(plan, node);
    const std::string key = key_of(label);
    std::int32_t found = -1;
    for (auto [it, end] = known.equal_range(key); it != end && found < 0; ++it)
      if (timeline.labels[static_cast<std::size_t>(it->second)] == label) found = it->second;
    if (found < 0) {
      found = static_cast<std::int32_t>(timeline.labels.size());
      timeline.labels.push_back(std::move(label));
      known.emplace(key, found);
    }
    labels.push_back(found);
  }
  return labels;
}

TimeRange range_of(const Timeline& timeline) {
  if (timeline.events.empty()) return {};
  TimeRange range{timeline.events.front().start, timeline.events.front().end};
  for (const TimelineEvent& e : timeline.events) {
    range.start = std::min(range.start, e.start);
    range.end = std::max(range.end, e.end);
  }
  return range;
}

Overlap overlap_of(Ranges compute, Ranges communication, double span) {
  compute = united(std::move(compute));
  communication = united(std::move(communication));
  Overlap out;
  out.span = span;
  out.compute = length_of(compute);
  out.communication = length_of(communication);
  out.hidden = common_length(compute, communication);
  out.exposed = std::max(0.0, out.communication - out.hidden);
  out.idle = std::max(0.0, span - out.compute - out.exposed);
  return out;
}

Overlap overlap_of(const Timeline& timeline, int rank, std::optional<Lane> lane) {
  Ranges compute, communication;
  for (const TimelineEvent& e : timeline.events) {
    if (e.rank != rank) continue;
    const Lane own = timeline.labels[static_cast<std::size_t>(e.label)].lane;
    if (!lane_communicates(own))
      compute.push_back({e.start, e.end});
    else if (counts_as_communication(own, lane))
      communication.push_back({e.start, e.end});
  }
  return overlap_of(std::move(compute), std::move(communication), range_of(timeline).length());
}

std::vector<Overlap> overlaps_of(const Timeline& timeline, std::optional<Lane> lane) {
  const auto ranks = static_cast<std::size_t>(timeline.ranks);
  std::vector<Ranges> compute(ranks), communication(ranks);
  for (const TimelineEvent& e : timeline.events) {
    const Lane own = timeline.labels[static_cast<std::size_t>(e.label)].lane;
    if (!lane_communicates(own))
      compute[static_cast<std::size_t>(e.rank)].push_back({e.start, e.end});
    else if (counts_as_communication(own, lane))
      communication[static_cast<std::size_t>(e.rank)].push_back({e.start, e.end});
  }
  const double span = range_of(timeline).length();
  std::vector<Overlap> out;
  for (std::size_t r = 0; r < ranks; ++r)
    out.push_back(overlap_of(std::move(compute[r]), std::move(communication[r]), span));
  return out;
}

Overlap sum_of(std::span<const Overlap> overlaps) {
  Overlap sum;
  for (const Overlap& o : overlaps) {
    sum.span += o.span;
    sum.compute += o.compute;
    sum.communication += o.communication;
    sum.hidden += o.hidden;
    sum.exposed += o.exposed;
    sum.idle += o.idle;
  }
  return sum;
}

std::vector<TimelineTrack> tracks_of(const Timeline& timeline) {
  std::vector<std::int32_t> order(timeline.events.size());
  std::iota(order.begin(), order.end(), 0);
  const auto event = [&](std::int32_t i) -> const TimelineEvent& {
    return timeline.events[static_cast<std::size_t>(i)];
  };
  const auto lane = [&](std::int32_t i) { return timeline.labels[static_cast<std::size_t>(event(i).label)].lane; };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const TimelineEvent &x = event(a), &y = event(b);
    if (x.rank != y.rank) return x.rank < y.rank;
    const Lane i = lane(a), j = lane(b);
    if (i != j) return i < j;
    return x.start != y.start ? x.start < y.start : x.end < y.end;
  });

  std::vector<TimelineTrack> tracks;
  std::vector<double> ends;  // of the rows of the current lane
  std::size_t first = 0;     // track of its row 0
  for (std::int32_t i : order) {
    const TimelineEvent& e = event(i);
    if (ends.empty() || tracks[first].rank != e.rank || tracks[first].lane != lane(i)) {
      first = tracks.size();
      ends.clear();
    }
    // Half a nanosecond of overlap is rounding, not a second row.
    std::size_t row = 0;
    while (row < ends.size() && e.start < ends[row] - 5e-10) ++row;
    if (row == ends.size()) {
      tracks.push_back({e.rank, lane(i), static_cast<std::int32_t>(row), {}});
      ends.push_back(e.end);
    }
    tracks[first + row].events.push_back(i);
    ends[row] = std::max(ends[row], e.end);
  }
  return tracks;
}

}  // namespace weft
