// What happens in a training step, over time: the estimate of a plan, or the record of a run. Plain data, drawn by
// timeline_page.h and written for Perfetto by perfetto.h. Described in docs/timeline.md.
//
// Times are seconds from any common origin; viewers start at the first event. An event refers to a label, which all
// ranks and micro-batches that do the same share, so that a million events stay small.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/model/module.h"
#include "weft/plan/plan.h"

namespace weft {

struct TimelineUse {
  std::string buffer;  // "main.0*.xn"
  Access access = Access::read;
  bool per_micro_batch = false;  // the instance of the event's micro-batch: shown as "main.0*.xn@2"
  std::int64_t size = 0;         // bytes; 0: unknown
  bool operator==(const TimelineUse&) const = default;
};

struct TimelineLabel {
  std::string name;   // "main.3E.experts"; shown without the layer
  std::string layer;  // "main.3E"
  Lane lane = Lane::compute;
  Phase phase = Phase::forward;
  std::int32_t unit = -1;       // -1: none
  double flops = 0, bytes = 0;  // bytes: memory traffic, or bytes sent if the lane communicates
  std::vector<TimelineUse> uses;
  std::vector<std::string> parameters;
  bool operator==(const TimelineLabel&) const = default;
};

struct TimelineEvent {
  std::int32_t rank = 0, label = 0;
  std::int32_t micro_batch = -1;  // -1: once per step
  double start = 0, end = 0;
};

struct MemoryPoint {
  double time = 0;
  double bytes = 0;  // in use from this time on, until the next point
};

struct Timeline {
  std::string title;  // "weft train: last step"
  std::string about;  // model and settings: "[*E] · 2.3 M parameters · 4 ranks · ..."
  std::string times;  // where they come from: "estimated for 100.0 GFLOP/s, ...", "measured on cpu (AVX2)"
  int ranks = 1;
  std::vector<TimelineLabel> labels;
  std::vector<TimelineEvent> events;             // in any order
  std::vector<std::vector<MemoryPoint>> memory;  // by rank, sorted by time; empty: not known
  std::vector<int> stages;                       // of a pipeline, by rank; empty: there is one
  double reserved = 0;                           // bytes per rank: in use, and holes between buffers; 0: not known
};

// BugError naming the first impossible event or memory point: an unknown label or rank, an end before its start, a time
// that is not finite, memory that goes back in time.
void check_timeline(const Timeline& timeline);

// Appends labels for all nodes of a plan, except those already present, and returns the label of every node.
std::vector<std::int32_t> add_labels(Timeline& timeline, const Plan& plan);

struct TimeRange {
  double start = 0, end = 0;
  double length() const { return end - start; }
};
TimeRange range_of(const Timeline& timeline);  // from the first start to the last end over all ranks

// How a rank spends the step: span = compute + exposed + idle. Times are lengths of unions of intervals, so that two
// simultaneous transfers count once.
struct Overlap {
  double span = 0;           // of the whole timeline, the same for every rank
  double compute = 0;        // `compute` or `update` is busy
  double communication = 0;  // some communicating lane is busy
  double hidden = 0;         // communication while `compute` or `update` is busy
  double exposed = 0;        // the rest of communication
  double idle = 0;           // no lane is busy
  double share_hidden() const { return communication > 0 ? hidden / communication : 1; }
};
// compute, communication: when some lane computes and communicates, in any order.
Overlap overlap_of(std::vector<TimeRange> compute, std::vector<TimeRange> communication, double span);
// With a lane given, only that lane counts as communication.
Overlap overlap_of(const Timeline& timeline, int rank, std::optional<Lane> lane = {});
std::vector<Overlap> overlaps_of(const Timeline& timeline, std::optional<Lane> lane = {});  // by rank, in one pass
Overlap sum_of(std::span<const Overlap> overlaps);

// Consecutive events of one lane of one rank. A lane runs one node at a time; if recorded events overlap by more than
// rounding (half a nanosecond), they go to further rows.
struct TimelineTrack {
  std::int32_t rank = 0;
  Lane lane = Lane::compute;
  std::int32_t row = 0;
  std::vector<std::int32_t> events;  // indices, by start
};
std::vector<TimelineTrack> tracks_of(const Timeline& timeline);  // by rank, lane, row; no empty ones

}  // namespace weft
