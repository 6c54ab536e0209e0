// SPDX-License-Identifier: Apache-2.0
#include "simulate/fill_idle.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr double kNothing = 1e-9;            // of a step: shorter than this is nothing
constexpr double kMostCells = 1 << 27;       // intervals times devices
constexpr std::size_t kMostWays = 4096;      // of whole layers in an interval, from one way to fill those before it
constexpr std::size_t kMostNodes = 1 << 19;  // ways that are followed, times intervals

// Parts of batches that a chain has computed: of its first layer, then of its second.
using Done = std::vector<std::int64_t>;  // by chain

struct Way {
  Done done;
  double used = 0;           // of the interval, or of all so far
  std::int32_t before = -1;  // the way to fill the intervals before, which it goes on with
};

class Filling {
 public:
  Filling(const std::vector<FrozenChain>& chains, int parts, double rounding) : chains_(chains), parts_(parts), rounding_(rounding) {}

  std::int64_t all(std::size_t chain) const { return std::ssize(chains_[chain]) * parts_; }
  // Time on one device of what is left of the chain's next layer.
  double next(std::size_t chain, std::int64_t done) const {
    return time(chain, done) * static_cast<double>(parts_ - done % parts_) / static_cast<double>(parts_);
  }
  double time(std::size_t chain, std::int64_t done) const { return chains_[chain][static_cast<std::size_t>(done / parts_)]; }

  // All that an interval can take behind `from`: whole layers, and one partial batch or none.
  std::vector<Way> ways(const Way& from, double room, std::int32_t before) const {
    std::vector<Way> out = {{from.done, 0, before}};
    for (std::size_t chain = 0; chain < chains_.size(); ++chain) add_layers(chain, room, out);
    const std::size_t whole = out.size();
    for (std::size_t way = 0; way < whole; ++way)
      for (std::size_t chain = 0; chain < chains_.size(); ++chain) add_partial_batch(chain, room, way, out);
    for (Way& way : out) way.used += from.used;
    return out;
  }

 private:
  void add_layers(std::size_t chain, double room, std::vector<Way>& ways) const {
    for (std::size_t way = 0, before = ways.size(); way < before; ++way) {
      Way longer = ways[way];
      for (std::int64_t& done = longer.done[chain]; done < all(chain);) {
        longer.used += next(chain, done);
        if (longer.used > room + rounding_) break;
        done += parts_ - done % parts_;
        ways.push_back(longer);
      }
    }
    if (ways.size() > kMostWays) thin(room, ways);
  }

  // Keeps one way for each of kMostWays equal pieces of the room that ways may fill up to, so that what is kept is nearly as full.
  static void thin(double room, std::vector<Way>& ways) {
    const auto column = [&](const Way& way) { return std::min(kMostWays - 1, static_cast<std::size_t>(way.used / room * kMostWays)); };
    std::vector<bool> taken(kMostWays, false);
    std::erase_if(ways, [&](const Way& way) {
      const bool again = taken[column(way)];
      taken[column(way)] = true;
      return again;
    });
  }

  void add_partial_batch(std::size_t chain, double room, std::size_t way, std::vector<Way>& out) const {
    const std::int64_t done = out[way].done[chain];
    if (done == all(chain)) return;
    const double part = time(chain, done) / static_cast<double>(parts_);
    const auto fit = std::min(std::floor((room - out[way].used + rounding_) / part), static_cast<double>(parts_ - done % parts_ - 1));
    if (fit < 1) return;
    Way longer = out[way];
    longer.done[chain] += static_cast<std::int64_t>(fit);
    longer.used += fit * part;
    out.push_back(std::move(longer));
  }

  const std::vector<FrozenChain>& chains_;
  const std::int64_t parts_;
  const double rounding_;
};

// Keeps the ways that fill most, and of equals one.
void keep_best(std::vector<Way>& ways, std::size_t count) {
  std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.done > b.done; });
  ways.erase(std::unique(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.done == b.done; }), ways.end());
  std::stable_sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) { return a.used > b.used; });
  if (ways.size() > count) ways.resize(count);
}

// The state of the chains behind each interval, and before the first.
std::vector<Way> best_way(const std::vector<IdleInterval>& intervals, const Filling& filling, std::size_t chains, std::size_t kept) {
  std::vector<std::vector<Way>> levels = {{{Done(chains, 0), 0, -1}}};
  for (const IdleInterval& interval : intervals) {
    std::vector<Way> next;
    for (std::size_t way = 0; way < levels.back().size(); ++way) {
      std::vector<Way> more = filling.ways(levels.back()[way], interval.idle(), static_cast<std::int32_t>(way));
      keep_best(more, kept);
      next.insert(next.end(), more.begin(), more.end());
    }
    keep_best(next, kept);
    levels.push_back(std::move(next));
  }
  std::vector<Way> out;
  for (std::int32_t way = 0; !levels.empty(); levels.pop_back()) {
    out.push_back(levels.back()[way]);
    way = out.back().before;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

// Puts pieces of frozen layers one behind the other on some devices.
class Placing {
 public:
  Placing(const Filling& filling, int parts, std::vector<FrozenPiece>& out) : filling_(filling), parts_(parts), out_(out) {}

  void begin(double time, const std::vector<std::int32_t>& devices) {
    now_ = time;
    devices_ = devices;
  }
  // Computes a chain's parts from `from` to `to`.
  void add(std::size_t chain, std::int64_t from, std::int64_t to) {
    while (from < to) {
      const std::int64_t until = std::min(to, from - from % parts_ + parts_);
      const double share = static_cast<double>(until - from) / static_cast<double>(parts_);
      const double end = now_ + share * filling_.time(chain, from) / static_cast<double>(devices_.size());
      out_.push_back({static_cast<std::int32_t>(chain), static_cast<std::int32_t>(from / parts_), share, now_, end, devices_});
      now_ = end;
      from = until;
    }
  }

 private:
  const Filling& filling_;
  const std::int64_t parts_;
  std::vector<FrozenPiece>& out_;
  double now_ = 0;
  std::vector<std::int32_t> devices_;
};

// A chain whose last piece is a part of a batch comes last in its interval.
void place_inside(const std::vector<IdleInterval>& intervals, const std::vector<Way>& way, const Filling& filling, FrozenFill& fill) {
  Placing placing(filling, fill.parts, fill.inside);
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    placing.begin(intervals[i].begin, intervals[i].devices);
    const Done &from = way[i].done, &to = way[i + 1].done;
    const auto is_partial = [&](std::size_t chain) { return to[chain] % fill.parts != 0; };
    for (const bool partial : {false, true})
      for (std::size_t chain = 0; chain < from.size(); ++chain)
        if (is_partial(chain) == partial) placing.add(chain, from[chain], to[chain]);
  }
}

void check_chains(const std::vector<FrozenChain>& chains, const FillOptions& options) {
  if (chains.empty()) throw Error("there are no frozen layers", {}, "give a chain of layers' times, each above 0");
  for (std::size_t c = 0; c < chains.size(); ++c) {
    if (chains[c].empty())
      throw Error(concat("chain ", c, " of ", counted(std::ssize(chains), "chain"), " of frozen layers is empty"), {},
                  "a chain has a time for each layer");
    for (std::size_t l = 0; l < chains[c].size(); ++l)
      if (!(chains[c][l] > 0) || !std::isfinite(chains[c][l]))
        throw Error(concat("layer ", l, " of chain ", c, " of frozen layers takes ", number(chains[c][l])), {},
                    "a layer's time is a finite number above 0");
  }
  if (options.parts < 1 || options.parts > 4096)
    throw Error(concat("a batch of ", options.parts, " parts"), {}, "the quantum of partial batches is 1/n of a batch, n from 1 to 4096");
  if (options.kept < 1) throw Error(concat(options.kept, " ways to fill are followed"), {}, "follow at least one");
}

}  // namespace

std::vector<IdleInterval> idle_intervals(const Timeline& step) {
  std::vector<std::vector<std::pair<double, double>>> busy(step.devices.size());
  for (const Activity& activity : step.activities)
    if (activity.lane != Lane::transfer && activity.end > activity.begin) busy[activity.device].emplace_back(activity.begin, activity.end);
  std::vector<std::pair<double, std::int32_t>> changes;  // when a device, counted from 1, gets idle, or busy (negative)
  for (std::size_t device = 0; device < busy.size(); ++device) {
    std::sort(busy[device].begin(), busy[device].end());
    busy[device].emplace_back(step.makespan, step.makespan);
    double until = 0;
    for (const auto& [begin, end] : busy[device]) {
      if (begin - until > kNothing * step.makespan) {
        changes.emplace_back(until, static_cast<std::int32_t>(device) + 1);
        changes.emplace_back(begin, -static_cast<std::int32_t>(device) - 1);
      }
      until = std::max(until, end);
    }
  }
  std::sort(changes.begin(), changes.end());
  if (static_cast<double>(changes.size()) * static_cast<double>(busy.size()) > kMostCells)
    throw Error(
        concat("the idle time of ", counted(std::ssize(busy), "device"), " changes ", changes.size(), " times, too often to be filled"), {},
        "fill a table of fewer micro-batches");
  std::vector<IdleInterval> out;
  std::set<std::int32_t> idle;
  double now = 0;
  for (const auto& [time, device] : changes) {
    if (time - now > kNothing * step.makespan) {
      if (!idle.empty()) out.push_back({now, time, {idle.begin(), idle.end()}});
      now = time;
    }
    if (device > 0)
      idle.insert(device - 1);
    else
      idle.erase(-device - 1);
  }
  return out;
}

FrozenFill fill_idle(const Timeline& step, const std::vector<FrozenChain>& chains, const FillOptions& options) {
  check_chains(chains, options);
  const std::vector<IdleInterval> intervals = idle_intervals(step);
  const Filling filling(chains, options.parts, kNothing * step.makespan);
  std::vector<Way> way = best_way(intervals, filling, chains.size(), 1);
  FrozenFill fill;
  fill.parts = options.parts;
  for (const IdleInterval& interval : intervals) fill.idle += interval.idle();
  for (const FrozenChain& chain : chains) fill.work = std::accumulate(chain.begin(), chain.end(), fill.work);
  const std::size_t kept = std::min(static_cast<std::size_t>(options.kept), std::max<std::size_t>(1, kMostNodes / (intervals.size() + 1)));
  if (way.back().used < std::min(fill.work, fill.idle) * (1 - kNothing) && kept > 1)
    if (std::vector<Way> other = best_way(intervals, filling, chains.size(), kept); other.back().used > way.back().used)
      way = std::move(other);
  place_inside(intervals, way, filling, fill);
  Placing behind(filling, options.parts, fill.behind);
  std::vector<std::int32_t> everyone(step.devices.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  behind.begin(step.makespan, everyone);
  for (std::size_t chain = 0; chain < chains.size(); ++chain) behind.add(chain, way.back().done[chain], filling.all(chain));
  fill.placed = fill.behind.empty() ? fill.work : way.back().used;
  fill.makespan = fill.behind.empty() ? step.makespan : fill.behind.back().end;
  return fill;
}

}  // namespace penstock
