// Sequences cut into slices (TeraPipe, Li et al., 2102.07988). Causal attention of a slice reads the keys and values of the slices before
// it, and these get gradients from those behind: so a slice is a stage that the slice before it feeds, and nothing else needs to know of
// slices.
#include "schedule/slices.h"

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/kinds.h"

namespace penstock {

StageShape sliced(const StageShape& shape, int slices) {
  StageShape out;
  out.slices = slices;
  for (std::size_t s = 0; s < shape.predecessors.size(); ++s) {
    for (int slice = 0; slice < slices; ++slice) {
      std::vector<std::int32_t>& before = out.predecessors.emplace_back();
      for (const std::int32_t feeding : shape.predecessors[s]) before.push_back(feeding * slices + slice);
      if (slice > 0) before.push_back(static_cast<std::int32_t>(s) * slices + slice - 1);
      out.has_backward.push_back(shape.has_backward[s]);
      out.has_parameters.push_back(shape.has_parameters[s]);
    }
  }
  return out;
}

void fail_sharded_slices(const std::string& what) {
  throw Error(concat(what, " in a table of slices"),
              {"a stage's parameters are gathered, and its gradients reduced, between whole micro-batches only"},
              "use a table without slices, or zero = 0 or 1");
}

namespace {

// Adds the slices of an action. `in_pair`: the action before it is fused with it, and so its slices are with each other.
void push_slices(const Action& action, int slices, bool in_pair, std::vector<Action>& row) {
  const bool ascending = action.kind == Kind::F || action.kind == Kind::OFFLOAD;
  const int count = needs_microbatch(action.kind) ? slices : 1;
  for (int i = 0; i < count; ++i) {
    Action piece = action;
    piece.stage = action.stage * slices + (ascending ? i : count - 1 - i);
    piece.fused_with_next = action.fused_with_next || (in_pair && i + 1 < count);
    row.push_back(piece);
  }
}

}  // namespace

Schedule sliced(const Schedule& schedule, int slices) {
  const std::string name = schedule.name.empty() ? "schedule" : schedule.name;
  if (slices < 1) throw Error(concat(name, ": slices must be at least 1, not ", slices));
  if (schedule.slices > 1) throw Error(concat(name, " is in ", schedule.slices, " slices already"));
  Schedule out{.name = schedule.name, .actors = {}, .cells = {}, .slices = slices};
  for (const std::vector<Action>& actions : schedule.actors) {
    std::vector<Action>& row = out.actors.emplace_back();
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (slices > 1 && is_sharding(actions[i].kind)) fail_sharded_slices(concat(name, ": ", text(actions[i])));
      push_slices(actions[i], slices, i > 0 && actions[i - 1].fused_with_next, row);
    }
  }
  return out;
}

}  // namespace penstock
