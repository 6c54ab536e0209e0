// SPDX-License-Identifier: Apache-2.0
#include "config/plan_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/text.h"
#include "config/planned_config.h"
#include "models/registry.h"
#include "schedule/kinds.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/sample.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;

Config config(const std::string& model, const std::vector<std::string>& settings = {}) {
  std::vector<Override> overrides = {{"model.name", model, "--set"}};
  for (const char* small : {"layers=2", "width=16", "heads=2", "context=8", "batch=8", "microbatches=4"})
    overrides.push_back(parse_override(small));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

PlanGraph graph_of(const Config& c, int most = 1000) {
  const ModelRegistry models = builtin_models();
  return model_graph(c, models, planning_nodes(c, models, most), {1, 2}, published_devices().device("v100"));
}

// Without times: they are the roofline's.
std::string text_of(const PlanGraph& graph) {
  std::string out;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const PlanNode& node = graph.nodes[n];
    out += concat(node.name, ": output ", number(node.output_bytes));
    for (const NodeCost& cost : node.costs)
      out += concat("; ", cost.samples, ": live ", number(cost.live_bytes), " resident ", number(cost.resident_bytes), " parameters ",
                    number(cost.parameter_bytes));
    for (const PlanEdge& edge : graph.edges)
      if (edge.to == static_cast<int>(n))
        out += concat("\n  from ", graph.nodes[static_cast<std::size_t>(edge.from)].name, ": ", number(edge.bytes));
    out += "\n";
  }
  return out;
}

TEST(PlanModel, NodesOfModels) {
  for (const char* model : {"gpt", "two-branch"}) test::expect_golden(concat("plan/", model, ".nodes"), text_of(graph_of(config(model))));
}

// Only nodes with parameters have weight gradients; a product's are one of the two of its backward, a norm's come with its input gradient.
TEST(PlanModel, WeightGradientsAreAPartOfTheBackward) {
  for (const PlanNode& node : graph_of(config("gpt")).nodes) {
    const NodeCost& cost = node.costs[0];
    EXPECT_GE(cost.weight, 0) << node.name;
    EXPECT_LE(cost.weight, cost.backward) << node.name;
    EXPECT_TRUE(cost.weight == 0 || cost.parameter_bytes > 0) << node.name;
    if (node.name != "h.0.mlp.c_fc") continue;
    EXPECT_GT(cost.weight, 0);
    EXPECT_LT(cost.weight, cost.backward);
  }
}

// Seconds: 10 for each task, 1 for each input. A branch's first layer fills the branch's input, the head the target.
TEST(PlanModel, ActionsWaitForTheirInputs) {
  const ModelRegistry models = builtin_models();
  std::vector<Override> settings;
  for (const char* setting : {"model.name=candle-uno", "branches=2", "layers=2", "batch=8"}) settings.push_back(parse_override(setting));
  const Config c = load_config("", settings, models);
  const Graph step = merged_step(c, models, planning_nodes(c, models, 1000), 2);
  const Program program = merged_program(step);
  Durations seconds;
  for (const DeviceProgram& device : program.devices) {
    std::vector<double>& row = seconds.emplace_back();
    for (const Instruction& i : device.instructions) row.push_back(i.opcode == Opcode::run ? 10 : i.opcode == Opcode::input ? 1 : 0);
  }
  const std::vector<std::string> stages = prepare_stages(step).stages;
  std::string text;
  for (const auto& [action, time] : action_seconds(program, seconds))
    text += concat(stages[static_cast<std::size_t>(action.first)], " ", action.second == Kind::F ? "F" : "B", " ", static_cast<int>(time),
                   "\n");
  EXPECT_EQ(text,
            "branch.0.layer.0 F 11\nbranch.0.layer.0 B 10\nbranch.0.layer.1 F 10\nbranch.0.layer.1 B 10\n"
            "branch.1.layer.0 F 11\nbranch.1.layer.0 B 10\nbranch.1.layer.1 F 10\nbranch.1.layer.1 B 10\n"
            "head F 11\nhead B 10\n");
}

// Seconds: 1 for each task after the loop, 100 for the others.
TEST(PlanModel, UpdatesAreSharedByParameters) {
  const Config c = config("gpt");
  const ModelRegistry models = builtin_models();
  const MergedNodes merged = planning_nodes(c, models, 6);
  const Program program = merged_program(merged_step(c, models, merged, 2));
  std::vector<double> seconds;
  for (const Task& task : program.tasks) seconds.push_back(task.name.starts_with("after") ? 1 : 100);
  const auto after = std::count(seconds.begin(), seconds.end(), 1);
  EXPECT_GT(after, 0);
  EXPECT_EQ(update_seconds(program, seconds), static_cast<double>(after));

  PlanGraph graph = model_graph(c, models, merged, {2, 4}, published_devices().device("v100"));
  share_update(graph, 3);
  double sum = 0, bytes = 0;
  for (const PlanNode& node : graph.nodes) sum += node.costs[0].update, bytes += node.costs[0].parameter_bytes;
  EXPECT_NEAR(sum, 3, 1e-12);
  for (const PlanNode& node : graph.nodes) {
    EXPECT_DOUBLE_EQ(node.costs[0].update, 3 * node.costs[0].parameter_bytes / bytes) << node.name;
    EXPECT_EQ(node.costs[1].update > 0, node.costs[1].parameter_bytes > 0) << node.name;  // by the roofline
  }
}

TEST(PlanModel, TimesAddUp) {
  const Config c = config("gpt");
  const PlanGraph fine = graph_of(c), coarse = graph_of(c, 6);
  EXPECT_LE(coarse.nodes.size(), 6u);
  const auto total = [](const PlanGraph& graph, auto value) {
    double sum = 0;
    for (const PlanNode& node : graph.nodes) sum += value(node.costs[1]);
    return sum;
  };
  EXPECT_NEAR(total(coarse, [](const NodeCost& n) { return n.forward; }), total(fine, [](const NodeCost& n) { return n.forward; }), 1e-6);
  EXPECT_EQ(total(coarse, [](const NodeCost& n) { return n.parameter_bytes; }),
            total(fine, [](const NodeCost& n) { return n.parameter_bytes; }));
}

TEST(PlanModel, Sizes) {
  EXPECT_EQ(planning_sizes(config("gpt"), 2), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(planning_sizes(config("gpt"), 4), (std::vector<int>{1, 2}));
  EXPECT_EQ(planning_sizes(config("gpt", {"microbatches=8"}), 2), (std::vector<int>{1, 2}));
  EXPECT_EQ(checked_sizes(config("gpt"), {4, 1, 4}, {2}), (std::vector<int>{1, 4}));
  EXPECT_EQ(checked_sizes(config("gpt"), {}, {2}), (std::vector<int>{2}));
  EXPECT_NE(message_of([] { checked_sizes(config("gpt"), {3}, {}); }).find("micro-batches of 3 sequences do not divide train.batch = 8"),
            std::string::npos);
}

// Planned on three devices, as a file.
std::string planned(const Config& c, const test::TemporaryFolder& folder) {
  const ModelRegistry models = builtin_models();
  const MergedNodes merged = planning_nodes(c, models, 1000);
  PlanProblem problem;
  problem.graph = model_graph(c, models, merged, {2}, published_devices().device("v100"));
  problem.cluster = uniform_cluster(3, 1e9);
  problem.replicas = false;
  Plan plan = make_plan("best", problem, {.seconds = 0.5});
  std::string file = folder.file("plan.json");
  write_file(file, print(model_plan(c, models, merged, problem, plan)));
  return file;
}

// Stages of about equal numbers of nodes along a random topological order.
MergedNodes random_stages(const PlanGraph& graph, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int> waits(graph.nodes.size());
  for (const PlanEdge& edge : graph.edges) ++waits[static_cast<std::size_t>(edge.to)];
  std::vector<int> ready;
  for (std::size_t n = 0; n < waits.size(); ++n)
    if (waits[n] == 0) ready.push_back(static_cast<int>(n));
  MergedNodes stages;
  for (std::size_t placed = 0; placed < waits.size(); ++placed) {
    std::swap(ready[random() % ready.size()], ready.back());
    const int node = ready.back();
    ready.pop_back();
    stages[graph.nodes[static_cast<std::size_t>(node)].name] = concat("stage ", placed * count / waits.size());
    for (const PlanEdge& edge : graph.edges)
      if (edge.from == node && --waits[static_cast<std::size_t>(edge.to)] == 0) ready.push_back(edge.to);
  }
  return stages;
}

// Whatever a planner may choose: random stages of each model's nodes without a circle are stages of its step.
TEST(PlanModel, AnyStagesOfTheGraphAreStagesOfTheStep) {
  const ModelRegistry models = builtin_models();
  for (const auto& [name, entry] : models) {
    if (!entry.suffixes.empty()) continue;  // a file says what it is
    SCOPED_TRACE(name);
    const Config c = load_config("", {{"model.name", name, "--set"}, parse_override("batch=4"), parse_override("microbatches=2")}, models);
    const MergedNodes merged = planning_nodes(c, models, 40);
    EXPECT_EQ(merged_program(merged_step(c, models, merged, 2)).devices.size(), 1u);
    const PlanGraph graph = model_graph(c, models, merged, {2}, published_devices().device("v100"));
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(seed);
      const MergedNodes stages = random_stages(graph, 4, seed);
      MergedNodes stage_of;
      for (const auto& [node, into] : merged) stage_of[node] = stages.at(into);
      EXPECT_NO_THROW(merged_program(merged_step(c, models, stage_of, 2)));
    }
  }
}

void expect_runs(const Config& c, const PlanFile& plan) {
  EXPECT_EQ(c.pipeline.table.actors, static_cast<std::int64_t>(plan.stages.size()));
  EXPECT_EQ(c.pipeline.table.microbatches, 4);
  EXPECT_EQ(c.pipeline.schedule, "plan");
  const Prepared prepared = prepare(c, builtin_models());
  for (const Program& program : {compile_training(c, prepared), compile_gradients(c, prepared), compile_evaluation(c, prepared)})
    EXPECT_EQ(program.devices.size(), plan.stages.size());
  const StagedStep step = prepare_stages(training_graph(c, prepared));
  ASSERT_EQ(step.stages.size(), plan.stages.size());
  for (std::size_t s = 0; s < step.stages.size(); ++s) EXPECT_EQ(step.stages[s], plan.stages[s].name);
}

TEST(PlanModel, AFileIsWhatRuns) {
  const test::TemporaryFolder folder;
  for (const char* model : {"gpt", "two-branch"}) {
    const std::string file = planned(config(model), folder);
    for (const char* update : {"update=end", "update=validated"})
      expect_runs(config(model, {"plan=" + file, update}), parse_plan(read_file(file), file));
  }
}

TEST(PlanModel, StagesOnSeveralDevicesAreGroups) {
  const test::TemporaryFolder folder;
  const std::string file = planned(config("gpt"), folder);
  PlanFile plan = parse_plan(read_file(file), file);
  plan.stages.back().devices.push_back(7);
  write_file(file, print(plan));
  std::vector<int> groups(plan.stages.size(), 1);
  groups.back() = 2;
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    const Config c = config("gpt", {"plan=" + file, concat("zero=", zero)});
    const Prepared prepared = prepare(c, builtin_models());
    EXPECT_EQ(prepared.options.devices, groups);
    EXPECT_EQ(step_microbatches(prepared), 8);
    for (const Program& program : {compile_training(c, prepared), compile_gradients(c, prepared), compile_evaluation(c, prepared)})
      EXPECT_EQ(program.devices.size(), groups.size() + 1);
  }
  const auto message = [&](const std::string& setting) { return message_of([&] { config("gpt", {"plan=" + file, setting}); }); };
  EXPECT_NE(message("pipeline.data=2").find("says how many devices each actor has: 1, "), std::string::npos) << message("pipeline.data=2");
  EXPECT_NE(message("batch=4").find("4 samples cannot be cut into 4 micro-batches of 2 equal parts"), std::string::npos)
      << message("batch=4");
}

TEST(PlanModel, DisagreementsAreNamed) {
  const test::TemporaryFolder folder;
  const ModelRegistry models = builtin_models();
  const std::string file = planned(config("gpt"), folder);
  const auto message = [&](const std::string& setting) { return message_of([&] { config("gpt", {"plan=" + file, setting}); }); };
  EXPECT_EQ(message("actors=7"), concat("--set actors 7: the plan ", file, " says ", parse_plan(read_file(file), file).stages.size(),
                                        " actors\n  hint: leave out --set actors; or run without the plan: --plan \"\""));
  EXPECT_NE(message("pipeline.microbatches=2").find("says 4 micro-batches"), std::string::npos);
  EXPECT_NE(message("schedule=gpipe").find("says which action each actor runs when"), std::string::npos);
  const auto refused = [&](const std::string& model, const std::string& setting) {
    return message_of([&] {
      const Config c = config(model, {"plan=" + file, setting});
      compile_training(c, prepare(c, models));
    });
  };
  EXPECT_NE(refused("two-branch", "seed=0").find("is a plan of \"gpt\", the model is \"two-branch\""), std::string::npos);
  EXPECT_NE(refused("gpt", "layers=1").find("which the model has not"), std::string::npos) << refused("gpt", "layers=1");
  EXPECT_NE(refused("gpt", "layers=3").find("no stage has"), std::string::npos) << refused("gpt", "layers=3");
}

// Planner best also asks for equal groups, whose replicas then share micro-batches of these sizes.
TEST(PlanModel, MicroBatchesHaveTheSizesThatAreSaid) {
  const Config c = config("gpt", {"batch=48"});
  for (const std::vector<int>& sizes : {std::vector<int>{3, 6}, {4}, {48}})
    for (const bool replicas : {true, false}) {
      ModelPlanning planning{.planner = "best", .options = {.seconds = 1}, .cluster = uniform_cluster(4, 1e10), .sizes = sizes};
      planning.replicas = replicas;
      for (const PlannedModel& planned : plan_model(c, builtin_models(), planning))
        for (const PlanFile::Stage& stage : planned.file.stages) {
          EXPECT_TRUE(std::ranges::find(sizes, stage.micro_batch) != sizes.end()) << planned.file.planner << ": " << stage.micro_batch;
          EXPECT_TRUE(replicas || std::ssize(stage.devices) == planned.file.split.devices()) << planned.file.planner;
        }
    }
}

// The bytes of the fullest device in a run of the plan.
double held_by(const Config& c, const PlanFile& plan) {
  Config run = c;
  take_plan(run, plan);
  Prepared prepared = prepare(run, plan, builtin_models());
  spread_actors(run, prepared);
  const Program program = compile_training(run, prepared);
  std::int64_t most = 0;
  for (const DeviceProgram& device : program.devices) most = std::max(most, device.device_bytes());
  return static_cast<double>(most);
}

// Where a chain's cuts alone do not fit, DawnPiper lets backwards compute some nodes again, each by itself. The plan's file says which, and
// by them the run keeps to the memory.
TEST(PlanModel, DawnPiperComputesNodesAgain) {
  const Config c = config("gpt", {"layers=4", "context=128"});
  ModelPlanning planning{.planner = "dawnpiper", .options = {.seconds = 20}, .cluster = uniform_cluster(2, 1e10, 0, 1e12), .sizes = {2}};
  PlanFile plan = plan_model(c, builtin_models(), planning)[0].file;
  for (const PlanFile::Stage& stage : plan.stages) EXPECT_TRUE(stage.recompute.empty()) << stage.name;
  const double limit = 0.95 * held_by(c, plan);
  planning.cluster = uniform_cluster(2, 1e10, 0, limit);
  plan = plan_model(c, builtin_models(), planning)[0].file;
  const std::string text = print(plan);
  std::size_t again = 0, all = 0;
  for (const PlanFile::Stage& stage : plan.stages) again += stage.recompute.size(), all += stage.nodes.size();
  EXPECT_GT(again, 0) << text;
  EXPECT_LT(again, all) << text;
  EXPECT_EQ(held_by(c, parse_plan(text, "p.json")), std::ranges::max(plan.peak_bytes));
  EXPECT_LE(held_by(c, plan), limit);
  for (PlanFile::Stage& stage : plan.stages) stage.recompute.clear();
  EXPECT_GT(held_by(c, plan), limit) << text;
}

// In equal stages of a pipeline of four the first has four micro-batches in flight. Over a fast link to the host DawnPiper lets what some
// nodes' backwards read wait there; over one of a byte a second backwards compute it again, which takes longer.
TEST(PlanModel, DawnPiperSwapsNodes) {
  const Config c = config("gpt", {"layers=8", "context=64"});
  ModelPlanning planning{.planner = "dawnpiper", .options = {.seconds = 20}, .cluster = uniform_cluster(4, 1e10, 0, 1e12), .sizes = {1}};
  PlanFile plan = plan_model(c, builtin_models(), planning)[0].file;
  for (const PlanFile::Stage& stage : plan.stages) EXPECT_TRUE(stage.swap.empty()) << stage.name;
  const double limit = 0.85 * held_by(c, plan);
  planning.cluster = uniform_cluster(4, 1e10, 0, limit);
  plan = plan_model(c, builtin_models(), planning)[0].file;
  const std::string text = print(plan);
  std::size_t swapped = 0;
  for (const PlanFile::Stage& stage : plan.stages) swapped += stage.swap.size();
  EXPECT_GT(swapped, 0) << text;
  EXPECT_NE(text.find("OFFLOAD"), std::string::npos) << text;
  EXPECT_EQ(held_by(c, parse_plan(text, "p.json")), std::ranges::max(plan.peak_bytes));
  EXPECT_LE(held_by(c, plan), limit);
  for (ClusterDevice& device : planning.cluster.devices) device.host = {0, 1};
  const PlanFile slow = plan_model(c, builtin_models(), planning)[0].file;
  EXPECT_LT(plan.predicted_time, slow.predicted_time);
  for (PlanFile::Stage& stage : plan.stages) stage.swap.clear();
  for (auto& row : plan.schedule.actors) std::erase_if(row, [](const Action& action) { return is_host_copy(action.kind); });
  plan.schedule.cells.clear();
  EXPECT_GT(held_by(c, plan), limit) << text;
}

// A plan's program keeps to the devices' memory, or the refusal names more, with which there is one.
TEST(PlanModel, ProgramsKeepToTheMemory) {
  test::Sample sample(1);
  const Config c = config("gpt");
  for (const char* planner : {"best", "graphpipe", "pipedream", "piper", "max-load", "dapple", "spp", "hetpipe", "dawnpiper", "degrees"}) {
    if (!sample.takes()) continue;
    ModelPlanning planning{.planner = planner, .options = {.seconds = 0.5}, .cluster = uniform_cluster(2, 1e10), .sizes = {1, 2}};
    planning.options.degrees.only = parse_degrees_limits("tensor=1,context=1,by-block=0");  // what any run can have
    const double most = held_by(c, plan_model(c, builtin_models(), planning)[0].file);
    for (const double share : {0.9, 0.5}) {
      planning.cluster = uniform_cluster(2, 1e10, 0, share * most);
      planning.options.seconds = 0.5;
      PlanFile plan;
      const std::string message = message_of([&] { plan = plan_model(c, builtin_models(), planning)[0].file; });
      if (message != "no error") {
        const std::size_t named = message.find("memory of each device that would do is ");
        ASSERT_NE(named, std::string::npos) << planner << ": " << message;
        const double needed = std::stod(message.substr(message.find('(', named) + 1));
        EXPECT_GT(needed, share * most) << planner << ": " << message;
        planning.cluster = uniform_cluster(2, 1e10, 0, needed);
        planning.options.seconds = 20;  // on a busy machine a plan that was found in half a second may take more the next time
        ASSERT_EQ(message_of([&] { plan = plan_model(c, builtin_models(), planning)[0].file; }), "no error") << planner << ": " << message;
      }
      EXPECT_LE(held_by(c, plan), planning.cluster.devices[0].memory) << planner << " at " << share;
    }
  }
}

}  // namespace
}  // namespace penstock
