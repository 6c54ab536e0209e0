// Stage DAG + schedule -> program.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/layout.h"
#include "penstock/program.h"
#include "penstock/schedule.h"
#include "stage/stages.h"

namespace penstock {

// The tensors that lie flat along the devices of an actor instead of whole, by ZeRO's levels (Rajbhandari et al., 1910.02054): 1 the state
// of the optimiser; 2 also the sums of gradients, from each REDUCE_GRAD of the table on; 3 also the parameters, gathered at each UNSHARD.
// Tensors that are worked on otherwise than element by element (an optimiser of whole tensors), or read by stages on several actors, stay
// whole.
struct Sharding {
  int level = 0;
  std::vector<std::string> parameters = {};           // states that programs other than the one that updates them read
  std::vector<std::vector<std::string>> blocks = {};  // level 3: parameter_blocks() of the program that updates them
};

// The layouts of the loop's results along each axis, by the member of the axes that are worked on before it. What micro-batches add up lies
// alike in all of them, whatever would come cheapest for the shape of one.
using LoopSums = std::map<std::string, std::vector<std::vector<Layout>>>;

struct LowerOptions {
  int receive_ahead = 2;  // a receive is posted up to this many actions before its reader
  // Devices of each actor, each with parts of every micro-batch (data parallelism); empty: one each. The step has parts_of(devices) times
  // the table's micro-batches.
  std::vector<int> devices = {};
  // Level 3: how many of these, one after the other, are a node, the axis `local`. Along it parameters and sums of gradients are whole, so
  // that what is left of ZeRO inside of a node is its level 1, as in ZeroPP's (2402.03791) second hybrid.
  int local = 1;
  Sharding sharding = {};
  // Further axes of the mesh, inside of each device of an actor: such a device becomes as many as the axes' sizes multiply to, the last
  // axis varying fastest. And what the model calls the dims of its parameters, by name.
  std::vector<LayoutAxis> axes = {};
  std::map<std::string, std::vector<DimName>> dims = {};
  LoopSums sums = {};
  SplitAttention attention = SplitAttention::automatic;
  bool window = false;                      // the table is one step's of several (lower/window.h)
  int distance = -1;                        // of such a table: CompileOptions::distance
  std::vector<Schedule> others = {};        // CompileOptions::others
  bool prefetch = false;                    // likewise
  std::vector<std::string> recompute = {};  // stages whose backward computes again all that it reads of F; such a stage has no R
};

// Into how many parts a micro-batch must be cut for each of the groups to share it: the least common multiple.
int parts_of(const std::vector<int>& devices);

// The passes before the cut: the step as lower() cuts it. Not `hoist`: what is computed of the parameters alone stays in the loop, as it
// does where no device holds them whole (Sharding's level 3). Constraints stay for the axes over which layouts split tensors. Throws
// Error where it is no sound graph, a stage cannot be inferred or its own collectives are not for these axes.
StagedStep prepare_stages(const Graph& traced, bool hoist = true, std::span<const LayoutAxis> axes = {});

// Stages whose backward the table splits anywhere.
std::vector<bool> split_stages(const Schedule& schedule, std::size_t stages);

// Stages that the table recomputes (R) anywhere.
std::vector<bool> recomputed_stages(const Schedule& schedule, std::size_t stages);

// The parameters that the devices of an actor hold in shares, by the blocks that are gathered as one: every program of a run has the same.
// Members of the mesh's axes may have other blocks than the first, of pieces by their names (program/piece.h).
std::vector<std::vector<std::string>> parameter_blocks(const Graph& training_step, const Schedule& schedule, const LowerOptions& options);

// The stages of a prepared step, as lower() cuts them for the schedule.
StageDag cut_for(const StagedStep& step, const Schedule& schedule, const LowerOptions& options);

// Step graph (marks or none) + schedule -> a planned, verified program. Throws Error where stages, schedule and model do not fit.
Program lower(const Graph& step, const Schedule& schedule, const LowerOptions& options = {});

}  // namespace penstock
