// SPDX-License-Identifier: Apache-2.0
// SPP (Luo et al., Efficient Pipeline Planning, 2204.10562): a chain of stages with replicas on a cluster whose links differ by the pair.
//
// RDO puts the devices into a line whose neighbours are well connected, by recursive minimum cuts (device_order). PRM cuts the layers into
// a given number of stages on consecutive devices of the line, by a dynamic program over (layers, stages, devices, replicas of the stage)
// that minimises the largest of stages, channels and sums of gradients. PE schedules the micro-batches on stages and channels as soon as
// they can run; here the simulator does that, which also keeps the memory limit. All numbers of stages are tried.
//
// Objective: PRM's, in seconds of one micro-batch on the slowest stage or channel. The plan with the shortest simulated step is taken. It
// is optimal for one line of devices and each number of stages, not over orders of devices.
#include "planners/spp.h"

#include <algorithm>

#include "base/numbers.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

// Numbers of replicas to try: all where there are few devices, else the powers of two and all devices.
std::vector<int> replica_counts(const ChainView& view, int devices) {
  std::vector<int> counts;
  for (int r = 1; r <= std::min(view.most_replicas(), devices); r += devices > 8 ? r : 1) counts.push_back(r);
  if (view.most_replicas() >= devices && counts.back() != devices) counts.push_back(devices);
  return counts;
}

// Consecutive devices of the line.
struct Group {
  ClusterDevice device;       // the weakest of them
  AllReduceCost reduce = {};  // of parameters
};

struct Cell {
  double bottleneck = kInfinity;
  int end = 0, next = -1;  // border at which the first stage ends; index of the next stage's number of replicas
};

class Prm {
 public:
  // `line`: the devices that take part; all of them where replicas are allowed.
  Prm(const ChainView& view, std::vector<int> line, int stages, TimeLimit& limit)
      : view_(view),
        limit_(limit),
        line_(std::move(line)),
        devices_(static_cast<int>(line_.size())),
        counts_(replica_counts(view, devices_)) {
    groups_.resize(at(devices_) * counts_.size());
    links_.resize(at(devices_) * counts_.size() * counts_.size());
    for (int first = 0; first < devices_; ++first)
      for (std::size_t r = 0; r < counts_.size() && first + counts_[r] <= devices_; ++r) add_group(first, r);
    const std::size_t cells = at(view.atoms() + 1) * at(devices_ + 1) * counts_.size();
    for (int s = 0; s <= stages && (s < 2 || at(s + 1) * cells <= kMostCells) && !limit_.is_over(0); ++s) add_stage();
  }

  // Whether the table for so many stages is complete.
  bool knows(int stages) const { return at(stages) < complete_; }

  SppCut cut(int stages) const {
    SppCut cut;
    std::size_t r = counts_.size();
    cut.bottleneck = kInfinity;
    for (std::size_t i = 0; i < counts_.size(); ++i)
      if (const double value = cell(stages, 0, 0, i).bottleneck; value < cut.bottleneck) {
        cut.bottleneck = value;
        r = i;
      }
    if (r == counts_.size()) return cut;
    for (int s = stages, begin = 0, first = 0; s > 0; --s) {
      const Cell& here = cell(s, begin, first, r);
      const auto device = line_.begin() + first;
      cut.stages.push_back(stage_of(view_, begin, here.end, {device, device + counts_[r]}));
      begin = here.end;
      first += counts_[r];
      r = static_cast<std::size_t>(here.next);
    }
    return cut;
  }

 private:
  std::span<const int> devices(int first, std::size_t r) const { return std::span(line_).subspan(at(first), at(counts_[r])); }
  std::size_t group(int first, std::size_t r) const { return at(first) * counts_.size() + r; }
  std::size_t cell_index(int begin, int first, std::size_t r) const {
    return (at(begin) * at(devices_ + 1) + at(first)) * counts_.size() + r;
  }
  const Cell& cell(int stages, int begin, int first, std::size_t r) const { return cells_[stages][cell_index(begin, first, r)]; }

  void add_group(int first, std::size_t r) {
    if (limit_.is_over(counts_[r] * static_cast<std::int64_t>(counts_.size()))) return;
    const ClusterSpec& cluster = view_.problem->cluster;
    const auto here = devices(first, r);
    groups_[group(first, r)] = {weakest(cluster, here), all_reduce_cost(cluster, here)};
    const int next = first + counts_[r];
    for (std::size_t s = 0; s < counts_.size() && next + counts_[s] <= devices_; ++s)
      links_[group(first, r) * counts_.size() + s] = slowest_link(cluster, here, devices(next, s));
  }

  // Adds the table of one stage more.
  void add_stage() {
    const int n = view_.atoms(), stages = static_cast<int>(cells_.size());
    cells_.emplace_back(at(n + 1) * at(devices_ + 1) * counts_.size());
    for (int begin = 0; stages > 0 && begin + stages <= n; ++begin)
      for (int first = 0; first + stages <= devices_; ++first)
        for (std::size_t r = 0; r < counts_.size() && first + counts_[r] <= devices_; ++r) {
          if (limit_.is_over(n - begin)) return;
          cells_.back()[cell_index(begin, first, r)] = best_cell(stages, begin, first, r);
        }
    ++complete_;
  }

  Cell best_cell(int stages, int begin, int first, std::size_t r) const {
    const Group& here = groups_[group(first, r)];
    const int n = view_.atoms(), next = first + counts_[r];
    Cell best;
    if (stages == 1 && next < devices_) return best;
    for (int end = stages == 1 ? n : begin + 1; end <= n - (stages - 1); ++end) {
      const double load = seconds(here, begin, end, counts_[r]);
      if (load >= best.bottleneck || !fits(bytes_of(view_, begin, end, counts_[r], 1), here.device.memory)) break;
      if (stages == 1) return {load, end, -1};
      for (std::size_t s = 0; s < counts_.size() && next + counts_[s] <= devices_; ++s) {
        const double after = cell(stages - 1, end, next, s).bottleneck;
        if (after >= best.bottleneck) continue;
        const double channel = transfer_seconds(view_, end, links_[group(first, r) * counts_.size() + s], counts_[r], counts_[s]);
        const double bottleneck = std::max({load, channel, after});
        if (bottleneck < best.bottleneck) best = {bottleneck, end, static_cast<int>(s)};
      }
    }
    return best;
  }

  double seconds(const Group& group, int begin, int end, int replicas) const {
    const SetCost cost = cost_of(view_, begin, end, replicas);
    return (cost.forward + cost.backward) / group.device.speed + group.reduce.seconds(cost.parameter_bytes) / view_.microbatches;
  }

  static constexpr std::size_t kMostCells = 1 << 24;

  const ChainView& view_;
  TimeLimit& limit_;
  std::vector<int> line_;
  int devices_;
  std::vector<int> counts_;               // numbers of replicas
  std::vector<Group> groups_;             // by first device and index of the number of replicas
  std::vector<ClusterLink> links_;        // by the same, and the index of the next stage's number
  std::vector<std::vector<Cell>> cells_;  // by number of stages: the cells from a border on, on the devices of the line from one on
  std::size_t complete_ = 0;              // number of complete tables
};

std::optional<ChainPlan> plan_view(const ChainView& view, TimeLimit& limit) {
  double bytes = 0;
  for (int border = 1; border < view.atoms(); ++border) bytes += view.bytes[border] * view.samples / view.atoms();
  std::optional<ChainPlan> best;
  for (SppCut& cut : spp_cuts(view, device_order(view.problem->cluster, bytes, limit), limit)) {
    if (cut.stages.empty() || (best && limit.is_over())) continue;
    ChainPlan plan = timed_chain(view, std::move(cut.stages), cut.bottleneck, limit);
    if (!best || plan.value < best->value) best = std::move(plan);
  }
  return best;
}

}  // namespace

std::vector<SppCut> spp_cuts(const ChainView& view, const std::vector<int>& order, TimeLimit& limit) {
  const int most = most_stages(view);
  std::vector<SppCut> cuts;
  if (view.most_replicas() > 1) {
    const Prm prm(view, order, most, limit);
    for (int stages = 1; stages <= most && prm.knows(stages); ++stages) cuts.push_back(prm.cut(stages));
    return cuts;
  }
  for (int stages = 1; stages <= most; ++stages) {
    const Prm prm(view, {order.begin(), order.begin() + stages}, stages, limit);
    if (!prm.knows(stages)) break;
    cuts.push_back(prm.cut(stages));
  }
  return cuts;
}

Plan plan_by_spp(const PlanProblem& problem, const PlanOptions& options) {
  return plan_of_chain("spp", problem, {.most_atoms = 96, .replicas = true}, options, plan_view);
}

}  // namespace penstock
