// SPDX-License-Identifier: Apache-2.0
// A program while it is being lowered, as plain data that every pass takes and gives: who computes what, then on which device, then what is
// sent when and how long it stays. It has a text form, so that a pass can be shown, tested and continued from.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lower/input.h"
#include "penstock/layout.h"
#include "penstock/program.h"
#include "schedule/versions.h"

namespace penstock {

// For what part of a step's work a value is there: an instance is one value of one unit.
struct Unit {
  std::int32_t microbatch = -1;  // of the table, from the pass `devices` on of the step; -1: the whole step
  std::int32_t count = 1;        // so many of the table's together, from this one on

  explicit operator bool() const { return microbatch >= 0; }
  auto operator<=>(const Unit&) const = default;
};

// The way in which the devices of an actor have what lies in a block, whole or flat along each of their axes: `data`, the hosts, and
// `local`, the devices of a host (LowerInput::local; one that is alone has what its host has).
struct Holding {
  Layout::Kind data = Layout::Kind::whole, local = Layout::Kind::whole;

  bool is_whole() const { return data == Layout::Kind::whole; }
  bool operator==(const Holding&) const = default;
};
inline constexpr Holding kHostShare{Layout::Kind::flat, Layout::Kind::whole};

// Something with a lifetime of its own: the values of one bundle of one micro-batch, one state tensor, one value outside the loop.
// It has a slot on its home and on every actor that reads it.
struct Instance {
  enum class Source : std::uint8_t {
    computed,  // by runs on `home`
    data,      // a data port: every reader takes it from the data by itself
    state,     // lives across steps; `home` owns it, other readers have copies
  };
  Source source = Source::computed;
  std::string name;  // of its slots
  std::vector<TensorType> types;
  ActorId home;                         // computed, state
  InputId input{};                      // data, state
  Unit unit{};                          // data: which part of it; computed: for what
  bool host = false;                    // computed: lies in the host's memory
  bool stays = false;                   // computed: OFFLOAD leaves it on the device (Bundle::stays)
  bool owned = true;                    // state: the device at `home` owns it; else it holds a copy that it updates by itself
  BlockId block{};                      // of which it is a part, or all of it:
  std::vector<std::int32_t> members{};  // which member each type is, and
  Holding held{};                       // how the devices of `home` have these
  std::int64_t room = 0;                // bytes, from the pass `devices` on
  std::int32_t terms = 1;               // computed: runs that store it or add to it
};

// Tensors of one dtype that the devices of an actor hold in equal shares: flattened and one after the other, as the parts of a slot, they
// are cut into as many ranges of equal bytes as there are devices. So a collective moves a whole block, and no element is copied for it.
struct ShareBlock {
  std::vector<TensorType> members;
  std::vector<InputId> parameters;  // states, one for each member, to be gathered for the stages that read them; else empty
  std::set<StageId> readers;        // these stages
  // The dtype, half as wide, in which all that reads the parameters reads them: each device casts its share, and that is gathered. None:
  // they are gathered as they are.
  std::optional<DType> cast = {};
};
struct Member {
  BlockId block;
  std::int32_t index = -1;
};

struct Write {
  InstanceId instance;
  ResultMode mode = ResultMode::store;
};

// The place of a run in a window of steps, until its reads are of versions.
struct InWindow {
  // Up to the pass `steps`: the number of its action in its step's row. -1: that of the run before it, or none.
  std::int32_t action = -1;
  // From `steps` to `versions`: whose run it is, and which version it reads of trained states. -1: none.
  std::int32_t step = -1;
  ReadVersion read = {};
  bool pulls = false;  // the states that it writes keep their version

  bool operator==(const InWindow&) const = default;
};

// The piece of work that one actor does without being interrupted; an actor's list has its runs in order.
struct Run {
  // run, copy, output; collectives: of the one of `reads` to the one of `writes`; offload, reload: of each of `reads` to the one beside it;
  // send, recv: where the table lets transfers of an action start, those of what a send reads.
  Opcode opcode = Opcode::run;
  TaskId task{};    // run
  StageId stage{};  // of the action that it belongs to; none: it stands before or after the loop
  Kind kind = Kind::F;
  Unit unit{};
  InWindow window{};
  std::int32_t port = -1;   // output
  std::int32_t axis = -1;   // collectives along an axis of the mesh: which of LowerInput::lines
  std::int32_t group = -1;  // collectives, once devices are known: position in Draft::groups
  std::int32_t root = -1;   // broadcast: the place of the device that gives among the group's
  // A copy along an axis, until the members' drafts are one: what the member `by` places on reads in its run of this message and unit is
  // what this one writes.
  std::int32_t by = -1, message = -1;
  // An action of the table that a later pass puts something in the place of, or nothing: OFFLOAD, RELOAD, REDUCE_GRAD, U.
  bool placeholder = false;
  std::vector<InstanceId> reads{};
  std::vector<Write> writes{};
};

// A loop operand, or its part of one micro-batch, that must be computed on an actor before the loop.
struct LoopUse {
  std::int32_t operand = -1;  // of the loop
  Unit unit{};
  ActorId actor;
  InstanceId instance;
};
// The instance and part that hold a loop result's partial sum for an actor: its home, or in a window the actor that updates the stage.
struct PartialSum {
  ResultId result;
  ActorId actor;
  InstanceId instance;
  std::int32_t part = 0;
  StageId stage{};  // whose terms it sums; none: several
};

// The transfer of one instance from its home to another device. Runs are counted in each device's list. Where the table says where it
// starts, these are a send and a recv.
struct Transfer {
  InstanceId instance;
  ActorId from, to;
  std::int32_t tag = 0;     // running number of the pair's transfers in this direction
  std::int32_t after = 0;   // the run of `from` behind which it is sent; their number: when all is done
  std::int32_t before = 0;  // the run of `to` ahead of which its receive is posted; their number: when all is done
};
struct Free {
  InstanceId instance;
  ActorId device;
  std::int32_t after = 0;  // the run behind which the slot is freed; the number of runs: when all is done
};

// Whose a draft is as long as there are several: a member's of the mesh's axes, under one worker's table, of one step of a window.
struct DraftOf {
  std::int32_t member = 0, worker = 0, step = 0;

  auto operator<=>(const DraftOf&) const = default;
};

struct Draft {
  DraftOf of{};
  std::string after;             // the pass that made it; empty: none has yet
  IdVector<TaskId, Task> tasks;  // tasks of equal structure are one
  IdVector<BlockId, ShareBlock> blocks;
  std::map<InputId, Member> sharded_states;
  std::map<ResultId, Member> sharded_results;
  IdVector<InstanceId, Instance> instances;
  IdVector<ActorId, std::vector<Run>> actors;  // from the pass `devices` on: devices
  // In a window, from the pass `steps` on: the step's inputs of which something reads what a whole step is given, in order. Each step has a
  // port of its own for each, behind the step's inputs.
  std::vector<std::int32_t> whole_ports;
  std::vector<LoopUse> uses;                      // up to the pass `after`
  std::vector<PartialSum> partials;               // up to the pass `after`
  std::vector<InstanceId> refreshed;              // states whose copies their owner refreshes at the step's end
  std::vector<std::vector<std::int32_t>> groups;  // of devices
  IdVector<TransferId, Transfer> transfers;       // each device sends, and posts, those of equal `after` or `before` in this order
  std::vector<Free> frees;                        // of each device, those of equal `after` in this order

  // Indices to find entries of the above quickly. `inputs`: up to the pass `devices`.
  std::unordered_multimap<std::uint64_t, TaskId> task_by_hash;
  std::unordered_set<std::string> task_names;
  std::map<std::pair<InputId, Unit>, InstanceId> inputs;
};

InstanceId add(Draft& draft, Instance instance);
// A task of the graph: one that is there already, or a new one of this name, with a number behind it where others have the name.
TaskId add_task(Draft& draft, std::string name, Graph graph);
TaskId add_task(Draft& draft, std::string name, const TaskGraph& graph);  // which keeps the name that it has
// The ids that a draft's tasks and instances have in another, into which passes join it.
struct Renumbering {
  IdVector<TaskId, TaskId> tasks;
  IdVector<InstanceId, InstanceId> instances;
};
// A task of another draft, with `suffix` behind its name.
TaskId add_task(Draft& draft, const Task& task, const std::string& suffix);
void renumber(Run& run, const Renumbering& to);

// The instance of a step input as a whole or, of data, of one micro-batch's part; made on first use. With shape classes a micro-batch of
// which devices have shares has the port of the first share.
InstanceId input_instance(const LowerInput& input, Draft& draft, InputId which, Unit unit = {});
// An instance of all of a block's members on an actor.
InstanceId add_block(Draft& draft, BlockId block, ActorId actor, std::string name, const Holding& held);
// The same where they are gathered for the stages that read them, and the members' types there.
std::vector<TensorType> gathered_types(const ShareBlock& block);
InstanceId add_gathered(Draft& draft, BlockId block, ActorId actor, std::string name, const Holding& held);
// A task that gives what it is given, of a block's members; and one that gives them in the types in which they are gathered.
TaskId copy_task(Draft& draft, BlockId block);
TaskId cast_task(Draft& draft, BlockId block);

// Returns how devices hold what is cut as far as it can be. A parameter, and the sum of its gradients while there is more to come, is a
// kHostShare.
Holding device_share(const LowerInput& input);
// Returns how devices hold a state.
Holding holding_of(const LowerInput& input, const Draft& draft, InputId state);
bool is_all_of_block(const Draft& draft, const Instance& instance);
// Where each member of a block begins in it and, last, where it ends, in bytes.
std::vector<std::int64_t> member_offsets(const ShareBlock& block);
// Returns the bytes of one device's share; a multiple of kAlignment, and of parameters also in a dtype half as wide. `offsets`: the
// block's.
std::int64_t share_bytes(const ShareBlock& block, const std::vector<std::int64_t>& offsets, std::int32_t devices);
// A member's layout along the hosts of so many devices, `local` each; and, of the same member, along the devices of one of these hosts.
Layout flat_in(const ShareBlock& block, const std::vector<std::int64_t>& offsets, std::int32_t member, std::int32_t devices,
               std::int32_t local);
Layout flat_in_host(const Layout& along_hosts, std::int32_t host, std::int32_t local);

// The collective of devices that an op stands for which members do together.
Opcode collective_of(const Op& op);
// Makes the run what a collective op says: all members of an axis of the mesh take part.
void make_collective(const LowerInput& input, const Op& op, Run& run);

// Whether it takes the device no time, or next to none: what is to be gathered is put in its place, a sum's part to the others.
bool is_beside(const Run& run);
// Whether it says where transfers start.
bool is_transfer(const Run& run);

// Text form: print(parse(print(d))) == print(d). An instance goes by its slots' name there, and where several have one, by its home too.
// Several drafts stand one behind the other. Throws Error with file:line:column.
std::string print(const Draft& draft);
Draft parse_draft(std::string_view text, std::string_view file = "draft");
std::vector<Draft> parse_drafts(std::string_view text, std::string_view file = "draft");

// Throws Error naming run and instance unless the draft is what the pass that it names may leave: ids in range, types of runs and of what
// they read and write alike, all that is read written before in some order of the actors' work, one owner of each state; transfers and
// frees, where the passes that make them have run, of all that needs one and at a time at which they can be.
void verify(const LowerInput& input, const Draft& draft);

}  // namespace penstock
