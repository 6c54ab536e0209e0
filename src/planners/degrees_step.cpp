#include "planners/degrees_step.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "cost/cost_model.h"
#include "schedule/traits.h"
#include "schedule/work.h"
#include "simulate/table_live.h"

namespace penstock {
namespace {

bool is_backward(Kind kind) {
  return kind == Kind::B || kind == Kind::I;
}

std::vector<Action> recomputed(const std::vector<Action>& row) {
  std::vector<Action> out;
  for (const Action& action : row) {
    if (is_backward(action.kind)) out.push_back({action.stage, Kind::R, action.microbatch, action.count});
    out.push_back(action);
  }
  return out;
}

// Appends to a row, behind all else, the updates in the order in which the stages' backwards end; with `reduce`, REDUCE_GRAD right after
// each stage's last backward.
std::vector<Action> with_end(const std::vector<Action>& row, bool reduce, std::size_t stages) {
  std::vector<bool> seen(stages, false);
  std::vector<Action> out, updates;  // both in reverse
  for (std::size_t i = row.size(); i-- > 0;) {
    const Action& action = row[i];
    if ((action.kind == Kind::B || action.kind == Kind::W) && !seen[action.stage]) {
      seen[action.stage] = true;
      updates.push_back({action.stage, Kind::U});
      if (reduce) out.push_back({action.stage, Kind::REDUCE_GRAD});
    }
    out.push_back(action);
  }
  std::reverse(out.begin(), out.end());
  out.insert(out.end(), updates.rbegin(), updates.rend());
  return out;
}

Link link_of(const ClusterLink& link) {
  return {.latency = link.latency, .bandwidth = link.bandwidth};
}

void add_ring(const ClusterSpec& cluster, const std::vector<std::int32_t>& group, Network& network) {
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::int32_t from = group[i], to = group[(i + 1) % group.size()];
    if (from != to) network.between[{from, to}] = link_of(cluster.link(from, to));
  }
}

// The links between actors that follow each other: each replica sends to its own of the next group, all at once.
Network pipes_of(const ClusterSpec& cluster, const Degrees& degrees) {
  Network network;
  for (int from = 0; from < degrees.pipe; ++from) {
    const int to = (from + 1) % degrees.pipe;
    if (from == to) continue;
    const std::vector<int> a = group_of(degrees, from), b = group_of(degrees, to);
    ClusterLink slowest;
    for (std::size_t i = 0; i < a.size(); ++i) slowest = slower(slowest, cluster.link(a[i], b[i]));
    network.between[{from, to}] = network.between[{to, from}] = link_of(slowest);
  }
  return network;
}

// Seconds of collectives for a stage, or a block, on its actor: between its nodes or, where its devices form one node, between all of them.
class Collectives {
 public:
  Collectives(const ClusterSpec& cluster, const StateBytes& states, const Degrees& degrees) : states_(states) {
    for (int actor = 0; actor < degrees.pipe; ++actor) {
      const std::vector<int> group = group_of(degrees, actor);
      nodes_.push_back(static_cast<double>(group.size()) / degrees.local);
      inside_.emplace_back(group.begin(), group.begin() + degrees.local);
      std::vector<std::int32_t>& between = between_.emplace_back();
      for (std::size_t i = 0; i < group.size(); i += at(degrees.local)) between.push_back(group[i]);
      add_ring(cluster, inside_.back(), rings_);
      add_ring(cluster, between, rings_);
    }
  }

  double gather(std::size_t actor, double parameters) const { return seconds(Opcode::all_gather, between_[actor], bytes_of(parameters)); }
  double scatter(std::size_t actor, double parameters) const {
    return seconds(Opcode::reduce_scatter, between_[actor], parameters * states_.gradient);
  }
  double reduce(std::size_t actor, double parameters) const {
    return seconds(Opcode::all_reduce, between_[actor], parameters * states_.gradient);
  }
  // The end of a step inside of a node: its share of the gradients is scattered, its share of the parameters gathered.
  double settle(std::size_t actor, double parameters) const {
    const double share = parameters / nodes_[actor];
    return seconds(Opcode::reduce_scatter, inside_[actor], share * states_.gradient) +
           seconds(Opcode::all_gather, inside_[actor], bytes_of(share));
  }

 private:
  double bytes_of(double parameters) const { return parameters * states_.parameter; }
  double seconds(Opcode opcode, const std::vector<std::int32_t>& group, double bytes) const {
    return bytes > 0 && group.size() > 1 ? collective_seconds(opcode, bytes, group, rings_) : 0;
  }

  Network rings_;
  StateBytes states_;
  std::vector<double> nodes_;  // number of nodes, by actor
  // By actor: the first device of each node; the devices of the first node.
  std::vector<std::vector<std::int32_t>> between_, inside_;
};

struct Figures {
  TableCosts costs{}, free{};  // with collectives; without them
  Network pipes{};
  std::vector<double> resident{}, memory{};  // bytes on each device of an actor: those always there, and the memory of the device
  std::vector<double> parameters{};          // number of elements, by actor
};

// The costs of one stage on a device of some speed.
class Stage {
 public:
  Stage(const Degrees& degrees, const StateBytes& states, std::span<const Block> blocks, double speed)
      : degrees_(degrees), states_(states), blocks_(blocks), speed_(speed) {}

  double sum(double Block::* what) const {
    double out = 0;
    for (const Block& block : blocks_) out += block.*what;
    return out;
  }

  // `input_bytes`: bytes of the stage's input.
  StageCosts free(double input_bytes) const {
    StageCosts out;
    set(out, Kind::F, sum(&Block::forward));
    set(out, Kind::R, sum(&Block::forward));
    set(out, Kind::B, sum(&Block::backward));
    set(out, Kind::I, sum(&Block::backward) - sum(&Block::weight));
    set(out, Kind::W, sum(&Block::weight));
    set(out, Kind::U, sum(&Block::update) / (degrees_.zero > 0 ? degrees_.data : 1));
    out.forward_bytes = out.backward_bytes = blocks_.back().bytes;
    out.live = sum(&Block::live_bytes);
    out.kept = std::min(input_bytes, out.live);
    const double parameters = sum(&Block::parameters);
    if (degrees_.zero == 3 && !degrees_.by_block) out.parameters = parameters * states_.parameter;
    if (degrees_.zero >= 2 && !degrees_.by_block) out.gradients = parameters * states_.gradient;
    return out;
  }

  StageCosts with(const Collectives& collectives, std::size_t actor, StageCosts out) const {
    const double parameters = sum(&Block::parameters);
    if (degrees_.by_block) return by_block(collectives, actor, out);
    if (degrees_.zero == 0) add(out, Kind::REDUCE_GRAD, collectives.reduce(actor, parameters));
    if (degrees_.zero > 0) add(out, Kind::REDUCE_GRAD, collectives.scatter(actor, parameters));
    if (degrees_.zero == 1 || degrees_.zero == 2) add(out, Kind::U, collectives.gather(actor, parameters));
    if (degrees_.zero == 3) add(out, Kind::UNSHARD, collectives.gather(actor, parameters));
    if (degrees_.zero == 3) add(out, Kind::U, collectives.settle(actor, parameters));
    return out;
  }

 private:
  void set(StageCosts& out, Kind kind, double seconds) const { out.time[static_cast<int>(kind)] = seconds / speed_; }
  static void add(StageCosts& out, Kind kind, double seconds) { out.time[static_cast<int>(kind)] += seconds; }

  // A block's parameters arrive while the block before is at work, and its gradients leave while the next one is; so the longer of work and
  // communication counts. A backward that recomputes needs the parameters for both.
  StageCosts by_block(const Collectives& collectives, std::size_t actor, StageCosts out) const {
    for (const Block& block : blocks_) {
      const double gather = collectives.gather(actor, block.parameters), scatter = collectives.scatter(actor, block.parameters);
      const auto wait = [&](Kind kind, double work, double communication) { add(out, kind, std::max(0.0, communication - work / speed_)); };
      const double again = degrees_.recompute ? block.forward : 0;
      wait(Kind::F, block.forward, gather);
      wait(Kind::B, again + block.backward, gather + scatter);
      wait(Kind::I, again + block.backward - block.weight, gather);
      wait(Kind::W, block.weight, scatter);
    }
    return out;
  }

  const Degrees& degrees_;
  const StateBytes& states_;
  std::span<const Block> blocks_;
  double speed_;
};

Figures figures_of(const PlanProblem& problem, const DegreesOptions& options, const Degrees& degrees, const std::vector<Block>& blocks,
                   const std::vector<int>& cuts) {
  const ClusterSpec& cluster = problem.cluster;
  const std::size_t pipe = at(degrees.pipe);
  Figures out{.pipes = pipes_of(cluster, degrees)};
  std::vector<double> speed;
  for (int actor = 0; actor < degrees.pipe; ++actor) {
    const ClusterDevice device = weakest(cluster, group_of(degrees, actor));
    speed.push_back(device.speed);
    out.memory.push_back(device.memory);
  }
  out.parameters.assign(pipe, 0);
  std::vector<double> largest(pipe, 0);  // parameters of the largest block, by actor
  const Collectives collectives(cluster, options.states, degrees);
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    const std::size_t begin = at(cuts[s]), actor = s % pipe;
    const std::span<const Block> own(blocks.data() + begin, at(cuts[s + 1]) - begin);
    const Stage stage(degrees, options.states, own, speed[actor]);
    out.free.stages.push_back(stage.free(begin > 0 ? blocks[begin - 1].bytes : 0));
    out.costs.stages.push_back(stage.with(collectives, actor, out.free.stages.back()));
    out.parameters[actor] += stage.sum(&Block::parameters);
    for (const Block& block : own) largest[actor] = std::max(largest[actor], block.parameters);
  }
  for (std::size_t a = 0; a < pipe; ++a) {
    out.resident.push_back(resident_bytes(options.states, out.parameters[a], degrees));
    // Two blocks are in memory: one at work, and one whose parameters arrive or whose gradients leave.
    if (degrees.by_block) out.resident[a] += 2 * largest[a] * (options.states.parameter + options.states.gradient);
  }
  return out;
}

double time_of(const StageCosts& stage, Kind kind) {
  return stage.time[static_cast<int>(kind)];
}

// Counts how often an actor's replicas gather and reduce all of their parameters.
void count_collectives(const Degrees& degrees, const Schedule& table, const std::vector<double>& parameters_of_stage, DegreesResult& out) {
  for (const std::vector<Action>& row : table.actors) {
    double gathered = 0, reduced = 0;
    for (const Action& action : row) {
      const double whole = parameters_of_stage[action.stage];
      const bool forward = action.kind == Kind::F, weights = action.kind == Kind::B || action.kind == Kind::W;
      if (degrees.by_block && (forward || is_backward(action.kind))) gathered += whole;
      if (degrees.by_block && weights) reduced += whole;
      if (action.kind == Kind::UNSHARD) gathered += whole;
      if (action.kind == Kind::REDUCE_GRAD) reduced += whole;
      if (action.kind == Kind::U && (degrees.zero == 1 || degrees.zero == 2)) gathered += whole;
    }
    out.gathered = std::max(out.gathered, gathered);
    out.reduced = std::max(out.reduced, reduced);
  }
}

}  // namespace

std::vector<int> group_of(const Degrees& degrees, int actor) {
  std::vector<int> group;
  for (int replica = 0; replica < degrees.data; ++replica)
    group.push_back(degrees.across ? replica * degrees.pipe + actor : actor * degrees.data + replica);
  return group;
}

double resident_bytes(const StateBytes& states, double parameters, const Degrees& degrees) {
  const auto share = [&](double bytes, int from, int shares) { return degrees.zero >= from ? bytes / shares : bytes; };
  const int nodes = degrees.data / degrees.local;
  return parameters * (share(states.optimiser, 1, degrees.data) + share(states.gradient, 2, nodes) + share(states.parameter, 3, nodes));
}

Schedule computing_table(const Degrees& degrees) {
  Schedule table = make_schedule(
      degrees.schedule, {.actors = degrees.pipe, .microbatches = degrees.microbatches, .chunks = degrees.chunks, .unit = degrees.unit});
  for (std::vector<Action>& row : table.actors) {
    std::erase_if(row, [](const Action& action) { return is_sharding(action.kind); });
    if (degrees.recompute) row = recomputed(row);
  }
  return table;
}

Schedule table_of(const Degrees& degrees) {
  Schedule table = computing_table(degrees);
  const auto erase = [&](auto&& unwanted) {
    for (std::vector<Action>& row : table.actors) std::erase_if(row, [&](const Action& action) { return unwanted(action.kind); });
  };
  const bool per_run = degrees.zero >= 2 && !degrees.by_block;
  if (per_run) table = with_gathers(std::move(table));
  if (degrees.zero == 2) erase([](Kind kind) { return kind == Kind::UNSHARD || kind == Kind::RESHARD; });
  const bool at_end = degrees.zero < 2 && degrees.data > 1;
  for (std::vector<Action>& row : table.actors) row = with_end(row, at_end, at(degrees.pipe * degrees.chunks));
  return table;
}

const std::vector<Block>& DegreesSteps::blocks(int samples) {
  const auto found = blocks_.find(samples);
  if (found != blocks_.end()) return found->second;
  return blocks_[samples] = blocks_of(problem_, samples, options_.parameter_bytes);
}

const std::vector<int>& DegreesSteps::cuts(const Degrees& degrees) {
  const std::array<int, 3> key = {degrees.samples, degrees.pipe, degrees.chunks};
  const auto found = cuts_.find(key);
  return found != cuts_.end() ? found->second : cuts_[key] = even_cuts(blocks(degrees.samples), degrees.pipe, degrees.chunks);
}

std::int64_t DegreesSteps::work(const Degrees& degrees) {
  return static_cast<std::int64_t>(degrees.pipe) * degrees.data * 64 + static_cast<std::int64_t>(blocks(degrees.samples).size());
}

DegreesSteps::Bound DegreesSteps::bound(const Degrees& degrees) {
  const Figures figures = figures_of(problem_, options_, degrees, blocks(degrees.samples), cuts(degrees));
  // After the last input gradient of a split backward its actor may still be at work on weight gradients, so nothing is known to follow.
  const bool split = splits_backward(degrees.schedule);
  const std::vector<StageCosts>& stages = figures.costs.stages;
  const std::size_t pipe = at(degrees.pipe);
  Bound bound;
  double lead = 0, tail = 0;  // seconds before an actor's first forward, and after its last backward
  for (std::size_t a = 0; a < pipe; ++a) {
    double busy = 0, update = 0, live = 0;
    for (std::size_t s = a; s < stages.size(); s += pipe) {
      const StageCosts& stage = stages[s];
      const double backward = split ? time_of(stage, Kind::I) + time_of(stage, Kind::W) : time_of(stage, Kind::B);
      busy += degrees.microbatches * (time_of(stage, Kind::F) + backward + (degrees.recompute ? time_of(stage, Kind::R) : 0));
      update += time_of(stage, Kind::U);
      live = std::max(live, stage.live + stage.parameters);
    }
    bound.seconds = std::max(bound.seconds, lead + busy + std::max(update, tail));
    bound.memory = std::max(bound.memory, figures.resident[a] + live);
    lead += time_of(stages[a], Kind::F);
    if (!split) tail += time_of(stages[a], Kind::B);
  }
  return bound;
}

DegreesResult DegreesSteps::run(const Degrees& degrees) {
  const std::vector<Block>& row = blocks(degrees.samples);
  const std::vector<int>& cut = cuts(degrees);
  const Figures figures = figures_of(problem_, options_, degrees, row, cut);
  const Schedule table = table_of(degrees);
  const StageShape shape = chain(degrees.pipe * degrees.chunks);
  const WorkIndex work = index_work(table, shape, degrees.microbatches);
  TableOptions options;
  options.network = figures.pipes;
  const TableTime time = time_table(work, figures.costs, options), free = time_table(work, figures.free);

  DegreesResult out{.degrees = degrees, .seconds = time.makespan};
  out.compute = std::accumulate(free.busy.begin(), free.busy.end(), 0.0) / degrees.pipe;
  out.bubble = free.makespan - out.compute;
  out.exposed = time.makespan - free.makespan;
  for (std::size_t a = 0; a < time.peak_live.size(); ++a) {
    out.peak_bytes.push_back(figures.resident[a] + time.peak_live[a]);
    out.memory = std::max(out.memory, out.peak_bytes[a]);
    out.fits = out.fits && fits(out.peak_bytes[a], figures.memory[a]);
  }
  std::vector<double> parameters;
  for (std::size_t s = 0; s + 1 < cut.size(); ++s) {
    std::vector<int>& nodes = out.stages.emplace_back();
    double& sum = parameters.emplace_back(0);
    for (int b = cut[s]; b < cut[s + 1]; ++b) {
      nodes.insert(nodes.end(), row[b].nodes.begin(), row[b].nodes.end());
      sum += row[b].parameters;
    }
    std::sort(nodes.begin(), nodes.end());
  }
  count_collectives(degrees, table, parameters, out);
  return out;
}

}  // namespace penstock
