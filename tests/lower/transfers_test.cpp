// SPDX-License-Identifier: Apache-2.0
// Tables that say where transfers start: their programs send and receive exactly there, and compute what the step says.
#include <gtest/gtest.h>

#include "base/text.h"
#include "lower/lower.h"
#include "lower/passes.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "program/verify.h"
#include "schedule/transfers.h"
#include "support/dag_model.h"
#include "support/errors.h"
#include "support/random_marks.h"
#include "support/random_schedule.h"
#include "support/rounds.h"
#include "support/symbols.h"

namespace penstock {
namespace {

using test::coin;
using test::draw;
using test::Random;

Graph chain_step(int stages, int microbatches, int batch) {
  return training_step(test::DagModel(chain(stages), true), {batch, test::kContext, microbatches}, {});
}

// The action of a chain's table for which an instruction of a micro-batch stands; empty: none. A slot is named after what made it: F1:7.0.
std::string action_of(const DeviceProgram& device, const Instruction& i) {
  if (i.opcode == Opcode::run) return i.action && i.microbatch >= 0 ? text({i.stage, i.kind, i.microbatch}) : "";
  if (i.opcode != Opcode::send && i.opcode != Opcode::recv) return "";
  const std::string& name = device.slots[i.slot].name;
  const std::size_t colon = name.find(':');
  if (colon == std::string::npos || std::string("FBI").find(name[0]) == std::string::npos) return "";
  const int made = std::stoi(name.substr(1, colon - 1)), microbatch = std::stoi(name.substr(name.rfind('.') + 1));
  const bool forward = name[0] == 'F', sends = i.opcode == Opcode::send;
  const Kind kind = forward ? (sends ? Kind::SEND_F : Kind::RECV_F) : (sends ? Kind::SEND_B : Kind::RECV_B);
  return text({sends ? made : forward ? made + 1 : made - 1, kind, microbatch});
}

std::vector<std::string> row_of(const DeviceProgram& device) {
  std::vector<std::string> out;
  for (const Instruction& i : device.instructions)
    if (std::string action = action_of(device, i); !action.empty() && (out.empty() || out.back() != action))
      out.push_back(std::move(action));
  return out;
}

std::vector<std::string> texts(const std::vector<Action>& row) {
  std::vector<std::string> out;
  for (const Action& action : row)
    if (is_compute(action.kind) || is_transfer(action.kind)) out.push_back(text(action));
  return out;
}

TEST(LowerTransfers, StandWhereTheTableHasThem) {
  const Graph step = chain_step(2, 2, 4);
  const Schedule table = parse_schedule(
      "0F0,0F1,0SEND_F1,0RECV_B1,0SEND_F0,0B1,0RECV_B0,0B0\n"
      "1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F0,1F0,1B0,1SEND_B0\n",
      "plan.csv");
  const Program program = lower(step, table);
  EXPECT_EQ(row_of(program.devices[0]), texts(table.actors[0]));
  EXPECT_EQ(row_of(program.devices[1]), texts(table.actors[1]));
  EXPECT_EQ(test::difference(program, test::symbols_of(step)), "");
}

TEST(LowerTransfers, DrawnOnesStandWhereTheTableHasThem) {
  int moved = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(60u); ++seed) {
    Random random(seed);
    const int stages = draw(random, 2, 4), microbatches = draw(random, 1, 4);
    const StageShape shape = chain(stages);
    const Schedule plain = test::random_schedule(random, shape, draw(random, 2, 4), microbatches,
                                                 {.mixed_split = coin(random, 0.3), .replica = coin(random, 0.5) ? 0.3 : 0});
    const Schedule table = test::with_transfers(random, plain, shape);
    SCOPED_TRACE(concat("seed ", seed, "\n", print(table)));
    const Graph step = chain_step(stages, microbatches, microbatches);
    const Program program = lower(step, table, {.receive_ahead = draw(random, 0, 3)});
    for (std::size_t d = 0; d < program.devices.size(); ++d) {
      std::vector<std::string> wanted = texts(table.actors[d]);
      // A B of a stage that is split elsewhere is its I and its W.
      std::vector<std::string> found = row_of(program.devices[d]);
      std::erase_if(wanted, [](const std::string& a) {
        return a.find("SEND") == std::string::npos && a.find("RECV") == std::string::npos && a.find('F') == std::string::npos;
      });
      std::erase_if(found, [](const std::string& a) {
        return a.find("SEND") == std::string::npos && a.find("RECV") == std::string::npos && a.find('F') == std::string::npos;
      });
      EXPECT_EQ(found, wanted) << "device " << d;
    }
    EXPECT_EQ(test::difference(program, test::symbols_of(step)), "");
    EXPECT_EQ(test::message_of([&] { verify(program, {ChannelModel::tagged, -1}); }), "no error");
    moved += table.actors != plain.actors;
  }
  EXPECT_GT(moved, test::rounds(40));
}

// Recomputation, offloading, gathers, updates in the table; devices that share micro-batches and hold shares.
TEST(LowerTransfers, WithAllElseThatATableAsksFor) {
  for (std::uint64_t seed = 0; seed < test::rounds(60u); ++seed) {
    Random random(seed);
    const int stages = draw(random, 2, 4), microbatches = draw(random, 1, 3), actors = draw(random, 2, 3);
    const StageShape shape = chain(stages);
    CompileOptions options{.recompute = test::drawn_recomputation(random)};
    if (coin(random, 0.6))
      for (int a = 0; a < actors; ++a) options.devices.push_back(draw(random, 1, 2));
    const int parts = shares_of(options.devices);
    if (parts > 1) options.zero = draw(random, 0, 3);
    Schedule table = test::random_schedule(random, shape, actors, microbatches, {.replica = coin(random, 0.3) ? 0.2 : 0});
    if (options.recompute != Recompute::inputs && coin(random, 0.6)) table = test::with_extras(random, std::move(table), shape);
    table = test::with_transfers(random, table, shape);
    SCOPED_TRACE(concat("seed ", seed, ", zero ", options.zero, ", recompute ", static_cast<int>(options.recompute), "\n", print(table)));
    const Graph step = chain_step(stages, microbatches * parts, microbatches * parts);
    EXPECT_EQ(test::difference(compile(step, table, options), test::symbols_of(step)), "");
  }
}

// Stages 1 and 2 both read stage 0's output and give stage 3 theirs: a send is for all who need what it sends, a receive of all that is
// needed.
TEST(LowerTransfers, OfBranches) {
  StageShape shape = chain(4);
  shape.predecessors = {{}, {0}, {0}, {1, 2}};
  const Graph step = training_step(test::DagModel(shape, true), {2, test::kContext, 2}, {});
  const Schedule table = parse_schedule(
      "0F0,0SEND_F0,1F0,1SEND_F0,0F1,0SEND_F1,1F1,1SEND_F1,1RECV_B0,1B0,0RECV_B0,0B0,1RECV_B1,1B1,0RECV_B1,0B1\n"
      "2RECV_F0,2F0,3RECV_F0,3F0,2RECV_F1,2F1,3RECV_F1,3F1,3B0,3SEND_B0,2B0,2SEND_B0,3B1,3SEND_B1,2B1,2SEND_B1\n",
      "plan.csv");
  EXPECT_EQ(test::difference(lower(step, table), test::symbols_of(step)), "");
}

}  // namespace
}  // namespace penstock
