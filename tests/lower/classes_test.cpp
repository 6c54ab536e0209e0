// SPDX-License-Identifier: Apache-2.0
// Micro-batches of different shapes: one program, with tasks and ports of each.
#include <gtest/gtest.h>

#include <set>

#include "base/text.h"
#include "lower/classes.h"
#include "models/registry.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "support/errors.h"

namespace penstock {
namespace {

std::unique_ptr<Model> perceptron(std::int64_t width = 8) {
  ModelOptions sizes;
  sizes.stages = 2;
  sizes.numbers = {{"width", static_cast<double>(width)}, {"context", 4}, {"vocabulary", 16}};
  return make_model(builtin_models(), "mlp", sizes);
}

Graph step_of(int rows, int length, std::int64_t width = 8) {
  return training_step(*perceptron(width), {rows, length, 1, BatchCount::port}, {});
}

const char* const kTable = "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n";

Program compiled(const std::vector<Graph>& classes, const std::vector<int>& shape_class, const CompileOptions& options = {}) {
  return compile(classes, shape_class, parse_schedule(kTable, "table.csv"), options);
}

TEST(ShapeClasses, EachMicrobatchHasItsPortsAndItsClassesTasks) {
  const Program program = compiled({step_of(2, 4), step_of(3, 2)}, {0, 1, 0});
  std::string ports;
  for (const Port& port : program.data) ports += concat(port.name, " ", port.type.text(), " ", port.row, "\n");
  EXPECT_EQ(ports,
            "count i64[] -1\n"
            "tokens.0 i64[2,4] 0\ntargets.0 i64[2,4] 0\n"
            "tokens.1 i64[3,2] 2\ntargets.1 i64[3,2] 2\n"
            "tokens.2 i64[2,4] 5\ntargets.2 i64[2,4] 5\n");
  std::vector<std::string> runs;  // what the first actor does forward
  for (const Instruction& i : program.devices[0].instructions)
    if (i.opcode == Opcode::run && i.kind == Kind::F && i.action) runs.push_back(concat(program.tasks[i.task].name, " of ", i.microbatch));
  EXPECT_EQ(join(runs, ", "), "F0 of 0, F0.class1 of 1, F0 of 2");
}

// One accumulator for each of the loop's sums, whatever the shapes, and one update.
TEST(ShapeClasses, WhatIsSummedIsThereOnce) {
  const auto kept = [](const Program& program) {
    std::vector<std::string> out;
    for (const DeviceProgram& device : program.devices)
      for (const Slot& slot : device.slots)
        if (slot.name.starts_with("sum:") || slot.kind == SlotClass::state) out.push_back(concat(slot_bytes(slot)));
    return join(out, " ");
  };
  const Program mixed = compiled({step_of(2, 4), step_of(3, 2)}, {0, 1, 0}), alike = compiled({step_of(2, 4)}, {0, 0, 0});
  EXPECT_EQ(kept(mixed), kept(alike));
}

TEST(ShapeClasses, OneClassIsAnOrdinaryStep) {
  const Program mixed = compiled({step_of(2, 4), step_of(2, 4)}, {0, 1, 1}), alike = compiled({step_of(2, 4)}, {0, 0, 0});
  EXPECT_EQ(mixed.tasks.size(), alike.tasks.size()) << "tasks of equal structure are one";
  for (std::size_t d = 0; d < alike.devices.size(); ++d)
    EXPECT_EQ(mixed.devices[d].instructions.size(), alike.devices[d].instructions.size());
}

// Each device has the ports of its parts, and of no others.
TEST(ShapeClasses, DevicesShareAMicrobatchInPartsOfItsClass) {
  const Program program = compiled({step_of(2, 4), step_of(3, 2)}, {0, 1, 0}, {.devices = {2, 1}});
  std::string ports;
  for (const Port& port : program.data)
    if (data_name(port) == "targets") ports += concat(port.name, " ", port.type.text(), " ", port.row, "\n");
  EXPECT_EQ(ports,
            "targets.0 i64[2,4] 0\ntargets.1 i64[2,4] 2\ntargets.2 i64[3,2] 4\ntargets.3 i64[3,2] 7\n"
            "targets.4 i64[2,4] 10\ntargets.5 i64[2,4] 12\n");
  std::vector<std::string> read;  // by device
  for (const DeviceProgram& device : program.devices) {
    std::vector<std::string> names;
    for (const Instruction& i : device.instructions)
      if (i.opcode == Opcode::input && program.data[i.port].row >= 0) names.push_back(program.data[i.port].name);
    read.push_back(join(names, " "));
  }
  EXPECT_EQ(read, (std::vector<std::string>{"tokens.0 tokens.2 tokens.4", "tokens.1 tokens.3 tokens.5",
                                            "targets.0 targets.1 targets.2 targets.3 targets.4 targets.5"}));
}

// Tasks are there once for all programs that have them.
TEST(ShapeClasses, ProgramsShareTheirClassesTasks) {
  const Schedule schedule = parse_schedule(kTable, "table.csv");
  const ShapeClass a = compile_class(step_of(2, 4), schedule, {}), b = compile_class(step_of(3, 2), schedule, {});
  const std::vector<PlacedClass> both = {{&a}, {&b}}, turned = {{&b}, {&a}};
  TaskPool pool;
  const Program first = compile_joined(both, {0, 1, 0}, schedule, {}, pool), second = compile_joined(turned, {1, 0, 0}, schedule, {}, pool);
  const auto graphs_of = [](const Program& program) {
    std::set<const Graph*> out;
    for (const Task& task : program.tasks) out.insert(&*task.graph);
    return out;
  };
  EXPECT_EQ(graphs_of(first), graphs_of(second));
}

TEST(ShapeClasses, TextFormKeepsThePortsRows) {
  const Program program = compiled({step_of(2, 4), step_of(3, 2)}, {0, 1, 0});
  const std::string text = print(program);
  EXPECT_NE(text.find("data %tokens.1: i64[3,2] row 2"), std::string::npos) << text.substr(0, 2000);
  EXPECT_EQ(print(parse_program(text)), text);
}

// A text with so many images, which one stage encodes and another reads.
Graph step_with(int images) {
  ModelOptions options;
  options.stages = 2;
  options.numbers = {{"layers", 1},     {"vision_layers", 1}, {"width", 4},      {"context", 8},
                     {"image_size", 4}, {"images", 2},        {"vocabulary", 16}};
  options.words = {{"input", "images"}};
  const std::vector<std::int64_t> parts = images > 0 ? std::vector<std::int64_t>{images} : std::vector<std::int64_t>();
  return training_step(*make_model(builtin_models(), "multimodal", options), {1, 6, 1, BatchCount::port, {.parts = parts}}, {});
}

Program with_images(const char* table, const std::vector<int>& images) {
  std::vector<Graph> classes;
  std::vector<int> shape_class;
  for (const int count : images) {
    shape_class.push_back(static_cast<int>(classes.size()));
    classes.push_back(step_with(count));
  }
  return compile(classes, shape_class, parse_schedule(table, "table.csv"));
}

// The encoder has nothing to do for a micro-batch without images: it has no run for it, and no sum of zeros is added up anywhere.
TEST(ShapeClasses, AClassMayLackStages) {
  const auto sums = [](const Program& program) {
    std::vector<std::string> out;
    for (const DeviceProgram& device : program.devices)
      for (const Slot& slot : device.slots)
        if (slot.name.starts_with("sum:")) out.push_back(concat(slot_bytes(slot)));
    return join(out, " ");
  };
  const Program some = with_images("0F1,0B1\n1F0,1B0,1F1,1B1\n", {0, 2}), all = with_images("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n", {1, 2});
  EXPECT_EQ(sums(some), sums(all));
  for (const Instruction& i : some.devices[0].instructions)
    if (i.opcode == Opcode::run && i.action) {
      EXPECT_EQ(i.microbatch, 1);
    }
  EXPECT_NO_THROW(with_images("\n0F0,0B0,0F1,0B1\n", {0, 0})) << "without any images there is one stage";
}

TEST(ShapeClasses, LackedStagesHaveNoActions) {
  using test::message_of;
  EXPECT_EQ(message_of([] { with_images("0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1\n", {0, 2}); }),
            "table.csv:1:1: 0F0 is of a micro-batch for which stage 0 has nothing to do\n  hint: leave it out");
  EXPECT_EQ(message_of([] { with_images("0F1,0I1,0W1\n1F0,1B0,1F1,1B1\n", {0, 2}); }),
            "schedule table.csv splits or recomputes some stages, and a shape class has 1 of 2 stages\n"
            "  hint: where classes lack stages, split and recompute all stages or none");
}

TEST(ShapeClasses, Refused) {
  using test::message_of;
  EXPECT_EQ(message_of([] { compiled({step_of(2, 4), step_of(2, 4, 16)}, {0, 1, 0}); }),
            "the steps of two shape classes differ in more than the shapes of their data\n"
            "  states, results of the loop, stages and data ports must be alike; a class may lack some stages of another");
  EXPECT_EQ(message_of([] { compiled({step_of(2, 4)}, {0, 0}); }), "schedule table.csv is for 3 micro-batches; shapes are given for 2");
  EXPECT_EQ(message_of([] { compiled({step_of(2, 4)}, {0, 0, 1}); }), "micro-batch 2 is of shape class 1; there is 1 class");
  EXPECT_EQ(message_of([] { compiled({}, {0, 0, 0}); }), "there is no shape class");
  EXPECT_EQ(message_of([] { compiled({training_step(*perceptron(), {2, 4, 1}, {})}, {0, 0, 0}); }),
            "shape classes: the step reads \"targets\" outside of its loop\n"
            "  hint: count what the loss is divided by in a port of its own");
  EXPECT_EQ(message_of([] { compiled({training_step(*perceptron(), {4, 4, 2, BatchCount::port}, {})}, {0, 0, 0}); }),
            "the step of a shape class has 2 micro-batches\n  hint: trace it with one");
}

// The mesh's second member would have no sums.
TEST(ShapeClasses, EachMemberIsInSomeGroup) {
  const Schedule schedule = parse_schedule(kTable, "table.csv");
  const CompileOptions options{.axes = {{"tensor", 2, {"mlp"}}}};
  EXPECT_EQ(test::message_of([&] {
              const ShapeClass all = compile_class(step_of(2, 4), schedule, options),
                               one = compile_class(step_of(2, 4), schedule, for_group(options, 1));
              const std::vector<PlacedClass> classes = {{&all}, {&one, 0}};
              TaskPool pool;
              compile_joined(classes, {1, 1, 1}, schedule, options, pool);
            }),
            "member 1 of the mesh's axes has no micro-batch\n  hint: let each member be in some micro-batch's group");
}

// A padded row's table of positions is split with the sequence, so each member has other rows of its gradient.
TEST(ShapeClasses, GroupsSumWholeTerms) {
  ModelOptions sizes;
  sizes.stages = 2;
  sizes.numbers = {{"layers", 2}, {"width", 16}, {"heads", 2}, {"context", 8}};
  const Graph step = training_step(*make_model(builtin_models(), "gpt", sizes), {2, 8, 1, BatchCount::port}, {});
  const CompileOptions options{.axes = {{"context", 2, {"sequence"}}}};
  EXPECT_EQ(test::message_of([&] { compile_class(step, parse_schedule(kTable, "table.csv"), for_group(options, 2)); }),
            "groups of members of axis \"context\" cannot sum result 2 of the loop, f32[8,16]: each member has it split 0\n"
            "  hint: let samples share rows, or use another planner than flexsp");
}

}  // namespace
}  // namespace penstock
