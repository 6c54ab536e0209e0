// SPDX-License-Identifier: Apache-2.0
// The search goes from the sinks to the sources. A state is a position of the line, with all nodes after it (up to the end, or to the end
// of the branches in hand) already in stages. The ways of a state differ in what matters to the rest: devices, what is in flight, and the
// longest path; none is better than another in all of them. Before a position ends either
//   - a stage of any interval: the series of the paper; where the interval runs over branches, it runs these one after the other; or
//   - a fork: its branches form groups of neighbours, which work side by side. Each group is a line of its own that starts with what was in
//   flight after the
//     fork; the groups share the devices, and the largest in flight counts. A fork may take only some neighbouring branches; a stage then
//     has the others,
//     together with nodes before or after the fork.
//
// In flight: a stage of micro-batch k before stages y has i = max over y of (i_y + max(k, k_y)) samples in flight. Of the stages y this
// needs max i_y and max (i_y + k_y) only, and for two groups these are again the larger ones.
//
// Devices: a stage of work w on r devices wastes at least r - w/target of them. All stages together may waste as many as the cluster has
// beyond the work of the whole graph, so close to the best target there are few ways, whatever the number of devices.
#include "planners/graphpipe_search.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/numbers.h"

namespace penstock {
namespace {

// One way to run the nodes after a position.
struct RestWay {
  int devices = 0;
  int in_flight = 0, with_next = 0;  // of the stages right after the position: max i_y, max (i_y + k_y); 0 where they do not count
  double seconds = 0;                // the longest path through the stages
  int step = -1;                     // the step taken last; -1: none
};
using RestWays = std::vector<RestWay>;

bool no_worse(const RestWay& a, const RestWay& b) {
  return a.devices <= b.devices && a.seconds <= b.seconds && a.in_flight <= b.in_flight && a.with_next <= b.with_next;
}

// A step puts a stage before the way of `next`; or (option -1) it joins two ways side by side.
struct Step {
  LineStage stage;
  int next = -1, other = -1;
};

// The ways of a fork with something in flight after it, for branches [i, j) at [j][i]; j runs up to the largest that has been asked for.
struct ForkWays {
  std::vector<std::vector<RestWays>> more, any;  // more: in several groups; any: in one or more
};

constexpr std::size_t kMostSteps = 1 << 24;

struct Search {
  const StageLine& line;
  const StageTarget& target;
  std::int64_t& states;
  TimeLimit& limit;
  double waste = 0;  // devices that the stages together may waste
  std::vector<Step> steps = {};
  std::map<std::array<int, 3>, ForkWays> forks = {};  // by fork, in_flight and with_next
};

// Whether there is no time, or no memory, for `work` more elementary steps.
bool is_over(Search& search, std::size_t work) {
  return search.limit.is_over(static_cast<std::int64_t>(work)) || search.steps.size() > kMostSteps;
}

bool wasteful(const Search& search, const RestWay& way, int begin, int end) {
  const double work = search.line.work[end] - search.line.work[begin];
  return way.devices - work / search.target.per_sample > search.waste;
}

// Adds a way to those of its position, unless one of them is as good.
void insert(Search& search, RestWays& ways, RestWay way, const Step& step) {
  ++search.states;
  for (const RestWay& known : ways)
    if (no_worse(known, way)) return;
  std::erase_if(ways, [&](const RestWay& known) { return no_worse(way, known); });
  way.step = static_cast<int>(search.steps.size());
  search.steps.push_back(step);
  ways.push_back(way);
}

// Adds to `result` the ways after `end` with the stage [begin, end) before each.
void add_stage(Search& search, const RestWays& ways, const LineStage& stage, int last, RestWays& result) {
  const StageLine& line = search.line;
  const StageTarget& target = search.target;
  const StageOption& option = line.costing->options[stage.option];
  const double seconds = target.any_path ? 0 : seconds_per_sample(line, stage.begin, stage.end, option) * option.samples;
  for (const RestWay& after : ways) {
    RestWay way = after;
    way.devices += option.replicas;
    way.seconds += seconds;
    if (way.seconds > target.path_limit || wasteful(search, way, stage.begin, last)) continue;
    if (target.in_flight) {
      const int in_flight = std::max(after.with_next, after.in_flight + option.samples);
      way.in_flight = (in_flight + option.samples - 1) / option.samples * option.samples;
      way.with_next = way.in_flight + option.samples;
      if (bytes_needed(line, stage.begin, stage.end, option, way.in_flight) > target.memory) continue;
    }
    insert(search, result, way, {stage, after.step, -1});
  }
}

// Adds all stages [begin, end) with begin >= first. `at_position[p - first]`: the ways from p up to `last`.
void add_stages(Search& search, int first, int end, int last, std::vector<RestWays>& at_position) {
  const StageLine& line = search.line;
  const std::vector<StageOption>& options = line.costing->options;
  const RestWays& ways = at_position[end - first];
  for (int begin = end; begin-- > first;) {
    const double least = (line.work[end] - line.work[begin]) / search.target.per_sample;  // devices
    if (least > static_cast<double>(line.costing->devices.size()) || is_over(search, options.size())) break;
    for (std::size_t o = 0; o < options.size(); ++o) {
      const StageOption& option = options[o];
      if (option.replicas < least || option.replicas - least > search.waste || !size_allowed(line, begin, end, option)) continue;
      ++search.states;
      if (seconds_per_sample(line, begin, end, option) > search.target.per_sample) continue;
      if (bytes_needed(line, begin, end, option, option.samples) > search.target.memory) continue;
      if (is_over(search, ways.size() * (at_position[begin - first].size() + 1))) return;
      add_stage(search, ways, {begin, end, static_cast<int>(o)}, last, at_position[begin - first]);
    }
  }
}

const std::vector<RestWays>& ways_of_fork(Search& search, int fork, std::size_t branches, const RestWay& after);

// Adds all forks of branches [i, j) of `fork` that end at bounds[j].
void add_fork(Search& search, int fork, std::size_t j, int first, int last, std::vector<RestWays>& at_position) {
  const std::vector<int>& bounds = search.line.forks[fork].bounds;
  for (const RestWay& after : at_position[bounds[j] - first]) {
    const std::vector<RestWays>& several = ways_of_fork(search, fork, j, after);
    for (std::size_t i = 0; i < j; ++i) {
      if (is_over(search, several[i].size() * (at_position[bounds[i] - first].size() + 1))) return;
      for (const RestWay& inside : several[i]) {
        RestWay way = inside;
        way.devices += after.devices;
        way.seconds += after.seconds;
        if (way.seconds <= search.target.path_limit && !wasteful(search, way, bounds[i], last))
          insert(search, at_position[bounds[i] - first], way, {{0, 0, -1}, after.step, inside.step});
      }
    }
  }
}

// The ways from each position of [first, last] up to `last`, with forks inside of `outer`.
std::vector<RestWays> ways_of_line(Search& search, int first, int last, int outer, const RestWay& start) {
  std::vector<RestWays> at_position(at(last - first + 1));
  at_position.back() = {start};
  for (int end = last; end > first && !is_over(search, 1); --end) {
    if (at_position[end - first].empty()) continue;
    for (const auto& [fork, branches] : search.line.forks_ending[end])
      if (fork > outer && search.line.forks[fork].begin() >= first) add_fork(search, fork, at(branches), first, last, at_position);
    add_stages(search, first, end, last, at_position);
  }
  return at_position;
}

// Adds to `result` each way of branches [i, k) side by side with each way of branches [k, j).
void add_side_by_side(Search& search, const RestWays& left, const RestWays& right, int begin, int end, RestWays& result) {
  for (const RestWay& a : left) {
    if (is_over(search, right.size() * (result.size() + 1))) return;
    for (const RestWay& b : right) {
      const RestWay way{a.devices + b.devices, std::max(a.in_flight, b.in_flight), std::max(a.with_next, b.with_next),
                        std::max(a.seconds, b.seconds)};
      if (!wasteful(search, way, begin, end)) insert(search, result, way, {{0, 0, -1}, a.step, b.step});
    }
  }
}

// At [i]: the ways of branches [i, branches) in several groups, before `after`.
const std::vector<RestWays>& ways_of_fork(Search& search, int fork, std::size_t branches, const RestWay& after) {
  ForkWays& ways = search.forks[{fork, after.in_flight, after.with_next}];
  const std::vector<int>& bounds = search.line.forks[fork].bounds;
  const RestWay start{.in_flight = after.in_flight, .with_next = after.with_next};
  for (std::size_t j = ways.any.size(); j <= branches; ++j) {
    const std::vector<RestWays> lines = ways_of_line(search, bounds[0], bounds[j], fork, start);
    std::vector<RestWays> one(j), more(j);
    for (std::size_t i = j; i-- > 0;) {
      one[i] = lines[bounds[i] - bounds[0]];
      for (std::size_t k = i + 1; k < j; ++k) add_side_by_side(search, ways.any[k][i], one[k], bounds[i], bounds[j], more[i]);
    }
    ways.any.push_back(more);
    for (std::size_t i = 0; i < j; ++i) ways.any[j][i].insert(ways.any[j][i].end(), one[i].begin(), one[i].end());
    ways.more.push_back(std::move(more));
  }
  return ways.more[branches];
}

// The stages of a way, in the order of the line.
std::vector<LineStage> stages_of(const Search& search, int last_step) {
  std::vector<LineStage> stages;
  std::vector<int> left = {last_step};
  while (!left.empty()) {
    const int step = left.back();
    left.pop_back();
    if (step < 0) continue;
    const Step& s = search.steps[step];
    if (s.stage.option >= 0) stages.push_back(s.stage);
    left.push_back(s.next);
    left.push_back(s.other);
  }
  std::sort(stages.begin(), stages.end(), [](const LineStage& a, const LineStage& b) { return a.begin < b.begin; });
  return stages;
}

}  // namespace

std::optional<std::vector<LineStage>> stages_within(const StageLine& line, const StageTarget& target, std::int64_t& states,
                                                    TimeLimit& limit) {
  Search search{line, target, states, limit};
  // A little more than there is, as the sums differ in their last digits.
  const double devices = static_cast<double>(line.costing->devices.size());
  search.waste = devices * (1 + 1e-9) - line.work.back() / target.per_sample;
  if (search.waste < 0) return std::nullopt;
  const std::vector<RestWays> ways = ways_of_line(search, 0, line.size(), -1, RestWay{});
  const RestWays& whole = ways.front();
  if (whole.empty() || is_over(search, 0)) return std::nullopt;
  const auto best = std::min_element(whole.begin(), whole.end(), [](const RestWay& a, const RestWay& b) {
    return std::pair(a.seconds, a.in_flight) < std::pair(b.seconds, b.in_flight);
  });
  return stages_of(search, best->step);
}

}  // namespace penstock
