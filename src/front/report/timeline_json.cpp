// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "penstock/error.h"
#include "report/trace_events.h"

namespace penstock {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr std::array kLanes = {"compute", "transfer", "host"};  // names in the order of Lane

std::vector<std::string> kind_names() {
  std::vector<std::string> out;
  for (int kind = 0; kind <= static_cast<int>(Kind::RECV_B); ++kind) out.emplace_back(name(static_cast<Kind>(kind)));
  return out;
}

// ---- Writing. As text at once: a step may have a million activities, and JSON values ask for memory where they are destroyed, so that a
// process that has none left would end there.

std::string value_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// [value(item), ...] of numbers, flags or texts.
template <class Items, class Value>
std::string column(const Items& items, Value&& value) {
  std::string out = "[";
  for (const auto& item : items) {
    if (out.size() > 1) out += ',';
    if constexpr (std::is_same_v<decltype(value(item)), bool> || !std::is_integral_v<decltype(value(item))>)
      out += value_text(value(item));
    else
      out += std::to_string(value(item));
  }
  return out + "]";
}

// Keys with the text of their values.
using Members = std::vector<std::pair<std::string_view, std::string>>;

std::string object(const Members& members) {
  std::string out = "{";
  for (const auto& [key, value] : members) {
    if (out.size() > 1) out += ',';
    out += '"';
    out += key;
    out += "\":";
    out += value;
  }
  return out + "}";
}

std::string columns_of(const std::vector<Activity>& activities) {
  using A = Activity;
  Members out = {{"begin", column(activities, [](const A& a) { return a.begin; })},
                 {"end", column(activities, [](const A& a) { return a.end; })},
                 {"device", column(activities, [](const A& a) { return a.device; })},
                 {"peer", column(activities, [](const A& a) { return a.peer; })},
                 {"lane", column(activities, [](const A& a) { return static_cast<int>(a.lane); })},
                 {"kind", column(activities, [](const A& a) { return a.action ? static_cast<int>(a.kind) : -1; })},
                 {"stage", column(activities, [](const A& a) { return a.stage; })},
                 {"microbatch", column(activities, [](const A& a) { return a.microbatch; })},
                 {"task", column(activities, [](const A& a) { return a.task; })},
                 {"item", column(activities, [](const A& a) { return a.item; })},
                 {"cause", column(activities, [](const A& a) { return a.cause; })},
                 {"bytes", column(activities, [](const A& a) { return a.bytes; })}};
  if (std::any_of(activities.begin(), activities.end(), [](const A& a) { return a.frozen; }))
    out.emplace_back("frozen", column(activities, [](const A& a) { return a.frozen; }));
  return object(out);
}

std::string columns_of(const std::vector<MemoryPoint>& memory) {
  Members out = {{"time", column(memory, [](const MemoryPoint& point) { return point.time; })}};
  for (std::size_t i = 0; i < kMemoryClasses; ++i)
    out.emplace_back(name(static_cast<MemoryClass>(i)), column(memory, [i](const MemoryPoint& point) { return point.amount[i]; }));
  return object(out);
}

// ---- Reading.

// A value of the file with the name that messages call it by.
class Reader {
 public:
  Reader(const json& value, const std::string& file, std::string path, std::ptrdiff_t index = -1)
      : value_(value), file_(file), path_(std::move(path)), index_(index) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(concat(file_, ": ", path(), " ", what), {}, "the file is damaged, or not a timeline that Penstock wrote");
  }
  Reader at(const std::string& key) const {
    if (!value_.is_object()) fail("is not an object");
    const auto it = value_.find(key);
    if (it == value_.end()) fail(concat("has no ", quote(key)));
    return {*it, file_, concat(path(), ".", key)};
  }
  bool has(const std::string& key) const { return value_.is_object() && value_.contains(key); }
  std::size_t size() const {
    if (!value_.is_array()) fail("is not a list");
    return value_.size();
  }
  Reader at(std::size_t i) const { return {value_[i], file_, path_, static_cast<std::ptrdiff_t>(i)}; }

  std::string text() const {
    if (!value_.is_string()) fail("is not text");
    return value_.get<std::string>();
  }
  bool flag() const {
    if (!value_.is_boolean()) fail("is neither true nor false");
    return value_.get<bool>();
  }
  // A number that is not negative.
  double number() const {
    if (!value_.is_number()) fail("is not a number");
    const double number = value_.get<double>();
    if (!std::isfinite(number) || number < 0) fail(concat("is ", penstock::number(number), ", not a number from 0"));
    return number;
  }
  // An index in [-1, count); -1: none.
  template <class Integer>
  Integer index(std::size_t count) const {
    if (!value_.is_number_integer()) fail("is not a whole number");
    const bool too_large = value_.is_number_unsigned() && value_.get<std::uint64_t>() >= count;
    const auto index = value_.get<std::int64_t>();
    if (too_large || index < -1) fail(concat("is ", value_.dump(), ", not from -1 to ", static_cast<std::int64_t>(count) - 1));
    return static_cast<Integer>(index);
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> out(size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = at(i).text();
    return out;
  }

 private:
  std::string path() const { return index_ < 0 ? path_ : concat(path_, "[", index_, "]"); }

  const json& value_;
  const std::string& file_;
  std::string path_;  // of the list, for an entry of a list: the entry's own is composed only where it is shown
  std::ptrdiff_t index_;
};

// The number of each thing that the activities' numbers refer to.
struct Counts {
  std::size_t devices = 0, tasks = 0, activities = 0;
  std::vector<Lane> lanes;
  std::vector<Kind> kinds;
};

template <class Enum, class Names>
std::vector<Enum> read_names(const Reader& reader, const Names& names) {
  std::vector<Enum> out(reader.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto it = std::find(std::begin(names), std::end(names), reader.at(i).text());
    if (it == std::end(names)) reader.at(i).fail(concat("is ", quote(reader.at(i).text()), ", which this version does not know"));
    out[i] = static_cast<Enum>(it - std::begin(names));
  }
  return out;
}

// Sets one member of every activity from its column.
template <class Read>
void read_column(const Reader& columns, const std::string& key, std::vector<Activity>& activities, Read&& read) {
  const Reader column = columns.at(key);
  if (column.size() != activities.size()) column.fail(concat("has ", column.size(), " entries, \"begin\" has ", activities.size()));
  for (std::size_t i = 0; i < activities.size(); ++i) read(activities[i], column.at(i));
}

void read_lane(const Counts& counts, Activity& activity, const Reader& entry) {
  const auto lane = entry.index<std::int32_t>(counts.lanes.size());
  if (lane < 0) entry.fail("is -1: every activity has a lane");
  activity.lane = counts.lanes[static_cast<std::size_t>(lane)];
  if (activity.lane == Lane::transfer && activity.peer < 0) entry.fail("is a transfer, but \"peer\" is -1");
}

void read_kind(const Counts& counts, Activity& activity, const Reader& entry) {
  const auto kind = entry.index<std::int32_t>(counts.kinds.size());
  activity.action = kind >= 0;
  if (activity.action) activity.kind = counts.kinds[static_cast<std::size_t>(kind)];
}

std::vector<Activity> read_activities(const Reader& columns, const Counts& counts) {
  constexpr std::size_t kAny = std::numeric_limits<std::int32_t>::max();
  std::vector<Activity> out(counts.activities);
  read_column(columns, "begin", out, [](Activity& a, const Reader& entry) { a.begin = entry.number(); });
  read_column(columns, "end", out, [](Activity& a, const Reader& entry) {
    a.end = entry.number();
    if (a.end < a.begin) entry.fail(concat("is ", number(a.end), ", before its begin at ", number(a.begin)));
  });
  read_column(columns, "device", out, [&](Activity& a, const Reader& entry) {
    a.device = entry.index<std::int32_t>(counts.devices);
    if (a.device < 0) entry.fail("is -1: every activity has a device");
  });
  read_column(columns, "peer", out, [&](Activity& a, const Reader& entry) { a.peer = entry.index<std::int32_t>(counts.devices); });
  read_column(columns, "lane", out, [&](Activity& a, const Reader& entry) { read_lane(counts, a, entry); });
  read_column(columns, "kind", out, [&](Activity& a, const Reader& entry) { read_kind(counts, a, entry); });
  read_column(columns, "stage", out, [](Activity& a, const Reader& entry) { a.stage = entry.index<std::int32_t>(kAny); });
  read_column(columns, "microbatch", out, [](Activity& a, const Reader& entry) { a.microbatch = entry.index<std::int32_t>(kAny); });
  read_column(columns, "task", out, [&](Activity& a, const Reader& entry) { a.task = entry.index<std::int32_t>(counts.tasks); });
  read_column(columns, "item", out, [](Activity& a, const Reader& entry) { a.item = entry.index<std::int32_t>(kAny); });
  read_column(columns, "cause", out, [&](Activity& a, const Reader& entry) { a.cause = entry.index<std::int64_t>(counts.activities); });
  read_column(columns, "bytes", out, [](Activity& a, const Reader& entry) { a.bytes = entry.number(); });
  if (columns.has("frozen")) read_column(columns, "frozen", out, [](Activity& a, const Reader& entry) { a.frozen = entry.flag(); });
  return out;
}

// [stage, slice, block] of each.
std::vector<StagePart> read_blocks(const Reader& list) {
  std::vector<StagePart> out;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Reader block = list.at(i);
    if (block.size() != 3) block.fail("is not a stage, a slice and a block");
    const auto whole = [&](std::size_t k) { return block.at(k).index<std::int32_t>(std::numeric_limits<std::int32_t>::max()); };
    out.push_back({whole(0), whole(1), whole(2)});
    if (out.back().block < 0 || (i > 0 && out[i] <= out[i - 1])) block.fail("is not behind the one before it");
  }
  return out;
}

std::vector<MemoryPoint> read_memory(const Reader& columns) {
  const Reader times = columns.at("time");
  std::vector<MemoryPoint> out(times.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].time = times.at(i).number();
    if (i > 0 && out[i].time < out[i - 1].time) times.at(i).fail(concat("is ", number(out[i].time), ", before the point before it"));
  }
  for (std::size_t c = 0; c < kMemoryClasses; ++c) {
    const Reader amounts = columns.at(std::string(name(static_cast<MemoryClass>(c))));
    if (amounts.size() != out.size()) amounts.fail(concat("has ", amounts.size(), " entries, \"time\" has ", out.size()));
    for (std::size_t i = 0; i < out.size(); ++i) out[i].amount[c] = amounts.at(i).number();
  }
  return out;
}

}  // namespace

std::string timeline_data(const Timeline& timeline) {
  const auto texts = [](const auto& list) { return column(list, [](const auto& text) { return std::string_view(text); }); };
  std::string memory;
  for (const auto& points : timeline.memory) memory += (memory.empty() ? "" : ",") + columns_of(points);
  Members out = {{"timeline", std::to_string(kVersion)},
                 {"title", value_text(timeline.title)},
                 {"seconds", value_text(timeline.seconds)},
                 {"makespan", value_text(timeline.makespan)},
                 {"devices", texts(timeline.devices)},
                 {"tasks", texts(timeline.tasks)},
                 {"lanes", texts(kLanes)},
                 {"kinds", texts(kind_names())},
                 {"activities", columns_of(timeline.activities)},
                 {"memory", concat("[", memory, "]")}};
  if (timeline.slices > 1) out.emplace_back("slices", std::to_string(timeline.slices));
  std::string blocks;
  for (const StagePart& part : timeline.blocks)
    blocks += concat(blocks.empty() ? "" : ",", "[", part.stage, ",", part.slice, ",", part.block, "]");
  if (!blocks.empty()) out.emplace_back("blocks", concat("[", blocks, "]"));
  return object(out);
}

std::string timeline_json(const Timeline& timeline) {
  // Perfetto reads no key after one that it does not know, so ours is the last.
  return concat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":", trace_events(timeline), ",\n\"penstock\":", timeline_data(timeline), "}\n");
}

Timeline parse_timeline(std::string_view text, const std::string& file) {
  // The trace events hold nothing that "penstock" does not, so they are skipped.
  const json whole = parse_json(text, {file, "penstock show draws timelines that Penstock wrote"}, "traceEvents");
  if (!whole.is_object() || !whole.contains("penstock"))
    throw Error(concat(file, ": JSON, but no timeline of Penstock: it has no key \"penstock\""), {},
                "penstock simulate WHAT --timeline FILE.json writes one, and penstock train in its run's folder");
  const Reader reader(whole["penstock"], file, "penstock");
  const Reader version = reader.at("timeline");
  if (version.number() != kVersion) version.fail(concat("is ", number(version.number()), ": this program reads version ", kVersion));
  Timeline out;
  out.title = reader.at("title").text();
  out.seconds = reader.at("seconds").flag();
  out.makespan = reader.at("makespan").number();
  out.devices = reader.at("devices").texts();
  out.tasks = reader.at("tasks").texts();
  if (reader.has("slices")) out.slices = reader.at("slices").index<std::int32_t>(std::numeric_limits<std::int32_t>::max());
  if (out.slices < 1) reader.at("slices").fail(concat("is ", out.slices, ": a stage has 1 or more"));
  if (reader.has("blocks")) out.blocks = read_blocks(reader.at("blocks"));
  const Reader columns = reader.at("activities");
  const Counts counts = {out.devices.size(), out.tasks.size(), columns.at("begin").size(), read_names<Lane>(reader.at("lanes"), kLanes),
                         read_names<Kind>(reader.at("kinds"), kind_names())};
  out.activities = read_activities(columns, counts);
  const Reader memory = reader.at("memory");
  if (memory.size() != 0 && memory.size() != out.devices.size())
    memory.fail(concat("has ", memory.size(), " entries for ", out.devices.size(), " devices"));
  for (std::size_t device = 0; device < memory.size(); ++device) out.memory.push_back(read_memory(memory.at(device)));
  return out;
}

std::string timeline_of_run(const std::string& folder) {
  namespace fs = std::filesystem;
  constexpr const char* kHint = "name the folder that penstock train --out wrote";
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) throw Error(concat("there is no folder ", folder), {}, kHint);
  const fs::path file = fs::path(folder) / "timeline.json";
  if (!fs::exists(file, ignored))
    throw Error(concat(folder, " has no timeline.json: it is no run's folder, or its run has not ended"), {}, kHint);
  return file.string();
}

}  // namespace penstock
