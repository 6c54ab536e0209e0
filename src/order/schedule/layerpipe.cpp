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
// The paper's balance is in the W, for which nobody waits but the update. With --balance, the stages' times, each step's W of a stage run
// where actors get to equal work: a step then takes the largest of the mean and an actor's F and I instead of the largest stage. An update
// stands where its W have ended by these times, so nobody waits for it, and the F behind it read what it made.
#include <algorithm>

#include "schedule/generators.h"
#include "schedule/in_order.h"

namespace penstock {
namespace {

// By stage and step: the actor of its W, where F, I and W of stage i take times[i] each.
std::vector<std::vector<std::size_t>> places_of_weights(const std::vector<double>& times, int steps) {
  double sum = 0;
  for (const double time : times) sum += 3 * time;
  const double level = std::max(sum / static_cast<double>(times.size()), 2 * std::ranges::max(times)) * (1 + 1e-9);
  std::vector<double> work(times.size());
  std::vector<std::vector<std::size_t>> out(times.size());
  for (int step = 0; step < steps; ++step) {
    std::vector<std::size_t> moved;
    for (std::size_t stage = 0; stage < times.size(); ++stage) {
      const bool stays = work[stage] + 3 * times[stage] <= (step + 1) * level;
      work[stage] += (stays ? 3 : 2) * times[stage];
      out[stage].push_back(stage);
      if (!stays) moved.push_back(stage);
    }
    for (const std::size_t stage : moved) {
      const std::size_t least = static_cast<std::size_t>(std::ranges::min_element(work) - work.begin());
      work[least] += times[stage];
      out[stage].back() = least;
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
  work.weight_actor = [&options, places = places_of_weights(options.balance, options.window)](std::int32_t stage, std::int32_t microbatch) {
    return static_cast<std::int32_t>(places[stage][microbatch / options.microbatches]);
  };
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
