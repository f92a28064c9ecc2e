#include "weft/plan/draw/timeline_page.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/plan/draw/page_files.h"

namespace weft {

namespace {

using Bytes = std::string;

void append_varint(Bytes& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void append_signed(Bytes& out, std::int64_t value) {
  append_varint(out, (static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
}

std::uint64_t nanoseconds(double seconds) {
  return static_cast<std::uint64_t>(std::llround(std::max(0.0, seconds) * 1e9));
}

std::string base64(const Bytes& bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k)
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? digits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// All blocks of the page, concatenated; equal ones are stored once.
class Blocks {
 public:
  std::size_t add(Bytes block) {  // where it begins
    const auto [it, is_new] = offsets_.emplace(std::move(block), bytes_.size());
    if (is_new) bytes_ += it->first;
    return it->second;
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
  std::unordered_map<Bytes, std::size_t> offsets_;
};

class Strings {
 public:
  std::size_t add(const std::string& text) {
    const auto [it, is_new] = numbers_.emplace(text, list_.size());
    if (is_new) list_.push_back(text);
    return it->second;
  }
  const Json& list() const { return list_; }

 private:
  std::unordered_map<std::string, std::size_t> numbers_;
  Json list_ = Json::array();
};

Json json_of(const Overlap& o) { return {o.compute, o.communication, o.hidden, o.exposed, o.idle}; }

// [name, layer, lane, phase, unit, FLOPs, bytes, [access, buffer, per micro-batch, size, ...], [parameters]], names as
// numbers of strings.
Json json_of(const TimelineLabel& label, Strings& strings) {
  Json uses = Json::array(), parameters = Json::array();
  for (const TimelineUse& use : label.uses)
    uses.insert(uses.end(),
                {static_cast<int>(use.access), strings.add(use.buffer), use.per_micro_batch ? 1 : 0, use.size});
  for (const std::string& name : label.parameters) parameters.push_back(strings.add(name));
  return {strings.add(label.name),
          strings.add(label.layer),
          strings.add(std::string(name_of(label.lane))),
          strings.add(std::string(name_of(label.phase))),
          label.unit,
          label.flops,
          label.bytes,
          std::move(uses),
          std::move(parameters)};
}

// For each event: time since the end of the previous one, duration (both ns), label and micro-batch (both as
// differences).
Bytes block_of(const Timeline& timeline, const TimelineTrack& track, double origin) {
  Bytes block;
  std::uint64_t before = 0;
  std::int64_t label = 0, micro_batch = 0;
  for (std::int32_t i : track.events) {
    const TimelineEvent& e = timeline.events[static_cast<std::size_t>(i)];
    const std::uint64_t start = std::max(before, nanoseconds(e.start - origin));
    const std::uint64_t end = std::max(start, nanoseconds(e.end - origin));
    append_varint(block, start - before);
    append_varint(block, end - start);
    append_signed(block, e.label - label);
    append_signed(block, e.micro_batch - micro_batch);
    before = end;
    label = e.label;
    micro_batch = e.micro_batch;
  }
  return block;
}

Bytes block_of(const std::vector<MemoryPoint>& points, double origin) {
  Bytes block;
  std::uint64_t before = 0;
  std::int64_t bytes = 0;
  for (const MemoryPoint& p : points) {
    const std::uint64_t time = std::max(before, nanoseconds(p.time - origin));
    append_varint(block, time - before);
    append_signed(block, std::llround(p.bytes) - bytes);
    before = time;
    bytes = std::llround(p.bytes);
  }
  return block;
}

Json json_of(const Timeline& timeline, Blocks& blocks) {
  check_timeline(timeline);
  const TimeRange range = range_of(timeline);
  Strings strings;
  Json json;
  json["title"] = timeline.title;
  json["about"] = timeline.about;
  json["times"] = timeline.times;
  json["ranks"] = timeline.ranks;
  if (!timeline.stages.empty()) json["stages"] = timeline.stages;
  json["span"] = range.length();
  json["labels"] = Json::array();
  for (const TimelineLabel& label : timeline.labels) json["labels"].push_back(json_of(label, strings));
  json["strings"] = strings.list();

  std::vector<Lane> lanes;  // that are used
  json["tracks"] = Json::array();
  for (const TimelineTrack& track : tracks_of(timeline)) {
    if (std::find(lanes.begin(), lanes.end(), track.lane) == lanes.end()) lanes.push_back(track.lane);
    json["tracks"].push_back({track.rank, name_of(track.lane), track.row,
                              blocks.add(block_of(timeline, track, range.start)), track.events.size()});
  }
  std::sort(lanes.begin(), lanes.end());
  json["lanes"] = Json::array();
  for (Lane lane : lanes) {
    json["lanes"].push_back({{"name", name_of(lane)}, {"communicates", lane_communicates(lane)}});
    if (lane_communicates(lane)) json["lanes"].back()["overlap"] = json_of(sum_of(overlaps_of(timeline, lane)));
  }
  json["reserved"] = timeline.reserved;
  json["memory"] = Json::array();
  for (std::size_t rank = 0; rank < timeline.memory.size(); ++rank)
    if (const auto& points = timeline.memory[rank]; !points.empty())
      json["memory"].push_back({rank, blocks.add(block_of(points, range.start)), points.size()});

  const std::vector<Overlap> overlaps = overlaps_of(timeline);
  json["overlaps"] = Json::array();
  for (const Overlap& o : overlaps) json["overlaps"].push_back(json_of(o));
  json["overlap"] = json_of(sum_of(overlaps));
  return json;
}

std::string html_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else
      out += c;
  }
  return out;
}

// JSON that is safe within a <script>: no name in it can end the element or begin a comment.
std::string script_text(const Json& json) {
  std::string out;
  for (char c : json.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string timeline_page(const Timeline& plan, const Timeline* actual) {
  Blocks blocks;
  Json json;
  json["timelines"].push_back(json_of(plan, blocks));
  if (actual) json["timelines"].push_back(json_of(*actual, blocks));

  const std::pair<std::string_view, std::string> parts[] = {
      {"{{title}}", html_text(plan.about.empty() ? plan.title : plan.title + " · " + plan.about)},
      {"{{style}}", std::string(page_style)},
      {"{{facts}}", script_text(json)},
      {"{{blocks}}", base64(blocks.bytes())},
      {"{{script}}", std::string(page_script)},
  };
  // One pass over the frame, in order, so that nothing inside a part is taken for a mark.
  std::string out;
  std::string_view rest = page_html;
  for (const auto& [mark, text] : parts) {
    const std::size_t at = rest.find(mark);
    WEFT_CHECK(at != std::string_view::npos, "the page's frame has no {} at the expected position", mark);
    out += rest.substr(0, at);
    out += text;
    rest.remove_prefix(at + mark.size());
  }
  out += rest;
  return out;
}

}  // namespace weft
