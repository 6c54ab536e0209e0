// SPDX-License-Identifier: Apache-2.0
#include "penstock/plan.h"

#include <gtest/gtest.h>

#include "planners/profiles.h"
#include "planners/random_plan.h"
#include "support/errors.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;
using test::profile;

std::string failure(const std::string& text) {
  return message_of([&] { parse_plan_graph(text, "g"); });
}

// The message where `from` stands as `to`.
std::string failure_with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return failure(text.replace(at, from.size(), to));
}

// The text before the first line's end.
std::string first_line(const std::string& message) {
  return message.substr(0, message.find('\n'));
}

struct Size {
  const char* file;
  std::size_t nodes, edges;
};

void expect_size(const PlanGraph& graph, const Size& size) {
  EXPECT_EQ(graph.nodes.size(), size.nodes) << size.file;
  EXPECT_EQ(graph.edges.size(), size.edges) << size.file;
  for (const PlanEdge& edge : graph.edges) EXPECT_LT(edge.from, edge.to) << size.file;
  const std::string text = print(graph);
  EXPECT_EQ(print(parse_plan_graph(text, "again")), text) << size.file;
}

TEST(PlanGraph, SmallGraphsOfEachForm) {
  for (const Size& size :
       {Size{"residual.txt", 11, 12}, Size{"layers.json", 4, 4}, Size{"colours.json", 6, 8}, Size{"towers.json", 14, 13}})
    expect_size(test::stand_in(size.file), size);
}

TEST(PlanGraph, MeasuredGraphs) {
  if (!test::has_profiles()) GTEST_SKIP();
  for (const Size& size :
       {Size{"pipedream-vgg16-graph.txt", 41, 41}, Size{"pipedream-alexnet-graph.txt", 23, 23},
        Size{"pipedream-resnet50-graph.txt", 177, 193}, Size{"pipedream-gnmt-graph.txt", 48, 58}, Size{"piper-bert32a100.json", 37, 67},
        Size{"dnn-partitioning-bert24_training.json", 32, 55}, Size{"graphpipe/candle_uno.json", 37, 36},
        Size{"graphpipe/mmt.json", 101, 100}, Size{"graphpipe/dlrm.json", 55, 54}})
    expect_size(profile(size.file), size);
}

constexpr const char* kText =
    "node2 -- Linear(in=3, out=4) -- forward_compute_time=2.000, backward_compute_time=4.5, activation_size=[8.0; 4.0], "
    "parameter_size=48.000 -- stage_id=1\n"
    "node1 -- Input0 -- forward_compute_time=1.000, backward_compute_time=0.000, activation_size=16.0, parameter_size=0.000\r\n"
    "\n"
    "\tnode1 -- node2\n"
    "\tnode1 -- node2\n";

TEST(PlanGraph, OfPipedream) {
  const PlanGraph graph = parse_plan_graph(kText, "g.txt");
  EXPECT_EQ(graph.name, "g.txt");
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_EQ(graph.nodes[0].name, "node1");
  EXPECT_EQ(graph.nodes[0].kind, "Input0");
  EXPECT_EQ(graph.nodes[0].output_bytes, 16);
  const PlanNode& node = graph.nodes[1];
  EXPECT_EQ(node.kind, "Linear(in=3, out=4)");
  EXPECT_EQ(node.output_bytes, 12);
  EXPECT_DOUBLE_EQ(node.costs[0].forward, 2e-3);
  EXPECT_DOUBLE_EQ(node.costs[0].backward, 4.5e-3);
  EXPECT_EQ(node.costs[0].live_bytes, 12);
  EXPECT_EQ(node.costs[0].parameter_bytes, 48);
  EXPECT_EQ(node.costs[0].resident_bytes, 48);
  ASSERT_EQ(graph.edges.size(), 1u);  // read twice: one edge
  EXPECT_EQ(graph.edges[0].bytes, 16);
}

// DAPPLE's profiles are of this form; the lines of edges begin with blanks in some.
TEST(PlanGraph, OfDapple) {
  std::string text = kText;
  for (const char* blanks : {"  ", " \t"}) {
    std::string other = text;
    for (std::size_t at = other.find('\t'); at != std::string::npos; at = other.find('\t', at + 3)) other.replace(at, 1, blanks);
    EXPECT_EQ(print(parse_plan_graph(other, "g.txt")), print(parse_plan_graph(text, "g.txt")));
  }
}

TEST(PlanGraph, BadPipedreamText) {
  EXPECT_EQ(failure_with(kText, ", backward", "; backward"),
            "g:1:59: expected \", backward_compute_time=\"\n"
            "   Linear(in=3, out=4) -- forward_compute_time=2.000; backward_compute_time=4.5, activation_size=[8.0;\n"
            "                                                    ^ near here\n"
            "  hint: a node is: ID -- DESCRIPTION -- forward_compute_time=MS, backward_compute_time=MS, activation_size=BYTES, "
            "parameter_size=BYTES");
  for (const char* bad : {"-2.000", "nan", "inf", "1e999", "1e31", "x", ""})
    EXPECT_EQ(first_line(failure_with(kText, "2.000", bad)), "g:1:54: expected a number from 0 to 1e30") << bad;
  EXPECT_EQ(first_line(failure_with(kText, "4.0]", "4.0")), "g:1:113: expected \"]\"");
  EXPECT_EQ(first_line(failure_with(kText, "stage_id=1", "stage_id=1 2")), "g:1:151: expected the end of the line");
  EXPECT_EQ(first_line(failure_with(kText, "node1 -- Input0", "node2 -- Input0")), "g:2:1: a second node \"node2\"");
  EXPECT_EQ(first_line(failure_with(kText, "\tnode1 -- node2", "\tnode1 -- node7")), "g:4:11: there is no node \"node7\"");
  EXPECT_EQ(first_line(failure_with(kText, "\tnode1 -- node2", "\tnode3 -- node2")), "g:4:2: there is no node \"node3\"");
  EXPECT_EQ(failure_with(kText, "\tnode1 -- node2\n\tnode1 -- node2\n", "\tnode1"),
            "g:4:7: the line ends where a node's id should stand\n   node1\n        ^ near here\n  hint: an edge is: a tab, ID -- ID");
  EXPECT_EQ(first_line(failure("penstock is no graph")), "g:1:21: expected \"forward_compute_time=\"");
}

TEST(PlanGraph, CyclesAreNamed) {
  EXPECT_EQ(failure(concat(kText, "\tnode2 -- node1\n")),
            "g: the graph has a cycle of 2 nodes\n  node1 -> node2 -> node1\n"
            "  hint: a model's graph for planning has no cycles");
  EXPECT_EQ(failure(concat(kText, "\tnode2 -- node2\n")),
            "g: the graph has a cycle of 1 node\n  node2 -> node2\n  hint: a model's graph for planning has no cycles");
}

TEST(PlanGraph, NothingToRead) {
  EXPECT_EQ(failure(" \n"), "g: the file is empty\n  hint: give a graph with one node at least");
  EXPECT_EQ(failure("{\"nodes\": []}"),
            "g: this JSON is no graph of a model\n"
            "  Piper's has a key mbsInBatch, dnn-partitioning's maxFPGAs, a GraphPipe structure nodes with forward_flops, Penstock's own "
            "penstock");
  EXPECT_EQ(failure("[]"), "g is []; it must be an object");
  EXPECT_EQ(failure("{\"nodes\":"),
            "g:1:10: this is not JSON: it ends before its brackets or quotes are closed\n  {\"nodes\":\n           ^ near here");
  EXPECT_EQ(failure("{}"), "g has no key \"nodes\"\n  hint: the file is damaged, or of another version");
  EXPECT_EQ(failure(R"({"penstock": "graph 1", "nodes": [], "edges": []})"), "g: the graph has no nodes");
}

constexpr const char* kPiper = R"({"maxDevices": 4, "maxMemoryPerDevice": 100, "bandwidth": 10, "mbsInBatch": 6, "nodes": [
  {"id": 7, "name": "b", "TMPCs": {"1": [
    {"id": "vanilla", "timePerSample": 3, "parameterSize": 5, "memoryUsageA": 6, "memoryUsageB": 7, "syncTimeFw": {"3": 2}, "syncTimeBw": {}},
    {"id": "again", "timePerSample": 4, "parameterSize": 5, "memoryUsageA": 1, "memoryUsageB": 8, "syncTimeFw": {"3": 2}, "syncTimeBw": {}}]}},
  {"id": 3, "TMPCs": {"10": [], "2": [
    {"id": "vanilla", "timePerSample": 6, "parameterSize": 0, "memoryUsageA": 0, "memoryUsageB": 0, "syncTimeFw": {}, "syncTimeBw": {"7": 1}}]}}],
  "edges": [{"sourceId": 3, "destId": 7, "communicationCost": 9}]})";

TEST(PlanGraph, OfPiper) {
  const PlanGraph graph = parse_plan_graph(kPiper, "g.json");
  EXPECT_EQ(graph.devices, 4);
  EXPECT_EQ(graph.memory, 100);
  EXPECT_EQ(graph.bandwidth, 10);
  EXPECT_EQ(graph.samples, 6);
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_EQ(graph.nodes[0].name, "3");
  EXPECT_EQ(graph.nodes[0].output_bytes, 9);
  EXPECT_EQ(graph.nodes[0].costs[0].degree, 2);
  EXPECT_EQ(graph.nodes[0].costs[0].backward_sync, (std::map<int, double>{{1, 1}}));
  const NodeCost& again = graph.nodes[1].costs[1];
  EXPECT_EQ(again.name, "again");
  EXPECT_EQ(again.forward, 1);  // a third of what it takes without computing again
  EXPECT_EQ(again.backward, 3);
  EXPECT_EQ(again.live_bytes, 1);
  EXPECT_EQ(again.resident_bytes, 8);
  EXPECT_EQ(again.parameter_bytes, 5);
  EXPECT_EQ(again.forward_sync, (std::map<int, double>{{0, 2}}));
  EXPECT_EQ(graph.edges[0].bytes, 9);
}

TEST(PlanGraph, BadPiper) {
  EXPECT_EQ(failure_with(kPiper, "\"id\": 3", "\"id\": 7"), "g: nodes[1].id is 7, which another node has already");
  EXPECT_EQ(failure_with(kPiper, "\"destId\": 7", "\"destId\": 8"), "g: edges[0].destId is 8; no node has this id");
  EXPECT_EQ(failure_with(kPiper, "\"timePerSample\": 3", "\"timePerSample\": -3"),
            "g: nodes[0].TMPCs.1[0].timePerSample is -3; it must not be negative");
  EXPECT_EQ(failure_with(kPiper, "\"timePerSample\": 3", "\"timePerSample\": 1e31"),
            "g: nodes[0].TMPCs.1[0].timePerSample is 1e+31; it must be at most 1e30");
  EXPECT_EQ(first_line(failure_with(kPiper, "\"timePerSample\": 3", "\"timePerSample\": 1e999")), "g:3:44: a number is too large");
  EXPECT_EQ(failure_with(kPiper, "\"10\"", "\"x\""), "g: nodes[1].TMPCs has the key \"x\"; it must be a number of devices");
  EXPECT_EQ(failure_with(kPiper, "\"10\"", "\"02\""), "g: nodes[1].TMPCs has the degree 2 twice");
  EXPECT_EQ(failure_with(kPiper, "\"again\"", "\"vanilla\""),
            "g: nodes[0].TMPCs.1[1].id is \"vanilla\", which another entry of the list is already");
  EXPECT_EQ(failure_with(kPiper, "{\"3\": 2}", "{\"4\": 2}"), "g: nodes[0].TMPCs.1[0].syncTimeFw has the key \"4\"; no node has this id");
  EXPECT_EQ(failure_with(kPiper, "{\"3\": 2}", "{\"7\": 2}"), "g: nodes[0].TMPCs.1[0].syncTimeFw has the key \"7\"; there is no such edge");
  EXPECT_EQ(failure_with(kPiper, "9}]", "9}, {\"sourceId\": 3, \"destId\": 7, \"communicationCost\": 9}]"),
            "g: edges[1] is there twice: an edge from \"3\" to \"b\"");
  EXPECT_EQ(failure_with(kPiper, "\"bandwidth\": 10", "\"bandwidth\": 0"), "g: bandwidth is 0; it must be more");
  EXPECT_EQ(failure_with(kPiper, "\"mbsInBatch\": 6", "\"mbsInBatch\": 1.5"),
            "g: mbsInBatch is 1.5; it must be a whole number from 1 to 2147483647");
  EXPECT_EQ(failure(R"({"maxDevices": 4, "maxMemoryPerDevice": 100, "bandwidth": 10, "mbsInBatch": 6,
                        "nodes": [{"id": 0, "TMPCs": {"1": []}}], "edges": []})"),
            "g: nodes[0].TMPCs has no costs: a node needs one way to run at least");
  const std::string text = kPiper;
  for (std::size_t size = 1; size < text.size(); size += 7) EXPECT_NE(failure(text.substr(0, size)), "no error") << size;
}

constexpr const char* kColours = R"({"maxSizePerFPGA": 50, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [
  {"id": 4, "name": "bgrad", "supportedOnFpga": 1, "cpuLatency": 40, "fpgaLatency": 4, "isBackwardNode": 1, "colorClass": 9, "size": 6},
  {"id": 2, "name": "b", "supportedOnFpga": 1, "cpuLatency": 20, "fpgaLatency": 2, "isBackwardNode": 0, "colorClass": 9, "size": 5},
  {"id": 1, "name": "a", "supportedOnFpga": 1, "cpuLatency": 10, "fpgaLatency": 1, "isBackwardNode": 0, "colorClass": 8, "size": 3},
  {"id": 3, "name": "agrad", "supportedOnFpga": 1, "cpuLatency": 30, "fpgaLatency": 3, "isBackwardNode": 1, "colorClass": 8, "size": 3}],
  "edges": [{"sourceId": 1, "destId": 2, "cost": 7, "size": 70}, {"sourceId": 3, "destId": 4, "cost": 8, "size": 80},
            {"sourceId": 2, "destId": 4, "cost": 9, "size": 90}]})";

TEST(PlanGraph, OfDnnPartitioning) {
  const PlanGraph graph = parse_plan_graph(kColours, "g.json");
  EXPECT_EQ(graph.devices, 2);
  EXPECT_EQ(graph.memory, 50);
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_EQ(graph.nodes[0].name, "a");
  EXPECT_EQ(graph.nodes[0].costs[0].forward, 0.001);
  ASSERT_EQ(graph.nodes[0].outputs.size(), 2u);  // its own and its gradient's
  EXPECT_DOUBLE_EQ(graph.nodes[0].outputs[0].seconds, 0.007);
  EXPECT_FALSE(graph.nodes[0].outputs[0].backward);
  EXPECT_DOUBLE_EQ(graph.nodes[0].outputs[1].seconds, 0.008);
  EXPECT_TRUE(graph.nodes[0].outputs[1].backward);
  EXPECT_EQ(graph.nodes[0].outputs[1].readers, std::vector<int>{1});
  EXPECT_TRUE(graph.nodes[1].outputs.empty());  // the gradient's node reads it
  EXPECT_EQ(graph.nodes[1].name, "b");
  EXPECT_EQ(graph.nodes[1].costs[0].forward, 0.002);
  EXPECT_EQ(graph.nodes[1].costs[0].backward, 0.004);
  EXPECT_EQ(graph.nodes[1].costs[0].resident_bytes, 11);
  ASSERT_EQ(graph.edges.size(), 1u);
  EXPECT_EQ(graph.edges[0].bytes, 70);
  EXPECT_EQ(print(parse_plan_graph(print(graph), "again")), print(graph));
}

TEST(PlanGraph, BadDnnPartitioning) {
  EXPECT_EQ(failure_with(kColours, "\"supportedOnFpga\": 1", "\"supportedOnFpga\": 0"),
            "g: nodes[0].supportedOnFpga is false; stages are on devices, and no longer on host processors\n"
            "  hint: give the node a time on a device");
  EXPECT_EQ(failure_with(kColours, "\"id\": 4", "\"id\": 2"), "g: nodes[1].id is 2, which another node has already");
  EXPECT_EQ(failure_with(kColours, "\"destId\": 2", "\"destId\": 5"), "g: edges[0].destId is 5; no node has this id");
  EXPECT_EQ(failure_with(kColours, "\"fpgaLatency\": 4", "\"fpgaLatency\": null"), "g: nodes[0].fpgaLatency is null; it must be a number");
  EXPECT_EQ(failure_with(kColours, "\"isBackwardNode\": 1", "\"isBackwardNode\": 2"),
            "g: nodes[0].isBackwardNode is 2; it must be a whole number from 0 to 1");
  EXPECT_EQ(failure_with(kColours, "\"isBackwardNode\": 1", "\"isBackwardNode\": \"yes\""),
            "g: nodes[0].isBackwardNode is \"yes\"; it must be a whole number from 0 to 1");
  EXPECT_EQ(first_line(failure_with(kColours, "\"edges\": [", "\"edges\": [{\"sourceId\": 2, \"destId\": 1, \"cost\": 0, \"size\": 0}, ")),
            "g: the graph has a cycle of 2 nodes");
  const std::string text = kColours;
  for (std::size_t size = 1; size < text.size(); size += 7) EXPECT_NE(failure(text.substr(0, size)), "no error") << size;
}

// An operator graph as it is published: flags are true and false, colours may lack, and gradients have nodes of their own. The forward
// nodes are x -> y -> z; y and z have gradients of their colours; `sum` and `bias` are gradients without a forward node.
constexpr const char* kOperators = R"({"maxSizePerFPGA": 1e9, "maxFPGAs": 6, "nodes": [
  {"name": "x", "id": 0, "supportedOnFpga": true, "cpuLatency": 0, "fpgaLatency": 1, "isBackwardNode": false},
  {"name": "y", "id": 1, "supportedOnFpga": true, "cpuLatency": 9, "fpgaLatency": 2, "isBackwardNode": false, "colorClass": 1, "size": 3},
  {"name": "z", "id": 2, "supportedOnFpga": true, "cpuLatency": 9, "fpgaLatency": 4, "isBackwardNode": false, "colorClass": 2, "size": 3},
  {"name": "zgrad", "id": 3, "supportedOnFpga": true, "cpuLatency": 9, "fpgaLatency": 8, "isBackwardNode": true, "colorClass": 2, "size": 3},
  {"name": "sum", "id": 4, "supportedOnFpga": true, "cpuLatency": 9, "fpgaLatency": 16, "isBackwardNode": true, "size": 5},
  {"name": "ygrad", "id": 5, "supportedOnFpga": true, "cpuLatency": 9, "fpgaLatency": 32, "isBackwardNode": true, "colorClass": 1, "size": 3},
  {"name": "bias", "id": 6, "supportedOnFpga": true, "cpuLatency": 9, "fpgaLatency": 64, "isBackwardNode": true, "colorClass": 7, "size": 3}],
  "edges": [{"sourceId": 0, "destId": 1, "cost": 1}, {"sourceId": 1, "destId": 2, "cost": 2, "size": 20},
            {"sourceId": 2, "destId": 3, "cost": 3, "size": 30}, {"sourceId": 3, "destId": 4, "cost": 4, "size": 40},
            {"sourceId": 4, "destId": 5, "cost": 5, "size": 50}, {"sourceId": 5, "destId": 6, "cost": 6, "size": 60},
            {"sourceId": 1, "destId": 5, "cost": 2, "size": 20}]})";

std::string edges_text(const PlanGraph& graph) {
  return join(graph.edges, ", ", [&](const PlanEdge& edge) {
    return concat(graph.nodes[static_cast<std::size_t>(edge.from)].name, " -> ", graph.nodes[static_cast<std::size_t>(edge.to)].name, " ",
                  edge.bytes);
  });
}

TEST(PlanGraph, OfOperatorsWithGradientsOfTheirOwn) {
  const PlanGraph graph = parse_plan_graph(kOperators, "g.json");
  // A gradient without a forward node takes the place that the mirror image gives it: `sum` between y and z, `bias` before y.
  EXPECT_EQ(join(graph.nodes, " ", [](const PlanNode& node) { return node.name; }), "x bias y sum z");
  EXPECT_EQ(edges_text(graph), "x -> y 0, bias -> y 0, y -> sum 0, y -> z 20, sum -> z 0");
  const PlanNode& sum = graph.nodes[3];
  EXPECT_EQ(sum.costs[0].forward, 0);
  EXPECT_EQ(sum.costs[0].backward, 0.016);
  EXPECT_EQ(sum.costs[0].resident_bytes, 5);
  EXPECT_EQ(sum.outputs[0].readers, std::vector<int>{2});
  EXPECT_EQ(graph.nodes[2].outputs.size(), 2u);  // y's to z, whose reader ygrad has its colour, and ygrad's to bias
  EXPECT_EQ(print(parse_plan_graph(print(graph), "again")), print(graph));
}

// a and d have one colour, b and c between them none: all that lies on a way from the colour back to it is one node.
TEST(PlanGraph, ColoursThatFeedEachOtherAreOneNode) {
  const std::string text = R"({"maxSizePerFPGA": 9, "maxFPGAs": 2, "nodes": [
    {"id": 0, "name": "a", "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "colorClass": 3, "size": 0},
    {"id": 1, "name": "b", "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "size": 0},
    {"id": 2, "name": "c", "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "size": 0},
    {"id": 3, "name": "d", "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "colorClass": 3, "size": 0},
    {"id": 4, "name": "e", "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, "isBackwardNode": 0, "size": 0}],
    "edges": [{"sourceId": 0, "destId": 1, "cost": 1, "size": 1}, {"sourceId": 1, "destId": 3, "cost": 1, "size": 1},
              {"sourceId": 0, "destId": 2, "cost": 1, "size": 1}, {"sourceId": 3, "destId": 4, "cost": 1, "size": 1}]})";
  const PlanGraph graph = parse_plan_graph(text, "g.json");
  EXPECT_EQ(join(graph.nodes, " ", [](const PlanNode& node) { return node.name; }), "a c e");
  EXPECT_DOUBLE_EQ(graph.nodes[0].costs[0].forward, 0.003);
  EXPECT_EQ(edges_text(graph), "a -> c 1, a -> e 1");
  EXPECT_EQ(graph.nodes[0].outputs.size(), 2u);  // of a and of d; b's goes to d
}

constexpr const char* kStructure = R"({"name": "s", "nodes": [
  {"id": 0, "op": "input", "output_shape": [10], "parameters": 0, "forward_flops": 0, "dtype": "i64"},
  {"id": 1, "name": "dense", "op": "dense", "output_shape": [2, 3], "parameters": 1000000, "forward_flops": 9.42e9}],
  "edges": [[0, 1]]})";

TEST(PlanGraph, OfGraphPipe) {
  const PlanGraph graph = parse_plan_graph(kStructure, "g.json", "v100");
  EXPECT_EQ(graph.name, "s");
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_EQ(graph.nodes[0].name, "input");
  EXPECT_EQ(graph.nodes[0].costs[0].forward, 0);
  EXPECT_EQ(graph.nodes[0].output_bytes, 80);
  const PlanNode& dense = graph.nodes[1];
  EXPECT_EQ(dense.kind, "dense");
  EXPECT_EQ(dense.output_bytes, 24);
  ASSERT_EQ(dense.costs.size(), 11u);
  EXPECT_EQ(dense.costs[10].samples, 1024);
  // 9.42e9 operations at 60 % of 15.7e12 per second: 1 ms, and 4 us to launch.
  EXPECT_NEAR(dense.costs[0].forward, 1.004e-3, 1e-9);
  EXPECT_EQ(dense.costs[0].backward, 2 * dense.costs[0].forward);
  EXPECT_EQ(dense.costs[0].parameter_bytes, 4e6);
  EXPECT_EQ(dense.costs[0].resident_bytes, 16e6);
  EXPECT_EQ(dense.costs[3].live_bytes, 8 * 24);
  EXPECT_LT(parse_plan_graph(kStructure, "g.json", "h100-sxm").nodes[1].costs[0].forward, dense.costs[0].forward);
}

TEST(PlanGraph, BadGraphPipe) {
  EXPECT_EQ(failure_with(kStructure, "[0, 1]", "[0, 2]"), "g: edges[0][1] is 2; no node has this id");
  EXPECT_EQ(failure_with(kStructure, "[0, 1]", "[0]"), "g: edges[0] has 1 entries; an edge is [from, to]");
  EXPECT_EQ(failure_with(kStructure, "[0, 1]", "[0, 1], [0, 1]"), "g: edges[1] is there twice: an edge from \"input\" to \"dense\"");
  EXPECT_EQ(failure_with(kStructure, "[2, 3]", "[2147483647, 2147483647, 2147483647]"),
            "g: nodes[1].output_shape has more than 1e18 elements");
  EXPECT_EQ(failure_with(kStructure, "\"parameters\": 0", "\"parameters\": -1"), "g: nodes[0].parameters is -1; it must not be negative");
  EXPECT_EQ(failure_with(kStructure, "1000000", "1e30"), "g: node \"dense\" has 1.6e+31 resident bytes; it must be at most 1e30");
  EXPECT_EQ(first_line(failure_with(kStructure, "[0, 1]", "[1, 1]")), "g: the graph has a cycle of 1 node");
  EXPECT_EQ(first_line(message_of([] { parse_plan_graph(kStructure, "g", "v101"); })), "there is no device \"v101\" in devices.toml");
}

PlanGraph sample() {
  PlanGraph graph;
  graph.name = "sample";
  graph.samples = 64;
  graph.memory = 1e9;
  graph.nodes.resize(2);
  graph.nodes[0].name = "a";
  graph.nodes[0].kind = "conv";
  graph.nodes[0].costs.resize(3);
  graph.nodes[0].costs[1].samples = 4;
  graph.nodes[0].costs[1].forward = 0.1 + 0.2;  // needs all digits
  graph.nodes[0].costs[1].update = 0.25;
  graph.nodes[0].costs[2].degree = 2;
  graph.nodes[0].costs[2].backward_sync = {{1, 3}};
  graph.nodes[0].costs[2].recompute = true;
  graph.nodes[0].costs[2].swap_bytes = 24;
  graph.nodes[0].equal_batches = true;
  graph.nodes[1].name = "b";
  graph.nodes[1].costs = {{.forward = 5}};
  graph.nodes[0].outputs = {{.seconds = 0.5, .readers = {1}}, {.seconds = 0, .backward = true, .readers = {1}}};
  graph.edges = {{0, 1, 8}};
  return graph;
}

TEST(PlanGraph, ReadBackAsPrinted) {
  PlanGraph weighted = sample();
  weighted.nodes[0].costs[0].weight = 0;
  EXPECT_EQ(parse_plan_graph(print(weighted), "g.json").nodes[0].costs[0].weight, 0);
  EXPECT_EQ(parse_plan_graph(print(sample()), "g.json").nodes[0].costs[0].weight, -1);
  const std::string text = print(sample());
  const PlanGraph graph = parse_plan_graph(text, "g.json");
  EXPECT_EQ(print(graph), text);
  EXPECT_EQ(graph.nodes[0].costs[1].forward, 0.1 + 0.2);
  EXPECT_EQ(graph.nodes[0].costs[1].update, 0.25);
  EXPECT_EQ(graph.nodes[1].costs.size(), 1u);
  EXPECT_TRUE(graph.nodes[0].equal_batches);
  ASSERT_EQ(graph.nodes[0].outputs.size(), 2u);
  EXPECT_EQ(graph.nodes[0].outputs[0].seconds, 0.5);
  EXPECT_TRUE(graph.nodes[0].outputs[1].backward);
  EXPECT_TRUE(graph.nodes[1].outputs.empty());
  for (std::uint64_t seed = 0; seed < test::rounds(50u); ++seed) {
    std::mt19937_64 random(seed);
    const std::string other = print(test::random_plan_graph(random, 1 + static_cast<int>(seed % 20)));
    EXPECT_EQ(print(parse_plan_graph(other, "g.json")), other) << seed;
  }
}

TEST(PlanGraph, NodesAreOrdered) {
  const PlanGraph graph = parse_plan_graph(
      R"({"penstock": "graph 1", "nodes": [{"name": "c", "costs": [{"forward": 1, "backward": 1, "forward_sync": [{"node": 2, "bytes": 5}]}]},
          {"name": "x", "costs": [{"forward": 1, "backward": 1}]}, {"name": "a", "costs": [{"forward": 1, "backward": 1}]}],
          "edges": [{"from": 2, "to": 0, "bytes": 1}]})",
      "g.json");
  ASSERT_EQ(graph.nodes.size(), 3u);
  EXPECT_EQ(graph.nodes[0].name, "x");  // parts of a graph without edges between them are run beside each other
  EXPECT_EQ(graph.nodes[1].name, "a");
  EXPECT_EQ(graph.nodes[2].name, "c");
  EXPECT_EQ(graph.nodes[2].costs[0].forward_sync, (std::map<int, double>{{1, 5}}));
  EXPECT_EQ(graph.edges[0].from, 1);
  EXPECT_EQ(graph.edges[0].to, 2);
}

TEST(PlanGraph, BadOwnForm) {
  const std::string text = print(sample());
  EXPECT_EQ(failure_with(text, "graph 1", "graph 2"), "g: penstock is \"graph 2\"; this build reads \"graph 1\"");
  EXPECT_EQ(failure_with(text, "\"samples\": 64", "\"sampels\": 64"),
            "g has an unknown key \"sampels\"\n  hint: did you mean \"samples\"?");
  EXPECT_EQ(failure_with(text, "\"samples\": 4,", "\"samples\": 1,"),
            "g: nodes[0].costs [1] is for 1 samples after 1; samples of one way must ascend");
  EXPECT_EQ(failure_with(text, "\"samples\": 4,", "\"degree\": 4,"), "no error");
  EXPECT_EQ(failure_with(text, "\"update\": 0.25", "\"update\": -1"), "g: nodes[0].costs[1].update is -1; it must not be negative");
  EXPECT_EQ(failure_with(text, "\"samples\": 4,", "\"degree\": 2,"),
            "g: nodes[0].costs [2] is for 1 samples after 1; samples of one way must ascend");
  EXPECT_EQ(failure(R"({"penstock": "graph 1", "nodes": [{"name": "a", "costs": []}], "edges": []})"),
            "g: nodes[0].costs is empty: a node needs one cost at least");
  EXPECT_EQ(failure_with(text, "\"seconds\": 0.5", "\"seconds\": -1"), "g: nodes[0].outputs[0].seconds is -1; it must not be negative");
  EXPECT_EQ(failure_with(text, "\"readers\"", "\"reader\""),
            "g: nodes[0].outputs[0] has an unknown key \"reader\"\n  hint: did you mean \"readers\"?");
  EXPECT_EQ(failure(R"({"penstock": "graph 1", "nodes": [{"name": "a", "costs": [{"forward": 1, "backward": 1}],
                        "outputs": [{"seconds": 1, "readers": [0, 0]}]}], "edges": []})"),
            "g: nodes[0].outputs[0].readers[1] is 0; readers must ascend");
  EXPECT_EQ(failure_with(text, "\"to\": 1", "\"to\": 2"), "g: edges[0].to is 2; it must be a whole number from 0 to 1");
  EXPECT_EQ(failure_with(text, "\"node\": 1", "\"node\": -1"),
            "g: nodes[0].costs[2].backward_sync[0].node is -1; it must be a whole number from 0 to 1");
  EXPECT_EQ(failure_with(text, "\"equal_batches\": true", "\"equal_batches\": 1"),
            "g: nodes[0].equal_batches is 1; it must be true or false");
  EXPECT_EQ(failure(R"({"penstock": "graph 1", "nodes": [{"name": "a", "costs": [{"forward": 1, "backward": 1},
                        {"degree": 2, "forward": 1, "backward": 1}, {"samples": 2, "forward": 1, "backward": 1}]}], "edges": []})"),
            "g: nodes[0].costs [2] belongs to [0] (name \"\", degree 1); they must stand together");
  EXPECT_EQ(failure(R"({"penstock": "graph 1", "cpus": 1, "nodes": [], "edges": []})"),
            "g: cpus is of host processors; stages are on devices only\n  hint: leave it out, and give each node a cost on a device");
  EXPECT_EQ(failure(R"({"penstock": "graph 1", "nodes": [{"name": "a", "costs": [], "cpu_seconds": 5}], "edges": []})"),
            "g: nodes[0].cpu_seconds is of host processors; stages are on devices only\n"
            "  hint: leave it out, and give each node a cost on a device");
  EXPECT_EQ(failure(R"({"penstock": "graph 1", "nodes": [{"name": "a", "costs": [{"forward": 1, "backward": 1, "weight": 2}]}],
                        "edges": []})"),
            "g: nodes[0].costs[0].weight is more than backward's 1.0");
  EXPECT_EQ(failure(R"({"penstock": "graph 1", "nodes": [{"name": "a", "costs": [{"forward": 1, "backward": 1, "forward_sync":
                        [{"node": 0, "bytes": 1}, {"node": 0, "bytes": 2}]}]}], "edges": []})"),
            "g: nodes[0].costs[0].forward_sync[1] is a second one of the node 0");
  EXPECT_EQ(failure(R"({"penstock": "graph 1", "nodes": [{"name": "a", "costs": [{"forward": 1, "backward": 1}]},
                        {"name": "b", "costs": [{"forward": 1, "backward": 1}]}],
                        "edges": [{"from": 0, "to": 1, "bytes": 0}, {"from": 0, "to": 1, "bytes": 0}]})"),
            "g: edges[1] is there twice: an edge from \"a\" to \"b\"");
  for (std::size_t size = 1; size + 2 < text.size(); size += 7) EXPECT_NE(failure(text.substr(0, size)), "no error") << size;
}

}  // namespace
}  // namespace penstock
