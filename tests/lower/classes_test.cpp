// Micro-batches of different shapes: one program, with tasks and ports of each.
#include <gtest/gtest.h>

#include "base/text.h"
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
  return training_step(*perceptron(width), rows, length, 1, {}, BatchCount::port);
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

TEST(ShapeClasses, TextFormKeepsThePortsRows) {
  const Program program = compiled({step_of(2, 4), step_of(3, 2)}, {0, 1, 0});
  const std::string text = print(program);
  EXPECT_NE(text.find("data %tokens.1: i64[3,2] row 2"), std::string::npos) << text.substr(0, 2000);
  EXPECT_EQ(print(parse_program(text)), text);
}

TEST(ShapeClasses, Refused) {
  using test::message_of;
  EXPECT_EQ(message_of([] { compiled({step_of(2, 4), step_of(2, 4, 16)}, {0, 1, 0}); }),
            "the steps of two shape classes differ in more than the shapes of their data\n"
            "  states, results of the loop, stages and data ports must be alike");
  EXPECT_EQ(message_of([] { compiled({step_of(2, 4)}, {0, 0}); }), "schedule table.csv is for 3 micro-batches; shapes are given for 2");
  EXPECT_EQ(message_of([] { compiled({step_of(2, 4)}, {0, 0, 1}); }), "micro-batch 2 is of shape class 1; there is 1 class");
  EXPECT_EQ(message_of([] { compiled({step_of(2, 4)}, {0, 0, 0}, {.devices = {2, 1}}); }),
            "micro-batches of different shapes: each actor is one device\n"
            "  hint: give each replica actors of its own in the table, which hold the same stages");
  EXPECT_EQ(message_of([] { compiled({training_step(*perceptron(), 2, 4, 1, {})}, {0, 0, 0}); }),
            "shape classes: the step reads \"targets\" outside of its loop\n"
            "  hint: count what the loss is divided by in a port of its own");
  EXPECT_EQ(message_of([] { compiled({training_step(*perceptron(), 4, 4, 2, {}, BatchCount::port)}, {0, 0, 0}); }),
            "the step of a shape class has 2 micro-batches\n  hint: trace it with one");
}

}  // namespace
}  // namespace penstock
