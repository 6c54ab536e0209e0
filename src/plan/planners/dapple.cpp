// SPDX-License-Identifier: Apache-2.0
// DAPPLE (Fan et al., 2007.01045): a chain of stages with replicas, placed on the hosts of a cluster.
//
// Partial plans grow from the front: the first j atoms lie on n devices in stages, the rest is one replicated stage on all other devices,
// of which a piece becomes the next stage. The next stage's devices are chosen in three ways: on fresh hosts first, on hosts in use
// first, or scattered evenly over all. The original keeps the best partial plan of each (j, n) by its latency with the rest as one stage;
// here a few are kept, by a lower bound of their latency. Those whose rest cannot fit any more are dropped.
//
// Objective: the latency L = T_w + T_s + T_e of a step in seconds (dapple.h), with links counted as stages. A stage holds at least one
// micro-batch. Where 1F1B would wait, stages run 2(p - i) - 1 micro-batches ahead, as far as the memory allows.
#include "planners/dapple.h"

#include <algorithm>

#include "base/numbers.h"
#include "cost/evaluate.h"
#include "planners/chain_view.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

// ---- Devices by host. Hosts are the innermost groups of the cluster; the first devices of a host are taken first.

enum class Placement { fresh, append, scatter };

class Hosts {
 public:
  explicit Hosts(const ClusterSpec& cluster) : devices_(static_cast<int>(cluster.devices.size())), size_(devices_) {
    for (const ClusterSpec::Level& level : cluster.levels)
      if (level.size > 1) {
        size_ = level.size;
        break;
      }
  }

  int size() const { return size_; }
  std::vector<int> none_taken() const { return std::vector<int>(at((devices_ + size_ - 1) / size_), 0); }

  // Takes `count` devices, returned in ascending order. `taken`: how many of each host are in use.
  std::vector<int> take(std::vector<int>& taken, int count, Placement placement) const {
    std::vector<int> devices;
    const auto take_one = [&](std::size_t m) { devices.push_back(static_cast<int>(m) * size_ + taken[m]++); };
    if (placement == Placement::scatter) {
      for (std::size_t m = 0; count > 0; m = (m + 1) % taken.size())
        if (free(taken, m) > 0) {
          take_one(m);
          --count;
        }
    } else {
      const std::vector<int> before = taken;
      for (const bool fresh : {placement == Placement::fresh, placement != Placement::fresh})
        for (std::size_t m = 0; m < taken.size(); ++m)
          if ((before[m] == 0) == fresh)
            for (; count > 0 && free(taken, m) > 0; --count) take_one(m);
    }
    std::sort(devices.begin(), devices.end());
    return devices;
  }

 private:
  int free(const std::vector<int>& taken, std::size_t m) const {
    return std::min(size_, devices_ - static_cast<int>(m) * size_) - taken[m];
  }

  int devices_, size_;
};

// ---- The search.

struct Group {
  std::vector<int> devices = {};
  ClusterDevice weakest = {};
  AllReduceCost reduce = {};  // of parameters

  int count() const { return static_cast<int>(devices.size()); }
};

struct Piece {
  int begin = 0, end = 0;
  std::vector<int> devices;
};

// A partial plan: the stages of the first atoms.
struct Partial {
  std::vector<Piece> pieces = {};
  std::vector<DapplePart> parts = {};
  std::vector<int> taken = {};  // devices in use, by host
  double bound = 0;             // lower bound of the latency, whatever follows
};

// The problem that is searched.
struct DappleProblem {
  const ChainView& view;
  const ClusterSpec& cluster;
  Hosts hosts;
  int devices, unit;
  std::size_t most_stages;
  std::size_t kept;                             // how many partial plans are kept for each (border, devices)
  double fastest = 0;                           // speed of the fastest device
  double memory = 0;                            // that the rest is checked with
  std::vector<std::vector<double>> least = {};  // empty where memory has no limit
};

DappleProblem searched(const ChainView& view, TimeLimit& limit) {
  const ClusterSpec& cluster = view.problem->cluster;
  const int devices = view.devices();
  DappleProblem in{
      view, cluster, Hosts(cluster), devices, coarse_unit(devices), at(most_stages(*view.problem, view.samples)), at(devices > 16 ? 4 : 8)};
  double largest = 0;
  for (const ClusterDevice& device : cluster.devices) {
    largest = std::max(largest, device.memory);
    in.fastest = std::max(in.fastest, device.speed);
  }
  in.memory = weakest(cluster).memory;
  if (in.memory == kInfinity) return in;
  in.least = least_memory(view, InFlight::one, in.unit, limit);
  if (!fits(in.least[at(devices)][0], in.memory)) in.memory = largest;
  return in;
}

Group group_of(const ClusterSpec& cluster, std::vector<int> devices) {
  Group group{.weakest = weakest(cluster, devices), .reduce = all_reduce_cost(cluster, devices)};
  group.devices = std::move(devices);
  return group;
}

bool holds(const ChainView& view, const Group& group, int begin, int end) {
  return fits(bytes_of(view, begin, end, group.count(), 1), group.weakest.memory);
}

DapplePart stage_part(const ChainView& view, const Group& group, int begin, int end) {
  const SetCost cost = cost_of(view, begin, end, group.count());
  const double forward = cost.forward / group.weakest.speed, backward = cost.backward / group.weakest.speed;
  return {forward, backward, forward + backward, group.reduce.seconds(cost.parameter_bytes)};
}

DapplePart link_part(const ChainView& view, int border, const ClusterLink& link, std::size_t from, std::size_t to) {
  const double seconds = transfer_seconds(view, border, link, static_cast<int>(from), static_cast<int>(to));
  return {seconds + link.latency, seconds + link.latency, seconds, 0};
}

// Whether a stage of `count` devices is tried: of few devices any number, else powers of two and whole hosts; of very many only whole
// units.
bool tried(const DappleProblem& in, int count) {
  return in.devices <= 16 || (count % in.unit == 0 && ((count & (count - 1)) == 0 || count % in.hosts.size() == 0));
}

// The devices that are left for the last stage.
struct Rest {
  Group group;
  ClusterLink link;
};

Rest rest_of(const DappleProblem& in, const Partial& partial) {
  std::vector<int> taken = partial.taken;
  int left = in.devices;
  for (const int count : taken) left -= count;
  Rest rest{group_of(in.cluster, in.hosts.take(taken, in.view.problem->replicas ? left : 1, Placement::append)), {}};
  if (!partial.pieces.empty()) rest.link = slowest_link(in.cluster, partial.pieces.back().devices, rest.group.devices);
  return rest;
}

// Whether 1F1B would wait, for the first backward or for transfers in between: that is so where some stages and the links between them
// take longer for as many micro-batches as they are stages than any single part does.
bool one_forward_one_backward_waits(const std::vector<DapplePart>& parts, int microbatches, double latency) {
  constexpr double kWorth = 1.005;  // a shorter wait is not worth the memory
  if (dapple_latency(parts, microbatches, DappleWarmup::short_way) > latency * kWorth) return true;
  double longest = 0;
  for (const DapplePart& part : parts) longest = std::max(longest, part.busy);
  for (std::size_t first = 0; first < parts.size(); first += 2) {
    double seconds = 0;
    for (std::size_t last = first; last < parts.size(); ++last) {
      seconds += parts[last].forward + parts[last].backward;
      if (last % 2 == 0 && seconds > longest * static_cast<double>((last - first) / 2 + 1) * kWorth) return true;
    }
  }
  return false;
}

// A lower bound of the latency with these parts first. It gives the rest all devices left, as fast as the fastest, without transfers, and
// assumes that replicas with half the samples take half the time or more.
double bound_of(const DappleProblem& in, const std::vector<DapplePart>& parts, int border, int left) {
  const int microbatches = in.view.microbatches;
  const SetCost cost = cost_of(in.view, border, in.view.atoms());
  double passed = 0, bound = 0, backward = 0, reduce = 0;
  for (const DapplePart& part : parts) {
    bound = std::max(bound, passed + microbatches * part.busy);
    reduce = std::max(reduce, part.all_reduce - backward);
    passed += part.forward + part.backward;
    backward += part.backward;
  }
  const double rest = (cost.forward + cost.backward) / (in.fastest * left);
  return std::max(bound, passed + microbatches * rest) + reduce;
}

class DappleSearch {
 public:
  DappleSearch(const ChainView& view, TimeLimit& limit)
      : in_(searched(view, limit)), limit_(limit), partials_(at(in_.devices), std::vector<std::vector<Partial>>(at(view.atoms()))) {}

  std::optional<ChainPlan> run() {
    const Partial& none = partials_[0][0].emplace_back(Partial{.taken = in_.hosts.none_taken()});
    finish(none, rest_of(in_, none));
    for (int used = 0; used < in_.devices; ++used) {
      for (int border = 0; border < in_.view.atoms(); ++border)
        for (const Partial& partial : partials_[at(used)][at(border)])
          if (partial.bound < best_.value) grow(partial, used, border);
      partials_[at(used)].clear();
    }
    if (best_.stages.empty()) return {};
    return best_;
  }

 private:
  void grow(const Partial& partial, int used, int border) {
    if (partial.pieces.size() + 2 > in_.most_stages) return;
    const int most = in_.view.problem->replicas ? in_.devices - used - 1 : std::min(1, in_.devices - used - 1);
    std::vector<std::vector<int>> seen;
    for (int count = 1; count <= most; ++count) {
      if (in_.view.problem->replicas && !tried(in_, count)) continue;
      if (limit_.is_over(in_.devices)) return;
      seen.clear();
      for (const Placement placement : {Placement::fresh, Placement::append, Placement::scatter}) {
        std::vector<int> taken = partial.taken;
        std::vector<int> devices = in_.hosts.take(taken, count, placement);
        if (std::find(seen.begin(), seen.end(), devices) != seen.end()) continue;
        seen.push_back(devices);
        add_stages(partial, used + count, border, group_of(in_.cluster, std::move(devices)), taken);
      }
    }
  }

  // Adds all stages that begin at the border, on these devices.
  void add_stages(const Partial& partial, int used, int border, const Group& group, const std::vector<int>& taken) {
    Partial next = partial;
    next.taken = taken;
    if (!next.pieces.empty()) {
      const std::vector<int>& before = next.pieces.back().devices;
      next.parts.push_back(
          link_part(in_.view, border, slowest_link(in_.cluster, before, group.devices), before.size(), group.devices.size()));
    }
    const std::size_t part = next.parts.size();
    next.parts.emplace_back();
    next.pieces.push_back({border, 0, group.devices});
    const Rest rest = rest_of(in_, next);
    for (int end = border + 1; end < in_.view.atoms() && holds(in_.view, group, border, end); ++end) {
      if (limit_.is_over(static_cast<std::int64_t>(next.parts.size()))) return;
      if (!in_.least.empty() && !fits(in_.least[at(in_.devices - used)][at(end)], in_.memory)) continue;
      next.pieces.back().end = end;
      next.parts.resize(part + 1);
      next.parts[part] = stage_part(in_.view, group, border, end);
      next.bound = bound_of(in_, next.parts, end, in_.devices - used);
      if (next.bound >= best_.value) continue;
      finish(next, rest);
      keep(next, partials_[at(used)][at(end)]);
    }
  }

  // Completes the partial plan with everything that is left as one stage.
  void finish(const Partial& partial, const Rest& rest) {
    const int border = partial.pieces.empty() ? 0 : partial.pieces.back().end;
    if (!holds(in_.view, rest.group, border, in_.view.atoms())) return;
    std::vector<DapplePart> parts = partial.parts;
    if (!partial.pieces.empty())
      parts.push_back(link_part(in_.view, border, rest.link, partial.pieces.back().devices.size(), rest.group.devices.size()));
    parts.push_back(stage_part(in_.view, rest.group, border, in_.view.atoms()));
    const double latency = dapple_latency(parts, in_.view.microbatches);
    if (latency >= best_.value) return;
    best_.value = best_.bottleneck = latency;
    best_.stages.clear();
    for (const Piece& piece : partial.pieces) best_.stages.push_back(stage_of(in_.view, piece.begin, piece.end, piece.devices));
    best_.stages.push_back(stage_of(in_.view, border, in_.view.atoms(), rest.group.devices));
    const int p = static_cast<int>(best_.stages.size());
    const bool waits = one_forward_one_backward_waits(parts, in_.view.microbatches, latency);
    for (int i = 0; i < p && waits; ++i) best_.stages[at(i)].ahead = 2 * (p - i) - 1;
  }

  void keep(const Partial& partial, std::vector<Partial>& kept) const {
    if (kept.size() == in_.kept && partial.bound >= kept.back().bound) return;
    const auto place = std::upper_bound(kept.begin(), kept.end(), partial.bound, [](double b, const Partial& p) { return b < p.bound; });
    kept.insert(place, partial);
    if (kept.size() > in_.kept) kept.pop_back();
  }

  const DappleProblem in_;
  TimeLimit& limit_;
  std::vector<std::vector<std::vector<Partial>>> partials_;  // by devices used and border; ascending in bound
  ChainPlan best_{.stages = {}, .bottleneck = kInfinity, .value = kInfinity};
};

}  // namespace

double dapple_latency(std::span<const DapplePart> parts, int microbatches, DappleWarmup warmup) {
  double all = 0, passed = 0, backward = 0, reduce = 0, latency = 0;
  for (const DapplePart& part : parts) all += part.forward + part.backward;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const DapplePart& q = parts[i];
    const bool link = i % 2 == 1;
    // Either all micro-batches pass through the pivot one after the other; or the first goes there and back, then what is left of the
    // others follows.
    const std::size_t left = parts.size() - i;  // parts from here on: 2(p - s) - 1 at stage s of p
    const double warm = std::min<double>(microbatches, static_cast<double>(warmup == DappleWarmup::long_way ? left : (left + 1) / 2));
    const double after = link ? (microbatches - 1) * q.busy : (microbatches - 1) * q.backward + (microbatches - warm) * q.forward;
    latency = std::max({latency, passed + microbatches * q.busy, all + after});
    reduce = std::max(reduce, q.all_reduce - backward);
    passed += q.forward + q.backward;
    backward += q.backward;
  }
  return latency + reduce;
}

Plan plan_by_dapple(const PlanProblem& problem, const PlanOptions& options) {
  return plan_of_chain("dapple", problem, {.most_atoms = 64, .replicas = true}, options,
                       [](const ChainView& view, TimeLimit& limit) { return DappleSearch(view, limit).run(); });
}

}  // namespace penstock
