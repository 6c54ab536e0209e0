// SPDX-License-Identifier: Apache-2.0
// Checks the rules that every draft keeps, whichever pass made it.
#include <algorithm>
#include <map>

#include "base/text.h"
#include "lower/passes.h"
#include "penstock/error.h"

namespace penstock {
namespace {

struct Check {
  const LowerInput& input;
  const Draft& draft;

  bool reached(std::string_view pass) const { return !draft.after.empty() && find_pass(draft.after) >= find_pass(pass); }
  std::string name(InstanceId i) const {
    return concat(shown_name(draft.instances[i].name), draft.instances[i].home ? concat(" of ", draft.instances[i].home.value) : "");
  }
  [[noreturn]] void fail(const std::string& where, const std::string& what, const std::string& hint = {}) const {
    throw Error(concat("draft after ", draft.after.empty() ? "no pass" : draft.after, ": ", where, ": ", what), {}, hint);
  }
  [[noreturn]] void fail(ActorId actor, std::size_t run, const std::string& what) const {
    const Run& of = draft.actors[actor][run];
    const std::string action =
        of.stage ? concat(" (", of.stage.value, penstock::name(of.kind), of.unit ? concat(of.unit.microbatch) : "", ")") : "";
    fail(concat("actor ", actor.value, ", run ", run, action), what);
  }
  bool is_actor(ActorId actor) const { return actor && actor.index() < draft.actors.size(); }
};

void check_instance(const Check& c, InstanceId id) {
  const Instance& i = c.draft.instances[id];
  const auto fail = [&](const std::string& what) { c.fail(concat("instance ", c.name(id)), what); };
  const bool is_state = c.input.is_state(i.input);
  if (i.source == Instance::Source::computed ? bool(i.input) : !i.input || i.input.index() >= c.input.step.inputs.size())
    fail("it is of no input of the step, or computed and of one");
  if (i.input && is_state != (i.source == Instance::Source::state))
    fail(concat("input ", i.input.value, " of the step is ", is_state ? "a state" : "data"));
  const bool has_home = i.source == Instance::Source::computed || (i.source == Instance::Source::state && c.reached("after"));
  if (has_home ? !c.is_actor(i.home) : bool(i.home)) fail(concat("its home is ", i.home.value, ", there are ", c.draft.actors.size()));
  if (i.block && !c.reached("devices") && i.members.size() != i.types.size())
    fail(concat("it is ", i.members.size(), " members of a block, and has ", i.types.size(), " types"));
}

template <class Range, class Of>
std::vector<TensorType> types_of(const Check& c, const Range& range, const Of& of) {
  std::vector<TensorType> out;
  for (const auto& item : range) {
    const std::vector<TensorType>& types = c.draft.instances[of(item)].types;
    out.insert(out.end(), types.begin(), types.end());
  }
  return out;
}

std::string joined_types(const std::vector<TensorType>& types) {
  return join(types, ", ", [](const TensorType& t) { return t.text(); });
}

void check_run(const Check& c, ActorId actor, std::size_t number) {
  const Run& run = c.draft.actors[actor][number];
  if (run.stage.value >= std::ssize(c.input.dag.names)) c.fail(actor, number, "there is no such stage");
  if (run.placeholder) {
    if (c.reached("after")) c.fail(actor, number, "nothing came in the place of it");
    return;
  }
  if (is_transfer(run)) {
    if (!run.writes.empty() || (!run.reads.empty() && run.opcode == Opcode::recv))
      c.fail(actor, number, "it only says where transfers start");
    return;
  }
  const auto reads = types_of(c, run.reads, [](InstanceId i) { return i; });
  const auto writes = types_of(c, run.writes, [](const Write& write) { return write.instance; });
  if (run.opcode == Opcode::run) {
    const Graph& graph = c.draft.tasks[run.task].graph;
    const auto check = [&](const char* what, const std::vector<TensorType>& found, const std::vector<ValueId>& values) {
      std::vector<TensorType> wanted;
      for (ValueId v : values) wanted.push_back(graph.type(v));
      if (found != wanted) c.fail(actor, number, concat(what, " (", joined_types(found), "), its task takes (", joined_types(wanted), ")"));
    };
    check("it reads", reads, graph.inputs);
    check("it writes", writes, graph.outputs);
  } else if (run.opcode == Opcode::output) {
    const auto outputs = std::ssize(c.input.step.outputs) - c.input.step.state;
    if (run.reads.size() != 1 || run.port < 0 || run.port >= outputs)
      c.fail(actor, number, concat("it gives no output of the step's ", outputs));
  } else if (run.opcode == Opcode::broadcast && run.group >= 0) {
    if (run.reads.size() + run.writes.size() != 1) c.fail(actor, number, "a device gives or gets what is broadcast");
  } else if (run.reads.size() != run.writes.size() || (!is_host_copy(run.opcode) && run.reads.size() != 1)) {
    c.fail(actor, number, concat(name(run.opcode), " of ", run.reads.size(), " instances to ", run.writes.size()));
  } else if (!is_collective(run.opcode) && run.message < 0 && reads != writes) {
    c.fail(actor, number, concat(name(run.opcode), " between instances of different types"));
  }
  if (is_collective(run.opcode) && c.reached("devices") && run.axis < 0 && (run.group < 0 || run.group >= std::ssize(c.draft.groups)))
    c.fail(actor, number, concat("there is no group ", run.group));
}

// The progress of each actor in its list, and the number of writes of each computed instance that are done and left.
struct Work {
  IdVector<ActorId, std::size_t> next;               // run
  IdVector<InstanceId, std::int32_t> written, left;  // writes
  IdVector<InstanceId, std::vector<ActorId>> waiting;
};

// Writes the run's instances. Each is defined once, by its home, before it is added to.
void write_all(const Check& c, Work& work, ActorId actor, std::size_t number, std::vector<ActorId>& ready) {
  for (const Write& write : c.draft.actors[actor][number].writes) {
    const Instance& made = c.draft.instances[write.instance];
    if (made.source == Instance::Source::data) c.fail(actor, number, concat("it writes data, ", c.name(write.instance)));
    if (made.source == Instance::Source::state) continue;
    if (made.home != actor) c.fail(actor, number, concat("it writes ", c.name(write.instance), ", whose home is ", made.home.value));
    const bool first = work.written[write.instance]++ == 0;
    if (first != (write.mode == ResultMode::store))
      c.fail(
          actor, number,
          concat(first ? "it adds to or updates " : "it stores anew ", c.name(write.instance), first ? ", which nothing has stored" : ""));
    if (--work.left[write.instance] > 0) continue;
    std::vector<ActorId>& waiting = work.waiting[write.instance];
    ready.insert(ready.end(), waiting.begin(), waiting.end());
    waiting.clear();
  }
}

// Returns an instance that the run must wait for, or none where it can run now.
InstanceId missing(const Check& c, const Work& work, ActorId actor, std::size_t number, const IdVector<InstanceId, bool>& is_used) {
  for (InstanceId read : c.draft.actors[actor][number].reads) {
    const Instance& from = c.draft.instances[read];
    if (from.source != Instance::Source::computed || is_used[read]) continue;
    const bool never = from.home == actor ? work.written[read] == 0 : work.written[read] + work.left[read] == 0;
    if (never) c.fail(actor, number, concat("it reads ", c.name(read), ", which nothing has written"));
    if (from.home != actor && work.left[read] > 0) return read;
  }
  return {};
}

void check_order(const Check& c) {
  const std::size_t instances = c.draft.instances.size();
  Work work{std::vector<std::size_t>(c.draft.actors.size()), std::vector<std::int32_t>(instances), std::vector<std::int32_t>(instances),
            std::vector<std::vector<ActorId>>(instances)};
  IdVector<InstanceId, bool> is_used(instances);  // to be computed before the loop, by a pass to come
  if (!c.reached("before"))
    for (const LoopUse& use : c.draft.uses) is_used[use.instance] = true;
  std::vector<ActorId> ready;
  for (const ActorId actor : c.draft.actors.ids()) {
    ready.push_back(actor);
    for (const Run& run : c.draft.actors[actor])
      for (const Write& write : run.writes) ++work.left[write.instance];
  }
  while (!ready.empty()) {
    const ActorId actor = ready.back();
    ready.pop_back();
    for (std::size_t& next = work.next[actor]; next < c.draft.actors[actor].size(); ++next) {
      if (const InstanceId wanted = missing(c, work, actor, next, is_used)) {
        work.waiting[wanted].push_back(actor);
        break;
      }
      write_all(c, work, actor, next, ready);
    }
  }
  for (const ActorId actor : c.draft.actors.ids())
    if (work.next[actor] < c.draft.actors[actor].size()) c.fail(actor, work.next[actor], "the actors wait for each other here");
}

// A sum has as many terms as it says, or no run makes it here.
void check_terms(const Check& c) {
  IdVector<InstanceId, std::int32_t> terms(c.draft.instances.size());
  for (const std::vector<Run>& runs : c.draft.actors)
    for (const Run& run : runs)
      for (const Write& write : run.writes) terms[write.instance] += write.mode != ResultMode::update;
  for (const InstanceId i : terms.ids())
    if (terms[i] > 0 && terms[i] != c.draft.instances[i].terms)
      c.fail(concat("instance ", c.name(i)), concat("runs give it ", terms[i], " of its ", c.draft.instances[i].terms, " terms"));
}

void check_owners(const Check& c) {
  std::map<std::string, int> owners;
  for (const Instance& i : c.draft.instances)
    if (i.source == Instance::Source::state && !i.types.empty()) owners[i.name] += i.owned;
  for (const auto& [name, count] : owners)
    if (count != 1)
      c.fail(concat("state ", shown_name(name)), concat(count, " devices own it"), "each state has one owner, others have copies");
}

void check_shares(const Check& c) {
  const auto check = [&](InputId state) {
    if (!c.input.is_state(state)) c.fail(concat("sharded state ", state.value), concat("the step has ", c.input.step.state, " states"));
  };
  for (const auto& [state, member] : c.draft.sharded_states) check(state);
  for (const ShareBlock& block : c.draft.blocks) std::ranges::for_each(block.parameters, check);
  for (const auto& [result, member] : c.draft.sharded_results)
    if (result.index() >= c.input.loop_op().results.size()) c.fail(concat("sharded result ", result.value), "the loop has no such result");
  for (InstanceId state : c.draft.refreshed)
    if (c.draft.instances[state].source != Instance::Source::state || !c.is_actor(c.draft.instances[state].home))
      c.fail(concat("refresh of ", c.name(state)), "it is no state with a home");
}

// Checks that what a pass makes is there only once it has run, and that what it uses up is gone afterwards.
void check_phase(const Check& c) {
  const std::pair<std::string_view, bool> made[] = {
      {"refresh", c.draft.refreshed.empty()}, {"transfers", c.draft.transfers.empty()}, {"frees", c.draft.frees.empty()}};
  for (const auto& [pass, is_empty] : made)
    if (!is_empty && !c.reached(pass)) c.fail(std::string(pass), "the draft has what only this pass makes, which has not run");
  if (c.reached("after") && !(c.draft.uses.empty() && c.draft.partials.empty())) c.fail("loop ends", "the pass after has used them up");
}

void check_loop_ends(const Check& c) {
  const Op& loop = c.input.loop_op();
  IdVector<ResultId, bool> is_summed(loop.results.size(), !c.reached("actions") || c.reached("after"));
  for (const LoopUse& use : c.draft.uses)
    if (use.operand >= std::ssize(loop.operands) || !c.is_actor(use.actor))
      c.fail(concat("use ", use.operand), "the loop has no such operand, or there is no such actor");
  for (const PartialSum& sum : c.draft.partials)
    if (sum.result.index() >= loop.results.size() || !c.is_actor(sum.actor) ||
        sum.part >= std::ssize(c.draft.instances[sum.instance].types))
      c.fail(concat("partial ", sum.result.value), "the loop has no such result, there is no such actor, or the instance no such part");
  for (const PartialSum& sum : c.draft.partials) is_summed[sum.result] = true;
  for (std::size_t r = 0; r < is_summed.size(); ++r)
    if (!is_summed[r]) c.fail(concat("result ", r, " of the loop"), "nothing sums it");
}

void check_transfers(const Check& c) {
  std::map<std::pair<InstanceId, ActorId>, std::int32_t> brought;  // to devices, ahead of a run
  IdVector<InstanceId, std::int32_t> last_write(c.draft.instances.size(), -1);
  for (const ActorId actor : c.draft.actors.ids())
    for (std::int32_t r = 0; const Run& run : c.draft.actors[actor]) {
      for (const Write& write : run.writes)
        if (c.draft.instances[write.instance].home == actor) last_write[write.instance] = r;
      ++r;
    }
  for (const Transfer& t : c.draft.transfers) {
    const std::string where = concat("transfer of ", c.name(t.instance), " to ", t.to.value);
    if (!c.is_actor(t.from) || !c.is_actor(t.to) || t.from == t.to || t.from != c.draft.instances[t.instance].home)
      c.fail(where, "it goes from no home to no other device");
    if (t.after > std::ssize(c.draft.actors[t.from]) || t.before > std::ssize(c.draft.actors[t.to])) c.fail(where, "there is no such run");
    if (!brought.emplace(std::pair(t.instance, t.to), t.before).second) c.fail(where, "it is sent there twice");
    if (last_write[t.instance] > t.after) c.fail(where, "it is sent before it is written");
  }
  for (const ActorId actor : c.draft.actors.ids())
    for (std::size_t r = 0; r < c.draft.actors[actor].size(); ++r)
      for (InstanceId read : c.draft.actors[actor][r].reads) {
        if (c.draft.instances[read].source != Instance::Source::computed || c.draft.instances[read].home == actor) continue;
        const auto found = brought.find({read, actor});
        if (found == brought.end() || found->second > static_cast<std::int32_t>(r))
          c.fail(actor, r, concat("it reads ", c.name(read), ", which no transfer brings before"));
      }
}

void check_frees(const Check& c) {
  std::map<std::pair<InstanceId, ActorId>, std::int32_t> freed;
  for (const Free& free : c.draft.frees) {
    const std::string where = concat("free of ", c.name(free.instance), " on ", free.device.value);
    if (!c.is_actor(free.device) || free.after > std::ssize(c.draft.actors[free.device])) c.fail(where, "there is no such run");
    if (c.draft.instances[free.instance].source == Instance::Source::state) c.fail(where, "states are not freed");
    if (!freed.emplace(std::pair(free.instance, free.device), free.after).second) c.fail(where, "it is freed twice");
  }
  for (const ActorId actor : c.draft.actors.ids())
    for (std::size_t r = 0; r < c.draft.actors[actor].size(); ++r) {
      const auto check = [&](InstanceId i) {
        if (c.draft.instances[i].source == Instance::Source::state) return;
        const auto found = freed.find({i, actor});
        if (found == freed.end() || found->second < static_cast<std::int32_t>(r))
          c.fail(actor, r, concat("it touches ", c.name(i), ", which is ", found == freed.end() ? "never freed" : "freed before"));
      };
      for (InstanceId read : c.draft.actors[actor][r].reads) check(read);
      for (const Write& write : c.draft.actors[actor][r].writes) check(write.instance);
    }
}

}  // namespace

void verify(const LowerInput& input, const Draft& draft) {
  const Check c{input, draft};
  if (!draft.after.empty()) find_pass(draft.after);
  std::int32_t rows = 0;
  for (std::int32_t size : input.group_size) rows += c.reached("devices") ? size : 1;
  if (c.reached("axes")) rows *= input.members;
  if (c.reached("actions") && std::ssize(draft.actors) != rows)
    c.fail("rows", concat("there are ", draft.actors.size(), ", the table and its groups have ", rows));
  for (const InstanceId i : draft.instances.ids()) check_instance(c, i);
  for (const ActorId actor : draft.actors.ids())
    for (std::size_t r = 0; r < draft.actors[actor].size(); ++r) check_run(c, actor, r);
  check_order(c);
  check_terms(c);
  check_phase(c);
  check_shares(c);
  check_loop_ends(c);
  if (c.reached("after")) check_owners(c);
  if (c.reached("transfers")) check_transfers(c);
  if (c.reached("frees")) check_frees(c);
}

}  // namespace penstock
