#include "weft/plan/draw/perfetto.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/base/json.h"

namespace weft {

namespace {

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);  // a name need not be UTF-8
}

// What all events of a label share. The arguments are cut where the micro-batch's number goes (after the names of its
// buffers), so that an event is written by joining them.
struct LabelText {
  std::string head;                    // "name":...,"cat":...
  std::vector<std::string> arguments;  // "layer":...,"reads":["main.0*.xn@ | ","...
};

LabelText text_of(const TimelineLabel& label, bool detailed) {
  LabelText text;
  text.head = fmt::format(R"("name":{},"cat":"{}")", quoted(label.name),
                          lane_communicates(label.lane) ? "communication" : name_of(label.phase));
  std::string part = fmt::format(R"("layer":{},"phase":"{}")", quoted(label.layer), name_of(label.phase));
  if (label.unit >= 0) part += fmt::format(R"(,"unit":{})", label.unit);
  if (label.flops > 0) part += fmt::format(R"(,"flops":{:.0f})", label.flops);
  if (label.bytes > 0) part += fmt::format(R"(,"bytes":{:.0f})", label.bytes);
  if (detailed && !label.parameters.empty())
    part += R"(,"parameters":)" + Json(label.parameters).dump(-1, ' ', false, Json::error_handler_t::replace);
  for (auto [access, key] :
       {std::pair(Access::read, "reads"), std::pair(Access::write, "writes"), std::pair(Access::add, "adds")}) {
    bool any = false;
    for (const TimelineUse& use : label.uses) {
      if (!detailed || use.access != access) continue;
      part += any ? "," : fmt::format(R"(,"{}":[)", key);
      part += quoted(use.buffer);
      if (use.per_micro_batch) {
        part.back() = '@';
        text.arguments.push_back(std::move(part));
        part = "\"";
      }
      any = true;
    }
    if (any) part += ']';
  }
  text.arguments.push_back(std::move(part));
  return text;
}

// Rounded to nanoseconds, so that neighbours do not overlap by a rounding error.
double microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }

// Names a process (a rank) or a thread (a lane) and sets its sort order.
void append_place(std::string& out, std::string_view what, int rank, int thread, const std::string& name) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"ph":"M","name":"{0}_name","pid":{1},"tid":{2},"args":{{"name":"{3}"}}}},
{{"ph":"M","name":"{0}_sort_index","pid":{1},"tid":{2},"args":{{"sort_index":{4}}}}},
)",
                 what, rank, thread, name, what == "process" ? rank : thread);
}

}  // namespace

std::string perfetto_trace(const Timeline& timeline, std::size_t detailed_events) {
  check_timeline(timeline);
  const bool detailed = timeline.events.size() <= detailed_events;
  const double origin = range_of(timeline).start;
  std::vector<LabelText> labels;
  for (const TimelineLabel& label : timeline.labels) labels.push_back(text_of(label, detailed));

  std::string out = fmt::format(R"({{"displayTimeUnit":"ms","otherData":{{"title":{},"about":{},"times":{})",
                                quoted(timeline.title), quoted(timeline.about), quoted(timeline.times));
  if (!detailed)
    out += fmt::format(R"(,"left_out":"buffers and parameters: {} events are more than {}")", timeline.events.size(),
                       detailed_events);
  out += "},\"traceEvents\":[\n";
  const auto to = std::back_inserter(out);
  for (int rank = 0; rank < timeline.ranks; ++rank) append_place(out, "process", rank, 0, fmt::format("rank {}", rank));
  for (const TimelineTrack& track : tracks_of(timeline)) {
    const int thread = static_cast<int>(track.lane) * 100'000 + track.row + 1;  // 0 is the process itself
    append_place(
        out, "thread", track.rank, thread,
        track.row == 0 ? std::string(name_of(track.lane)) : fmt::format("{} ({})", name_of(track.lane), track.row + 1));
    double before = 0;
    for (std::int32_t i : track.events) {
      const TimelineEvent& e = timeline.events[static_cast<std::size_t>(i)];
      const LabelText& label = labels[static_cast<std::size_t>(e.label)];
      const double start = std::max(before, microseconds(e.start - origin));
      const double end = std::max(start, microseconds(e.end - origin));
      fmt::format_to(to, R"({{"ph":"X",{},"ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{},"args":{{)", label.head, start,
                     end - start, e.rank, thread);
      if (e.micro_batch >= 0) fmt::format_to(to, R"("micro_batch":{},)", e.micro_batch);
      for (std::size_t part = 0; part < label.arguments.size(); ++part) {
        if (part > 0) fmt::format_to(to, "{}", e.micro_batch);
        out += label.arguments[part];
      }
      out += "}},\n";
      before = end;
    }
  }
  for (std::size_t rank = 0; rank < timeline.memory.size(); ++rank)
    for (const MemoryPoint& p : timeline.memory[rank])
      fmt::format_to(to,
                     R"({{"ph":"C","name":"memory","ts":{:.3f},"pid":{},"args":{{"bytes":{:.0f}}}}},)"
                     "\n",
                     std::max(0.0, microseconds(p.time - origin)), rank, p.bytes);
  out.resize(out.size() - 2);  // the last comma: there is always a process
  out += "\n]}\n";
  return out;
}

}  // namespace weft
