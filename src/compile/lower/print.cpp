// SPDX-License-Identifier: Apache-2.0
// The text form of drafts; parse.cpp reads it.
#include <algorithm>
#include <map>

#include "base/text.h"
#include "lower/draft.h"
#include "lower/text_names.h"

namespace penstock {
namespace {

std::string types_text(const std::vector<TensorType>& types) {
  return concat("(", join(types, ", ", [](const TensorType& type) { return type.text(); }), ")");
}

template <class Range>
std::string list(const Range& values) {
  return concat("(", join(values, ", ", [](const auto& value) { return concat(value); }), ")");
}
template <class Tag>
std::vector<std::int32_t> numbers(const std::vector<Id<Tag>>& ids) {
  std::vector<std::int32_t> out;
  for (Id<Tag> id : ids) out.push_back(id.value);
  return out;
}

// By what an instance goes in the text: its slots' name where no other has it, else with its home (data: its unit), else with its
// number too.
IdVector<InstanceId, std::string> handles_of(const Draft& draft) {
  std::map<std::string, int> seen;
  const auto at_home = [](const Instance& i) { return concat(i.name, "$", i.home ? i.home.value : i.unit.microbatch); };
  for (const Instance& i : draft.instances) {
    ++seen[i.name];
    ++seen[at_home(i)];
  }
  IdVector<InstanceId, std::string> out;
  for (const Instance& instance : draft.instances) {
    std::string handle = instance.name;
    if (seen[handle] > 1) handle = at_home(instance);
    if (seen[handle] > 1) handle = concat(handle, "$", out.size());
    out.push_back(shown_name(handle));
  }
  return out;
}

std::string text_of(const ShareBlock& block) {
  std::string out = types_text(block.members);
  if (block.parameters.empty()) return out;
  const std::vector<StageId> readers(block.readers.begin(), block.readers.end());
  return out + concat(" parameters ", list(numbers(block.parameters)), block.cast ? concat(" as ", name(*block.cast)) : "", " for ",
                      list(numbers(readers)));
}

// "whole"; "flat" along the hosts; "flat flat" along the devices of each, too.
std::string text_of(const Holding& held) {
  if (held.is_whole()) return std::string(draft_text::kHoldings[0]);
  return concat(draft_text::kHoldings[1], held == kHostShare ? "" : concat(" ", draft_text::kHoldings[1]));
}

// "4", or "4 together 2".
std::string text_of(const Unit& unit) {
  return concat(unit.microbatch, unit.count > 1 ? concat(" ", draft_text::kTogether, " ", unit.count) : "");
}

std::string text_of(const Instance& i, const std::string& handle) {
  std::string out(draft_text::kSources[static_cast<std::size_t>(i.source)]);
  if (i.input) out += concat(" ", i.input.value);
  if (i.home) out += concat(" on ", i.home.value);
  if (i.unit) out += concat(" unit ", text_of(i.unit));
  if (i.host) out += " host";
  if (i.stays) out += " stays";
  if (!i.owned) out += " copy";
  if (i.block) out += concat(" block ", i.block.value, " members ", list(i.members), " ", text_of(i.held));
  if (i.room > 0) out += concat(" room ", i.room);
  if (i.terms > 1) out += concat(" terms ", i.terms);
  if (shown_name(i.name) != handle) out += concat(" named ", quote(i.name));
  return out + " " + types_text(i.types);
}

// " action 3", or " step 1 reads 2 ahead 1 pulls".
std::string text_of(const InWindow& window) {
  std::string out;
  if (window.action >= 0) out += concat(" action ", window.action);
  if (window.step >= 0) out += concat(" step ", window.step);
  if (window.read.version >= 0) out += concat(" reads ", window.read.version);
  if (window.read.ahead > 0) out += concat(" ahead ", window.read.ahead);
  return window.pulls ? out + " pulls" : out;
}

// "run 0F3 @F0(%x, %y) -> (store %z)"; "place 0U" where a later pass puts something.
std::string text_of(const Draft& draft, const Run& run, const IdVector<InstanceId, std::string>& handles) {
  std::string out(run.placeholder ? draft_text::kPlaceholder : name(run.opcode));
  if (run.stage) out += concat(" ", run.stage.value, name(run.kind), run.unit ? text_of(run.unit) : "");
  const std::string window = text_of(run.window);
  if (run.placeholder) return out + window;
  if (run.opcode == Opcode::run) out += " @" + shown_name(draft.tasks[run.task].name).substr(1);
  const auto handle = [&](InstanceId i) { return handles[i]; };
  const auto write = [&](const Write& w) { return concat(draft_text::kModes[static_cast<std::size_t>(w.mode)], " ", handle(w.instance)); };
  out += concat(run.opcode == Opcode::run ? "(" : " (", join(run.reads, ", ", handle), ") -> (", join(run.writes, ", ", write), ")");
  if (run.port >= 0) out += concat(" port ", run.port);
  if (run.axis >= 0) out += concat(" along ", run.axis);
  if (run.group >= 0) out += concat(" in ", run.group);
  if (run.root >= 0) out += concat(" root ", run.root);
  if (run.message >= 0) out += concat(" by ", run.by, " message ", run.message);
  return out + window;
}

}  // namespace

std::string print(const Draft& draft) {
  const IdVector<InstanceId, std::string> handles = handles_of(draft);
  std::string out = "penstock draft 1\n";
  const auto line = [&](const auto&... parts) { out += concat(parts..., "\n"); };
  const auto handle = [&](InstanceId i) { return handles[i]; };
  if (draft.of != DraftOf()) line("of member ", draft.of.member, " worker ", draft.of.worker, " step ", draft.of.step);
  if (!draft.after.empty()) line("after ", draft.after);
  for (const Task& task : draft.tasks) line("task @", shown_name(task.name).substr(1)), out += print_body(task.graph);
  for (std::size_t b = 0; b < draft.blocks.size(); ++b) line("block ", b, " ", text_of(draft.blocks[b]));
  for (const auto& [state, member] : draft.sharded_states) line("sharded state ", state.value, " ", member.block.value, " ", member.index);
  for (const auto& [result, member] : draft.sharded_results)
    line("sharded result ", result.value, " ", member.block.value, " ", member.index);
  for (std::size_t g = 0; g < draft.groups.size(); ++g) line("group ", g, " ", list(draft.groups[g]));
  if (!draft.whole_ports.empty()) line("whole ", list(draft.whole_ports));
  for (const InstanceId i : draft.instances.ids()) line("instance ", handles[i], " ", text_of(draft.instances[i], handles[i]));
  for (std::size_t a = 0; a < draft.actors.size(); ++a) {
    line("actor ", a);
    for (const Run& run : draft.actors[a]) line("  ", text_of(draft, run, handles));
  }
  for (const LoopUse& use : draft.uses)
    line("use ", use.operand, " on ", use.actor.value, use.unit ? concat(" unit ", use.unit.microbatch) : "", " ", handle(use.instance));
  for (const PartialSum& sum : draft.partials)
    line("partial ", sum.result.value, " on ", sum.actor.value, sum.stage ? concat(" stage ", sum.stage.value) : "", " ",
         handle(sum.instance), " part ", sum.part);
  for (InstanceId state : draft.refreshed) line("refresh ", handle(state));
  for (const Transfer& t : draft.transfers)
    line("transfer ", handle(t.instance), " from ", t.from.value, " to ", t.to.value, " #", t.tag, " after ", t.after, " before ",
         t.before);
  for (const Free& free : draft.frees) line("free ", handle(free.instance), " on ", free.device.value, " after ", free.after);
  return out;
}

}  // namespace penstock
