// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <future>
#include <iterator>

#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/smallest_memory.h"
#include "penstock/error.h"
#include "planners/exact_plan.h"
#include "planners/improve_plan.h"
#include "planners/one_size.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

struct FoundStages {
  std::string by;  // how they were found
  std::vector<PlanStage> stages;
  PlanScore score;
};

constexpr std::size_t kImproved = 8;  // so many of the best are improved

bool small(const PlanProblem& problem) {
  return problem.graph.nodes.size() <= 10 && problem.cluster.devices.size() <= 4;
}

// Changes to a plan, for each node. `exact` only needs something to beat.
constexpr int kTries = 1000, kFewTries = 100;

int tries_for(const PlanProblem& problem, int tries = kTries) {
  return static_cast<int>(std::min<std::size_t>(problem.graph.nodes.size(), 100'000)) * tries;
}

constexpr double kAsking = 0.9;  // the share of the time in which planners are asked

// The plans of the other planners, in their own orders, and what they say where they find nothing that fits.
struct Others {
  std::vector<FoundStages> found = {};
  double memory = kInfinity;           // the least of each device that would do
  const PlannerInfo* least = nullptr;  // which says so
};

void ask(const PlannerInfo& planner, const PlanProblem& problem, int size, const PlanOptions& options, Others& others) {
  try {
    Plan plan;
    if (size == 0) {
      plan = planner.plan(problem, options);
    } else {
      const PlanProblem one_size = at_size(problem, size);
      plan = planner.plan(one_size, options);
      take_over(problem, one_size, plan);
    }
    if (!problem.batches.empty() && !has_allowed_sizes(problem, plan)) return;
    check_plan(problem, plan);
    const PlanFigures figures = figures_of(problem, plan.stages);
    if (can_be_simulated(figures)) others.found.push_back({planner.name, std::move(plan.stages), score_of(figures, PlanGoal::time)});
  } catch (const MemoryError& error) {
    if (error.needed >= others.memory) return;
    others.memory = error.needed;
    others.least = &planner;
  } catch (const Error&) {
    // It does not take this problem, or finds nothing in time.
  }
}

struct Question {
  const PlannerInfo* planner;
  int size;  // of its micro-batches; 0: as the planner takes them
};

// One for each of the planners that end by themselves; of those that take one size, one with each.
std::vector<Question> questions_for(const PlanProblem& problem) {
  std::vector<Question> questions;
  const std::vector<int> sizes = allowed_batches(problem);
  for (const PlannerInfo& planner : planners()) {
    if (planner.searches || planner.equal_groups) continue;
    if (!planner.smallest_size) questions.push_back({&planner, 0});
    for (const int size : sizes)
      if (planner.smallest_size) questions.push_back({&planner, size == measured_samples(problem.graph) ? 0 : size});
  }
  std::stable_sort(questions.begin(), questions.end(), [](const Question& a, const Question& b) { return (a.size == 0) > (b.size == 0); });
  return questions;
}

void add_answer(Others answer, Others& others) {
  std::ranges::move(answer.found, std::back_inserter(others.found));
  if (answer.memory >= others.memory) return;
  others.memory = answer.memory;
  others.least = answer.least;
}

// All at once, each on a thread of its own: who needs little is soon done, and leaves its core to those who need more. A clock of the
// caller's need not be one for threads, so by that they are asked one after the other, each in its share of what is left.
Others ask_planners(const PlanProblem& problem, const PlanOptions& options, TimeLimit& limit) {
  const std::vector<Question> questions = questions_for(problem);
  std::vector<Others> answers(questions.size());
  PlanOptions of = options;
  of.seconds = kAsking * limit.left();
  const double end = limit.left() - of.seconds;
  std::vector<std::future<void>> threads;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    if (options.clock) of.seconds = std::max(limit.left() - end, 0.0) / static_cast<double>(questions.size() - i);
    const auto answer = [&, of, i] { ask(*questions[i].planner, problem, questions[i].size, of, answers[i]); };
    options.clock ? answer() : threads.push_back(std::async(std::launch::async, answer));
  }
  for (std::future<void>& thread : threads) thread.get();
  Others others;
  for (Others& one : answers) add_answer(std::move(one), others);
  return others;
}

// The same in GraphPipe's order, that of all plans which are improved and proven.
std::vector<FoundStages> in_usual_order(std::vector<FoundStages> found) {
  for (FoundStages& one : found)
    for (PlanStage& stage : one.stages) stage.ahead = 0;
  return found;
}

void keep_fastest(std::vector<FoundStages>& found) {
  std::stable_sort(found.begin(), found.end(), [](const FoundStages& a, const FoundStages& b) { return a.score < b.score; });
  const auto same = [](const FoundStages& a, const FoundStages& b) { return a.score == b.score; };
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
}

void take_better(const PlanProblem& problem, std::vector<PlanStage> stages, FoundStages& one) {
  const PlanScore score = score_of(figures_of(problem, stages), PlanGoal::time);
  if (score >= one.score) return;
  if (!one.by.ends_with(", improved")) one.by += ", improved";
  one.stages = std::move(stages);
  one.score = score;
}

// The fastest of `found` and of even loads, of equal ones the first; as many as kImproved, at least one, looked at as far as the time goes.
std::vector<FoundStages> fastest_starts(const PlanProblem& problem, std::vector<FoundStages> found, TimeLimit& limit) {
  for (FoundStages& one : found) one.score = score_of(figures_of(problem, one.stages), PlanGoal::time);
  for (std::vector<PlanStage>& stages : starting_stages(problem, limit)) {
    if (!found.empty() && limit.is_over()) break;
    if (!sizes_agree(problem, stages) || !order_stages(problem.graph, stages)) continue;
    const PlanFigures figures = figures_of(problem, stages);
    if (!can_be_simulated(figures)) continue;
    limit.is_over(forwards_of(figures));
    found.push_back({"even loads", std::move(stages), score_of(figures, PlanGoal::time)});
  }
  if (found.empty()) throw Error(concat("the nodes of ", problem.graph.name, " have no number of devices in common that the cluster has"));
  keep_fastest(found);
  found.resize(std::min(found.size(), kImproved));
  return found;
}

// Stages whose step is short: of `found` and even loads, the best few improved. By score; not empty.
std::vector<FoundStages> improved_stages(const PlanProblem& problem, std::vector<FoundStages> found, int tries, std::uint64_t seed,
                                         TimeLimit& limit) {
  found = fastest_starts(problem, std::move(found), limit);
  for (std::size_t i = 0; i < found.size() && !limit.is_over(); ++i) {
    // Each has its share of the time that is left.
    TimeLimit share(limit.left() / static_cast<double>(found.size() - i + 1), limit.clock());
    take_better(problem, improve_stages(problem, found[i].stages, {.seed = ++seed, .tries = tries_for(problem, tries)}, share), found[i]);
  }
  keep_fastest(found);
  for (FoundStages& one : found) {
    if (limit.is_over()) break;
    take_better(problem, polish_stages(problem, one.stages, found.front().score, limit), one);
    if (one.score < found.front().score) std::swap(one, found.front());
  }
  return found;
}

// Either these stages or those of the planner that fits into the least memory: whichever needs less.
std::vector<PlanStage> leaner_stages(const PlanProblem& problem, const PlanOptions& options, const Others& others,
                                     const std::vector<PlanStage>& stages) {
  if (others.least == nullptr) return stages;
  PlanProblem enough = problem;
  for (ClusterDevice& device : enough.cluster.devices) device.memory = std::max(device.memory, others.memory);
  Others again;
  ask(*others.least, enough, 0, options, again);
  if (again.found.empty()) return stages;
  const auto needed = [&](const std::vector<PlanStage>& of) { return score_of(figures_of(problem, of), PlanGoal::memory); };
  return needed(again.found[0].stages) < needed(stages) ? again.found[0].stages : stages;
}

// Throws Error that nothing fits, with the smallest memory that would do: of small graphs it is proven, of others it is one that would.
// Returns stages where, against expectation, some fit.
std::vector<PlanStage> fail_without_memory(const PlanProblem& problem, const std::vector<PlanStage>& nearly, std::uint64_t seed,
                                           bool proven, TimeLimit& limit) {
  std::vector<PlanStage> least =
      improve_stages(problem, nearly, {.goal = PlanGoal::memory, .seed = seed, .tries = tries_for(problem)}, limit);
  if (proven) {
    ExactResult exact = exact_stages(problem, least, PlanGoal::memory, limit);
    proven = exact.finished;
    if (!exact.stages.empty()) least = std::move(exact.stages);
  }
  const PlanScore score = score_of(figures_of(problem, least), PlanGoal::memory);
  if (score.value == 0) return least;
  const auto in_bytes = [](double bytes) { return concat(bytes_text(bytes), " (", std::llround(std::ceil(bytes)), " bytes)"); };
  throw MemoryError(concat("no plan of ", problem.graph.name, " fits the memory of ", problem.cluster.name),
                    {concat("the smallest device has ", in_bytes(weakest(problem.cluster).memory)),
                     concat(proven ? "the smallest memory that would do: " : "this memory would do, maybe less: ", in_bytes(score.value),
                            " on every device")},
                    "take more devices, recomputation or smaller micro-batches", score.value);
}

}  // namespace

Plan plan_by_exact(const PlanProblem& problem, const PlanOptions& options) {
  TimeLimit limit(options.seconds, options.clock);
  if (problem.graph.nodes.size() > kExactNodes || problem.cluster.devices.size() > kExactDevices)
    exact_stages(problem, {}, PlanGoal::time, limit);  // says so
  const FoundStages start = improved_stages(problem, {}, kFewTries, options.seed, limit).front();
  ExactResult exact = exact_stages(problem, start.stages, PlanGoal::time, limit);
  Plan plan;
  plan.stages = exact.stages.empty() ? start.stages : std::move(exact.stages);
  if (exact.stages.empty() && start.score.lack > 0) plan.stages = fail_without_memory(problem, start.stages, options.seed, true, limit);
  plan.optimal = exact.finished;
  plan.bottleneck = score_of(figures_of(problem, plan.stages), PlanGoal::time).value;
  plan.lower_bound = exact.bound;
  return plan;
}

Plan plan_by_best(const PlanProblem& problem, const PlanOptions& options) {
  TimeLimit limit(options.seconds, options.clock);
  const Others others = ask_planners(problem, options, limit);
  std::vector<FoundStages> found = improved_stages(problem, in_usual_order(others.found), kTries, options.seed, limit);
  FoundStages best = std::move(found.front());
  Plan plan;
  const bool try_all = options.exact && small(problem);
  if (try_all) {
    ExactResult exact = exact_stages(problem, best.stages, PlanGoal::time, limit);
    if (!exact.stages.empty()) best = {"exact", std::move(exact.stages), exact.score};
    plan.optimal = exact.finished;
    plan.lower_bound = exact.bound;
  }
  if (best.score.lack > 0) {
    best.stages = fail_without_memory(problem, leaner_stages(problem, options, others, best.stages), options.seed, try_all, limit);
    best.score = score_of(figures_of(problem, best.stages), PlanGoal::time);
  }
  for (const FoundStages& other : others.found) {
    if (!(other.score < best.score)) continue;  // some run further ahead than usual, which slow links reward
    best = other;
    plan.optimal = false;
  }
  plan.planner = best.by;
  plan.bottleneck = best.score.value;
  plan.stages = std::move(best.stages);
  return plan;
}

}  // namespace penstock
