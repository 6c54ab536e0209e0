// SPDX-License-Identifier: Apache-2.0
#include "planners/degrees_step.h"

#include <algorithm>
#include <numeric>

#include "base/invariant.h"
#include "base/numbers.h"
#include "cost/cost_model.h"
#include "schedule/ring.h"
#include "schedule/table_live.h"
#include "schedule/traits.h"
#include "schedule/work.h"

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

// Seconds of collectives for a stage, or an atom, on its actor: between its hosts or, where its devices form one host, between all of them.
class Collectives {
 public:
  Collectives(const DegreesGroups& groups, const StateBytes& states, const Degrees& degrees)
      : groups_(groups), states_(states), hosts_(degrees.data / degrees.local), local_(degrees.local) {}

  double gather(std::size_t actor, double parameters) const { return between(Opcode::all_gather, actor, bytes_of(parameters)); }
  double scatter(std::size_t actor, double parameters) const {
    return between(Opcode::reduce_scatter, actor, parameters * states_.gradient);
  }
  double reduce(std::size_t actor, double parameters) const { return between(Opcode::all_reduce, actor, parameters * states_.gradient); }
  // The end of a step inside of a host: its share of the gradients is scattered, its share of the parameters gathered.
  double settle(std::size_t actor, double parameters) const {
    const double share = parameters / hosts_;
    const Link& link = groups_.inside[actor];
    return seconds(Opcode::reduce_scatter, share * states_.gradient, local_, link) +
           seconds(Opcode::all_gather, bytes_of(share), local_, link);
  }

 private:
  double bytes_of(double parameters) const { return parameters * states_.parameter; }
  double between(Opcode opcode, std::size_t actor, double bytes) const { return seconds(opcode, bytes, hosts_, groups_.between[actor]); }
  static double seconds(Opcode opcode, double bytes, int members, const Link& link) {
    return bytes > 0 && members > 1 ? collective_seconds(opcode, bytes, at(members), link) : 0;
  }

  const DegreesGroups& groups_;
  StateBytes states_;
  int hosts_, local_;
};

struct Figures {
  TableCosts costs{}, free{};                // with collectives; without them
  std::vector<double> resident{}, memory{};  // bytes on each device of an actor: those always there, and the memory of the device
  std::vector<double> parameters{};          // number of elements, by actor
  double split_seconds = 0;                  // what an actor waits on average for collectives over its replicas' own devices
};

// The costs of one stage on a device of some speed.
class Stage {
 public:
  Stage(const Degrees& degrees, const StateBytes& states, std::span<const Atom> atoms, double speed)
      : degrees_(degrees), states_(states), atoms_(atoms), speed_(speed) {}

  double sum(double Atom::* what) const {
    double out = 0;
    for (const Atom& atom : atoms_) out += atom.*what;
    return out;
  }

  // `input_bytes`: bytes of the stage's input.
  StageCosts free(double input_bytes) const {
    StageCosts out;
    set(out, Kind::F, sum(&Atom::forward));
    set(out, Kind::R, sum(&Atom::forward));
    set(out, Kind::B, sum(&Atom::backward));
    set(out, Kind::I, sum(&Atom::backward) - sum(&Atom::weight));
    set(out, Kind::W, sum(&Atom::weight));
    set(out, Kind::U, sum(&Atom::update) / (degrees_.zero > 0 ? degrees_.data : 1));
    out.forward_bytes = out.backward_bytes = atoms_.back().bytes;
    out.live = sum(&Atom::live_bytes);
    out.kept = std::min(input_bytes, out.live);
    const double parameters = sum(&Atom::parameters);
    if (degrees_.zero == 3 && !degrees_.by_block) out.parameters = parameters * states_.parameter;
    if (degrees_.zero >= 2 && !degrees_.by_block) out.gradients = parameters * states_.gradient;
    return out;
  }

  StageCosts with(const Collectives& collectives, std::size_t actor, StageCosts out) const {
    const double parameters = sum(&Atom::parameters);
    add(out, Kind::F, sum(&Atom::wait_forward));
    add(out, Kind::R, sum(&Atom::wait_forward));
    add(out, Kind::B, sum(&Atom::wait_backward));
    add(out, Kind::I, sum(&Atom::wait_input));
    add(out, Kind::W, sum(&Atom::wait_weight));
    add(out, Kind::U, sum(&Atom::wait_update));
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

  // An atom's parameters arrive while the atom before is at work, and its gradients leave while the next one is; so the longer of work and
  // communication counts. A backward that recomputes needs the parameters for both.
  StageCosts by_block(const Collectives& collectives, std::size_t actor, StageCosts out) const {
    for (const Atom& atom : atoms_) {
      const double gather = collectives.gather(actor, atom.parameters), scatter = collectives.scatter(actor, atom.parameters);
      const auto wait = [&](Kind kind, double work, double communication) { add(out, kind, std::max(0.0, communication - work / speed_)); };
      const double again = degrees_.recompute ? atom.forward : 0;
      wait(Kind::F, atom.forward, gather);
      wait(Kind::B, again + atom.backward, gather + scatter);
      wait(Kind::I, again + atom.backward - atom.weight, gather);
      wait(Kind::W, atom.weight, scatter);
    }
    return out;
  }

  const Degrees& degrees_;
  const StateBytes& states_;
  std::span<const Atom> atoms_;
  double speed_;
};

// Seconds that a device waits in a step for the collectives of its stage's split.
double split_seconds_of(const Stage& stage, const Degrees& degrees, bool splits) {
  const double backward = splits ? stage.sum(&Atom::wait_input) + stage.sum(&Atom::wait_weight) : stage.sum(&Atom::wait_backward);
  return degrees.microbatches * ((degrees.recompute ? 2 : 1) * stage.sum(&Atom::wait_forward) + backward) + stage.sum(&Atom::wait_update);
}

Figures figures_of(const DegreesGroups& groups, const StateBytes& states, const Degrees& degrees, const std::vector<Atom>& atoms,
                   const std::vector<int>& cuts) {
  const std::size_t pipe = at(degrees.pipe);
  Figures out;
  for (const ClusterDevice& device : groups.weakest) out.memory.push_back(device.memory);
  out.parameters.assign(pipe, 0);
  std::vector<double> largest(pipe, 0);  // parameters of the largest atom, by actor
  const Collectives collectives(groups, states, degrees);
  const bool splits = splits_backward(degrees.schedule);
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    const std::size_t begin = at(cuts[s]), actor = s % pipe;
    const std::span<const Atom> own(atoms.data() + begin, at(cuts[s + 1]) - begin);
    const Stage stage(degrees, states, own, groups.weakest[actor].speed);
    out.free.stages.push_back(stage.free(begin > 0 ? atoms[begin - 1].bytes : 0));
    out.costs.stages.push_back(stage.with(collectives, actor, out.free.stages.back()));
    out.parameters[actor] += stage.sum(&Atom::parameters);
    out.split_seconds += split_seconds_of(stage, degrees, splits) / degrees.pipe;
    for (const Atom& atom : own) largest[actor] = std::max(largest[actor], atom.parameters);
  }
  for (std::size_t a = 0; a < pipe; ++a) {
    out.resident.push_back(resident_bytes(states, out.parameters[a], degrees));
    // Two atoms are in memory: one at work, and one whose parameters arrive or whose gradients leave.
    if (degrees.by_block) out.resident[a] += 2 * largest[a] * (states.parameter + states.gradient);
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

const PlanGraph& graph_of(const PlanProblem& problem, const Split& split) {
  const auto found = std::find_if(problem.splits.begin(), problem.splits.end(), [&](const PlanSplit& s) { return s.split == split; });
  invariant(split == Split() || found != problem.splits.end(), "a split has costs");
  return split == Split() ? problem.graph : found->graph;
}

double resident_bytes(const StateBytes& states, double parameters, const Degrees& degrees) {
  const auto share = [&](double bytes, int from, int shares) { return degrees.zero >= from ? bytes / shares : bytes; };
  const int hosts = degrees.data / degrees.local;
  return parameters * (share(states.optimiser, 1, degrees.data) + share(states.gradient, 2, hosts) + share(states.parameter, 3, hosts));
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
  const bool per_stretch = degrees.zero >= 2 && !degrees.by_block;
  if (per_stretch) table = with_gathers(std::move(table));
  if (degrees.zero == 2) erase([](Kind kind) { return kind == Kind::UNSHARD || kind == Kind::RESHARD; });
  const bool at_end = degrees.zero < 2 && degrees.data > 1;
  for (std::vector<Action>& row : table.actors) row = with_end(row, at_end, at(degrees.pipe * degrees.chunks));
  return table;
}

DegreesSteps::SplitKey DegreesSteps::key(const Degrees& degrees) {
  return {degrees.samples, degrees.split, stride_along(degrees, DegreeAxis::tensor), stride_along(degrees, DegreeAxis::context)};
}

namespace {

// The time of a collective, or of messages, among the devices of a replica.
double step_seconds(const NodeStep& step, const Degrees& degrees, const DegreesGroups& groups) {
  const bool is_tensor = step.axis == "tensor";
  const int members = is_tensor ? degrees.split.tensor : degrees.split.context;
  const Link& link = is_tensor ? groups.tensor : groups.context;
  if (step.opcode == Opcode::send) return link.latency + step.bytes / link.bandwidth;
  return step.bytes > 0 ? collective_seconds(step.opcode, step.bytes, at(members), link) : 0;
}

}  // namespace

const std::vector<Atom>& DegreesSteps::atoms(const Degrees& degrees) {
  const auto [found, added] = atoms_.try_emplace(key(degrees));
  if (added)
    found->second = atoms_of(graph_of(problem_, degrees.split), degrees.samples, options_.parameter_bytes,
                             [&](const NodeStep& step) { return step_seconds(step, degrees, groups(degrees)); });
  return found->second;
}

const std::vector<int>& DegreesSteps::cuts(const Degrees& degrees) {
  const auto [found, added] = cuts_.try_emplace({key(degrees), degrees.pipe, degrees.chunks});
  if (added) found->second = even_cuts(atoms(degrees), degrees.pipe, degrees.chunks);
  return found->second;
}

const DegreesGroups& DegreesSteps::groups(const Degrees& degrees) {
  const auto [found, added] = groups_.try_emplace({degrees.pipe, degrees.data, degrees.split, degrees.order, degrees.local});
  if (added) found->second = groups_of(problem_.cluster, degrees);
  return found->second;
}

std::int64_t DegreesSteps::work(const Degrees& degrees) {
  return static_cast<std::int64_t>(degrees.pipe) * degrees.chunks * 64 + static_cast<std::int64_t>(atoms(degrees).size());
}

DegreesSteps::Bound DegreesSteps::bound(const Degrees& degrees) {
  const Figures figures = figures_of(groups(degrees), options_.states, degrees, atoms(degrees), cuts(degrees));
  // After the last input gradient of a split backward its actor may still be at work on weight gradients, so nothing is known to follow.
  const bool split = splits_backward(degrees.schedule);
  const std::vector<StageCosts>& stages = figures.costs.stages;
  const std::size_t pipe = at(degrees.pipe);
  Bound bound;
  double lead = 0, tail = 0;  // seconds before an actor's first forward, and after its last backward
  for (std::size_t a = 0; a < pipe; ++a) {
    double busy = 0, update = 0;
    double working = 0, waiting = 0;  // bytes while a stage works, and when the last stage of all begins the first backward
    for (std::size_t s = a; s < stages.size(); s += pipe) {
      const StageCosts& stage = stages[s];
      const double backward = split ? time_of(stage, Kind::I) + time_of(stage, Kind::W) : time_of(stage, Kind::B);
      busy += degrees.microbatches * (time_of(stage, Kind::F) + backward + (degrees.recompute ? time_of(stage, Kind::R) : 0));
      update += time_of(stage, Kind::U);
      working = std::max(working, stage.live + stage.parameters);
      waiting += degrees.recompute ? stage.kept : stage.live;
    }
    bound.seconds = std::max(bound.seconds, lead + busy + std::max(update, tail));
    bound.memory = std::max(bound.memory, figures.resident[a] + std::max(working, waiting));
    lead += time_of(stages[a], Kind::F);
    if (!split) tail += time_of(stages[a], Kind::B);
  }
  return bound;
}

const std::vector<DegreesSteps::FirstBackward>& DegreesSteps::first_backwards(const Degrees& degrees) {
  const auto [it, is_new] =
      first_backwards_.try_emplace({degrees.schedule, degrees.pipe, degrees.chunks, degrees.microbatches, degrees.unit});
  if (!is_new) return it->second;
  Degrees plain = degrees;
  plain.recompute = false;
  for (const std::vector<Action>& row : computing_table(plain).actors) {
    FirstBackward& first = it->second.emplace_back(std::vector<int>(at(degrees.chunks)));
    for (const Action& action : row) {
      if (action.kind != Kind::F) {
        first.chunk = action.stage / degrees.pipe;
        break;
      }
      first.forwards[at(action.stage / degrees.pipe)] += action.count;
    }
  }
  return it->second;
}

double DegreesSteps::least_memory(const Degrees& degrees) {
  const Figures figures = figures_of(groups(degrees), options_.states, degrees, atoms(degrees), cuts(degrees));
  const std::vector<FirstBackward>& firsts = first_backwards(degrees);
  double most = 0;
  for (std::size_t a = 0; a < firsts.size(); ++a) {
    const auto stage = [&](std::size_t chunk) -> const StageCosts& { return figures.costs.stages[chunk * at(degrees.pipe) + a]; };
    const StageCosts& last = stage(at(firsts[a].chunk));
    // An input gradient adds nothing to the sums of a split backward.
    const double sums = splits_backward(degrees.schedule) ? 0 : last.gradients;
    double held = figures.resident[a] + last.parameters + sums + (degrees.recompute ? last.live - last.kept : 0);
    for (std::size_t chunk = 0; chunk < firsts[a].forwards.size(); ++chunk)
      held += firsts[a].forwards[chunk] * (degrees.recompute ? stage(chunk).kept : stage(chunk).live);
    most = std::max(most, held);
  }
  return most;
}

DegreesResult DegreesSteps::run(const Degrees& degrees) {
  const std::vector<Atom>& row = atoms(degrees);
  const std::vector<int>& cut = cuts(degrees);
  const Figures figures = figures_of(groups(degrees), options_.states, degrees, row, cut);
  const Schedule table = table_of(degrees);
  const StageShape shape = chain(degrees.pipe * degrees.chunks);
  const WorkIndex work = index_work(table, shape, degrees.microbatches);
  TableOptions options;
  options.network = groups(degrees).pipes;
  const TableTime time = time_table(work, figures.costs, options), free = time_table(work, figures.free);

  DegreesResult out{.degrees = degrees, .seconds = time.makespan};
  out.compute = std::accumulate(free.busy.begin(), free.busy.end(), 0.0) / degrees.pipe;
  out.bubble = free.makespan - out.compute;
  out.exposed = time.makespan - free.makespan;
  out.split_seconds = figures.split_seconds;
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
