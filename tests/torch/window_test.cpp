// SPDX-License-Identifier: Apache-2.0
// Tables for a window of training steps, run: what a stage reads is what the table says, whatever the time.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "penstock/compile.h"
#include "penstock/session.h"
#include "schedule/finer_stages.h"
#include "schedule/versions.h"
#include "schedule/work.h"
#include "support/errors.h"
#include "support/random_schedule.h"

namespace penstock {
namespace {

using test::draw;
using test::Random;

// A chain of stages h <- f(w h), the last one o = w h with the loss sum((o - y)^2) / 2, and an update by the mean over the step's
// micro-batches: gradient descent, "sgd" with momentum 0.9, or "adamw" without decay. w and h have `width` elements. f is tanh, or the
// square, of which every rounding is known.
struct Chain {
  int stages = 4, microbatches = 1, width = 1;
  bool is_tanh = true;
  double rate = 0.1;
  std::string optimiser = "";

  std::vector<std::string> moments() const {
    if (optimiser == "adamw") return {"m", "v"};
    return optimiser == "sgd" ? std::vector<std::string>{"m"} : std::vector<std::string>();
  }
};

// The code behind the loop: its ops, and what it gives as next states, in their order. `value`: the first number that is free.
struct Updates {
  std::string ops, outputs;
};
Updates updates_text(const Chain& c, const std::string& type, int value) {
  Updates out;
  std::vector<std::string> next_moments(c.moments().size());
  if (!c.optimiser.empty()) out.ops += concat("  %rate: f64[] = full() {dtype=f64, fill_value=", c.rate, ", size=[]}\n");
  if (c.optimiser == "adamw") out.ops += "  %next: i64[] = add(%step) {other=1.0}\n";
  for (int s = 0; s < c.stages; ++s) {
    const int mean = value++, next = value++;
    const double share = (c.optimiser.empty() ? c.rate : 1) / c.microbatches;
    out.ops += concat("  %", mean, ": ", type, " = mul(%", s + 1, ") {other=", share, "}\n");
    out.outputs += concat("%", next, ", ");
    if (c.optimiser.empty()) {
      out.ops += concat("  %", next, ": ", type, " = sub(%w", s, ", %", mean, ")\n");
      continue;
    }
    std::string results = concat("%", next, ": ", type), operands = concat("%w", s, ", %", mean);
    for (std::size_t k = 0; k < next_moments.size(); ++k) {
      results += concat(", %", value, ": ", type);
      operands += concat(", %", c.moments()[k], s);
      next_moments[k] += concat("%", value++, ", ");
    }
    out.ops += c.optimiser == "sgd" ? concat("  ", results, " = sgd(", operands, ", %rate) {momentum=0.9, weight_decay=0.0}\n")
                                    : concat("  ", results, " = adamw(", operands,
                                             ", %rate, %next) {beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.0}\n");
  }
  for (const std::string& next : next_moments) out.outputs += next;
  if (c.optimiser == "adamw") out.outputs += "%next, ";
  return out;
}

std::string step_text(const Chain& c) {
  const std::string type = concat("f64[", c.width, "]");
  std::string inputs, types, operands, body, results, result_types;
  int value = 0;
  std::vector<std::string> before, products;  // by stage: h as it enters, w h
  std::string h = "%x";
  const auto op = [&](int stage, const std::string& text, bool is_backward, const std::string& of = "") {
    body += concat("    %", value, ": ", of.empty() ? type : of, " = ", text, text.ends_with("}") ? "" : " {",
                   is_backward ? "phase=\"backward\", " : "", "stage=\"", stage, "\"}\n");
    return concat("%", value++);
  };
  for (int s = 0; s < c.stages; ++s) {
    before.push_back(h);
    h = op(s, concat("mul(", h, ", %w", s, ")"), false);
    products.push_back(h);
    if (s + 1 < c.stages) h = op(s, c.is_tanh ? concat("tanh(", h, ")") : concat("mul(", h, ", ", h, ")"), false);
  }
  const int last = c.stages - 1;
  std::string d = op(last, concat("sub(", h, ", %y)"), false);
  const std::string squared = op(last, concat("mul(", d, ", ", d, ")"), false);
  const std::string half = concat("%", value);
  body += concat("    ", half, ": ", type, " = mul(", squared, ") {other=0.5, stage=\"", last, "\"}\n");
  const std::string loss = concat("%", ++value);
  body += concat("    ", loss, ": f64[] = sum(", half, ") {dim=[0], keepdim=false, stage=\"", last, "\"}\n");
  ++value;
  std::vector<std::string> gradients(c.stages);
  for (int s = last; s >= 0; --s) {
    if (s < last && c.is_tanh) d = op(s, concat("tanh_backward(", d, ", ", before[s + 1], ")"), true);
    if (s < last && !c.is_tanh) {
      const std::string once = op(s, concat("mul(", d, ", ", products[s], ")"), true);
      d = op(s, concat("add_n(", once, ", ", once, ")"), true);
    }
    gradients[s] = op(s, concat("mul(", d, ", ", before[s], ")"), true);
    if (s > 0) d = op(s, concat("mul(", d, ", %w", s, ")"), true);
  }
  for (int s = 0; s < c.stages; ++s) {
    inputs += concat("%w", s, ": ", type, ", ");
    types += concat(type, ", ");
    operands += concat(", %w", s);
    results += concat(", %", s + 1, ": ", type);
    result_types += concat(", ", type);
  }
  int states = c.stages;
  for (const std::string& moment : c.moments())
    for (int s = 0; s < c.stages; ++s, ++states) {
      inputs += concat("%", moment, s, ": ", type, ", ");
      types += concat(type, ", ");
    }
  if (c.optimiser == "adamw") {
    inputs += "%step: i64[], ";
    types += "i64[], ";
    ++states;
  }
  const Updates updates = updates_text(c, type, c.stages + 1);
  const std::string all = concat("f64[", c.width * c.microbatches, "]");
  std::string body_inputs = concat("%x: ", type, ", %y: ", type);
  for (int s = 0; s < c.stages; ++s) body_inputs += concat(", %w", s, ": ", type);
  return concat("penstock graph 1\ngraph @chain(", inputs, "%x: ", all, ", %y: ", all, ") -> (", types, "f64[]) {state=", states,
                ", outputs=[\"loss\"]} {\n  %0: f64[]", results, " = accumulate(%x, %y", operands, ") {microbatches=", c.microbatches,
                ", split=2} (", body_inputs, ") -> (f64[]", result_types, ") {\n", body, "    return ", loss, ", ", join(gradients, ", "),
                "\n  }\n", updates.ops, "  return ", updates.outputs, "%0\n}\n");
}

double x_of(std::int64_t k) {
  return static_cast<double>((7 * k % 5) - 2) / 2 + 0.25;
}
double y_of(std::int64_t k) {
  return static_cast<double>((3 * k % 7) - 3) / 4;
}

const std::vector<double> kBegin = {0.9, -0.8, 0.7, 0.6};

struct Outcome {
  std::vector<double> weights, losses;
};

// For actors of two devices, by ZeRO's level.
CompileOptions of_two(const Schedule& table, int zero) {
  return {.devices = std::vector<int>(table.actors.size(), 2), .zero = zero};
}

// So many steps of the table, from kBegin; element e of sample k is sample k + e.
Outcome run(const Chain& chain, const Schedule& table, int steps, const CompileOptions& options = {}) {
  const int devices = options.devices.empty() ? 1 : options.devices[0];
  Session session(static_cast<int>(table.actors.size()) * devices);
  session.load("train", compile(parse_graph(step_text(chain), "chain"), table, options));
  HostTensors state;
  for (int s = 0; s < chain.stages; ++s)
    state[concat("w", s)] = host_tensor<double>({chain.width}, std::vector<double>(chain.width, kBegin[s % kBegin.size()]));
  session.set_state(state);
  Outcome out;
  for (int done = 0; done < steps; done += table.steps) {
    std::vector<double> x, y;
    for (int k = 0; k < table.steps * chain.microbatches; ++k)
      for (int e = 0; e < chain.width; ++e) {
        x.push_back(x_of(done * chain.microbatches + k + e));
        y.push_back(y_of(done * chain.microbatches + k + e));
      }
    const Shape shape = {static_cast<std::int64_t>(x.size())};
    const StepReport report = session.step("train", {{"x", host_tensor<double>(shape, x)}, {"y", host_tensor<double>(shape, y)}});
    for (int step = 0; step < table.steps; ++step)
      out.losses.push_back(values<double>(report.outputs.at(table.steps == 1 ? "loss" : concat("loss.", step)))[0]);
  }
  for (int s = 0; s < chain.stages; ++s) out.weights.push_back(values<double>(session.state(concat("w", s)))[0]);
  return out;
}

void expect_weights(const Outcome& outcome, const std::vector<double>& weights, const char* what) {
  ASSERT_EQ(outcome.weights.size(), weights.size());
  for (std::size_t s = 0; s < weights.size(); ++s) EXPECT_NEAR(outcome.weights[s], weights[s], 1e-9) << what << ", w_" << s;
}

Schedule table_of(const char* name, int microbatches, int window) {
  return make_schedule(name, {.actors = 4, .microbatches = microbatches, .window = window});
}

// The table whose F, or all other actions that read parameters, read the version that is said of their step and actor.
template <class Version>
Schedule reading(Schedule table, bool forward, const Version& version) {
  const std::int32_t microbatches = table.step_microbatches();
  for (std::size_t actor = 0; actor < table.actors.size(); ++actor)
    for (Action& action : table.actors[actor])
      if (action.kind != Kind::U && (action.kind == Kind::F) == forward)
        action.version = std::max(0, version(action.microbatch / microbatches, static_cast<int>(actor)));
  return table;
}

// Eight updates at rate 0.1, computed by plain loops over samples with the versions named.
TEST(Window, ReadsTheVersionsOfTheTable) {
  const Chain chain;
  const Schedule pipedream = table_of("pipedream", 1, 8);
  expect_weights(run(chain, table_of("1f1b", 1, 1), 8), {.8685907204, -.7508443710, .6340048505, .5169660084}, "synchronous");
  expect_weights(run(chain, pipedream, 8), {.8682464175, -.7504765109, .6325177190, .5142159718}, "PipeDream");
  expect_weights(run(chain, reading(pipedream, true, [](int k, int) { return k - 3; }), 8),
                 {.8649090341, -.7454937599, .6272214870, .5092558803}, "vertical sync");
  expect_weights(run(chain, reading(pipedream, false, [](int k, int) { return k; }), 8),
                 {.8689856214, -.7508517567, .6325179515, .5142172116}, "backward of the newest");
  expect_weights(run(chain, reading(pipedream, true, [](int k, int actor) { return k - 2 * (3 - actor); }), 8),
                 {.8675452861, -.7494089380, .6316263597, .5110211550}, "twice as stale");
  expect_weights(run(chain, table_of("layerpipe", 1, 8), 8), {.8675452861, -.7494089380, .6316263597, .5110211550}, "LayerPipe");
  expect_weights(run(chain, table_of("hetpipe", 1, 8), 8), {.8649090341, -.7454937599, .6272214870, .5092558803}, "HetPipe, one worker");
  expect_weights(run({.microbatches = 4}, table_of("hetpipe", 4, 8), 8), {.8916017995, -.7863513271, .6815245448, .5768883371},
                 "HetPipe of whole batches");
  expect_weights(run({.microbatches = 4}, table_of("pipedream-2bw", 4, 8), 8), {.8916017995, -.7863513271, .6815245448, .5768883371},
                 "2BW");
}

// Workers, each with its share of a step's samples: updates are summed, not averaged.
Outcome run_workers(const Schedule& table, const CompileOptions& options) {
  const int workers = options.devices[0], steps = table.steps;
  const Chain chain{.microbatches = workers, .rate = 0.1 * workers};
  Session session(std::accumulate(options.devices.begin(), options.devices.end(), 0));
  session.load("train", compile(parse_graph(step_text(chain), "chain"), table, options));
  HostTensors state;
  for (int s = 0; s < chain.stages; ++s) state[concat("w", s)] = host_tensor<double>({1}, {kBegin[s]});
  session.set_state(state);
  std::vector<double> x, y;
  for (int k = 0; k < workers * steps; ++k) {
    x.push_back(x_of(k));
    y.push_back(y_of(k));
  }
  const StepReport report =
      session.step("train", {{"x", host_tensor<double>({workers * steps}, x)}, {"y", host_tensor<double>({workers * steps}, y)}});
  Outcome out;
  for (int s = 0; s < chain.stages; ++s) out.weights.push_back(values<double>(session.state(concat("w", s)))[0]);
  return out;
}

Outcome run_workers(int steps, int in_flight, int distance, int workers = 2) {
  const Schedule table = make_schedule("hetpipe", {.actors = 4, .microbatches = 1, .window = steps, .in_flight = in_flight});
  return run_workers(table, {.devices = std::vector<int>(4, workers), .distance = distance});
}

// For each worker, as many of the chain's stages on each actor as `cuts` say.
Outcome run_cut_workers(const Schedule& table, int distance, const std::vector<std::vector<int>>& cuts) {
  CompileOptions options{.devices = std::vector(cuts[0].size(), static_cast<int>(cuts.size())), .distance = distance};
  for (std::size_t w = 1; w < cuts.size(); ++w) options.others.push_back(with_finer_stages(table, cuts[w]));
  return run_workers(with_finer_stages(table, cuts[0]), options);
}

// The same by plain loops: worker v's mini-batch x reads its own updates to x-N and others' waves to c-1-D or c-2-D (2005.14038, section
// 5).
std::vector<double> workers_by_hand(int workers, int steps, int in_flight, int distance) {
  std::vector<std::vector<std::vector<double>>> updates(workers);  // [worker][mini-batch][stage]
  for (int x = 0; x < steps; ++x) {
    std::vector<std::vector<double>> read(workers, std::vector<double>(kBegin.begin(), kBegin.end()));
    const int wave = x / in_flight, last = wave - (x % in_flight == in_flight - 1 ? 1 : 2) - distance;
    for (int v = 0; v < workers; ++v)
      for (int of = 0; of < workers; ++of)
        for (int k = 0; k < (of == v ? x - in_flight + 1 : std::min(steps, (last + 1) * in_flight)); ++k)
          for (int s = 0; s < 4; ++s) read[v][s] += updates[of][k][s];
    for (int v = 0; v < workers; ++v) {
      std::vector<double> h{x_of(workers * x + v)}, gradient(4);
      for (int s = 0; s < 3; ++s) h.push_back(std::tanh(read[v][s] * h[s]));
      double d = read[v][3] * h[3] - y_of(workers * x + v);
      for (int s = 3; s >= 0; --s) {
        if (s < 3) d *= 1 - h[s + 1] * h[s + 1];
        gradient[s] = -0.1 * d * h[s];
        d *= read[v][s];
      }
      updates[v].push_back(gradient);
    }
  }
  std::vector<double> out(kBegin.begin(), kBegin.end());
  for (const auto& worker : updates)
    for (const auto& update : worker)
      for (int s = 0; s < 4; ++s) out[s] += update[s];
  return out;
}

TEST(Window, WorkersTakeEachOthersUpdatesInWaves) {
  expect_weights(run_workers(9, 3, 0), {.8509260551, -.7290493007, .6076629696, .4860228551}, "N = 3, D = 0");
  expect_weights(run_workers(9, 3, 1), {.8489309564, -.7265465917, .6046622802, .4824476810}, "N = 3, D = 1");
  expect_weights(run_workers(8, 1, 0), {.8609070547, -.7418865234, .6233297766, .5041799253}, "N = 1, D = 0");
  for (const int workers : {2, 3})
    for (const int in_flight : {1, 2, 3, 4})
      for (const int distance : {0, 1, 2})
        for (const int steps : {4, 9, 13})  // the last wave may be shorter
          expect_weights(run_workers(steps, in_flight, distance, workers), workers_by_hand(workers, steps, in_flight, distance),
                         concat(workers, " workers, N = ", in_flight, ", D = ", distance, ", ", steps, " steps").c_str());
}

// Where a worker's stages lie changes none of its numbers, if as many of its mini-batches are in flight.
TEST(Window, WorkersMayHaveOtherStages) {
  const Schedule three =
      reading(make_schedule("pipedream", {.actors = 2, .microbatches = 1, .window = 9}), true, [](int k, int) { return k - 2; });
  for (const std::vector<std::vector<int>>& cuts : {std::vector<std::vector<int>>{{2, 2}, {2, 2}}, {{3, 1}, {2, 2}}, {{1, 3}, {3, 1}}}) {
    const Outcome near = run_cut_workers(three, 0, cuts), far = run_cut_workers(three, 1, cuts);
    expect_weights(near, {.8509260551, -.7290493007, .6076629696, .4860228551}, "N = 3, D = 0");
    expect_weights(far, {.8489309564, -.7265465917, .6046622802, .4824476810}, "N = 3, D = 1");
    EXPECT_EQ(near.weights, run_workers(9, 3, 0).weights);
    EXPECT_EQ(far.weights, run_workers(9, 3, 1).weights);
  }
}

// As by plain loops, of drawn cuts, depths, waves and distances.
TEST(Window, WorkersOfDrawnCuts) {
  for (int seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const int actors = draw(random, 1, 3), distance = draw(random, 0, 2), steps = draw(random, 3, 9), flight = draw(random, 1, actors);
    std::vector<std::vector<int>> cuts(draw(random, 2, 3), std::vector<int>(actors, 1));
    for (std::vector<int>& cut : cuts)
      for (int stage = actors; stage < 4; ++stage) ++cut[draw(random, 0, actors - 1)];
    const Schedule table = make_schedule("hetpipe", {.actors = actors, .microbatches = 1, .window = steps, .in_flight = flight});
    SCOPED_TRACE(concat("seed ", seed));
    expect_weights(run_cut_workers(table, distance, cuts), workers_by_hand(static_cast<int>(cuts.size()), steps, flight, distance),
                   "drawn");
  }
}

// Workers that sum their gradients at each update are one run, whatever the schedule.
TEST(Window, WorkersOfDrawnCutsInStep) {
  for (int seed = 0; seed < 60; ++seed) {
    Random random(seed);
    const char* names[] = {"1f1b", "zb-h1", "gpipe", "hetpipe"};  // which read the same version in all stages
    const Schedule table = make_schedule(names[draw(random, 0, 3)], {.actors = 2, .microbatches = 2, .window = draw(random, 2, 5)});
    const int first = draw(random, 1, 3), second = draw(random, 1, 3);
    const auto weights = [&](int other) {
      const Schedule cut = with_finer_stages(table, {first, 4 - first});
      return run({.microbatches = 4}, cut, table.steps, {.devices = {2, 2}, .others = {with_finer_stages(table, {other, 4 - other})}})
          .weights;
    };
    SCOPED_TRACE(concat("seed ", seed));
    EXPECT_EQ(weights(second), weights(first)) << table.name;
  }
}

// The same with weights that are predicted, rates 0.02 and 0.01.
TEST(Window, ReadsThePredictionsOfTheTable) {
  const Chain momentum{.rate = 0.02, .optimiser = "sgd"}, adam{.rate = 0.01, .optimiser = "adamw"};
  const Schedule unpredicted = reading(table_of("pipedream", 1, 8), false, [](int k, int) { return k; });
  expect_weights(run(momentum, unpredicted, 8), {.8688157881, -.7482515303, .6287710387, .5095428615}, "momentum, backward of the newest");
  expect_weights(run(momentum, table_of("pipeoptim", 1, 8), 8), {.8687693252, -.7483267173, .6291189798, .5105730753}, "PipeOptim");
  expect_weights(run(momentum, table_of("xpipe", 1, 8), 8), {.8693528181, -.7492553777, .6299666747, .5114068652}, "XPipe");
  Chain four = momentum;
  four.microbatches = 4;
  expect_weights(run(four, table_of("xpipe", 4, 8), 8), {.8886996033, -.7824682207, .6765846184, .5707615922}, "XPipe, T = 4");
  expect_weights(run(adam, unpredicted, 8), {.8372580689, -.7387320407, .6396020823, .5399228109}, "Adam, backward of the newest");
  expect_weights(run(adam, table_of("pipeoptim", 1, 8), 8), {.8372705125, -.7388790715, .6398828567, .5402056210}, "Adam, PipeOptim");
  expect_weights(run(adam, table_of("xpipe", 1, 8), 8), {.8375647937, -.7390583309, .6399832936, .5402583229}, "Adam, XPipe");
}

// A window of one step, or of several with U last, is no other training.
TEST(Window, OfOneStepIsTheSynchronousProgram) {
  const Chain chain{.microbatches = 4};
  const Graph step = parse_graph(step_text(chain), "chain");
  EXPECT_EQ(print(compile(step, table_of("pipedream", 4, 1))), print(compile(step, with_updates(table_of("1f1b", 4, 1)))));
  const Outcome synchronous = run(chain, table_of("1f1b", 4, 1), 6);
  Schedule drained = table_of("sequential", 4, 1);
  drained.steps = 3;
  for (auto& row : drained.actors) {
    const std::vector<Action> of_step = row;
    row.clear();
    for (int b = 0; b < 3; ++b) {
      for (Action action : of_step) {
        action.microbatch += 4 * b;
        row.push_back(action);
      }
      row.push_back({of_step[0].stage, Kind::U, 4 * b + 3});
    }
  }
  const Outcome three = run(chain, drained, 6);
  EXPECT_EQ(three.weights, synchronous.weights);
  EXPECT_EQ(three.losses, synchronous.losses);
}

// Windows that follow each other begin with what the last one left.
TEST(Window, EndsDrained) {
  const Chain chain;
  const Outcome twice = run(chain, table_of("pipedream", 1, 4), 8);
  EXPECT_NE(twice.weights, run(chain, table_of("pipedream", 1, 8), 8).weights);
  EXPECT_EQ(twice.weights, run(chain, table_of("pipedream", 1, 4), 8).weights);
}

std::int64_t planned_bytes(const DeviceProgram& device) {
  return device.state_bytes + device.step_bytes + device.scratch_bytes;
}

// An actor keeps a copy of its parameters for each version beside the newest; the first's backward reads none of them.
TEST(Window, PlannedBytesGrowByTheVersions) {
  const Chain chain{.width = 4096};
  const Graph step = parse_graph(step_text(chain), "chain");
  const Schedule stashing = table_of("pipedream", 1, 12);
  const Program kept = compile(step, stashing), newest = compile(step, reading(stashing, false, [](int k, int) { return k; }));
  for (std::int32_t actor = 0; actor < 4; ++actor) {
    EXPECT_EQ(versions_held(stashing, actor), 4 - actor);
    EXPECT_EQ(staleness(stashing, actor), 3 - actor);
    const std::int64_t more = planned_bytes(kept.devices[actor]) - planned_bytes(newest.devices[actor]);
    EXPECT_NEAR(static_cast<double>(more), actor == 0 ? 0 : (3 - actor) * 4096.0 * 8, 128.0) << actor;
  }
}

// Each step gathers and reduces for itself, and a version that is not the newest is one of shares.
TEST(Window, SharesHaveTheSameBits) {
  for (const char* optimiser : {"sgd", "adamw"})
    for (const char* name : {"1f1b", "pipedream", "pipedream-2bw", "hetpipe", "layerpipe"}) {
      const Chain chain{.microbatches = 8, .width = 5, .rate = 0.02, .optimiser = optimiser};
      const Schedule table = table_of(name, 4, 3);
      const Outcome whole = run(chain, table, 6, of_two(table, 1));
      for (const int zero : {2, 3}) {
        const Outcome shares = run(chain, table, 6, of_two(table, zero));
        EXPECT_EQ(shares.weights, whole.weights) << name << " " << zero;
        EXPECT_EQ(shares.losses, whole.losses) << name << " " << zero;
      }
    }
  const Chain chain{.microbatches = 8, .width = 5, .rate = 0.02, .optimiser = "adamw"};
  for (const char* name : {"xpipe", "pipeoptim"}) {  // what is predicted has its moments beside it
    const Schedule table = table_of(name, 4, 3);
    EXPECT_EQ(run(chain, table, 6, of_two(table, 3)).weights, run(chain, table, 6, of_two(table, 0)).weights) << name;
    const std::string refused = test::message_of([&] { run(chain, table, 6, of_two(table, 2)); });
    EXPECT_NE(refused.find("what adamw keeps of \"w0\" is in shares\n  a prediction of parameters needs all of it\n"
                           "  hint: set pipeline.zero = 0, or 3, where the parameters are in shares too"),
              std::string::npos)
        << refused;
  }
}

// A whole state is gathered behind its step, so not every order of several stages on an actor is one for level 2.
TEST(Window, SharesOfDrawnTables) {
  std::map<int, int> ran;
  for (int seed = 0; seed < 150; ++seed) {
    Random random(seed);
    const int microbatches = draw(random, 1, 3);
    const Chain chain{.stages = draw(random, 1, 4), .microbatches = 2 * microbatches, .width = 3, .optimiser = "sgd"};
    const Schedule table = test::random_window(random, penstock::chain(chain.stages), draw(random, 1, 3), microbatches, draw(random, 2, 4));
    SCOPED_TRACE(concat("seed ", seed, "\n", print(table)));
    const Outcome whole = run(chain, table, table.steps, of_two(table, 0));
    for (const int zero : {2, 3}) {
      Outcome shares;
      const std::string refused = test::message_of([&] { shares = run(chain, table, table.steps, of_two(table, zero)); });
      if (zero == 2 && refused.find("one of shares (pipeline.zero) behind its step") != std::string::npos) continue;
      ASSERT_EQ(refused, "no error");
      ++ran[zero];
      for (int s = 0; s < chain.stages; ++s) ASSERT_NEAR(shares.weights[s], whole.weights[s], 1e-10) << "zero " << zero;
    }
  }
  EXPECT_GT(ran[2], 20);
}

// The chain's gradients sample by sample, each rounding as the kernels have it; f is the square.
struct Reference {
  const Chain& chain;
  const Schedule& table;
  std::vector<std::vector<double>> versions;  // by stage

  explicit Reference(const Chain& c, const Schedule& t) : chain(c), table(t) {
    for (int s = 0; s < c.stages; ++s) versions.push_back({kBegin[s % kBegin.size()]});
  }

  // The gradient of each stage's weight for micro-batch k.
  std::vector<double> gradients(int k, const std::vector<int>& forward, const std::vector<int>& backward) const {
    std::vector<double> before, products;
    double h = x_of(k);
    for (int s = 0; s < chain.stages; ++s) {
      before.push_back(h);
      products.push_back(h * versions[s][forward[s]]);
      h = s + 1 < chain.stages ? products[s] * products[s] : products[s];
    }
    double d = h - y_of(k);
    std::vector<double> out(chain.stages);
    for (int s = chain.stages - 1; s >= 0; --s) {
      if (s + 1 < chain.stages) d = d * products[s] + d * products[s];
      out[s] = d * before[s];
      if (s > 0) d = d * versions[s][backward[s]];
    }
    return out;
  }

  void run() {
    const int m = chain.microbatches, all = table.steps * m;
    std::vector<std::vector<int>> forward(all, std::vector<int>(chain.stages)), backward = forward;
    using Order = std::map<std::size_t, std::vector<int>>;  // in which gradients are added, by actor: the sums of all are added in turn
    std::vector<Order> order(chain.stages);
    const auto read = read_versions(table);
    for (std::size_t a = 0; a < table.actors.size(); ++a)
      for (std::size_t i = 0; i < table.actors[a].size(); ++i) {
        const Action& action = table.actors[a][i];
        if (action.kind == Kind::F) forward[action.microbatch][action.stage] = read[a][i].version;
        if (action.kind == Kind::B || action.kind == Kind::I) backward[action.microbatch][action.stage] = read[a][i].version;
        if (action.kind == Kind::B || action.kind == Kind::W) order[action.stage][a].push_back(action.microbatch);
      }
    for (int b = 0; b < table.steps; ++b) {
      std::vector<std::vector<double>> of_step(all);
      for (int k = b * m; k < (b + 1) * m; ++k) of_step[k] = gradients(k, forward[k], backward[k]);
      for (int s = 0; s < chain.stages; ++s) {
        std::optional<double> sum;
        for (const auto& [actor, added] : order[s]) {
          std::optional<double> of_actor;
          for (const int k : added)
            if (k / m == b) of_actor = of_actor ? *of_actor + of_step[k][s] : of_step[k][s];
          if (of_actor) sum = sum ? *sum + *of_actor : *of_actor;
        }
        versions[s].push_back(versions[s].back() - *sum * (chain.rate / m));
      }
    }
  }
};

// Whatever the table, the outcome is that of its own versions, sample by sample, to the bit.
void expect_reference(const Schedule& table) {
  const int microbatches = table.step_microbatches();
  const Chain chain{.stages = table.stages(), .microbatches = microbatches, .is_tanh = false, .rate = 0.125 * microbatches};
  SCOPED_TRACE(print(table));
  ASSERT_NO_THROW(validate(table, penstock::chain(chain.stages)));
  Reference reference(chain, table);
  reference.run();
  const Outcome found = run(chain, table, table.steps);
  for (int s = 0; s < chain.stages; ++s) ASSERT_EQ(found.weights[s], reference.versions[s].back()) << "stage " << s;
}

void expect_references(double foreign_weight) {
  constexpr int kTables = 1000;
  for (int seed = 0; seed < kTables && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Random random(seed);
    const int microbatches = draw(random, 1, 3);
    const StageShape shape = penstock::chain(draw(random, 1, 4));
    const int actors = draw(random, 1, 3);
    expect_reference(test::random_window(random, shape, actors, microbatches, draw(random, 2, 5), foreign_weight));
  }
}

TEST(Window, RandomTablesAreBitEqualToTheirVersions) {
  expect_references(0);
}

TEST(Window, RandomTablesWithWeightGradientsOnOtherActors) {
  expect_references(0.7);
}

// Where W are, and when, changes nothing: U, and what F reads, are those of the table in which stages are whole.
TEST(Window, LayerPipeWithWeightGradientsOnOtherActors) {
  const Schedule whole = make_schedule("layerpipe", {.actors = 4, .microbatches = 1, .window = 8, .split_backward = true});
  const StageShape shape = penstock::chain(4);
  const WorkIndex work = index_work(whole, shape, 8);
  for (int seed = 0; seed < 20; ++seed) {
    Random random(seed);
    Schedule table = whole;
    table.actors.assign(4, {});
    walk(work, [&](Position here) {
      const Action& action = work.at(here);
      table.actors[action.kind == Kind::W ? draw(random, 0, 3) : here.actor].push_back(action);
    });
    SCOPED_TRACE(concat("seed ", seed, "\n", print(table)));
    validate(table, shape);
    expect_weights(run({}, table, 8), {.8675452861, -.7494089380, .6316263597, .5110211550}, "LayerPipe");
  }
}

TEST(Window, BalancedTablesAreBitEqualToTheirVersions) {
  for (int seed = 0; seed < 100 && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    Random random(seed);
    std::vector<double> times(draw(random, 1, 4));
    for (double& time : times) time = draw(random, 1, 5);
    expect_reference(make_schedule(
        "layerpipe",
        {.actors = static_cast<int>(times.size()), .microbatches = draw(random, 1, 3), .window = draw(random, 2, 8), .balance = times}));
  }
}

}  // namespace
}  // namespace penstock
