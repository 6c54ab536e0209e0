// SPDX-License-Identifier: Apache-2.0
// LayerPipe's delays (Unnikrishnan and Parhi, 2108.06629): where forwards and backwards have processors of their own, one behind the other,
// stage i has its backward 2(p-1-i) steps behind its forward, twice PipeDream's, and what a step reads is as many updates late.
//
// Here an actor has both F and I of its stage: it is the order of eager-1f1b, never drained, which waits for no transfer where links are
// slow, for twice the activations and versions. Where every actor has all of its stage nothing is faster than in pipedream.
//
//   penstock schedule layerpipe --actors 3 --microbatches 1 --window 7 --show
//   actor 0 | F0 F1 F2 F3 F4 .  .  B0--- F5 B1--- F6 B2--- .  B3--- .  B4--- .  B5--- .  B6---
//   actor 1 | .  F0 F1 F2 .  B0--- F3 B1--- F4 B2--- F5 B3--- F6 B4--- .  B5--- .  B6---
//   actor 2 | .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- F6 B6---
//   time 27, bubble 22.2 %, live 5 3 1
//
// The paper's balance is in the W, for which nobody waits but the update, and in I that two neighbours share. With --balance, the stages'
// times, each step's W of a stage run where actors get to equal work, and where an actor's F and I alone are more than that, some of its
// micro-batches' I on a neighbour: a step then takes about the mean instead of the largest stage. An update stands where its W have ended
// by these times, so nobody waits for it, and the F behind it read what it made.
#include <algorithm>

#include "schedule/generators.h"
#include "schedule/in_order.h"

namespace penstock {
namespace {

// By stage, where F, I and W of stage i take times[i] each: the actor of each micro-batch's I, and of each step's W.
struct HalvesPlaces {
  std::vector<std::vector<std::size_t>> inputs, weights;
};

// The actor of an I: that of its stage while its work keeps to the level, else a neighbour that has less.
std::size_t place_of_input(const std::vector<double>& work, std::size_t stage, double time, double level) {
  std::size_t best = stage;
  if (work[stage] + time <= level) return best;
  for (std::size_t other = stage > 0 ? stage - 1 : 0; other < std::min(stage + 2, work.size()); ++other)
    if (work[other] < work[best]) best = other;
  return best;
}

HalvesPlaces places_of_halves(const std::vector<double>& times, int steps, int microbatches) {
  double sum = 0;
  for (const double time : times) sum += 3 * time;
  const double level = std::max(sum / static_cast<double>(times.size()), std::ranges::max(times)) * (1 + 1e-9);
  std::vector<double> work(times.size());
  HalvesPlaces out{std::vector<std::vector<std::size_t>>(times.size()), std::vector<std::vector<std::size_t>>(times.size())};
  for (int step = 0; step < steps; ++step) {
    const double until = (step + 1) * level;
    for (std::size_t stage = 0; stage < times.size(); ++stage) work[stage] += times[stage];
    for (std::size_t stage = 0; stage < times.size(); ++stage)
      for (int m = 0; m < microbatches; ++m) {
        const double time = times[stage] / microbatches;
        work[out.inputs[stage].emplace_back(place_of_input(work, stage, (microbatches - m) * time, until))] += time;
      }
    std::vector<std::size_t> moved;
    for (std::size_t stage = 0; stage < times.size(); ++stage) {
      const bool stays = work[stage] + times[stage] <= until;
      if (stays) work[stage] += times[stage];
      out.weights[stage].push_back(stage);
      if (!stays) moved.push_back(stage);
    }
    for (const std::size_t stage : moved) {
      const std::size_t least = static_cast<std::size_t>(std::ranges::min_element(work) - work.begin());
      work[least] += times[stage];
      out.weights[stage].back() = least;
    }
  }
  return out;
}

// Puts each stage's update of a step in front of what its actor begins once all of that step's W have ended.
void put_updates(Schedule& schedule, const TableCosts& costs, const ScheduleOptions& options) {
  const TableTime time = time_table(schedule, shape_of(schedule), costs);
  std::vector<std::vector<double>> ended(schedule.actors.size(), std::vector<double>(options.window));  // by stage and step
  for (std::size_t actor = 0; actor < schedule.actors.size(); ++actor)
    for (std::size_t i = 0; i < schedule.actors[actor].size(); ++i) {
      const Action& action = schedule.actors[actor][i];
      double& end = ended[action.stage][action.microbatch / options.microbatches];
      if (action.kind == Kind::W) end = std::max(end, time.end[actor][i]);
    }
  schedule.steps = options.window;
  for (std::int32_t stage = 0; std::vector<Action> & row : schedule.actors) {
    std::vector<Action> with_updates;
    int step = 0;
    const auto update_until = [&](double now) {
      for (; step < options.window && ended[stage][step] <= now; ++step)
        with_updates.push_back({stage, Kind::U, (step + 1) * options.microbatches - 1});
    };
    for (std::size_t i = 0; i < row.size(); ++i) {
      update_until(time.start[stage][i]);
      with_updates.push_back(row[i]);
    }
    update_until(time.makespan);
    row = std::move(with_updates);
    ++stage;
  }
}

// `whole`: the rows of F and B of all the window's micro-batches.
Schedule balanced(Schedule whole, const ScheduleOptions& options) {
  for (std::vector<Action>& row : whole.actors)
    for (Action& action : row)
      if (action.kind == Kind::B) action.kind = Kind::I;
  TableCosts costs = uniform_costs(options.actors);
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) costs.stages[stage].time.fill(options.balance[stage]);
  EngineWork work = chunked_work(options);
  work.microbatches *= options.window;
  work.split = true;
  work.costs = &costs;
  const HalvesPlaces places = places_of_halves(options.balance, options.window, options.microbatches);
  work.actor_of_half = [&](Kind half, std::int32_t stage, std::int32_t microbatch) {
    return static_cast<std::int32_t>(half == Kind::I ? places.inputs[stage][microbatch]
                                                     : places.weights[stage][microbatch / options.microbatches]);
  };
  // Other actors have the I that are not their stage's.
  for (std::vector<Action>& row : whole.actors)
    std::erase_if(row, [&](const Action& action) {
      return action.kind == Kind::I && places.inputs[action.stage][action.microbatch] != static_cast<std::size_t>(action.stage);
    });
  // An actor that can start several takes I before W and W before F.
  Schedule out = in_rows(whole, work, [](const Action& action) { return action.kind == Kind::F; });
  put_updates(out, costs, options);
  return out;
}

}  // namespace

Schedule layerpipe(const ScheduleOptions& options) {
  if (options.balance.empty()) return never_drained(options, eager_one_forward_one_backward);
  require_balance("layerpipe", options, options.actors, "actors", "actor's stage");
  ScheduleOptions window = options;
  window.microbatches *= options.window;
  return balanced(eager_one_forward_one_backward(window), options);
}

}  // namespace penstock
