// Pass: which tensors the devices of an actor hold in equal shares (ZeRO, Rajbhandari et al., 1910.02054).
//
// A class is a gradient that the loop leaves behind with all that is computed of it element by element, and the states among that: a
// parameter and its moments. Sums over all its elements may leave the class (the norm that clips). Where every gradient of one accumulator
// is in such a class, they are a block: its sum can be scattered instead of given to all, and each device updates its share.
#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/draft.h"
#include "ops/definition.h"

namespace penstock {
namespace {

class Finder {
 public:
  Finder(Lowering& lowering, const Sharding& sharding) : l_(lowering), step_(lowering.step), sharding_(sharding) {}

  void run() {
    find_actors();
    find_readers();
    join();
    classify();
    for (const Bundle& bundle : l_.dag.bundles)
      if (bundle.source == Bundle::Source::accumulator) take(bundle);
    for (const std::vector<std::string>& names : sharding_.blocks) take(names);
  }

 private:
  struct Class {
    std::vector<std::int32_t> gradients, states;  // results of the loop, inputs of the step
  };

  bool is_tensor(ValueId v) const { return !step_.type(v).shape.empty(); }
  const std::vector<std::int32_t>& readers(std::int32_t state) const { return readers_[static_cast<std::size_t>(state)]; }
  bool is_parameter(std::int32_t state) const {
    const std::string& name = step_.values[step_.inputs[static_cast<std::size_t>(state)].index()].name;
    return !readers(state).empty() ||
           std::find(sharding_.parameters.begin(), sharding_.parameters.end(), name) != sharding_.parameters.end();
  }

  // Of each stage, the one actor that it runs on; -1: several, or one of a single device.
  void find_actors() {
    actor_.assign(l_.dag.names.size(), -2);
    for (std::int32_t a = 0; a < l_.actors(); ++a)
      for (const Action& action : l_.schedule.actors[static_cast<std::size_t>(a)]) {
        std::int32_t& actor = actor_[static_cast<std::size_t>(action.stage)];
        actor = actor == -2 || actor == a ? a : -1;
      }
    for (std::int32_t& actor : actor_)
      if (actor < 0 || l_.group_sizes[static_cast<std::size_t>(actor)] == 1) actor = -1;
  }

  // Stages whose tasks read each state as it is; -1: what is computed before the loop does.
  void find_readers() {
    readers_.resize(static_cast<std::size_t>(step_.state));
    const auto note = [&](ValueId v, std::int32_t stage) {
      const std::int32_t state = l_.input_index(v);
      if (state < 0 || state >= step_.state) return;
      std::vector<std::int32_t>& list = readers_[static_cast<std::size_t>(state)];
      if (std::find(list.begin(), list.end(), stage) == list.end()) list.push_back(stage);
    };
    for (const Bundle& bundle : l_.dag.bundles)
      if (bundle.source == Bundle::Source::invariant)
        for (std::int32_t t : bundle.readers)
          note(l_.loop_op().operands[static_cast<std::size_t>(bundle.members[0])], l_.dag.tasks[static_cast<std::size_t>(t)].stage);
    dependent_.assign(step_.values.size(), false);
    for (std::size_t i = 0; i < step_.ops.size(); ++i) {
      const Op& op = step_.ops[i];
      const bool depends =
          i == l_.loop || std::any_of(op.operands.begin(), op.operands.end(), [&](ValueId v) { return dependent_[v.index()]; });
      for (ValueId v : op.results) dependent_[v.index()] = depends;
      if (!depends)
        for (ValueId v : op.operands) note(v, -1);
    }
  }

  std::size_t root(ValueId v) {
    std::size_t r = v.index();
    while (parent_[r] != r) r = parent_[r] = parent_[parent_[r]];
    return r;
  }

  // What is computed of one another element by element, behind the loop.
  void join() {
    parent_.resize(step_.values.size());
    std::iota(parent_.begin(), parent_.end(), std::size_t{0});
    std::vector<ValueId> whole;  // needed as a whole
    for (std::size_t i = 0; i < step_.ops.size(); ++i) {
      const Op& op = step_.ops[i];
      if (i == l_.loop || op.results.empty() || !dependent_[op.results[0].index()]) continue;
      const ShareRule rule = share_rule(step_, op);
      if (rule == ShareRule::sum) continue;
      const auto alike = [&](ValueId v) { return step_.type(v).shape == step_.type(op.results[0]).shape; };
      for (ValueId v : op.operands) {
        if (!is_tensor(v)) continue;
        if (rule == ShareRule::none || !alike(v)) {
          whole.insert(whole.end(), {v, op.results[0]});
        } else if (dependent_[v.index()] || l_.input_index(v) >= 0) {
          parent_[root(v)] = root(op.results[0]);
        }
      }
      for (ValueId v : op.results) parent_[root(v)] = root(op.results[0]);
    }
    for (ValueId v : whole) spoilt_.insert(root(v));
  }

  void classify() {
    for (std::size_t r = 0; r < l_.loop_op().results.size(); ++r)
      classes_[root(l_.loop_op().results[r])].gradients.push_back(static_cast<std::int32_t>(r));
    for (std::int32_t s = 0; s < step_.state; ++s) {
      const auto index = static_cast<std::size_t>(s);
      const std::size_t of = root(step_.inputs[index]);
      classes_[of].states.push_back(s);
      if (step_.outputs[index] != step_.inputs[index] && root(step_.outputs[index]) != of) spoilt_.insert(of);
    }
  }

  std::int32_t actor_of(std::int32_t stage) const { return actor_[static_cast<std::size_t>(stage)]; }

  // The class of a gradient that is summed on the actor, if it can be held in shares.
  const Class* sharable(std::int32_t result, std::int32_t actor) {
    const ValueId gradient = l_.loop_op().results[static_cast<std::size_t>(result)];
    const Class& found = classes_[root(gradient)];
    if (!is_tensor(gradient) || spoilt_.contains(root(gradient)) || found.gradients.size() != 1) return nullptr;
    for (std::int32_t s : found.states) {
      if (step_.type(step_.inputs[static_cast<std::size_t>(s)]).dtype != step_.type(gradient).dtype) return nullptr;
      for (std::int32_t reader : readers(s))
        if (reader < 0 ? sharding_.level == 3 : actor_of(reader) != actor) return nullptr;
    }
    const auto parameters = std::count_if(found.states.begin(), found.states.end(), [&](std::int32_t s) { return is_parameter(s); });
    const bool gathers = parameters == 1 && parameter_of(found) >= 0;
    return sharding_.level < 3 || found.states.empty() || gathers ? &found : nullptr;
  }

  // The state among them that the loop reads; -1: none.
  std::int32_t parameter_of(const Class& of) const {
    const auto read = std::find_if(of.states.begin(), of.states.end(), [&](std::int32_t s) { return !readers(s).empty(); });
    return read == of.states.end() ? -1 : *read;
  }

  void take(const Bundle& bundle) {
    const std::int32_t actor = actor_of(l_.dag.tasks[static_cast<std::size_t>(bundle.producers[0])].stage);
    if (actor < 0 || !can_be_summed(bundle.types[0].dtype)) return;
    for (std::int32_t t : bundle.producers)
      if (actor_of(l_.dag.tasks[static_cast<std::size_t>(t)].stage) != actor) return;
    std::vector<const Class*> classes;
    ShareBlock block{bundle.types, {}, {}};
    for (std::size_t i = 0; i < bundle.members.size(); ++i) {
      classes.push_back(sharable(bundle.members[i], actor));
      if (!classes.back() || bundle.types[i].dtype != bundle.types[0].dtype) return;
      if (sharding_.level == 3 && !classes.back()->states.empty()) block.parameters.push_back(parameter_of(*classes.back()));
    }
    if (!block.parameters.empty() && block.parameters.size() < block.members.size()) return;
    const auto number = static_cast<std::int32_t>(l_.blocks.size());
    for (std::size_t i = 0; i < classes.size(); ++i) {
      const Member member{number, static_cast<std::int32_t>(i)};
      l_.sharded_results[bundle.members[i]] = member;
      for (std::int32_t s : classes[i]->states)
        if (sharding_.level == 3 || !is_parameter(s)) l_.sharded_states[s] = member;
    }
    add(std::move(block));
  }

  void add(ShareBlock block) {
    for (std::int32_t state : block.parameters) block.readers.insert(readers(state).begin(), readers(state).end());
    l_.blocks.push_back(std::move(block));
  }

  // Parameters that another program updates.
  void take(const std::vector<std::string>& names) {
    ShareBlock block;
    for (const std::string& name : names) {
      const auto found = std::find_if(step_.inputs.begin(), step_.inputs.begin() + step_.state,
                                      [&](ValueId v) { return step_.values[v.index()].name == name; });
      const auto state = static_cast<std::int32_t>(found - step_.inputs.begin());
      invariant(state < step_.state && std::ranges::find(readers(state), -1) == readers(state).end(),
                "a sharded parameter is a state of every program, which only its stages read");
      if (l_.sharded_states.contains(state)) return;
      block.members.push_back(step_.type(*found));
      block.parameters.push_back(state);
    }
    const auto number = static_cast<std::int32_t>(l_.blocks.size());
    for (std::size_t i = 0; i < names.size(); ++i) l_.sharded_states[block.parameters[i]] = {number, static_cast<std::int32_t>(i)};
    add(std::move(block));
  }

  Lowering& l_;
  const Graph& step_;
  const Sharding& sharding_;
  std::vector<std::int32_t> actor_;                 // of each stage
  std::vector<std::vector<std::int32_t>> readers_;  // of each state: stages
  std::vector<bool> dependent_;                     // of each value: on the loop's results
  std::vector<std::size_t> parent_;                 // of each value: towards its class's root
  std::set<std::size_t> spoilt_;                    // roots of classes that are needed as a whole
  std::map<std::size_t, Class> classes_;            // by root
};

Slot slot_of(const ShareBlock& block) {
  Slot slot;
  slot.parts = block.members;
  return slot;
}

}  // namespace

std::int64_t share_bytes(const ShareBlock& block, std::int32_t devices) {
  const std::int64_t bytes = slot_bytes(slot_of(block)), unit = kAlignment * devices;
  return (bytes + unit - 1) / unit * kAlignment;
}

Share share_of(const ShareBlock& block, std::int32_t member, std::int32_t first, std::int32_t count, std::int32_t devices) {
  const Slot slot = slot_of(block);
  const auto m = static_cast<std::size_t>(member);
  const std::int64_t size = byte_size(slot.parts[m].dtype), elements = slot.parts[m].elements(), share = share_bytes(block, devices);
  const std::int64_t begin = first * share - part_offset(slot, m);  // of the shares, in the member: bytes
  const auto element = [&](std::int64_t byte) { return std::clamp<std::int64_t>(byte / size, 0, elements); };
  return {false, element(begin), element(begin + count * share)};
}

void find_blocks(Lowering& lowering, const Sharding& sharding) {
  if (sharding.level == 3) lowering.local = sharding.local;
  if (sharding.level > 0 && lowering.parts > 1) Finder(lowering, sharding).run();
}

}  // namespace penstock
