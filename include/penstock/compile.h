// SPDX-License-Identifier: Apache-2.0
// From a step, or a model, and a schedule to programs: the whole way in one call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/layout.h"
#include "penstock/program.h"
#include "penstock/schedule.h"
#include "penstock/step.h"
#include "penstock/trace.h"

namespace penstock {

// How much of their forward backwards compute again, so that it is not kept in between.
enum class Recompute : std::uint8_t {
  none,       // what a plan's stages name
  selective,  // also what costs little for the bytes that it takes (transform/passes.h, mark_cheap)
  inputs,     // all that they read of it; the table then has no R
};

// The options of a table's program: which devices stand behind the actors, what they keep, and how they compute. A configuration has
// them (config/config.h), and every pass of lowering reads them (lower/input.h): an option is its member here, its key, and where it is
// read.
struct CompileOptions {
  // The number of devices of each actor; empty: one each. They share every micro-batch (data parallelism), so the step has
  // shares_of(devices) times the table's micro-batches.
  std::vector<int> devices = {};
  // The tensors of which the devices of an actor hold shares, by ZeRO's levels (Rajbhandari et al., 1910.02054): 1 the state of
  // the optimiser; 2 also the sums of gradients, from each REDUCE_GRAD of the table on; 3 also the parameters, gathered at each UNSHARD.
  // Tensors that are worked on otherwise than element by element (an optimiser of whole tensors), or read by stages on several actors, stay
  // whole.
  int zero = 0;
  // Level 3: how many of these devices, one after the other, are a host, the axis `local`. Along it parameters and sums of gradients are
  // whole, so that what is left of ZeRO inside of a host is its level 1, as in ZeroPP's (2402.03791) second hybrid.
  int local = 1;
  // The axis `local` is the outer one of the two: neighbours have parameters in shares, and devices far from each other have the same, as
  // in FSDP's hybrid sharding (2304.11277).
  bool local_outside = false;
  // Further axes of the mesh, inside of each device of an actor: such a device becomes as many as the axes' sizes multiply to, the last
  // axis varying fastest; only sizes above 1. And what the model calls the dims of its parameters (ParameterSpec::dims), by parameter.
  std::vector<LayoutAxis> axes = {};
  std::map<std::string, std::vector<DimName>> dims = {};
  SplitAttention attention = SplitAttention::automatic;
  Recompute recompute = Recompute::none;
  // For a table of several steps: the devices of an actor are HetPipe's workers, which update parameters of their own and may have taken so
  // many waves fewer of the others' updates than of their own (lower/waves.cpp). -1: they sum their gradients at each update.
  int distance = -1;
  // Where the devices of an actor, one of each worker, place stages differently: the tables of all workers but the first, whose is the one
  // that is compiled (HetPipe's unequal workers). Device v of an actor runs its row of the v-th, and what workers sum of a stage they sum
  // wherever each of them has it. They have as many actors, steps and micro-batches, and no shares. Empty: all devices run one table.
  std::vector<Schedule> others = {};
  // In a table for several steps: rows of embeddings are looked up while the step before computes, and those that its update has changed
  // are read again (lower/lookups.cpp). Data are read a step ahead, by a thread of each device.
  bool prefetch = false;
  // States that other programs than the one that updates them read; empty: the floating ones that the step's loop reads.
  std::vector<std::string> parameters = {};
  // At level 3, of a program that runs beside the one that updates: shared_blocks() of that one's step.
  std::vector<std::vector<std::string>> blocks = {};
  int receive_ahead = 2;  // a receive is posted up to this many actions before its reader
};

// A program for as many devices as the actors have together: all communication inferred, memory planned, proven free of deadlock. `step`
// has stage marks or none (stage/stages.h); its loop has as many micro-batches as the table, times shares_of(devices), or where stages take
// several together a whole part of them (schedule/sizes.h): then they run as they are. Of the table a step without backward takes the
// forwards. Throws Error where step, table and devices do not fit.
Program compile(const Graph& step, const Schedule& schedule, const CompileOptions& options = {});
// The same of micro-batches of different shapes: `classes` are steps of one micro-batch each that differ in the shapes of their data alone,
// and divide the loss by a port (BatchCount::port); `shape_class`: which of them each micro-batch of the table has. Every data port that
// the loop cuts becomes one for each micro-batch, NAME.0, NAME.1, .... Throws Error also where the steps differ in more.
Program compile(const std::vector<Graph>& classes, const std::vector<int>& shape_class, const Schedule& schedule,
                const CompileOptions& options = {});
// The step as compile() takes it for a table of slices: each micro-batch's sequence cut into as many, equal but for one token or of
// `lengths` in these proportions. Throws Error where the model names no dim "sequence" (constrain() in ops.h), or a token needs one behind
// it.
Graph in_slices(const Graph& step, const Schedule& schedule, const CompileOptions& options, const std::vector<std::int64_t>& lengths = {});
// The parameters that devices hold in shares as one block, at level 3: the other programs of a run (gradients, validation) must know them
// to find what the program of `training` leaves.
std::vector<std::vector<std::string>> shared_blocks(const Graph& training, const Schedule& schedule, const CompileOptions& options);

// The programs that train a model and measure it between steps.
struct ModelPrograms {
  Program training;    // outputs "loss", "gradient_norm", "learning_rate"
  Program evaluation;  // outputs "loss_sum" and "count"
  // Where the table's stages take several micro-batches together: the reason why they run them one after the other; empty: at once.
  std::string one_by_one;
  // Both read the model's data ports, "rows" i64[batch] (the samples' numbers in the step) and "seed" i64[].
};
// Both of steps of this shape, in as many micro-batches as the table has. The model marks as many stages as the table has. Throws Error
// also where the batch is not divisible by the micro-batches.
ModelPrograms compile(const Model& model, StepShape shape, const OptimiserOptions& optimiser, const Schedule& schedule,
                      CompileOptions options = {});

// The table without all that is no F, so that every stage stays on its actors.
Schedule forward_only(Schedule schedule);
bool has_gathers(const Schedule& schedule);  // whether any action is UNSHARD

}  // namespace penstock
