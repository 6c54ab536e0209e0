#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "penstock/error.h"
#include "plan/cost_model.h"
#include "plan/exact_plan.h"
#include "plan/improve_plan.h"
#include "plan/planner_list.h"

namespace penstock {
namespace {

struct FoundStages {
  std::string by;  // how they were found
  std::vector<PlanStage> stages;
  PlanScore score;
};

constexpr std::size_t kImproved = 8;  // so many of the best are improved

Deadline after(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(std::min(seconds, 1e6)));
}

bool needs_cpus(const PlanGraph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const PlanNode& node) { return node.costs.empty(); });
}

bool small(const PlanProblem& problem) {
  return problem.graph.nodes.size() <= 10 && problem.cluster.devices.size() <= 4;
}

// Changes to a plan, for each node. `exact` only needs something to beat.
constexpr int kTries = 1000, kFewTries = 100;

int tries_for(const PlanProblem& problem, int tries = kTries) {
  return static_cast<int>(std::min<std::size_t>(problem.graph.nodes.size(), 100'000)) * tries;
}

// What all other planners find, each within its share of the time, in their own orders.
std::vector<FoundStages> found_by_planners(const PlanProblem& problem, PlanOptions options) {
  std::vector<FoundStages> found;
  options.seconds /= 2 * static_cast<double>(planners().size());
  for (const PlannerInfo& planner : planners()) {
    if (planner.name == "best" || planner.name == "exact") continue;
    Plan plan;
    try {
      plan = planner.plan(problem, options);
    } catch (const Error&) {
      continue;  // it does not take this problem, or finds nothing that fits as it counts
    }
    check_plan(problem, plan);
    const PlanScore score = score_of(figures_of(problem, plan.stages), PlanGoal::time);
    found.push_back({planner.name, std::move(plan.stages), score});
  }
  return found;
}

// The same in GraphPipe's order, that of all plans which are improved and proven. Those are on devices.
std::vector<FoundStages> in_usual_order(const ClusterSpec& cluster, std::vector<FoundStages> found) {
  const auto on_cpu = [&](const PlanStage& stage) { return cluster.is_cpu(stage.devices.back()); };
  std::erase_if(found, [&](const FoundStages& one) { return std::any_of(one.stages.begin(), one.stages.end(), on_cpu); });
  for (FoundStages& one : found)
    for (PlanStage& stage : one.stages) stage.ahead = 0;
  return found;
}

void take_better(const PlanProblem& problem, std::vector<PlanStage> stages, FoundStages& one) {
  const PlanScore score = score_of(figures_of(problem, stages), PlanGoal::time);
  if (score >= one.score) return;
  if (!one.by.ends_with(", improved")) one.by += ", improved";
  one.stages = std::move(stages);
  one.score = score;
}

// Stages whose step is short: of `found` and even loads, the best few improved. By score; not empty.
std::vector<FoundStages> improved_stages(const PlanProblem& problem, std::vector<FoundStages> found, int tries, std::uint64_t seed,
                                         Deadline deadline) {
  for (std::vector<PlanStage>& stages : starting_stages(problem))
    if (sizes_agree(problem, stages) && order_stages(problem.graph, stages)) found.push_back({"even loads", std::move(stages), {}});
  if (found.empty()) throw Error(concat("the nodes of ", problem.graph.name, " have no number of devices in common that the cluster has"));
  const auto by_score = [](const FoundStages& a, const FoundStages& b) { return a.score < b.score; };
  for (FoundStages& one : found) one.score = score_of(figures_of(problem, one.stages), PlanGoal::time);
  std::stable_sort(found.begin(), found.end(), by_score);
  const auto same = [](const FoundStages& a, const FoundStages& b) { return a.score == b.score; };
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  found.resize(std::min(found.size(), kImproved));
  for (std::size_t i = 0; i < found.size(); ++i) {
    // Each has its share of the time that is left.
    const Deadline now = std::chrono::steady_clock::now(), share = now + (deadline - now) / (found.size() - i + 1);
    const ImproveOptions options{.seed = ++seed, .tries = tries_for(problem, tries), .deadline = share};
    take_better(problem, improve_stages(problem, found[i].stages, options), found[i]);
  }
  std::stable_sort(found.begin(), found.end(), by_score);
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  for (FoundStages& one : found) {
    take_better(problem, polish_stages(problem, one.stages, found.front().score, deadline), one);
    if (one.score < found.front().score) std::swap(one, found.front());
  }
  return found;
}

// Throws Error that nothing fits, with the smallest memory that would do: of small graphs it is proven, of others it is one that would.
// Returns stages where, against expectation, some fit.
std::vector<PlanStage> fail_without_memory(const PlanProblem& problem, const std::vector<PlanStage>& nearly, std::uint64_t seed,
                                           bool proven, Deadline deadline) {
  std::vector<PlanStage> least =
      improve_stages(problem, nearly, {.goal = PlanGoal::memory, .seed = seed, .tries = tries_for(problem), .deadline = deadline});
  if (proven) {
    ExactResult exact = exact_stages(problem, least, PlanGoal::memory, deadline);
    proven = exact.finished;
    if (!exact.stages.empty()) least = std::move(exact.stages);
  }
  const PlanScore score = score_of(figures_of(problem, least), PlanGoal::memory);
  if (score.value == 0) return least;
  const auto in_bytes = [](double bytes) { return concat(bytes_text(bytes), " (", std::llround(std::ceil(bytes)), " bytes)"); };
  throw Error(concat("no plan of ", problem.graph.name, " fits the memory of ", problem.cluster.name),
              {concat("the smallest device has ", in_bytes(weakest(problem.cluster).memory)),
               concat(proven ? "the smallest memory that would do: " : "this memory would do, maybe less: ", in_bytes(score.value),
                      " on every device")},
              "take more devices, recomputation or smaller micro-batches");
}

// Where nodes run on host processors only.
Plan plan_on_cpus(const PlanProblem& problem, const PlanOptions& options) {
  Plan plan = plan_by_max_load(problem, options);
  plan.planner = "max-load";
  plan.bottleneck = score_of(figures_of(problem, plan.stages), PlanGoal::time).value;
  plan.optimal = false;
  return plan;
}

}  // namespace

Plan plan_by_exact(const PlanProblem& problem, const PlanOptions& options) {
  const Deadline deadline = after(options.seconds);
  if (problem.graph.nodes.size() > kExactNodes || problem.cluster.devices.size() > kExactDevices)
    exact_stages(problem, {}, PlanGoal::time, deadline);  // says so
  const FoundStages start = improved_stages(problem, {}, kFewTries, options.seed, deadline).front();
  ExactResult exact = exact_stages(problem, start.stages, PlanGoal::time, deadline);
  Plan plan;
  plan.stages = exact.stages.empty() ? start.stages : std::move(exact.stages);
  if (exact.stages.empty() && start.score.lack > 0) plan.stages = fail_without_memory(problem, start.stages, options.seed, true, deadline);
  plan.optimal = exact.finished;
  plan.bottleneck = score_of(figures_of(problem, plan.stages), PlanGoal::time).value;
  if (plan.optimal) plan.lower_bound = plan.bottleneck;
  return plan;
}

Plan plan_by_best(const PlanProblem& problem, const PlanOptions& options) {
  if (needs_cpus(problem.graph)) return plan_on_cpus(problem, options);
  const Deadline deadline = after(options.seconds);
  const std::vector<FoundStages> others = found_by_planners(problem, options);
  std::vector<FoundStages> found = improved_stages(problem, in_usual_order(problem.cluster, others), kTries, options.seed, deadline);
  FoundStages best = std::move(found.front());
  Plan plan;
  const bool try_all = options.exact && small(problem);
  if (try_all) {
    ExactResult exact = exact_stages(problem, best.stages, PlanGoal::time, deadline);
    if (!exact.stages.empty()) best = {"exact", std::move(exact.stages), exact.score};
    plan.optimal = exact.finished && !uses_cpus(problem);
  }
  if (best.score.lack > 0) {
    best.stages = fail_without_memory(problem, best.stages, options.seed, try_all, deadline);
    best.score = score_of(figures_of(problem, best.stages), PlanGoal::time);
  }
  for (const FoundStages& other : others) {
    if (!(other.score < best.score)) continue;  // some run further ahead than usual, which slow links reward
    best = other;
    plan.optimal = false;
  }
  plan.planner = best.by;
  plan.bottleneck = best.score.value;
  if (plan.optimal) plan.lower_bound = plan.bottleneck;
  plan.stages = std::move(best.stages);
  return plan;
}

}  // namespace penstock
