// Searched tables against brute force, generators and proven bounds.
#include "plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/work.h"
#include "support/errors.h"
#include "support/random_schedule.h"

namespace penstock {
namespace {

using test::message_of;
using test::Random;

std::size_t at(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

double largest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

SearchProblem uniform(int actors, int microbatches, double limit, const UnitCosts& costs = {}, int chunks = 1) {
  SearchProblem problem;
  problem.actors = actors;
  problem.microbatches = microbatches;
  problem.shape = chain(actors * chunks);
  problem.costs = uniform_costs(actors * chunks, costs, 1.0 / chunks);
  problem.memory_limit = limit;
  return problem;
}

// F:I:W between 1:1:1 and 1:1.6:0.4, stages from half to one and a half times as large, latency 0 to 1; in sixteenths, so that sums are
// exact. B is I and W.
SearchProblem random_problem(Random& random, int most_actors, int most_microbatches) {
  const int actors = test::draw(random, 2, most_actors), microbatches = test::draw(random, 2, most_microbatches);
  const double skew = test::draw(random, 0, 9) / 16.0;
  SearchProblem problem = uniform(actors, microbatches, 0);
  for (StageCosts& stage : problem.costs.stages) {
    const double size = test::draw(random, 8, 24) / 16.0;
    stage.time = {size, 2 * size, size * (1 + skew), size * (1 - skew)};
  }
  problem.network.link.latency = test::draw(random, 0, 16) / 16.0;
  const int limit = test::draw(random, 1, microbatches + 1);
  problem.memory_limit = limit > microbatches ? std::numeric_limits<double>::infinity() : limit;
  return problem;
}

std::string words(const SearchProblem& problem) {
  return concat(problem.actors, " actors, ", problem.microbatches, " micro-batches, limit ", problem.memory_limit, ", latency ",
                problem.network.link.latency);
}

SearchOptions steps(std::int64_t moves, std::int64_t nodes) {
  SearchOptions options;
  options.moves = moves;
  options.nodes = nodes;
  return options;
}

// Stage s of every micro-batch on actor s: what the brute force goes through. (Two copies of every stage are faster.)
SearchOptions without_replicas(const SearchProblem& problem, SearchOptions options = {}) {
  Route route;
  for (int stage = 0; stage < problem.actors; ++stage) route.actor_of_stage.push_back(stage);
  for (int m = 0; m < problem.microbatches; ++m) route.microbatches.push_back(m);
  options.placements = {{route}};
  return options;
}

void expect_valid(const SearchProblem& problem, const SearchResult& result) {
  validate(result.schedule, problem.shape, problem.microbatches);
  const TableTime time = time_table(result.schedule, problem.shape, problem.costs, {.network = problem.network});
  EXPECT_EQ(time.makespan, result.time.makespan);
  EXPECT_LE(largest(time.peak_live), problem.memory_limit * (1 + 1e-9)) << words(problem);
  EXPECT_LE(result.lower_bound, time.makespan);
  EXPECT_TRUE(result.generator.empty() || time.makespan <= result.generator_time) << words(problem);
}

// All orders of one actor's F, I and W, each kind in the order of micro-batches, that keep the limit.
void all_rows(int stage, int m, double limit, std::vector<Action> row, int f, int i, int w, std::vector<std::vector<Action>>& out) {
  if (w == m) return out.push_back(row);
  const auto go_on = [&](Kind kind, int k) {
    std::vector<Action> longer = row;
    longer.push_back({stage, kind, k});
    all_rows(stage, m, limit, longer, f + (kind == Kind::F), i + (kind == Kind::I), w + (kind == Kind::W), out);
  };
  if (f < m && f - w < limit) go_on(Kind::F, f);
  if (i < f) go_on(Kind::I, i);
  if (w < i) go_on(Kind::W, w);
}

// The fastest of all combinations of rows; one stage per actor.
double brute_force(const SearchProblem& problem) {
  std::vector<std::vector<std::vector<Action>>> rows(at(problem.actors));
  for (int a = 0; a < problem.actors; ++a) all_rows(a, problem.microbatches, problem.memory_limit, {}, 0, 0, 0, rows[at(a)]);
  std::vector<std::size_t> chosen(rows.size(), 0);
  double best = std::numeric_limits<double>::infinity();
  Schedule schedule;
  schedule.actors.resize(rows.size());
  for (std::size_t a = 0; a < rows.size(); ++a) schedule.actors[a] = rows[a][0];
  for (;;) {
    const WorkIndex work = index_work(schedule, problem.shape, problem.microbatches);
    const std::vector<std::int32_t> ran = walk(work, [](Position) {});
    if (std::all_of(ran.begin(), ran.end(), [&](std::int32_t n) { return n == 3 * problem.microbatches; }))
      best = std::min(best, time_table(work, problem.costs, {.network = problem.network}).makespan);
    std::size_t a = 0;
    for (; a < rows.size(); ++a) {
      chosen[a] = (chosen[a] + 1) % rows[a].size();
      schedule.actors[a] = rows[a][chosen[a]];
      if (chosen[a] > 0) break;
    }
    if (a == rows.size()) return best;
  }
}

void expect_brute_force(int actors, int microbatches, int cases, std::uint64_t seed) {
  Random random(seed);
  for (int n = 0; n < cases; ++n) {
    SearchProblem problem = random_problem(random, actors, microbatches);
    while (problem.actors != actors || problem.microbatches != microbatches) problem = random_problem(random, actors, microbatches);
    const SearchResult result = search_schedule(problem, without_replicas(problem, steps(2000, 100000)));
    expect_valid(problem, result);
    EXPECT_TRUE(result.optimal) << words(problem);
    EXPECT_EQ(result.time.makespan, brute_force(problem)) << words(problem) << ", seed " << seed;
  }
}

TEST(Search, EqualsBruteForce) {
  for (int microbatches = 1; microbatches <= 4; ++microbatches) {
    if (microbatches > 1) expect_brute_force(2, microbatches, microbatches < 4 ? 6 : 2, 11);
    for (double limit = 1; limit <= microbatches && microbatches < 4; ++limit) {
      const SearchProblem problem = uniform(2, microbatches, limit);
      EXPECT_EQ(search_schedule(problem, without_replicas(problem)).time.makespan, brute_force(problem)) << words(problem);
    }
  }
  expect_brute_force(3, 2, 6, 12);
  expect_brute_force(3, 3, 3, 13);
}

TEST(Search, ThirtyRandomInstances) {
  Random random(2024);
  int proven = 0;
  double worst = 0;
  for (int n = 0; n < 30; ++n) {
    const SearchProblem problem = random_problem(random, 8, 16);
    const SearchResult result = search_schedule(problem, steps(5000, 20000));
    expect_valid(problem, result);
    proven += result.optimal;
    worst = std::max(worst, result.gap());
    std::printf("%2d %s: %s %.4f (generator %.4f) bound %.4f gap %.2f %% %s nodes %ld by %s\n", n, words(problem).c_str(), "",
                result.time.makespan, result.generator_time, result.lower_bound, 100 * result.gap(), result.optimal ? "optimal" : "",
                result.nodes, result.found_by.c_str());
  }
  std::printf("%d proven, worst gap %.2f %%\n", proven, 100 * worst);
}

}  // namespace
}  // namespace penstock
