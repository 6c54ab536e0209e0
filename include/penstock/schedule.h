// SPDX-License-Identifier: Apache-2.0
// A schedule is a table: per actor, an ordered list of actions. Its CSV is torch.distributed.pipelining's; what is
// Penstock's own stands before the kind, so that torch's reader rejects it instead of misreading it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// The work that an action does.
enum class Kind : std::uint8_t {
  F,            // forward
  B,            // backward, whole
  I,            // the part of the backward that gives input gradients
  W,            // the part of the backward that gives weight gradients
  R,            // computes the residuals of F again; F then keeps only what entered its stage and what others read of it
  U,            // updates a stage's parameters
  UNSHARD,      // gathers the parameters of a stage on an actor
  RESHARD,      // drops them
  REDUCE_GRAD,  // adds up the gradients that actors of sharded parameters have summed for a stage
  OFFLOAD,      // moves the residuals of F to host memory
  RELOAD,       // moves them back
  // Where transfers start at their two ends (0SEND_F2, 1RECV_F2): of what F, or B or I, makes and others need, and of what it needs of
  // others. A table has all of these or none: then lowering infers them.
  SEND_F,
  RECV_F,
  SEND_B,
  RECV_B,
};
std::string_view name(Kind kind);  // as tables have it: "REDUCE_GRAD"

// One entry of a table. Its text leaves out what stands in brackets where it is the usual:
//   <stage>[.<slice>[.<block>]][x<count>][@<version>[+<ahead>]]<KIND><micro-batch>
// 3B0, 3.2F5 (slice 2 of stage 3), 3.2.0F5 (block 0 of that), 2x4F0 is stage 2, micro-batches 0..3, 3@1F5 reads what the stage's second
// update will write over, 3@1+2F5 what that is predicted to be two updates later.
struct Action {
  std::int32_t stage =
      0;  // in a table of slices the number of a part (number_of); of a kind that belongs to a whole stage (3U), of its slice 0
  Kind kind = Kind::F;           // the work that it does
  std::int32_t microbatch = -1;  // -1: none (UNSHARD, RESHARD, REDUCE_GRAD, U of all)
  std::int32_t count = 1;        // micro-batches microbatch .. microbatch+count-1 together
  bool fused_with_next = false;  // the first of a fused pair (torch: "(0F3;1B2)OVERLAP_F_B")
  // The number of the table's updates that made the parameters which the action reads. -1: F reads the newest in its row, all else what its
  // F did (read_versions).
  std::int32_t version = -1;
  std::int32_t ahead = 0;  // by how many updates these are predicted, of a version that it names (weight prediction: 3@1+2F5)

  auto operator<=>(const Action&) const = default;
};

// A part of a stage, as a number in a table of slices says it: a slice or, with `block`, what the queries of this slice make of the
// keys and values of that earlier one, an attention block. One of a stage that is attention alone is apart: it may run on any actor.
struct StagePart {
  std::int32_t stage = 0, slice = 0;  // numbers, from 0
  std::int32_t block = -1;            // -1: the slice itself, with all its blocks that are not apart

  auto operator<=>(const StagePart&) const = default;
};
// Parts are numbered in their order, `slices` of each stage and of each slice those of its blocks that are apart: `blocks`, in order.
std::int32_t number_of(const StagePart& part, std::int32_t slices, const std::vector<StagePart>& blocks = {});
StagePart part_of(std::int32_t number, std::int32_t slices, const std::vector<StagePart>& blocks = {});

// `slices`, `blocks`: those of the action's table.
std::string text(const Action& action, std::int32_t slices = 1, const std::vector<StagePart>& blocks = {});
// The stage of an action as text: "3", "3.2" where stages have slices, or "3.2.0" of a block.
std::string stage_text(std::int32_t stage, std::int32_t slices = 1, const std::vector<StagePart>& blocks = {});

// Where sequences are cut, every micro-batch passes each stage in `slices` slices, one after the other. A slice is then a stage of the
// DAG to all that reads tables, and so is each block that is apart: Action::stage counts them, and StageShape has an entry for each
// (`sliced`).
struct Schedule {
  std::string name;                         // as make_schedule() takes it
  std::vector<std::vector<Action>> actors;  // each actor's row, in order
  // For each action the column (cell, from 1) of the file in which it stood, in row actor+1; empty for generated tables.
  std::vector<std::vector<std::int32_t>> cells;
  std::int32_t slices = 1;             // of each stage
  std::vector<StagePart> blocks = {};  // that are apart, in order
  // For each of the model's stages those that feed it, all of smaller number; empty: each feeds the next.
  std::vector<std::vector<std::int32_t>> predecessors = {};
  // The first stages, as many as there are times, have a forward alone (self-conditioning, frozen stages), which takes so much of another
  // stage's forward.
  std::vector<double> forward_times = {};
  // A table may be for a window of training steps, of as many micro-batches each, one step's numbered behind the other's. Then each stage
  // that has parameters has a U for each step, which names the step's last micro-batch ("0U3"), and a step need not wait for the end of the
  // one before.
  std::int32_t steps = 1;

  std::int32_t stages() const;        // 1 + largest stage named, counted as Action::stage; 0 for an empty table
  std::int32_t whole_stages() const;  // the same, counted as the model's stages
  std::int32_t microbatches() const;  // 1 + largest micro-batch named, of the whole window
  std::int32_t step_microbatches() const { return microbatches() / steps; }  // of one step of the window
};

// The shape that the model asks of a table: which stages feed which, and which passes each stage has.
struct StageShape {
  std::vector<std::vector<std::int32_t>> predecessors;  // for each stage, the stages that feed it, all of smaller number
  std::vector<bool> has_backward;                       // stages without have F only
  std::vector<bool> has_parameters;                     // by stage
  std::int32_t slices = 1;                              // of each stage, counted as Action::stage counts them
  std::vector<StagePart> blocks = {};                   // that are apart
  // [stage][micro-batch]: whether the stage has nothing to do for it, and so the table no action. Empty: every stage works on all.
  std::vector<std::vector<bool>> idle = {};

  // Returns whether the stage has no work for that micro-batch.
  bool is_idle(std::int32_t stage, std::int32_t microbatch) const { return !idle.empty() && idle[stage][microbatch]; }
};
// A chain of n stages, each with parameters and, unless forward_only, a backward.
StageShape chain(int stages, bool forward_only = false);
// Returns what a table for the shape says of its stages (Schedule::predecessors): nothing of a chain.
std::vector<std::vector<std::int32_t>> told_predecessors(const StageShape& shape);
// Behind a chain of `stages` stages so many that its last one feeds (parts of the vocabulary), and one that these feed, which joins them.
// One part: the chain.
StageShape chain_with_head(int stages, int head_shards, bool forward_only = false);
// Returns the shape that a table without a model is checked against: the stages that it names, in its slices, fed as it says, with backward
// if the table has any and they have more than a forward.
StageShape shape_of(const Schedule& schedule);
// The shape of `slices` (1 or more) slices of each stage: slice j of stage s, at s * slices + j, is fed by slice j of each stage that feeds
// s, and by slice j-1 of s, whose keys and values it reads. A block of slice j with the keys of slice k is fed by slices j and k of each
// stage that feeds s, and feeds slice j of each that s feeds; it goes back before slice j-1 of s, which adds up gradients of keys.
StageShape sliced(const StageShape& shape, int slices, const std::vector<StagePart>& blocks = {});
// The table in slices: each F becomes its slices in ascending order, each B, I, W and R in descending order; what is of a whole stage (U,
// UNSHARD, RESHARD, REDUCE_GRAD) stays as it is. Valid for the sliced shape where the table is for the shape. Throws Error for a table that
// is sliced, and for `slices` below 1.
Schedule sliced(const Schedule& schedule, int slices);

// Throws Error unless all of this holds:
//   the table has as many slices as the shape, and the same blocks apart;
//   every stage of the shape has each F (and B, or I and W) exactly once per micro-batch, and no action of one for which it is idle;
//   B, R, OFFLOAD, RELOAD, and I beside R or OFFLOAD, are on their F's actor (a stage without parameters may lack W);
//   R, or OFFLOAD and then RELOAD, but not all of them, stand between F and B or I, once;
//   an actor that gathers a stage has it, from UNSHARD to the next RESHARD, wherever F, B, I and R of any of the stage's slices are;
//   the slices of a stage run a micro-batch on one actor;
//   a REDUCE_GRAD has something to reduce and the last leaves nothing; U stands behind all that;
//   in a table of several steps each stage with parameters has a U for each, behind its gradients, and reads what is made (versions.h);
//   nothing unknown is named, and a table that says which stages feed which has every stage that feeds another one of the shape before it;
//   of sends and receives the table has none or each that is needed once, a send behind what it sends, a receive ahead of what needs it;
//   then it is for one step, each action has one micro-batch, W are where I are, and the two ends of each pair of actors start the pair's
//   transfers, of both directions, in one order;
//   no cycle across actors exists, a fused pair running one action after the other.
// The error names file, row (actor), cell and the missing, doubled or circular actions. `microbatches` is how many must be there; -1: those
// named. The time is linear in actions and stage edges.
void validate(const Schedule& schedule, const StageShape& shape, int microbatches = -1);

// CSV, one row per actor, an empty line for an actor without work. Accepts torch's tables, with or without communication, and with blank
// cells (idle). Either no action names a slice, or all do that belong to a micro-batch, and then every stage has as many; the blocks that
// are named are apart. In front of the rows may stand
//   #feeds,0>1,0>2     which stages feed which, all of them (Schedule::predecessors);
//   #forward,1.0,0.5   the first two stages have a forward alone (Schedule::forward_times).
// A table that was printed is read as it was, but for the name. Throws Error with file:row:cell.
Schedule parse_schedule(std::string_view csv, std::string_view file);
std::string print(const Schedule& schedule);

// The same table with an update (U) of each stage on each actor that runs its backward, right after the actor's last action of the stage.
Schedule with_updates(Schedule schedule);

// The same table for so many training steps, which have a part of its micro-batches each: behind the last gradient of a step that an actor
// sums for a stage it updates it. A stage on several actors is updated on each of them, which without parameters does nothing. Each action
// has one micro-batch, and no gradient is before one of an earlier step.
Schedule with_step_updates(Schedule schedule, int steps);

// The same table under fully sharded parameters. Each stretch of a stage's forwards, or backwards, on an actor gathers the stage's
// parameters while the stretch before it is at work, so that at most two stages are there at a time, and drops them when it ends; the
// gradients are reduced behind the last of its B or W. All slices of a stage are of one stretch. The UNSHARD, RESHARD and REDUCE_GRAD that
// the table had are replaced. `turns`: an actor that goes on with a stage in the other direction keeps the parameters, and reduces once.
Schedule with_gathers(Schedule schedule, bool turns = false);

// The sizes that a table is generated for, and what its schedule may be told.
struct ScheduleOptions {
  int actors = 2;             // rows of the table
  int microbatches = 4;       // of a training step
  int window = 1;             // training steps in the table: each drained, but where the schedule itself takes several
  int chunks = 1;             // stages per actor; layers, where a schedule has attention as stages of its own
  int slices = 1;             // of each stage; those that do not order slices themselves run a micro-batch's one after the other (`sliced`)
  int head_shards = 1;        // parts of the vocabulary, each a stage behind the others; only those that take it have more than one
  bool forward_only = false;  // makes a table for validation: the same F order with no backward
  // Each micro-batch first goes forward through as many stages more, and then enters those that train; only schedules that take it.
  bool self_conditioning = false;
  // Stages that are not trained, in front of all others: what a forward of each takes over that of a stage that is. They are computed by
  // whichever actor waits, in a window of steps for the step behind.
  std::vector<double> frozen = {};
  // A time for each actor's stage, in any unit, which F, I and W of it take: W run where actors get to equal work. Or for a stage of each
  // backbone: work is ordered by them. Only schedules that take it.
  std::vector<double> balance = {};
  // 0 or empty: the schedule chooses. Only those that ScheduleInfo::takes names may be set.
  int in_flight = 0;  // most micro-batches that an actor holds
  int group = 0;      // a bunch: micro-batches that go together through a chunk, or forward before they go back
  int unit = 0;       // micro-batches for which a chunk's parameters are gathered once
  // A transfer's time over that of a stage's F: one number for every link, or one for each of the actors-1 links.
  std::vector<double> transfers = {};
  // Writes each B as I and then W, so that the input gradient goes out early, and the actions of fused pairs on their own.
  bool split_backward = false;
};
// The schedule of that name ("1f1b"). Throws Error for an unknown name (nearest named) or a violated precondition.
Schedule make_schedule(std::string_view name, const ScheduleOptions& options);

// A schedule that make_schedule() knows by name.
struct ScheduleInfo {
  std::string name;                     // as make_schedule() takes it
  std::string summary;                  // one line
  bool chunked;                         // whether it takes chunks > 1
  std::vector<std::string> takes = {};  // the other options that it takes, by their flags: "--group"
  bool orders_slices = false;           // with one slice it is like another schedule
};
const std::vector<ScheduleInfo>& schedules();  // all that make_schedule() knows

// GraphPipe's schedule (2406.17145), stage s on actor s. `sizes`: micro-batches that each stage takes together, 1 for each where empty;
// throws Error unless each divides `microbatches`. `in_flight`: how many each stage runs ahead, a multiple of its size and never more than
// for a stage that feeds it; empty: graphpipe_in_flight.
Schedule graphpipe(const StageShape& shape, int microbatches, const std::vector<int>& sizes = {}, std::vector<int> in_flight = {});
// Returns for each stage how many micro-batches it runs ahead.
std::vector<int> graphpipe_in_flight(const StageShape& shape, const std::vector<int>& sizes);

// For each stage, the first actor on which its F stands (a replica may have more).
std::vector<std::int32_t> actor_of_stage(const Schedule& schedule);

}  // namespace penstock
