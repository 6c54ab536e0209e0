// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_json.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "support/errors.h"
#include "support/rounds.h"
#include "support/timelines.h"

namespace penstock {
namespace {

using nlohmann::json;
using test::message_of;

TEST(TimelineJson, ReadsBackWhatItWrote) {
  for (std::uint64_t seed = 0; seed < test::rounds(200u); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    std::mt19937_64 random(seed);
    const Timeline timeline = test::random_timeline(random);
    EXPECT_EQ(parse_timeline(timeline_json(timeline), "t.json"), timeline);
  }
}

TEST(TimelineJson, EmptyTimelinesToo) {
  EXPECT_EQ(parse_timeline(timeline_json({}), "t.json"), Timeline());
}

TEST(TimelineJson, TextThatIsNotUnicodeIsReplaced) {
  Timeline timeline;
  timeline.title = "\xff";
  EXPECT_EQ(parse_timeline(timeline_json(timeline), "t.json").title, "\xef\xbf\xbd");
}

// Ends the process: with 0 where the timeline could be written within so many more MiB, with 3 where that was refused.
void write_within(const Timeline& timeline, std::size_t mebibytes) {
  std::vector<std::unique_ptr<char[]>> taken;  // all that is left
  taken.reserve(1 << 16);
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{pages * 4096, pages * 4096};
  setrlimit(RLIMIT_AS, &limit);
  for (const std::size_t size : {1 << 20, 1 << 12}) try {
      while (taken.size() < taken.capacity()) taken.emplace_back(new char[size]);
    } catch (const std::bad_alloc&) {
    }
  for (std::size_t i = 0; i < std::min(mebibytes, taken.size()); ++i) taken[i].reset();
  try {
    timeline_json(timeline);
  } catch (const std::bad_alloc&) {
    std::_Exit(3);
  }
  std::_Exit(0);
}

// Wherever there is no memory left, the writer says so and the process goes on.
TEST(TimelineMemory, MayEndAnywhere) {
  Timeline timeline;
  timeline.devices = {"a", "b"};
  for (int i = 0; i < 4000; ++i) {
    timeline.activities.push_back({.begin = 2. * i, .end = 2. * i + 1});
    timeline.activities.push_back({.begin = 2. * i + 1, .end = 2. * i + 2, .peer = 1, .lane = Lane::transfer});
  }
  int refused = 0;
  const auto ended = [&](int status) {
    refused += WEXITSTATUS(status) == 3;
    return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3);
  };
  for (std::size_t mebibytes = 0; mebibytes < 12; ++mebibytes) EXPECT_EXIT(write_within(timeline, mebibytes), ended, "");
  EXPECT_GT(refused, 2);
}

std::vector<json> events_of(const Timeline& timeline, const std::string& phase) {
  const json file = json::parse(timeline_json(timeline));
  std::vector<json> out;
  for (const json& event : file["traceEvents"])
    if (event["ph"] == phase) out.push_back(event);
  return out;
}

using Track = std::pair<int, int>;  // process, thread
Track track_of(const json& event) {
  return {event["pid"].get<int>(), event["tid"].get<int>()};
}

// Viewers nest boxes of one thread by time, and drop what does not nest.
TEST(TraceEvents, BoxesOfOneThreadDoNotOverlap) {
  for (std::uint64_t seed = 0; seed < test::rounds(50u); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    std::mt19937_64 random(seed);
    const Timeline timeline = test::random_timeline(random);
    std::map<Track, std::vector<std::pair<long, long>>> threads;  // in nanoseconds
    for (const json& box : events_of(timeline, "X")) {
      const long begin = std::lround(box["ts"].get<double>() * 1e3);
      threads[track_of(box)].emplace_back(begin, begin + std::lround(box["dur"].get<double>() * 1e3));
    }
    std::size_t boxes = 0;
    for (auto& [track, spans] : threads) {
      std::sort(spans.begin(), spans.end());
      for (std::size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1].second, spans[i].first);
      boxes += spans.size();
    }
    EXPECT_EQ(boxes, timeline.activities.size());
  }
}

TEST(TraceEvents, ArrowsLeadFromTheProducerOverTheTransferToTheConsumer) {
  const Timeline timeline = test::small_timeline();
  const auto box_at = [&, boxes = events_of(timeline, "X")](const json& point) {
    for (const json& box : boxes)
      if (track_of(box) == track_of(point) && box["ts"] == point["ts"]) return box["name"].get<std::string>();
    return std::string("nothing");
  };
  std::map<int, std::string> arrows;
  for (const char* phase : {"s", "t", "f"})
    for (const json& point : events_of(timeline, phase))
      arrows[point["id"].get<int>()] += concat(box_at(point), " of ", point["pid"].get<int>(), *phase == 'f' ? "" : ", ");
  const std::map<int, std::string> expected = {
      {0, "F0 of 1, 0->1 of 1, F0 of 2"}, {1, "F1 of 1, 0->1 of 1, F1 of 2"}, {2, "I0 of 2, 1->0 of 2, I0 of 1"}};
  EXPECT_EQ(arrows, expected);
}

TEST(TraceEvents, ProcessesThreadsAndCountersHaveNames) {
  const Timeline timeline = test::small_timeline();
  std::vector<std::string> names;
  for (const json& event : events_of(timeline, "M"))
    if (event["args"].contains("name")) names.push_back(concat(event["pid"].get<int>(), " ", event["args"]["name"].get<std::string>()));
  EXPECT_EQ(join(names, ", "), "1 device 0, 2 device 1, 1 compute, 2 compute, 1 host, 1 transfers, 2 transfers");
  const std::vector<json> counters = events_of(timeline, "C");
  ASSERT_EQ(counters.size(), 8U);
  EXPECT_EQ(counters[1]["ts"], 2500.0);
  EXPECT_EQ(counters[1]["args"]["activations"], 2.0 * (1 << 20));
  const json box = events_of(timeline, "X")[0];
  EXPECT_EQ(box["args"], (json{{"stage", 0}, {"microbatch", 0}, {"task", "F0"}}));
}

// ---- Bad files.

std::string failure(const std::string& text) {
  return message_of([&] { parse_timeline(text, "t.json"); });
}

TEST(TimelineJsonErrors, NotATimeline) {
  const std::string made = "\n  hint: penstock simulate WHAT --timeline FILE.json writes one, and penstock train in its run's folder";
  const std::string hint = "\n  hint: penstock show draws timelines that Penstock wrote";
  EXPECT_EQ(failure("hello"), concat("t.json:1:1: this is not JSON\n  hello\n  ^ near here", hint));
  EXPECT_EQ(failure("[1]"), "t.json: JSON, but no timeline of Penstock: it has no key \"penstock\"" + made);
  EXPECT_EQ(failure("{\"traceEvents\": []}"), "t.json: JSON, but no timeline of Penstock: it has no key \"penstock\"" + made);
  EXPECT_EQ(failure("").find("t.json:1:1: this is not JSON"), 0u);
  EXPECT_EQ(failure("{\"penstock\":\n 1e999}"), concat("t.json:2:6: a number is too large\n   1e999}\n       ^ near here", hint));
  // Also where it is not read.
  EXPECT_EQ(failure("{\"traceEvents\": 1e999}").find("t.json:1:21: a number is too large"), 0u);
}

TEST(TimelineJsonErrors, TruncatedAnywhere) {
  const std::string whole = timeline_json(test::small_timeline());
  for (std::size_t size = 0; size + 2 < whole.size(); size += 97)
    EXPECT_NE(failure(whole.substr(0, size)).find(": this is not JSON"), std::string::npos) << size;
}

struct Defect {
  const char* pointer;  // into the file's "penstock"
  json value;           // null: the key is removed
  const char* message;
};

TEST(TimelineJsonErrors, SaysWhatIsWrongAndWhere) {
  const std::vector<Defect> defects = {
      {"/timeline", 2, "penstock.timeline is 2.0: this program reads version 1"},
      {"/title", nullptr, "penstock has no \"title\""},
      {"/title", 3, "penstock.title is not text"},
      {"/seconds", 1, "penstock.seconds is neither true nor false"},
      {"/makespan", -1.5, "penstock.makespan is -1.5, not a number from 0"},
      {"/makespan", "long", "penstock.makespan is not a number"},
      {"/devices", "two", "penstock.devices is not a list"},
      {"/devices/1", 1, "penstock.devices[1] is not text"},
      {"/lanes/0", "thinking", "penstock.lanes[0] is \"thinking\", which this version does not know"},
      {"/kinds/0", "Z", "penstock.kinds[0] is \"Z\", which this version does not know"},
      {"/activities", 7, "penstock.activities is not an object"},
      {"/activities/begin", nullptr, "penstock.activities has no \"begin\""},
      {"/activities/begin/0", -1, "penstock.activities.begin[0] is -1.0, not a number from 0"},
      {"/activities/end/0", json("nan"), "penstock.activities.end[0] is not a number"},
      {"/activities/end/4", 0, "penstock.activities.end[4] is 0.0, before its begin at 0.0055"},
      {"/activities/end", json::array({1}), "penstock.activities.end has 1 entries, \"begin\" has 14"},
      {"/activities/device/3", 2, "penstock.activities.device[3] is 2, not from -1 to 1"},
      {"/activities/device/3", -1, "penstock.activities.device[3] is -1: every activity has a device"},
      {"/activities/device/3", 0.5, "penstock.activities.device[3] is not a whole number"},
      {"/activities/lane/0", -1, "penstock.activities.lane[0] is -1: every activity has a lane"},
      {"/activities/lane/0", 1, "penstock.activities.lane[0] is a transfer, but \"peer\" is -1"},
      {"/activities/kind/0", 99, "penstock.activities.kind[0] is 99, not from -1 to 14"},
      {"/activities/task/0", 18446744073709551615U, "penstock.activities.task[0] is 18446744073709551615, not from -1 to 3"},
      {"/activities/cause/1", 14, "penstock.activities.cause[1] is 14, not from -1 to 13"},
      {"/activities/bytes/2", -4096, "penstock.activities.bytes[2] is -4096.0, not a number from 0"},
      {"/memory", json::array({json::object()}), "penstock.memory has 1 entries for 2 devices"},
      {"/memory/1/time/2", 0, "penstock.memory[1].time[2] is 0.0, before the point before it"},
      {"/memory/1/scratch", nullptr, "penstock.memory[1] has no \"scratch\""},
      {"/memory/0/activations", json::array(), "penstock.memory[0].activations has 0 entries, \"time\" has 4"},
      {"/memory/0/activations/2", -1, "penstock.memory[0].activations[2] is -1.0, not a number from 0"},
  };
  const json whole = json::parse(timeline_json(test::small_timeline()));
  for (const Defect& defect : defects) {
    json broken = whole;
    const json::json_pointer pointer(concat("/penstock", defect.pointer));
    if (defect.value.is_null())
      broken[pointer.parent_pointer()].erase(pointer.back());
    else
      broken[pointer] = defect.value;
    EXPECT_EQ(failure(broken.dump()),
              concat("t.json: ", defect.message, "\n  hint: the file is damaged, or not a timeline that Penstock wrote"));
  }
}

}  // namespace
}  // namespace penstock
