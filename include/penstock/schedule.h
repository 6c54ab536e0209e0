// A schedule is a table: per actor, an ordered list of actions. Its CSV is torch.distributed.pipelining's; what is
// Penstock's own stands before the kind, so that torch's reader rejects it instead of misreading it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

enum class Kind : std::uint8_t {
  F,
  B,
  I,
  W,  // forward, backward, and backward split: input gradients, weight gradients
  R,  // computes the residuals of F again, which keeps only what entered its stage and what others read of it
  U,  // update of a stage
  UNSHARD,
  RESHARD,      // gather and drop the parameters of a stage on an actor
  REDUCE_GRAD,  // adds up what actors of sharded parameters have summed for a stage
  OFFLOAD,
  RELOAD,  // move the residuals of F to host memory, and back
  SEND_F,
  RECV_F,
  SEND_B,
  RECV_B,  // only in tables with communication written out; lowering infers it anyway
};
std::string_view name(Kind kind);

// `<stage>[.<slice>][x<count>]<KIND><micro-batch>`: 3B0, 3.2F5 (slice 2 of stage 3), 2x4F0 is stage 2, micro-batches 0..3.
struct Action {
  std::int32_t stage = 0;
  Kind kind = Kind::F;
  std::int32_t microbatch = -1;  // -1: none (UNSHARD, RESHARD, REDUCE_GRAD, U of all)
  std::int32_t count = 1;        // micro-batches microbatch .. microbatch+count-1 together
  std::int32_t slice = -1;       // -1: not sliced
  bool fused_with_next = false;  // the first of a fused pair (torch: "(0F3;1B2)OVERLAP_F_B")

  auto operator<=>(const Action&) const = default;
};
std::string text(const Action& action);

struct Schedule {
  std::string name;  // the generator's, or the file
  std::vector<std::vector<Action>> actors;
  // Where each action stood in its file: column (cell, from 1) in row actor+1; empty for generated tables.
  std::vector<std::vector<std::int32_t>> cells;

  std::int32_t stages() const;        // 1 + largest stage named; 0 for an empty table
  std::int32_t microbatches() const;  // 1 + largest micro-batch named
};

// What the model asks of a table: which stages feed which, and what each has to do.
struct StageShape {
  std::vector<std::vector<std::int32_t>> predecessors;  // of each stage, smaller numbers only
  std::vector<bool> has_backward;                       // stages without have F only
  std::vector<bool> has_parameters;
};
// A chain of n stages, each with parameters and, unless forward_only, backward.
StageShape chain(int stages, bool forward_only = false);
// The chain that a table without a model is held against: of its stages, with backward if the table has any.
StageShape chain_of(const Schedule& schedule);

// Throws Error unless every stage of the shape has each F (and B, or I and W) exactly once per micro-batch; B, I, R, OFFLOAD and RELOAD are
// on their F's actor (W may be elsewhere; a stage without parameters may lack it); R, or OFFLOAD and then RELOAD, but not all of them,
// stand between F and B or I, once; an actor that gathers a stage has it, from UNSHARD to the next RESHARD, wherever its F, B, I and R are;
// a REDUCE_GRAD has something to reduce and the last leaves nothing; U stands behind all that; nothing unknown is named; and no cycle
// across actors exists, a fused pair running one action after the other. Names file, row (actor), cell and the missing, doubled or circular
// actions. microbatches: as many as must be there; -1: those named. Linear in actions and stage edges.
void validate(const Schedule& schedule, const StageShape& shape, int microbatches = -1);

// CSV, one row per actor, an empty line for an actor without work. Accepts torch's tables with or without sends and receives
// (dropped, as lowering infers them; UNSHARD, RESHARD and REDUCE_GRAD stay) and blank cells (idle). Throws Error with
// file:row:cell.
Schedule parse_schedule(std::string_view csv, std::string_view file);
std::string print(const Schedule& schedule);

// The same table with an update of each stage on each actor that runs its backward, right after the actor's last action of it.
Schedule with_updates(Schedule schedule);

// The same table under fully sharded parameters: each run of a stage's forwards, or backwards, on an actor gathers its parameters while the
// run before it is at work, so that at most two stages are there at a time, and drops them when it ends; its gradients are reduced behind
// the last of its B or W. Instead of the UNSHARD, RESHARD and REDUCE_GRAD that the table had. `turns`: where an actor goes on with a stage
// in the other direction it keeps the parameters, and reduces once.
Schedule with_gathers(Schedule schedule, bool turns = false);

struct ScheduleOptions {
  int actors = 2;
  int microbatches = 4;
  int chunks = 1;             // stages per actor
  bool forward_only = false;  // a validation table: the same F order with no backward
  // 0 or empty: as the schedule chooses. Only those that ScheduleInfo::takes names may be set.
  int in_flight = 0;                   // most micro-batches that an actor holds
  int group = 0;                       // micro-batches that go together: through a chunk, or forward before they go back
  int unit = 0;                        // micro-batches for which a chunk's parameters are gathered once
  std::vector<double> transfers = {};  // time of a transfer over that of a stage's F: of every link, or of each of actors-1
  // Each B as I and then W, so that the input gradient goes out early, and the actions of fused pairs on their own.
  bool split_backward = false;
};
// By name ("1f1b"). Throws Error for an unknown name (nearest named) or a violated precondition.
Schedule make_schedule(std::string_view name, const ScheduleOptions& options);

struct ScheduleInfo {
  std::string name;
  std::string summary;                  // one line
  bool chunked;                         // takes chunks > 1
  std::vector<std::string> takes = {};  // other options that it takes, by their flags: "--group"
};
const std::vector<ScheduleInfo>& schedules();

// GraphPipe's schedule (2406.17145): stage s on actor s. sizes: micro-batches that each stage takes together, 1 of each where empty; throws
// Error unless each divides `microbatches`. `in_flight`: how many each stage runs ahead, a multiple of its size and never more than a stage
// that feeds it; empty: graphpipe_in_flight.
Schedule graphpipe(const StageShape& shape, int microbatches, const std::vector<int>& sizes = {}, std::vector<int> in_flight = {});
// How many micro-batches each stage runs ahead, in micro-batches.
std::vector<int> graphpipe_in_flight(const StageShape& shape, const std::vector<int>& sizes);

// The first actor on which each stage's F stands (a replica may have more).
std::vector<std::int32_t> actor_of_stage(const Schedule& schedule);

}  // namespace penstock
