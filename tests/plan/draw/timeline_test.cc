#include "weft/plan/draw/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/plan/plans.h"
#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/plan/draw/perfetto.h"
#include "weft/plan/draw/timeline_page.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Times in milliseconds; labels 0..3 on compute, exchange, reduce and update.
Timeline lanes(int ranks, const std::vector<std::array<int, 4>>& events) {
  Timeline t;
  t.title = "by hand";
  t.ranks = ranks;
  t.labels = {{"main.0E.experts", "main.0E", Lane::compute, Phase::backward, 2, 3e9, 4e6},
              {"main.0E.dispatch", "main.0E", Lane::exchange, Phase::forward, 2, 0, 5e6},
              {"reduce", "head", Lane::reduce, Phase::backward},
              {"update", "head", Lane::update, Phase::update}};
  for (auto [rank, label, start, end] : events)
    t.events.push_back({rank, label, label < 2 ? 0 : -1, start * 1e-3, end * 1e-3});
  return t;
}

// Sums of a few numbers of up to 0.1 differ from exact ones by about 1e-17.
constexpr double rounding = 1e-15;

void expect_overlap(const Overlap& o, double span, double compute, double communication, double hidden, double exposed,
                    double idle) {
  EXPECT_NEAR(o.span, span * 1e-3, rounding);
  EXPECT_NEAR(o.compute, compute * 1e-3, rounding);
  EXPECT_NEAR(o.communication, communication * 1e-3, rounding);
  EXPECT_NEAR(o.hidden, hidden * 1e-3, rounding);
  EXPECT_NEAR(o.exposed, exposed * 1e-3, rounding);
  EXPECT_NEAR(o.idle, idle * 1e-3, rounding);
}

TEST(Overlap, splits_communication_into_hidden_and_exposed) {
  // compute  ####....####....
  // exchange ..####..........
  // idle          ..    ....      rank 1 ends the step at 16
  const Timeline t = lanes(2, {{0, 0, 0, 4}, {0, 0, 8, 12}, {0, 1, 2, 6}, {1, 0, 0, 16}});
  expect_overlap(overlap_of(t, 0), 16, 8, 4, 2, 2, 6);
  EXPECT_NEAR(overlap_of(t, 0).share_hidden(), 0.5, rounding);
}

TEST(Overlap, counts_parallel_lanes_once) {
  // compute  ....####....
  // exchange ########....
  // reduce   ..########..
  const Timeline t = lanes(1, {{0, 0, 4, 8}, {0, 1, 0, 8}, {0, 2, 2, 10}, {0, 0, 12, 12}});
  expect_overlap(overlap_of(t, 0), 12, 4, 10, 4, 6, 2);
  expect_overlap(overlap_of(t, 0, Lane::exchange), 12, 4, 8, 4, 4, 4);
  expect_overlap(overlap_of(t, 0, Lane::reduce), 12, 4, 8, 4, 4, 4);
  expect_overlap(overlap_of(t, 0, Lane::tensor), 12, 4, 0, 0, 0, 8);
}

TEST(Overlap, lets_updates_hide_communication) {
  const Timeline t = lanes(1, {{0, 0, 0, 4}, {0, 3, 4, 8}, {0, 2, 2, 9}});
  expect_overlap(overlap_of(t, 0), 9, 8, 7, 6, 1, 0);
}

TEST(Overlap, does_not_depend_on_the_order_of_events) {
  Timeline t = lanes(1, {{0, 1, 0, 3}, {0, 1, 5, 9}, {0, 0, 1, 2}, {0, 0, 2, 6}, {0, 0, 8, 20}});
  const Overlap before = overlap_of(t, 0);
  expect_overlap(before, 20, 17, 7, 4, 3, 0);
  std::reverse(t.events.begin(), t.events.end());
  EXPECT_EQ(overlap_of(t, 0).hidden, before.hidden);
}

TEST(Overlap, of_all_ranks_and_their_sum) {
  const Timeline t = lanes(3, {{0, 0, 0, 4}, {0, 1, 2, 6}, {1, 0, 0, 10}, {1, 1, 1, 3}});
  const std::vector<Overlap> all = overlaps_of(t);
  ASSERT_EQ(all.size(), 3u);
  expect_overlap(all[0], 10, 4, 4, 2, 2, 4);
  expect_overlap(all[1], 10, 10, 2, 2, 0, 0);
  expect_overlap(all[2], 10, 0, 0, 0, 0, 10);
  EXPECT_EQ(all[2].share_hidden(), 1);  // nothing to hide
  expect_overlap(sum_of(all), 30, 14, 6, 4, 2, 14);
  EXPECT_EQ(overlaps_of(t, Lane::reduce)[0].communication, 0);
}

TEST(Tracks, follow_rank_and_lane_and_split_what_overlaps) {
  const Timeline t = lanes(2, {{1, 0, 3, 5}, {0, 1, 0, 4}, {0, 1, 2, 6}, {0, 1, 4, 5}, {0, 0, 2, 3}, {0, 0, 0, 2}});
  const std::vector<TimelineTrack> tracks = tracks_of(t);
  ASSERT_EQ(tracks.size(), 4u);
  EXPECT_EQ(tracks[0].lane, Lane::compute);
  EXPECT_THAT(tracks[0].events, ElementsAre(5, 4));
  EXPECT_EQ(tracks[1].lane, Lane::exchange);
  EXPECT_THAT(tracks[1].events, ElementsAre(1, 3));
  EXPECT_EQ(tracks[2].row, 1);
  EXPECT_THAT(tracks[2].events, ElementsAre(2));
  EXPECT_EQ(tracks[3].rank, 1);
}

TEST(Tracks, ignore_a_rounding_error) {
  Timeline t = lanes(1, {{0, 0, 0, 1}, {0, 0, 1, 2}});
  t.events[1].start -= 1e-13;
  EXPECT_EQ(tracks_of(t).size(), 1u);
}

std::string complaint(Timeline t) {
  try {
    check_timeline(t);
  } catch (const BugError& e) {
    return e.what();
  }
  return "";
}

TEST(CheckTimeline, names_what_is_impossible) {
  const Timeline good = lanes(2, {{0, 0, 0, 1}, {1, 0, 1, 2}});
  EXPECT_EQ(complaint(good), "");
  Timeline t = good;
  t.events[1].rank = 2;
  EXPECT_THAT(complaint(t), HasSubstr("event 1: rank 2 of 2"));
  t = good;
  t.events[0].label = 4;
  EXPECT_THAT(complaint(t), HasSubstr("event 0: label 4 of 4"));
  t = good;
  t.events[1].end = 0;
  EXPECT_THAT(complaint(t), HasSubstr("event 1: from 0.001 to 0"));
  t = good;
  t.memory = {{{0, 5}, {2, 6}, {1, 7}}};
  EXPECT_THAT(complaint(t), HasSubstr("memory of rank 0: 7 bytes at 1 after 2"));
}

TEST(Labels, of_a_plan_are_shared_by_micro_batches) {
  const Plan plan = small_plan("*E", 3);
  Timeline t;
  const std::vector<std::int32_t> labels = add_labels(t, plan);
  ASSERT_EQ(labels.size(), plan.nodes.size());
  std::size_t per_step = 0, first = 0;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    const TimelineLabel& label = t.labels[static_cast<std::size_t>(labels[i])];
    EXPECT_EQ(label.name, plan.place_of(node).name);
    EXPECT_EQ(label.phase, node.phase);
    if (node.micro_batch < 0) ++per_step;
    if (node.micro_batch == 0) ++first;
  }
  EXPECT_EQ(t.labels.size(), per_step + first);  // the same for all three
  EXPECT_EQ(add_labels(t, plan), labels);        // and for a second rank
  EXPECT_EQ(t.labels.size(), per_step + first);

  bool found = false;
  for (const TimelineLabel& label : t.labels) {
    if (label.name != "main.1E.experts" || label.phase != Phase::forward) continue;
    found = true;
    EXPECT_EQ(label.layer, "main.1E");
    EXPECT_FALSE(label.parameters.empty());
    for (const TimelineUse& use : label.uses) EXPECT_GT(use.size, 0) << use.buffer;
  }
  EXPECT_TRUE(found);
}

Timeline with_details() {
  Timeline t = lanes(2, {{0, 0, 1, 3}, {0, 1, 2, 5}, {1, 3, 4, 6}});
  t.events[0].micro_batch = 7;
  t.labels[0].uses = {{"x", Access::read, true, 10}, {"w.gradient", Access::add, false, 20}, {"y", Access::read, true}};
  t.labels[0].parameters = {"up.weight"};
  t.memory = {{{1e-3, 100}, {2e-3, 50}}};
  return t;
}

TEST(Perfetto, writes_ranks_lanes_nodes_and_memory) {
  const Json json = parse_json(perfetto_trace(with_details()), "trace");
  EXPECT_EQ(json["displayTimeUnit"], "ms");
  std::vector<Json> nodes, counters;
  std::vector<std::string> names;
  for (const Json& e : json["traceEvents"]) {
    if (e["ph"] == "X") nodes.push_back(e);
    if (e["ph"] == "C") counters.push_back(e);
    if (e["name"] == "process_name" || e["name"] == "thread_name") names.push_back(e["args"]["name"]);
  }
  EXPECT_THAT(names, ElementsAre("rank 0", "rank 1", "compute", "exchange", "update"));
  ASSERT_EQ(nodes.size(), 3u);
  const Json& node = nodes[0];
  EXPECT_EQ(node["name"], "main.0E.experts");
  EXPECT_EQ(node["ts"], 0.0);  // microseconds from the first event
  EXPECT_EQ(node["dur"], 2000.0);
  EXPECT_EQ(node["pid"], 0);
  const Json expected = parse_json(R"({"micro_batch":7,"layer":"main.0E","phase":"backward","unit":2,"flops":3000000000,
    "bytes":4000000,"parameters":["up.weight"],"reads":["x@7","y@7"],"adds":["w.gradient"]})",
                                   "expected");
  EXPECT_EQ(node["args"], expected);
  EXPECT_NE(nodes[0]["tid"], nodes[1]["tid"]);
  EXPECT_FALSE(nodes[2]["args"].contains("micro_batch"));
  ASSERT_EQ(counters.size(), 2u);
  EXPECT_EQ(counters[1]["ts"], 1000.0);
  EXPECT_EQ(counters[1]["args"]["bytes"], 50);
}

TEST(Perfetto, leaves_buffers_out_of_a_large_trace_and_says_so) {
  const Json json = parse_json(perfetto_trace(with_details(), 2), "trace");
  EXPECT_EQ(json["otherData"]["left_out"], "buffers and parameters: 3 events are more than 2");
  for (const Json& e : json["traceEvents"]) {
    EXPECT_FALSE(e["args"].contains("reads"));
    EXPECT_FALSE(e["args"].contains("parameters"));
  }
}

TEST(Perfetto, gives_overlapping_events_separate_threads) {
  const Json json = parse_json(perfetto_trace(lanes(1, {{0, 1, 0, 4}, {0, 1, 2, 6}})), "trace");
  std::vector<Json> threads;
  for (const Json& e : json["traceEvents"])
    if (e["ph"] == "X") threads.push_back(e["tid"]);
  ASSERT_EQ(threads.size(), 2u);
  EXPECT_NE(threads[0], threads[1]);
}

TEST(Perfetto, stays_json_with_any_name_and_without_events) {
  Timeline t = lanes(1, {{0, 0, 0, 1}});
  t.title = "\"quoted\\\"\n";
  t.labels[0].name = "a\"b\\c\xff";  // not UTF-8
  EXPECT_NO_THROW(parse_json(perfetto_trace(t), "trace"));
  EXPECT_NO_THROW(parse_json(perfetto_trace(Timeline{}), "trace"));
}

// The JSON that the page reads.
Json facts_of(const std::string& page) {
  const std::string begin = R"(<script type="application/json" id="facts">)";
  const std::size_t at = page.find(begin);
  EXPECT_NE(at, std::string::npos);
  const std::size_t end = page.find("</script>", at);
  return parse_json(page.substr(at + begin.size(), end - at - begin.size()), "facts");
}

TEST(TimelinePage, holds_one_timeline_or_two) {
  const Timeline plan = with_details(), actual = lanes(2, {{0, 0, 0, 4}, {1, 1, 0, 8}});
  const Json one = facts_of(timeline_page(plan)), two = facts_of(timeline_page(plan, &actual));
  ASSERT_EQ(one["timelines"].size(), 1u);
  ASSERT_EQ(two["timelines"].size(), 2u);
  const Json& t = one["timelines"][0];
  EXPECT_EQ(t["title"], "by hand");
  EXPECT_NEAR(t["span"].get<double>(), 5e-3, rounding);
  EXPECT_EQ(t["labels"].size(), 4u);
  EXPECT_EQ(t["tracks"].size(), 3u);
  EXPECT_EQ(t["lanes"].size(), 3u);  // those that are used
  EXPECT_EQ(t["lanes"][1]["name"], "exchange");
  // [compute, communication, hidden, exposed, idle]
  EXPECT_NEAR(t["overlaps"][0][2].get<double>(), 1e-3, rounding);
  EXPECT_NEAR(t["overlap"][3].get<double>(), 2e-3, rounding);
}

TEST(TimelinePage, loads_nothing) {
  const std::string page = timeline_page(with_details());
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("http://")));
  EXPECT_THAT(page, Not(HasSubstr("https://")));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(page, Not(HasSubstr("@import")));
  EXPECT_THAT(page, Not(HasSubstr("{{")));  // every mark was replaced
}

TEST(TimelinePage, keeps_names_from_ending_their_element) {
  Timeline t = with_details();
  const std::string name = "</script><script>alert(1)</script>{{script}}<!--";
  t.title = t.labels[0].name = t.labels[0].layer = t.labels[0].parameters[0] = name;
  t.labels[1].name = "\xff\xfe";  // not UTF-8
  const std::string page = timeline_page(t);
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, Not(HasSubstr("{{script}}<!--")));
  EXPECT_THAT(page, HasSubstr("<title>&lt;/script>&lt;script>alert(1)"));
  EXPECT_EQ(facts_of(page)["timelines"][0]["title"], name);
}

TEST(TimelinePage, stores_what_equal_ranks_do_once) {
  std::vector<std::array<int, 4>> one, many;
  for (int i = 0; i < 1000; ++i) one.push_back({0, i % 2, 3 * i, 3 * i + 2});
  for (int rank = 0; rank < 50; ++rank)
    for (auto e : one) many.push_back({rank, e[1], e[2], e[3]});
  const std::size_t small = timeline_page(lanes(1, one)).size(), large = timeline_page(lanes(50, many)).size();
  EXPECT_LT(large - small, 50u * 250);  // a rank is two short entries and its overlap
}

TEST(TimelinePage, takes_about_ten_bytes_per_event) {
  Timeline t = lanes(1, {});
  for (int i = 0; i < 100'000; ++i) t.events.push_back({0, i % 2, i / 100 % 64, i * 1.3e-4, i * 1.3e-4 + 1.1e-4});
  EXPECT_LT(timeline_page(t).size(), timeline_page(lanes(1, {})).size() + 12u * t.events.size());
}

TEST(TimelinePage, accepts_an_empty_timeline) { EXPECT_NO_THROW(facts_of(timeline_page(Timeline{}))); }

}  // namespace
}  // namespace weft
