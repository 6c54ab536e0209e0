// A program while it is being lowered: who computes what, before it is decided when anything is sent, received or freed.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lower/lower.h"
#include "penstock/program.h"
#include "stage/stages.h"
#include "transform/take_share.h"

namespace penstock {

// What each device of an actor has of a block: all of it, what the other devices of its node have too, or a share of its own.
enum class Extent : std::uint8_t { whole, node, device };

// Something with a lifetime of its own: the values of one bundle of one micro-batch, one state tensor, one value outside the loop.
// It has a slot on its home and on every actor that reads it.
struct Instance {
  enum class Source : std::uint8_t {
    computed,  // by runs on `home`
    data,      // a data port: every reader takes it from the data by itself
    state,     // lives across steps; `home` owns it, other readers have copies
  };
  Source source = Source::computed;
  std::string name;
  std::vector<TensorType> types;
  std::int32_t home = -1;
  std::int32_t port = -1;        // data
  std::int32_t microbatch = -1;  // data's part of one, or computed for one
  bool host = false;             // computed: lies in the host's memory
  bool owned = true;             // state: the device at `home` owns it; else it holds a copy that it updates by itself
  // Of a block: which member each part is, and what each device of `home` has of it.
  std::int32_t block = -1;
  std::vector<std::int32_t> members{};
  Extent extent = Extent::whole;
  std::int64_t room = 0;  // bytes, after spread_groups
};

// Tensors of one dtype that the devices of an actor hold in equal shares: flattened and one after the other, as the parts of a slot, they
// are cut into as many ranges of equal bytes as there are devices. So a collective moves a whole block, and no element is copied for it.
struct ShareBlock {
  std::vector<TensorType> members;
  std::vector<std::int32_t> parameters;  // states, one for each member, to be gathered for the stages that read them; else empty
  std::set<std::int32_t> readers;        // these stages
};
struct Member {
  std::int32_t block = -1, index = -1;
};
std::int64_t share_bytes(const ShareBlock& block, std::int32_t devices);  // a multiple of kAlignment
// Those of `count` devices from `first` on.
Share share_of(const ShareBlock& block, std::int32_t member, std::int32_t first, std::int32_t count, std::int32_t devices);

struct Write {
  std::int32_t instance;
  ResultMode mode = ResultMode::store;
};

// What one actor does without being interrupted; in order of its actor's list.
struct Run {
  // run, copy, output; collectives: of the one of `reads` to the one of `writes`; offload, reload: of each of `reads` to the one beside it.
  Opcode opcode = Opcode::run;
  TaskId task;
  std::int32_t stage = -1, microbatch = -1, port = -1;
  std::int32_t group = -1;  // collectives, after spread_groups: of the program
  Kind kind = Kind::F;
  bool action = false;
  // A U of the table: place_outside puts the stage's update here, or nothing. A REDUCE_GRAD: reduce_over_groups does the same.
  bool placeholder = false;
  std::vector<std::int32_t> reads;  // instances
  std::vector<Write> writes;
};

// Whether it takes the device no time, or next to none: what is to be gathered is put in its place, a sum's part to the others.
bool is_beside(const Run& run);

struct Draft {
  std::vector<Instance> instances;
  std::vector<std::vector<Run>> actors;  // after spread_groups: devices
  // State that only its owner updates: its copies are refreshed at the step's end.
  std::vector<std::int32_t> refreshed;
};

// Tasks of equal structure are one.
class TaskTable {
 public:
  explicit TaskTable(std::vector<Task>& tasks) : tasks_(tasks) {}
  TaskId add(std::string name, Graph graph);

 private:
  std::vector<Task>& tasks_;
  std::multimap<std::uint64_t, TaskId> by_hash_;
};

// What the loop leaves behind and needs: how the code outside it is connected.
struct LoopEnds {
  // A loop operand, or its part of one micro-batch, that must be computed on an actor before the loop.
  struct Use {
    std::int32_t operand;     // of the accumulate
    std::int32_t microbatch;  // -1: whole
    std::int32_t actor;
    std::int32_t instance;
  };
  std::vector<Use> uses;
  // Accumulators: the instance and part that hold each loop result's partial sum on each actor.
  struct Partial {
    std::int32_t result;  // of the accumulate
    std::int32_t actor;
    std::int32_t instance;
    std::int32_t part;
    std::int32_t stage;  // whose terms it sums; -1: several
  };
  std::vector<Partial> partials;
};

// Everything the passes share.
struct Lowering {
  const Graph& step;  // with stages assigned
  const StageDag& dag;
  const Schedule& schedule;
  std::vector<std::int32_t> group_sizes;  // devices of each actor
  std::int32_t parts;  // of each of the table's micro-batches: the least that each group can share; one is a micro-batch here
  Program program{};
  Draft draft{};
  LoopEnds ends{};
  std::size_t loop;  // index of the accumulate in step.ops
  TaskTable tasks{program.tasks};
  std::vector<ShareBlock> blocks{};
  std::map<std::int32_t, Member> sharded_states{}, sharded_results{};  // inputs of the step, results of the loop
  std::int32_t local = 1;                                              // Sharding::local, at level 3
  // Instance of a step input (index) as a whole or, for data, of one micro-batch's part; made on first use.
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> inputs{};

  Lowering(const Graph& s, const StageDag& d, const Schedule& t, std::size_t l, const std::vector<int>& sizes);
  Lowering(const Lowering&) = delete;
  std::int32_t actors() const { return static_cast<std::int32_t>(schedule.actors.size()); }
  std::int32_t table_microbatches() const { return program.microbatches / parts; }
  const Op& loop_op() const { return step.ops[loop]; }
  std::int32_t add(Instance instance);
  std::int32_t input(std::int32_t index, std::int32_t microbatch);
  // What devices have of a parameter that is in shares, and of the sum of its gradients while there is more to come.
  Extent parameter_extent() const { return local > 1 ? Extent::node : Extent::device; }
  Extent extent_of(std::int32_t state) const;
  // An instance of all of a block's members on an actor.
  std::int32_t add_block(std::int32_t block, std::int32_t actor, std::string name, Extent extent);
  // A task that gives what it is given, of a block's members.
  TaskId copy_task(std::int32_t block);
  // Which input of the step a value is; -1: it is computed.
  std::int32_t input_index(ValueId value) const;
};

// The passes, in the order of lower().
void find_blocks(Lowering& lowering, const Sharding& sharding);         // what devices hold in shares
void lower_actions(Lowering& lowering);                                 // the table's actions become runs on instances
void reduce_over_groups(Lowering& lowering, const Sharding& sharding);  // accumulators are summed over the devices of their actor
void place_outside(Lowering& lowering);                                 // code before and after the loop, and where state lives
void spread_groups(Lowering& lowering);                                 // actors become devices
void emit_program(Lowering& lowering, int receive_ahead);               // transfers, early receives, frees: the instruction lists

}  // namespace penstock
