// SPDX-License-Identifier: Apache-2.0
// The search that moves sends, against all rows of tiny tables.
#include "search/order_transfers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/numbers.h"
#include "base/text.h"
#include "schedule/transfers.h"
#include "support/errors.h"
#include "support/random_schedule.h"

namespace penstock {
namespace {

using Row = std::vector<Action>;

// All orders of the row's actions in which F is ahead of B, and each send behind what it sends. Micro-batches are alike, so that each kind
// runs them in order.
std::vector<Row> orders_of(Row row) {
  std::vector<Row> out;
  std::ranges::sort(row);
  const auto place = [](const Row& of, Kind kind, std::int32_t m) {
    return std::ranges::find_if(of, [&](const Action& a) { return a.kind == kind && a.microbatch == m; }) - of.begin();
  };
  do {
    bool fits = true;
    for (const Action& a : row) {
      const auto own = place(row, a.kind, a.microbatch);
      if (a.microbatch > 0) fits = fits && place(row, a.kind, a.microbatch - 1) < own;
      if (a.kind != Kind::F) fits = fits && place(row, a.kind == Kind::SEND_B ? Kind::B : Kind::F, a.microbatch) < own;
    }
    if (fits) out.push_back(row);
  } while (std::ranges::next_permutation(row).found);
  return out;
}

double makespan(const SearchProblem& problem, const Schedule& schedule) {
  const WorkIndex work = index_work(schedule, problem.shape, problem.microbatches);
  const std::vector<std::int32_t> ran = walk(work, [](Position) {});
  for (std::size_t a = 0; a < ran.size(); ++a)
    if (ran[a] < std::ssize(schedule.actors[a])) return kInfinity;
  return time_table(schedule, problem.shape, problem.costs, {.network = problem.network}).makespan;
}

// The least over all orders of all rows.
double least(const SearchProblem& problem, const Schedule& schedule) {
  std::vector<std::vector<Row>> orders;
  for (const Row& row : schedule.actors) orders.push_back(orders_of(row));
  Schedule table = schedule;
  double found = kInfinity;
  const std::function<void(std::size_t)> choose = [&](std::size_t actor) {
    if (actor == orders.size()) {
      found = std::min(found, makespan(problem, table));
      return;
    }
    for (const Row& row : orders[actor]) {
      table.actors[actor] = row;
      choose(actor + 1);
    }
  };
  choose(0);
  return found;
}

// A chain of three actors whose links are one medium, so that what one sends another waits for.
SearchProblem on_one_medium(test::Random& random) {
  SearchProblem problem{.shape = chain(3), .actors = 3, .microbatches = 2, .costs = uniform_costs(3), .split = false};
  for (StageCosts& stage : problem.costs.stages) {
    stage.of(Kind::F) = test::draw(random, 1, 4);
    stage.of(Kind::B) = test::draw(random, 1, 6);
    stage.forward_bytes = test::draw(random, 1, 6);
    stage.backward_bytes = test::draw(random, 1, 6);
  }
  problem.network.link = {.latency = 1.0 * test::draw(random, 0, 2), .bandwidth = 1, .medium = 0};
  return problem;
}

// In two of these no order of the rows alone is as fast as one in which a send waits.
TEST(OrderTransfers, FindsTheBestOfAllRows) {
  struct Expected {
    std::uint64_t seed;
    double inferred, ordered;
  };
  for (const Expected& expected : {Expected{3, 39, 39}, Expected{7, 55, 54}, Expected{11, 58, 55}}) {
    SCOPED_TRACE(expected.seed);
    test::Random random(expected.seed);
    SearchProblem problem = on_one_medium(random);
    const Schedule start = make_schedule("gpipe", {.actors = 3, .microbatches = 2});
    EXPECT_EQ(least(problem, start), expected.inferred);
    EXPECT_EQ(least(problem, with_sends(start, problem.shape)), expected.ordered);
    problem.order_transfers = true;
    const SearchResult found = search_schedule(problem, {.moves = 4000});
    EXPECT_EQ(found.time.makespan, expected.ordered) << print(found.schedule);
    EXPECT_LE(found.lower_bound, expected.ordered);
    EXPECT_EQ(test::message_of([&] { validate(found.schedule, problem.shape, problem.microbatches); }), "no error");
  }
}

TEST(OrderTransfers, AreOfOneStepAndAChain) {
  SearchProblem problem{.shape = chain(2), .actors = 2, .microbatches = 2, .costs = uniform_costs(2), .steps = 2};
  problem.order_transfers = true;
  EXPECT_EQ(test::message_of([&] { search_schedule(problem); }),
            "where transfers start is said in tables of one step, not of 2\n"
            "  hint: leave it to lowering (without --order-transfers), or take --window 1");
  problem = {.shape = chain(3), .actors = 3, .microbatches = 2, .costs = uniform_costs(3)};
  problem.shape.predecessors[2] = {0, 1};
  problem.order_transfers = true;
  EXPECT_EQ(test::message_of([&] { search_schedule(problem); }),
            "where transfers start is searched for chains of stages\n  hint: leave out --order-transfers");
}

}  // namespace
}  // namespace penstock
