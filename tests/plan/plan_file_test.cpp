// SPDX-License-Identifier: Apache-2.0
#include "penstock/plan_file.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "cost/evaluate.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

// a -> b, c -> d on two devices: a and b, c and d.
PlanProblem problem() {
  PlanProblem problem;
  problem.graph.name = "small";
  problem.graph.samples = 8;
  for (const char* name : {"a", "b", "c", "d"})
    problem.graph.nodes.push_back({name, {{.samples = 2, .forward = 1, .backward = 2, .live_bytes = 100, .resident_bytes = 10}}});
  problem.graph.edges = {{0, 1, 50}, {0, 2, 50}, {1, 3, 60}, {2, 3, 70}};
  problem.cluster = uniform_cluster(2, 100, 0.25);
  return problem;
}

PlanFile small_plan() {
  const PlanProblem p = problem();
  Plan plan;
  plan.planner = "by hand";
  plan.stages = {{.name = "a .. b", .nodes = {0, 1}, .devices = {0}}, {.name = "c .. d", .nodes = {2, 3}, .devices = {1}}};
  plan.bottleneck = 6;
  plan.lower_bound = 12;
  evaluate(p, plan);
  return plan_file_of(p, plan);
}

TEST(PlanFile, SaysWhatWasCountedWith) {
  const PlanFile plan = small_plan();
  EXPECT_EQ(plan.microbatches, 4);
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[1].nodes, (std::vector<std::string>{"c", "d"}));
  EXPECT_EQ(plan.stages[0].micro_batch, 2);
  EXPECT_EQ(plan.stages[0].backward, 4);
  EXPECT_EQ(plan.stages[0].bytes, 2 * 10 + 2 * 200);  // two micro-batches in flight
  ASSERT_EQ(plan.links.size(), 1u);
  EXPECT_EQ(plan.links[0].bytes, 110);
  EXPECT_EQ(plan.links[0].seconds, 1.35);
}

TEST(PlanFile, NamesTheNodesThatAreComputedAgainOrSwapped) {
  PlanProblem p = problem();
  NodeCost again = p.graph.nodes[2].costs[0], swapped = p.graph.nodes[1].costs[0];
  again.name = "recomputed";
  again.recompute = true;
  p.graph.nodes[2].costs.push_back(again);
  swapped.name = "swapped";
  swapped.swap_bytes = 100;
  p.graph.nodes[1].costs.push_back(swapped);
  Plan plan;
  plan.stages = {{.name = "a .. b", .nodes = {0, 1}, .choices = {0, 1}, .devices = {0}},
                 {.name = "c .. d", .nodes = {2, 3}, .choices = {1, 0}, .devices = {1}}};
  evaluate(p, plan);
  const PlanFile file = plan_file_of(p, plan);
  EXPECT_TRUE(file.stages[0].recompute.empty());
  EXPECT_EQ(file.stages[0].swap, std::vector<std::string>{"b"});
  EXPECT_EQ(file.stages[1].recompute, std::vector<std::string>{"c"});
  EXPECT_TRUE(file.stages[1].swap.empty());
}

TEST(PlanFile, RoundTrip) {
  PlanFile plan = small_plan();
  plan.timeline = "{\"penstock\":1}";
  plan.zero = 3;
  plan.local = 2;
  plan.stages[1].recompute = {"d"};
  plan.stages[1].swap = {"c"};
  const std::string text = print(plan);
  EXPECT_TRUE(is_plan(text));
  const PlanFile again = parse_plan(text, "p.json");
  EXPECT_EQ(print(again), text);
  EXPECT_EQ(again.schedule.actors, plan.schedule.actors);
  EXPECT_EQ(again.stages[1].recompute, plan.stages[1].recompute);
  EXPECT_EQ(again.stages[1].swap, plan.stages[1].swap);
  EXPECT_EQ(print(small_plan()).find("swap"), std::string::npos);
  EXPECT_EQ(print(small_plan()).find("recompute"), std::string::npos);
  EXPECT_EQ(parse_plan(print(small_plan()), "p.json").zero, -1);  // as the run says
  EXPECT_FALSE(is_plan("{\"penstock\": \"graph\"}"));
}

TEST(PlanFile, TheContractsKeys) {
  const std::string text = print(small_plan(), false);
  for (const char* key : {"\"stages\":[{\"name\":", "\"nodes\":", "\"devices\":", "\"micro_batch\":", "\"bottleneck\":6.0",
                          "\"predicted_time\":", "\"peak_bytes\":", "\"search_seconds\":", "\"optimal\":false"})
    EXPECT_NE(text.find(key), std::string::npos) << key << " in " << text;
  EXPECT_EQ(text.find("schedule"), std::string::npos);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(PlanFile, BadOnesAreNamed) {
  const std::string good = print(small_plan());
  const auto message = [](const std::string& text) { return message_of([&] { parse_plan(text, "p.json"); }); };
  EXPECT_TRUE(message("{").starts_with("p.json:1:2")) << message("{");
  EXPECT_TRUE(message("{}").starts_with("p.json is no plan")) << message("{}");
  const std::pair<std::string, std::string> cases[] = {
      {replaced(good, "\"planner\"", "\"planer\""), "planer"},
      {replaced(good, "\"from\": 0", "\"from\": 1"), "links[0].from is 1; a stage feeds only stages after it"},
      {replaced(good, "1F0", "2F0"), "schedule has 3 stages, the plan 2"},
      {replaced(good, "\"samples\": 8", "\"samples\": 0"), "samples is 0"},
      {replaced(good, "\"samples\": 8", "\"zero\": 4, \"samples\": 8"), "zero is 4"},
  };
  PlanFile elsewhere = small_plan();
  elsewhere.stages[1].nodes = {"c", "h.0.attn"};
  elsewhere.stages[1].recompute = {"c", "h.0.atn"};
  EXPECT_EQ(message(print(elsewhere)),
            "p.json: stages[1].recompute[1] is \"h.0.atn\"; a stage computes again nodes of its own\n  hint: did you mean \"h.0.attn\"?");
  elsewhere.stages[1].recompute.clear();
  elsewhere.stages[1].swap = {"h.0.atn"};
  EXPECT_EQ(message(print(elsewhere)),
            "p.json: stages[1].swap[0] is \"h.0.atn\"; a stage swaps nodes of its own\n  hint: did you mean \"h.0.attn\"?");
  elsewhere.stages[1].recompute = elsewhere.stages[1].swap = {"c"};
  EXPECT_EQ(message(print(elsewhere)),
            "p.json: stages[1].swap has \"c\", which the stage computes again\n  hint: leave it out of recompute, or of swap");
  PlanFile on_processor = small_plan();
  on_processor.stages[1].devices = {2};
  EXPECT_EQ(message(print(on_processor)), "no error");  // of a run, which numbers devices by rows
  on_processor.stages[1].bytes = 0;
  EXPECT_EQ(message(print(on_processor)),
            "p.json: stages has \"c .. d\" on a host processor; stages are on devices only\n  hint: make the plan anew");
  for (const auto& [text, expected] : cases) EXPECT_NE(message(text).find(expected), std::string::npos) << message(text);
  const std::string large = message(replaced(good, "\"samples\": 8", "\"samples\": 1e999"));
  EXPECT_TRUE(large.starts_with("p.json:") && large.find(": a number is too large\n") != std::string::npos) << large;
  for (std::size_t size = 60; size + 2 < good.size(); size += 61)
    EXPECT_NE(message(good.substr(0, size)).find(": this is not JSON"), std::string::npos) << size;
}

TEST(PlanFile, NodesOfAnotherModel) {
  PlanFile plan = small_plan();
  plan.file = "p.json";
  EXPECT_NO_THROW(check_nodes(plan, {"a", "b", "c", "d"}));
  EXPECT_EQ(message_of([&] { check_nodes(plan, {"a", "b", "c", "other"}); }),
            "p.json: stage \"c .. d\" has node \"d\", which the model has not\n  the model's nodes: a, b, c, other\n"
            "  hint: its nearest is \"a\"");
  EXPECT_EQ(message_of([&] { check_nodes(plan, {"a", "b", "c", "d", "e"}); }),
            "p.json: no stage has 1 node of the model\n  e\n  hint: plan this model: penstock plan CONFIG --cluster local --out FILE");
}

TEST(PlanFile, GroupsAreWholeNodes) {
  PlanFile plan = small_plan();
  plan.file = "p.json";
  plan.stages[0].devices = {0, 1, 2};
  plan.stages[1].devices = {3, 4};
  EXPECT_EQ(devices_of_actors(plan), (std::vector<int>{3, 2}));
  plan.local = 2;
  EXPECT_EQ(message_of([&] { devices_of_actors(plan); }), "p.json: stage \"a .. b\" has 3 devices, which are no nodes of local = 2");
}

TEST(PlanFile, NamesStandForOneThing) {
  PlanFile plan = small_plan();
  plan.file = "p.json";
  plan.stages[1].nodes[1] = "a";
  EXPECT_EQ(message_of([&] { check_nodes(plan, {"a", "b", "c", "d"}); }), "p.json: two stages have node \"a\"");
  plan.stages[1].name = plan.stages[0].name;
  EXPECT_EQ(message_of([&] { check_nodes(plan, {"a", "b", "c", "d"}); }), "p.json: two stages are called \"a .. b\"");
}

TEST(PlanFile, ActorsHaveTheDevicesOfTheirStages) {
  PlanFile plan = small_plan();
  plan.file = "p.json";
  EXPECT_EQ(devices_of_actors(plan), (std::vector<int>{1, 1}));
  plan.stages[1].devices = {1, 2};
  plan.schedule.actors.emplace_back();  // has nothing to do
  EXPECT_EQ(devices_of_actors(plan), (std::vector<int>{1, 2, 1}));

  const auto message = [&] { return message_of([&] { devices_of_actors(plan); }); };
  plan.stages[1].devices = {1, 0};
  EXPECT_EQ(message(), "p.json: device 0 of stage \"c .. d\" is taken\n  actor 0 of the table has it");
  plan.stages[1].devices = {1, 2};
  plan.schedule = parse_schedule("0F0,1F0,1B0,0B0\n", "t.csv");
  EXPECT_EQ(message(), "p.json: actor 0 has stages on different devices\n  \"a .. b\" on 0\n  \"c .. d\" on 1,2");
}

TEST(PlanFile, BatchesThatDevicesCannotShare) {
  PlanFile plan = small_plan();
  plan.file = "p.json";
  EXPECT_NO_THROW(check_runnable(plan, 8));
  EXPECT_EQ(message_of([&] { check_runnable(plan, 6); }), "p.json: 6 samples cannot be cut into 4 micro-batches");
  plan.stages[0].devices = {0, 3};
  plan.stages[1].devices = {1, 2, 4};
  EXPECT_NO_THROW(check_runnable(plan, 24));
  EXPECT_EQ(message_of([&] { check_runnable(plan, 8); }),
            "p.json: 8 samples cannot be cut into 4 micro-batches of 6 equal parts\n  stage \"a .. b\" has 2 devices\n"
            "  stage \"c .. d\" has 3 devices\n  hint: plan with other sizes (--microbatch-sizes), or with --no-replicas");
}

TEST(PlanFile, TablesForStagesInAnotherOrder) {
  const PlanFile plan = small_plan();
  const Schedule table = parse_schedule("0F0,0B0\n1F0,1B0\n", "t.csv");
  EXPECT_EQ(print(renumbered(plan, table, {"c .. d", "a .. b"})), "1F0,1B0\n0F0,0B0\n");
  EXPECT_EQ(print(renumbered(plan, table, {"c .. d"})), "\n0F0,0B0\n");  // a graph without the other one
}

}  // namespace
}  // namespace penstock
