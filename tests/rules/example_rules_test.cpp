// SPDX-License-Identifier: Apache-2.0
// The schedules of examples/schedules: as fast and as small as the published ones' generators, in a few lines.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "rules/load_schedule.h"
#include "support/paths.h"

namespace penstock {
namespace {

const std::string kFolder = test::tests_folder() + "/../examples/schedules/";

Rules example(const std::string& name) {
  return parse_rules(read_file(kFolder + name + ".rules"), name + ".rules");
}

struct Figures {
  double makespan = 0;
  std::vector<double> live;
};

// F=1, B=2 (I=W=1) for an actor's whole share.
Figures figures(const Schedule& schedule, const StageShape& shape) {
  const double share = static_cast<double>(schedule.actors.size()) / schedule.stages();
  const TableTime time = time_table(schedule, shape, uniform_costs(schedule.stages(), {}, share));
  return {time.makespan, time.peak_live};
}

Figures figures(const Rules& rules, const ScheduleOptions& options) {
  const Schedule schedule = make_schedule(rules, options);
  const StageShape shape = shape_of(schedule);
  validate(schedule, shape, options.microbatches);
  return figures(schedule, shape);
}

Figures figures(const std::string& name, const ScheduleOptions& options) {
  const Schedule schedule = make_schedule(name, options);
  return figures(schedule, chain(schedule.stages()));
}

// Calls visit with p = 2, 3, 4, 8 and m = p .. 4p.
template <class Visit>
void for_each_size(int chunks, Visit&& visit) {
  for (int p : {2, 3, 4, 8}) {
    for (int m = p; m <= 4 * p; ++m) {
      SCOPED_TRACE(testing::Message() << "p " << p << " m " << m << " chunks " << chunks);
      visit(ScheduleOptions{.actors = p, .microbatches = m, .chunks = chunks});
    }
  }
}

void expect_same(const std::string& rules, const std::string& generator, int chunks = 1) {
  SCOPED_TRACE(rules);
  const Rules read = example(rules);
  for_each_size(chunks, [&](const ScheduleOptions& options) {
    const Figures ours = figures(read, options), published = figures(generator, options);
    EXPECT_NEAR(ours.makespan, published.makespan, 1e-9);
    EXPECT_EQ(ours.live, published.live);
  });
}

// The tables are the same for any number of micro-batches.
void expect_same_tables(const std::string& rules, const std::string& generator) {
  const Rules read = example(rules);
  for (int p : {2, 4, 6, 8}) {
    for (int m = 1; m <= 4 * p + 1; ++m) {
      const ScheduleOptions options{.actors = p, .microbatches = m};
      EXPECT_EQ(make_schedule(read, options).actors, make_schedule(generator, options).actors) << rules << " p " << p << " m " << m;
    }
  }
}

TEST(ExampleRules, AreTheGeneratorsTables) {
  expect_same_tables("gpipe", "gpipe");
  expect_same_tables("1f1b", "1f1b");
  expect_same_tables("eager-1f1b", "eager-1f1b");
  expect_same_tables("bidirectional", "chimera");
}

TEST(ExampleRules, AreAsTheGenerators) {
  expect_same("zb-h1", "zb-h1");
  for (int chunks : {1, 2, 3}) expect_same("breadth-first", "breadth-first", chunks);
  for (int chunks : {1, 2}) expect_same("interleaved-1f1b", "interleaved-1f1b", chunks);
}

// With a last group of fewer than p micro-batches the generator waits where the rules go on.
TEST(ExampleRules, ManyChunksAreNoSlowerThanTheGenerator) {
  const Rules rules = example("interleaved-1f1b");
  for (int chunks : {3, 4}) {
    for_each_size(chunks, [&](const ScheduleOptions& options) {
      const Figures ours = figures(rules, options), published = figures("interleaved-1f1b", options);
      EXPECT_LE(ours.makespan, published.makespan + 1e-9);
      EXPECT_EQ(ours.live, published.live);
      if (options.microbatches % options.actors == 0) {
        EXPECT_NEAR(ours.makespan, published.makespan, 1e-9);
      }
    });
  }
}

// As the generator from the 2p-1 micro-batches on that its warm-up needs; below them it leaves out what does not exist of a larger table,
// and the rules take at most (p-1)F/2 more.
TEST(ExampleRules, ZeroBubbleV) {
  const Rules rules = example("zb-v");
  for_each_size(2, [&](const ScheduleOptions& options) {
    const Figures ours = figures(rules, options), published = figures("zb-v", options);
    const bool full = options.microbatches >= 2 * options.actors - 1;
    EXPECT_LE(ours.makespan, published.makespan + (full ? 1e-9 : (options.actors - 1) / 2.0));
    if (!full) return;
    EXPECT_NEAR(ours.makespan, 3 * options.microbatches + (options.actors - 1) / 2.0, 1e-9);
    EXPECT_NEAR(ours.makespan, published.makespan, 1e-9);
    EXPECT_EQ(ours.live, published.live);
  });
}

// The generator makes whole units of p micro-batches and leaves out what does not exist; the rules need not.
TEST(ExampleRules, Waves) {
  const Rules wave = example("wave");
  for (int p : {2, 4, 8}) {
    for (int m = p; m <= 4 * p; ++m) {
      for (int chunks : {4, 6}) {
        SCOPED_TRACE(testing::Message() << "p " << p << " m " << m << " chunks " << chunks);
        const ScheduleOptions options{.actors = p, .microbatches = m, .chunks = chunks};
        const Figures ours = figures(wave, options), published = figures("hanayo", options);
        EXPECT_LE(*std::max_element(ours.live.begin(), ours.live.end()), p);
        if (m % p != 0) continue;
        EXPECT_NEAR(ours.makespan, published.makespan, 1e-9);
        EXPECT_EQ(ours.live, published.live);
      }
    }
  }
}

// CrossPipe's greedy (2507.00217) with 2p micro-batches in flight: a slow link costs its latency once.
TEST(ExampleRules, SlowLink) {
  const Rules rules = parse_rules("penstock rules 1 prefer I F W limit 2*p", "greedy.rules");
  const TableCosts costs = uniform_costs(4);
  for (int latency : {0, 1, 2}) {
    const Link slow{.latency = static_cast<double>(latency)};
    const Network network{.between = {{{2, 3}, slow}, {{3, 2}, slow}}};
    const Schedule schedule = schedule_by(rules, {.actors = 4, .microbatches = 8}, costs, network).schedule;
    EXPECT_EQ(time_table(schedule, chain(4), costs, {.network = network}).makespan, 27 + latency);
  }
}

TEST(ExampleRules, TakeTenLinesAtMost) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string text = read_file(entry.path().string());
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 10) << entry.path();
    const Rules rules = parse_rules(text, entry.path().string());
    EXPECT_EQ(print(parse_rules(print(rules), "printed")), print(rules)) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 11u);
}

}  // namespace
}  // namespace penstock
