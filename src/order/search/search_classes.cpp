// SPDX-License-Identifier: Apache-2.0
#include "search/search_classes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>

#include "base/text.h"
#include "penstock/error.h"
#include "search/anneal.h"
#include "search/injected_table.h"
#include "search/judge.h"
#include "search/relieve.h"
#include "search/search_with_memory.h"

namespace penstock {
namespace {

using Order = std::vector<std::size_t>;

// Seconds of a stage's backward in the way that takes least.
double backward_of(const SearchProblem& problem, const StageCosts& costs) {
  const double split = costs.of(Kind::I) + costs.of(Kind::W), whole = costs.of(Kind::B);
  return !problem.split ? whole : !problem.whole ? split : std::min(whole, split);
}

void check_problem(const SearchProblem& problem) {
  if (problem.shape.predecessors != chain(problem.actors).predecessors || problem.offload || problem.sharded || problem.steps > 1)
    throw Error("a table of micro-batches that differ is searched for a chain of one stage on each actor, and one step",
                {"other stages, several steps, offloading and gathers are not known to that search"},
                "leave them out, or let all micro-batches cost alike");
  for (std::int32_t m = 0; m < problem.microbatches; ++m) {
    for (std::int32_t s = 0; s < problem.actors; ++s) {
      const StageCosts& costs = problem.costs.of(s, m);
      for (const double time : costs.time)
        if (!(time >= 0) || std::isinf(time))
          throw Error(concat("micro-batch ", m, " takes ", number(time), " on stage ", s, "; it must be a number and not negative"));
      if (costs.parameters != 0)
        throw Error(concat("parameters of stage ", s, " count ", number(costs.parameters), ", and micro-batches differ"),
                    {"the search of such tables counts activations alone"}, "take parameters off the limit");
      if (!keeps_limit(problem, costs.live))
        throw Error(concat("micro-batch ", m, " holds ", number(costs.live), " on stage ", s, ", above the limit of ",
                           number(problem.memory_limit)),
                    {}, "raise the limit, or cut the batch into smaller micro-batches");
    }
  }
}

class ClassSearch {
 public:
  ClassSearch(const SearchProblem& problem, const SearchOptions& options)
      : problem_(problem),
        options_(options),
        relaxed_(problem),
        random_(options.seed),
        left_(options.moves),
        clock_(options.seconds),
        bound_(work_bound(problem)) {
    for (StageCosts& stage : relaxed_.costs.stages) stage.live = std::min(stage.live, stage.kept);
  }

  SearchResult run() {
    for (const Schedule& table : options_.given) consider(table, table.name);
    const std::vector<InjectionPolicy> policies = injection_policies(problem_.whole, problem_.split);
    const std::int64_t for_orders = left_ / 3;
    Listed best = best_policy(policies, first_orders());
    improve_order(std::move(best), for_orders);
    improve_found();
    SearchResult out;
    out.schedule = std::move(found_->schedule);
    out.found_by = std::move(found_->found_by);
    out.lower_bound = bound_;
    judge(problem_, out);
    return out;
  }

 private:
  struct Listed {
    Order order;
    InjectionPolicy policy;
    const SearchProblem* problem = nullptr;  // whose memory the table was listed for
    double makespan = kInfinity;
  };

  bool goes_on() const { return left_ > 0 && !clock_.is_after(1) && (!found_ || found_->makespan > bound_ * (1 + kRounding)); }

  double work_of(std::size_t m) const {
    double sum = 0;
    for (std::int32_t s = 0; s < problem_.actors; ++s) {
      const StageCosts& costs = problem_.costs.of(s, static_cast<std::int32_t>(m));
      sum += costs.of(Kind::F) + backward_of(problem_, costs);
    }
    return sum;
  }

  // Returns the orders to begin with: as given, by falling and by rising work, and with the short ones at both ends, where they fill and
  // empty the pipeline.
  std::vector<Order> first_orders() const {
    Order given(at(problem_.microbatches));
    std::iota(given.begin(), given.end(), std::size_t{0});
    Order falling = given;
    std::stable_sort(falling.begin(), falling.end(), [&](std::size_t a, std::size_t b) { return work_of(a) > work_of(b); });
    Order rising(falling.rbegin(), falling.rend()), hill;
    for (std::size_t i = 0; i < rising.size(); ++i)
      hill.insert(hill.begin() + static_cast<std::ptrdiff_t>((hill.size() + 1) / 2), rising[i]);
    std::vector<Order> out = {std::move(given)};
    for (Order* order : {&falling, &rising, &hill})
      if (std::find(out.begin(), out.end(), *order) == out.end()) out.push_back(std::move(*order));
    return out;
  }

  // Its makespan; infinity where it does not keep the limit.
  double consider(Schedule table, const std::string& found_by) {
    --left_;
    TableTime time = time_of(problem_, table);
    if (!keeps_limit(problem_, time.peak())) {
      std::optional<Schedule> relieved;
      if (problem_.recompute) relieved = relieve(problem_, std::move(table));
      if (!relieved) return kInfinity;
      table = *std::move(relieved);
      time = time_of(problem_, table);
    }
    if (!found_ || time.makespan < found_->makespan * (1 - kRounding)) found_ = {std::move(table), time.makespan, found_by};
    return time.makespan;
  }

  double consider(const Listed& listed) {
    return consider(injected_table(*listed.problem, listed.order, listed.policy), text(listed.policy));
  }

  // Every policy in the first order, with memory for all activations or, where the rest may be computed again, for what is kept of them;
  // then the other orders under the best of them.
  Listed best_policy(const std::vector<InjectionPolicy>& policies, const std::vector<Order>& orders) {
    Listed best;
    const auto attempt = [&](Listed listed) {
      if (best.makespan < kInfinity && !goes_on()) return;
      listed.makespan = consider(listed);
      if (listed.makespan < best.makespan) best = std::move(listed);
    };
    for (const InjectionPolicy& policy : policies) attempt({orders[0], policy, &problem_});
    if (problem_.recompute)
      for (const InjectionPolicy& policy : policies) attempt({orders[0], policy, &relaxed_});
    for (std::size_t i = 1; i < orders.size(); ++i) attempt({orders[i], best.policy, best.problem});
    return best;
  }

  // Micro-batches change places, or one of them moves elsewhere.
  void improve_order(Listed listed, std::int64_t most) {
    Order& current = listed.order;
    if (current.size() < 2 || listed.makespan == kInfinity) return;
    Order before;
    const auto change = [&](double) -> std::optional<double> {
      before = current;
      const std::size_t a = random_() % current.size(), b = random_() % current.size();
      if (a == b) return {};
      random_() % 2 == 0 ? std::swap(current[a], current[b]) : move_element(current, a, b);
      return consider(listed);
    };
    const auto settle = [&](double, bool stays) {
      if (!stays) current = before;
    };
    anneal(most, LateAcceptance(listed.makespan), [&](std::int64_t) { return goes_on(); }, change, settle);
  }

  void improve_found() {
    if (!goes_on()) return;
    Schedule improved = improve_table(problem_, found_->schedule, left_, random_, [&] { return clock_.is_after(1); });
    consider(std::move(improved), found_->found_by + ", improved");
  }

  const SearchProblem& problem_;
  const SearchOptions& options_;
  SearchProblem relaxed_;  // in which only what is kept counts
  std::mt19937_64 random_;
  std::int64_t left_;
  SearchClock clock_;
  double bound_;
  std::optional<FoundTable> found_;
};

}  // namespace

double work_bound(const SearchProblem& problem) {
  double bound = 0;
  const std::int32_t p = problem.actors;
  std::vector<double> head(at(p), kInfinity), tail(at(p), kInfinity), work(at(p), 0);
  for (std::int32_t m = 0; m < problem.microbatches; ++m) {
    double before = 0, after = 0;
    for (std::int32_t s = 0; s < p; ++s) {
      const StageCosts& costs = problem.costs.of(s, m);
      head[at(s)] = std::min(head[at(s)], before);
      tail[at(s)] = std::min(tail[at(s)], problem.split ? 0 : after);
      before += costs.of(Kind::F);
      after += backward_of(problem, costs);
      work[at(s)] += costs.of(Kind::F) + backward_of(problem, costs);
    }
  }
  for (std::int32_t s = 0; s < p; ++s) bound = std::max(bound, head[at(s)] + work[at(s)] + tail[at(s)]);
  return bound;
}

SearchResult search_classes(const SearchProblem& problem, const SearchOptions& options) {
  check_problem(problem);
  return ClassSearch(problem, options).run();
}

}  // namespace penstock
