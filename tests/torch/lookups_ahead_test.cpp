// SPDX-License-Identifier: Apache-2.0
// Rows that are looked up while the step before computes, run: the same bits as rows that are looked up when they are read.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <utility>

#include "base/text.h"
#include "penstock/compile.h"
#include "penstock/session.h"
#include "support/errors.h"
#include "support/seed.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::message_of;

// Stage 0 looks up `bag` rows of width 1 for each sample, or their sum, stage 1 has the loss (c * sum of rows - target)^2 / 2. The update
// is by the sum of a step's gradients; c has none where it is not trained.
struct Bags {
  int microbatches = 1, samples = 1, bag = 2, rows = 4;
  double rate = 0.25, momentum = 0, weight_decay = 0;
  bool is_plain = false;  // w - rate * gradient, without an op of the optimiser
  bool by_rows = false;   // update_by_rows, of a table of more rows than a step has indices or, where it is lazy, of any
  bool is_lazy = false;
  bool is_summed = false;  // embedding_bag
  int devices = 1;         // of each actor
};

std::string step_text(const Bags& b) {
  const std::string table = concat("f64[", b.rows, ",1]"), of_keys = concat("f64[", b.samples, ",", b.bag, ",1]"),
                    each = concat("f64[", b.samples, "]"), keys = concat("i64[", b.samples, ",", b.bag, "]"),
                    all_keys = concat("i64[", b.samples * b.microbatches, ",", b.bag, "]"),
                    all = concat("f64[", b.samples * b.microbatches, "]");
  const std::string of_bags = concat("f64[", b.samples, ",1]");
  const std::string sums = b.is_summed ? concat("    %0: ", of_bags, " = embedding_bag(%w, %keys) {stage=\"0\"}\n    %1: ", each,
                                                " = sum(%0) {dim=[1], keepdim=false, stage=\"1\"}\n")
                                       : concat("    %0: ", of_keys, " = embedding(%w, %keys) {stage=\"0\"}\n    %1: ", each,
                                                " = sum(%0) {dim=[1, 2], keepdim=false, stage=\"1\"}\n");
  const std::string gradient =
      b.is_summed
          ? concat("    %8: ", of_bags, " = reshape(%7) {phase=\"backward\", shape=[", b.samples, ", 1], stage=\"1\"}\n    %9: ", of_bags,
                   " = mul(%8) {other=1.0, phase=\"backward\", stage=\"1\"}\n    %10: ", table,
                   " = embedding_bag_dense_backward(%9, %keys) {num_weights=")
          : concat("    %8: f64[", b.samples, ",1,1] = reshape(%7) {phase=\"backward\", shape=[", b.samples,
                   ", 1, 1], stage=\"1\"}\n    %9: ", of_keys, " = expand(%8) {phase=\"backward\", size=[", b.samples, ", ", b.bag,
                   ", 1], stage=\"1\"}\n    %10: ", table, " = embedding_dense_backward(%9, %keys) {num_weights=");
  const std::string body =
      concat(sums, "    %2: ", each, " = mul(%1, %c) {stage=\"1\"}\n    %3: ", each, " = sub(%2, %target) {stage=\"1\"}\n    %4: ", each,
             " = mul(%3, %3) {stage=\"1\"}\n    %5: ", each, " = mul(%4) {other=0.5, stage=\"1\"}\n",
             "    %6: f64[] = sum(%5) {dim=[0], keepdim=false, stage=\"1\"}\n    %7: ", each,
             " = mul(%3, %c) {phase=\"backward\", stage=\"1\"}\n", gradient, b.rows, ", phase=\"backward\", stage=\"0\"}\n    %11: ", each,
             " = mul(%3, %1) {phase=\"backward\", stage=\"1\"}\n    %12: f64[] = sum(%11) {dim=[0], keepdim=false, phase=\"backward\", "
             "stage=\"1\"}\n    return %6, %10, %12\n");
  const std::string update = b.is_plain
                                 ? concat("  %4: ", table, " = mul(%1) {other=", b.rate, "}\n  %5: ", table,
                                          " = sub(%w, %4)\n  %6: ", table, " = mul(%v) {other=1.0}\n")
                                 : concat("  %5: ", table, ", %6: ", table, " = sgd(%w, %1, %v, %rate) {momentum=", number(b.momentum),
                                          ", weight_decay=", number(b.weight_decay), "}\n");
  return concat("penstock graph 1\ngraph @bags(%w: ", table, ", %v: ", table, ", %c: f64[], %keys: ", all_keys, ", %target: ", all,
                ", %rows: i64[", b.samples * b.microbatches, "]) -> (", table, ", ", table,
                ", f64[], f64[]) {state=3, outputs=[\"loss\"]} {\n  %0: f64[], %1: ", table,
                ", %2: f64[] = accumulate(%keys, %target, %rows, %w, %c) {microbatches=", b.microbatches, ", split=3} (%keys: ", keys,
                ", %target: ", each, ", %rows: i64[", b.samples, "], %w: ", table, ", %c: f64[]) -> (f64[], ", table, ", f64[]) {\n", body,
                "  }\n  %rate: f64[] = full() {dtype=f64, fill_value=", b.rate, ", size=[]}\n", update,
                "  %7: f64[] = mul(%2) {other=0.0}\n  %8: f64[] = sub(%c, %7)\n  return %5, %6, %8, %0\n}\n");
}

struct Data {
  std::vector<std::int64_t> keys;
  std::vector<double> targets;
};

struct Outcome {
  std::vector<double> table, losses;

  bool operator==(const Outcome&) const = default;
};

Program compiled(const Bags& b, const Schedule& table, bool prefetch) {
  Bags parts = b;  // the devices of an actor share a micro-batch
  parts.microbatches *= b.devices;
  parts.samples /= b.devices;
  const Graph step = parse_graph(step_text(parts), "bags");
  return compile(b.by_rows ? update_by_rows(step, b.is_lazy) : step, table,
                 {.devices = std::vector<int>(table.actors.size(), b.devices), .prefetch = prefetch});
}

// All steps of the data, from rows 1/4, 2/4, ....
Outcome run(const Bags& b, const Schedule& table, const Data& data, bool prefetch) {
  Session session(static_cast<int>(table.actors.size()) * b.devices);
  session.load("train", compiled(b, table, prefetch));
  std::vector<double> rows;
  for (int row = 0; row < b.rows; ++row) rows.push_back((row + 1) / 4.0);
  session.set_state({{"w", host_tensor<double>({b.rows, 1}, rows)},
                     {"v", host_tensor<double>({b.rows, 1}, std::vector<double>(b.rows))},
                     {"c", host_tensor<double>({}, {1})}});
  const std::int64_t of_step = std::int64_t{b.samples} * b.microbatches, samples = of_step * table.steps;
  std::vector<std::int64_t> numbers;
  // Where nobody reads them they are of a step.
  for (std::int64_t sample = 0; sample < (b.by_rows ? samples : of_step); ++sample) numbers.push_back(sample % of_step);
  Outcome out;
  for (std::int64_t done = 0; done < std::ssize(data.targets); done += samples) {
    const std::vector<std::int64_t> keys(data.keys.begin() + done * b.bag, data.keys.begin() + (done + samples) * b.bag);
    const std::vector<double> targets(data.targets.begin() + done, data.targets.begin() + done + samples);
    std::map<std::string, HostTensor> given = {{"keys", host_tensor<std::int64_t>({samples, b.bag}, keys)},
                                               {"target", host_tensor<double>({samples}, targets)},
                                               {"rows", host_tensor<std::int64_t>({std::ssize(numbers)}, numbers)}};
    // The update by rows reads a step's keys as a whole.
    for (int step = 0; b.by_rows && step < table.steps; ++step) {
      const auto begin = keys.begin() + step * of_step * b.bag;
      given[table.steps == 1 ? "keys" : concat("keys.", step)] =
          host_tensor<std::int64_t>({of_step, b.bag}, {begin, begin + of_step * b.bag});
    }
    const StepReport report = session.step("train", given);
    for (int step = 0; step < table.steps; ++step)
      out.losses.push_back(values<double>(report.outputs.at(table.steps == 1 ? "loss" : concat("loss.", step)))[0]);
  }
  out.table = values<double>(session.state("w"));
  return out;
}

Schedule nestpipe(int microbatches, int window) {
  return make_schedule("nestpipe", {.actors = 2, .microbatches = microbatches, .window = window});
}

// The same by plain loops over a sample a step: what a buffer has of each row is taken before the update of the step before, is renewed
// behind that or not, and is what is updated and stored.
std::vector<double> with_buffers(const Data& data, bool are_renewed) {
  std::vector<double> rows = {.25, .5, .75, 1}, before = rows;
  for (std::size_t k = 0; k < data.targets.size(); ++k) {
    const std::vector<double> ahead = are_renewed ? rows : std::exchange(before, rows);
    const std::size_t one = data.keys[2 * k], other = data.keys[2 * k + 1];
    const double step = 0.25 * (ahead[one] + ahead[other] - data.targets[k]);
    rows[one] = ahead[one] - step;
    rows[other] = ahead[other] - step;
  }
  return rows;
}

TEST(LookupsAhead, ChangedRowsAreReadAgain) {
  const Bags bags;
  const Data data{{0, 1, 1, 2, 2, 0, 1, 3}, {1, -1, .5, 2}};
  const std::vector<double> exact = {.31640625, .23828125, .17578125, 1.25390625}, unsynchronised = {.171875, .203125, .609375, 1.265625};
  EXPECT_EQ(with_buffers(data, true), exact);
  EXPECT_EQ(with_buffers(data, false), unsynchronised);
  for (const int window : {2, 4}) EXPECT_EQ(run(bags, nestpipe(1, window), data, true).table, exact) << window;
  EXPECT_EQ(run(bags, nestpipe(1, 4), data, false).table, exact);
}

// A table may say that a forward reads the rows as they were before the last update. Its gradients are then late, but no update is lost.
TEST(LookupsAhead, LeaveReadsOfOlderVersionsAlone) {
  const Data data{{0, 1, 1, 2, 2, 0, 1, 3}, {1, -1, .5, 2}};
  Schedule late = nestpipe(1, 4);
  for (Action& action : late.actors[0])
    if (action.kind == Kind::F) action.version = std::max(0, action.microbatch - 1);
  const std::vector<double> rows = {.171875, .25, .046875, 1.25};
  EXPECT_EQ(run({}, late, data, false).table, rows);
  EXPECT_EQ(run({}, late, data, true).table, rows);
}

Data data_of(const Bags& b, int steps, const std::function<std::int64_t(int step, int at)>& key) {
  Data out;
  std::mt19937 random(7);
  const int samples = b.samples * b.microbatches;
  for (int step = 0; step < steps; ++step)
    for (int s = 0; s < samples; ++s) {
      for (int k = 0; k < b.bag; ++k) out.keys.push_back(key(step, s * b.bag + k));
      out.targets.push_back(static_cast<double>(random() % 1000) / 333 - 1);
    }
  return out;
}

TEST(LookupsAhead, ARunHasTheSameBits) {
  const Bags bags{.microbatches = 2, .samples = 3, .bag = 2, .rows = 24, .rate = 0.03};
  std::mt19937 random(3);
  const std::pair<const char*, std::function<std::int64_t(int, int)>> cases[] = {
      {"few keys, many of them twice in a batch", [&](int, int) { return static_cast<std::int64_t>(random() % 9); }},
      {"all keys are one", [](int, int) { return 5; }},
      {"all keys are shared", [](int, int at) { return at; }},
      {"no keys are shared", [](int step, int at) { return step % 2 * 12 + at; }}};
  for (const auto& [name, key] : cases) {
    const Data data = data_of(bags, 100, key);
    const Outcome expected = run(bags, make_schedule("1f1b", {.actors = 2, .microbatches = 2}), data, false);
    EXPECT_EQ(run(bags, nestpipe(2, 5), data, false), expected) << name;
    for (const int window : {2, 5, 20}) EXPECT_EQ(run(bags, nestpipe(2, window), data, true), expected) << name << ", " << window;
    const Schedule late = make_schedule("pipedream", {.actors = 2, .microbatches = 2, .window = 5});
    EXPECT_EQ(run(bags, late, data, true), run(bags, late, data, false)) << name << ", pipedream";
    Bags by_rows = bags;
    by_rows.by_rows = true;
    for (const bool prefetch : {false, true}) EXPECT_EQ(run(by_rows, nestpipe(2, 5), data, prefetch), expected) << name << ", by rows";
    EXPECT_EQ(run(by_rows, late, data, true), run(bags, late, data, false)) << name << ", pipedream by rows";
    by_rows.is_summed = true;
    for (const bool prefetch : {false, true}) EXPECT_EQ(run(by_rows, nestpipe(2, 5), data, prefetch), expected) << name << ", bags";
    by_rows.is_lazy = true;
    by_rows.momentum = 0.5;
    by_rows.weight_decay = 0.125;
    const Outcome lazy = run(by_rows, nestpipe(2, 5), data, false);
    EXPECT_NE(lazy, expected) << name;
    EXPECT_EQ(run(by_rows, nestpipe(2, 5), data, true), lazy) << name << ", lazy";
    EXPECT_EQ(run(by_rows, late, data, true), run(by_rows, late, data, false)) << name << ", pipedream, lazy";
  }
}

// A device reads the keys of those with which it shares micro-batches, as their updates change rows too.
TEST(LookupsAhead, ARunOnSeveralDevicesHasTheSameBits) {
  std::mt19937 random(5);
  for (const bool by_rows : {false, true}) {
    const Bags bags{.microbatches = 2, .samples = 6, .bag = 2, .rows = 30, .rate = 0.03, .by_rows = by_rows, .devices = 2};
    const Data data = data_of(bags, 20, [&](int, int) { return static_cast<std::int64_t>(random() % 11); });
    EXPECT_EQ(run(bags, nestpipe(2, 5), data, true), run(bags, nestpipe(2, 5), data, false)) << by_rows;
  }
}

TEST(LookupsAhead, RandomRunsHaveTheSameBits) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937 random(seed);
  const auto from = [&](int least, int most) { return least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1)); };
  for (int trial = 0; trial < 30; ++trial) {
    Bags b{.microbatches = from(1, 3),
           .bag = from(1, 3),
           .rows = from(2, 60),
           .rate = 0.01,
           .momentum = from(0, 1) * 0.5,
           .is_summed = from(0, 1) == 1,
           .devices = from(1, 2)};
    b.is_lazy = b.momentum > 0;
    b.samples = b.devices * from(1, 3);
    b.by_rows = b.is_lazy || (from(0, 1) == 1 && b.rows > b.microbatches * b.samples * b.bag);
    const int window = from(2, 5);
    const bool is_late = from(0, 1) == 1;
    const Schedule table =
        make_schedule(is_late ? "pipedream" : "nestpipe", {.actors = 2, .microbatches = b.microbatches, .window = window});
    const Data data = data_of(b, 2 * window, [&](int, int) { return static_cast<std::int64_t>(from(0, b.rows - 1)); });
    EXPECT_EQ(run(b, table, data, true), run(b, table, data, false))
        << "trial " << trial << ": " << table.name << ", " << b.microbatches << " micro-batches of " << b.samples << " on " << b.devices
        << " devices, " << b.rows << " rows" << (b.by_rows ? ", by rows" : "") << (b.is_lazy ? ", lazy" : "")
        << (b.is_summed ? ", bags" : "");
    if (HasFailure()) return;
  }
}

// In each step but the first all lookups are ahead of the backwards of the step before.
TEST(LookupsAhead, StandBehindTheForwardOfTheStepBefore) {
  const std::string program = print(compiled({.microbatches = 2}, nestpipe(2, 3), true));
  const auto count = [&](const std::string& text) {
    int found = 0;
    for (std::size_t at = program.find(text); at != std::string::npos; at = program.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count(" = embedding("), 2) << "the first step's, and what is ahead:\n" << program;
  EXPECT_EQ(count(" = embedding_patched("), 1);
  EXPECT_EQ(count(" @lookup.0(%w, "), 4);
}

TEST(LookupsAhead, RefusesUpdatesThatChangeOtherRows) {
  const auto refusal = [](const Bags& bags) { return message_of([&] { compiled(bags, nestpipe(1, 2), true); }); };
  const std::string begin = "pipeline.prefetch: rows of \"w\" cannot be looked up ahead\n  an update ",
                    end =
                        " changes rows that no sample names\n  hint: set train.lazy_rows = true, or use an optimiser that leaves them by "
                        "itself with momentum = 0 and "
                        "weight_decay = 0: sgd";
  EXPECT_EQ(refusal({.momentum = 0.5}), begin + "with momentum = 0.5" + end);
  EXPECT_EQ(refusal({.weight_decay = 0.125}), begin + "with weight_decay = 0.125" + end);
  EXPECT_EQ(refusal({.is_plain = true}), begin + "by \"sub\"" + end);
}

}  // namespace
}  // namespace penstock
