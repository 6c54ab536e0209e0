// SPDX-License-Identifier: Apache-2.0
// Sequences cut into slices (TeraPipe, Li et al., 2102.07988). Causal attention of a slice reads the keys and values of the slices before
// it, and these get gradients from those behind: so a slice is a stage that the slice before it feeds. But for what a stage has once for
// all its slices, its parameters and the sum of its gradients, nothing else needs to know of slices.
#include "schedule/slices.h"

#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/kinds.h"

namespace penstock {

namespace {

// The stages of which `part` needs something, in the numbers of the sliced shape.
std::vector<std::int32_t> stages_before(const StageShape& shape, const StagePart& part, int slices, const std::vector<StagePart>& blocks) {
  std::vector<std::int32_t> out;
  const auto add = [&](const StagePart& before) { out.push_back(number_of(before, slices, blocks)); };
  for (const std::int32_t feeding : shape.predecessors[part.stage]) {
    if (part.block >= 0) add({feeding, part.block});
    add({feeding, part.slice});
    if (part.block >= 0) continue;
    const StagePart first{feeding, part.slice, 0}, end{feeding, part.slice + 1, -1};
    for (auto at = std::lower_bound(blocks.begin(), blocks.end(), first); at != blocks.end() && *at < end; ++at) add(*at);
  }
  if (part.slice > 0) add({part.stage, part.slice - 1});
  return out;
}

}  // namespace

StageShape sliced(const StageShape& shape, int slices, const std::vector<StagePart>& blocks) {
  StageShape out;
  out.slices = slices;
  out.blocks = blocks;
  const std::size_t parts = shape.predecessors.size() * static_cast<std::size_t>(slices) + blocks.size();
  for (std::size_t number = 0; number < parts; ++number) {
    const StagePart part = part_of(static_cast<std::int32_t>(number), slices, blocks);
    out.predecessors.push_back(stages_before(shape, part, slices, blocks));
    out.has_backward.push_back(shape.has_backward[part.stage]);
    out.has_parameters.push_back(shape.has_parameters[part.stage] && part.block < 0);
  }
  return out;
}

namespace {

// Adds the slices of an action. `in_pair`: the action before it is fused with it, and so its slices are with each other.
void push_slices(const Action& action, int slices, bool in_pair, std::vector<Action>& row) {
  const Kind kind = action.kind;
  const bool ascending = kind == Kind::F || kind == Kind::OFFLOAD || kind == Kind::SEND_F || kind == Kind::RECV_F;
  const int count = needs_microbatch(action.kind) ? slices : 1;
  for (int i = 0; i < count; ++i) {
    Action piece = action;
    piece.stage = action.stage * slices + (ascending ? i : count - 1 - i);
    piece.fused_with_next = action.fused_with_next || (in_pair && i + 1 < count);
    row.push_back(piece);
  }
}

}  // namespace

Schedule first_slices(const Schedule& schedule, int slices) {
  Schedule out{.name = schedule.name, .actors = {}, .cells = {}, .slices = slices};
  for (const std::vector<Action>& actions : schedule.actors) {
    std::vector<Action>& row = out.actors.emplace_back();
    for (Action action : actions) {
      const StagePart part = part_of(action.stage, schedule.slices);
      if (part.slice >= slices) continue;
      action.stage = number_of(part, slices);
      action.fused_with_next = false;
      row.push_back(action);
    }
  }
  return out;
}

Schedule sliced(const Schedule& schedule, int slices) {
  const std::string name = schedule.name.empty() ? "schedule" : schedule.name;
  if (slices < 1) throw Error(concat(name, ": slices must be at least 1, not ", slices));
  if (schedule.slices > 1) throw Error(concat(name, " is in ", schedule.slices, " slices already"));
  Schedule out{.name = schedule.name,
               .actors = {},
               .cells = {},
               .slices = slices,
               .predecessors = schedule.predecessors,
               .forward_times = schedule.forward_times,
               .steps = schedule.steps};
  for (const std::vector<Action>& actions : schedule.actors) {
    std::vector<Action>& row = out.actors.emplace_back();
    for (std::size_t i = 0; i < actions.size(); ++i) push_slices(actions[i], slices, i > 0 && actions[i - 1].fused_with_next, row);
  }
  return out;
}

}  // namespace penstock
