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
#include <limits>
#include <queue>
#include <tuple>

#include "base/invariant.h"
#include "schedule/generators.h"

namespace penstock {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

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

// One actor while its row is made.
struct BalancedActor {
  std::vector<Action> order;  // its F and I
  std::size_t next = 0;       // of these
  double free = 0;
  std::priority_queue<std::tuple<double, std::int32_t, std::int32_t>, std::vector<std::tuple<double, std::int32_t, std::int32_t>>,
                      std::greater<>>
      weights{};              // when they can run, micro-batch, stage
  std::vector<int> left;      // W of its stage, by step
  std::vector<double> ended;  // when the last of those that ran has, likewise
  std::size_t updates = 0;    // in its row
};

// A table in the making, in the order of time.
struct Balance {
  std::vector<double> times;
  int microbatches;                                // of a step
  std::vector<std::vector<std::size_t>> places{};  // places_of_weights
  std::vector<BalancedActor> actors{};
  std::vector<std::vector<double>> forward_end{}, input_end{};  // by stage and micro-batch
  Schedule out{};
};

// When what the action needs of other stages is there.
double ready_at(const Balance& b, const Action& action) {
  const std::size_t stage = static_cast<std::size_t>(action.stage), m = static_cast<std::size_t>(action.microbatch);
  if (action.kind == Kind::F) return stage > 0 ? b.forward_end[stage - 1][m] : 0;
  return stage + 1 < b.times.size() ? b.input_end[stage + 1][m] : 0;
}

struct Start {
  double time = kNever;
  bool weight = false;
};
// The actor's next action: the earliest; of those that it can start at once I before W before F.
Start next_start(const Balance& b, const BalancedActor& actor) {
  const double weight = actor.weights.empty() ? kNever : std::max(actor.free, std::get<0>(actor.weights.top()));
  if (actor.next == actor.order.size()) return {weight, true};
  const Action& action = actor.order[actor.next];
  const double time = std::max(actor.free, ready_at(b, action));
  const bool first = action.kind == Kind::I ? time <= weight : time < weight;
  return first ? Start{time, false} : Start{weight, true};
}

Action take(BalancedActor& actor, bool weight) {
  if (!weight) return actor.order[actor.next++];
  const auto [ready, microbatch, stage] = actor.weights.top();
  actor.weights.pop();
  return {stage, Kind::W, microbatch};
}

// The updates whose W have ended by then.
void put_updates(Balance& b, std::size_t stage, double time) {
  BalancedActor& owner = b.actors[stage];
  for (; owner.updates < owner.left.size() && owner.left[owner.updates] == 0 && owner.ended[owner.updates] <= time; ++owner.updates)
    b.out.actors[stage].push_back(
        {static_cast<std::int32_t>(stage), Kind::U, static_cast<std::int32_t>(owner.updates + 1) * b.microbatches - 1});
}

void start(Balance& b, std::size_t a, const Start& begin) {
  put_updates(b, a, begin.time);
  const Action action = take(b.actors[a], begin.weight);
  const std::size_t stage = static_cast<std::size_t>(action.stage), m = static_cast<std::size_t>(action.microbatch);
  const std::size_t step = m / static_cast<std::size_t>(b.microbatches);
  b.out.actors[a].push_back(action);
  const double end = b.actors[a].free = begin.time + b.times[stage];
  if (action.kind == Kind::F) b.forward_end[stage][m] = end;
  if (action.kind == Kind::I) {
    b.input_end[stage][m] = end;
    b.actors[b.places[stage][step]].weights.push({end, action.microbatch, action.stage});
  }
  if (action.kind != Kind::W) return;
  --b.actors[stage].left[step];
  b.actors[stage].ended[step] = std::max(b.actors[stage].ended[step], end);
}

// `whole`: the rows of F and B of all the window's micro-batches.
Schedule balanced(const Schedule& whole, const ScheduleOptions& options) {
  Balance b{options.balance, options.microbatches};
  const std::size_t steps = static_cast<std::size_t>(options.window), all = steps * static_cast<std::size_t>(options.microbatches);
  b.places = places_of_weights(options.balance, options.window);
  b.out.actors.resize(whole.actors.size());
  b.out.steps = options.window;
  b.forward_end = b.input_end = std::vector(whole.actors.size(), std::vector<double>(all, kNever));
  for (const std::vector<Action>& row : whole.actors) {
    BalancedActor& actor = b.actors.emplace_back(
        BalancedActor{.order = row, .left = std::vector<int>(steps, options.microbatches), .ended = std::vector<double>(steps)});
    for (Action& action : actor.order)
      if (action.kind == Kind::B) action.kind = Kind::I;
  }
  for (std::size_t left = 3 * all * b.actors.size(); left > 0; --left) {
    std::size_t first = 0;
    Start begin;
    for (std::size_t a = 0; a < b.actors.size(); ++a)
      if (const Start next = next_start(b, b.actors[a]); next.time < begin.time) {
        begin = next;
        first = a;
      }
    invariant(begin.time < kNever, "eager 1f1b never stops");
    start(b, first, begin);
  }
  for (std::size_t stage = 0; stage < b.actors.size(); ++stage) put_updates(b, stage, kNever);
  return std::move(b.out);
}

}  // namespace

Schedule layerpipe(const ScheduleOptions& options) {
  if (options.balance.empty()) return never_drained(options, eager_one_forward_one_backward);
  ScheduleOptions window = options;
  window.microbatches *= options.window;
  return balanced(eager_one_forward_one_backward(window), options);
}

}  // namespace penstock
