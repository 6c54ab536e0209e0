// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "base/text.h"
#include "penstock/schedule.h"
#include "schedule/kinds.h"
#include "schedule/versions.h"

namespace penstock {
namespace {

// In the order of Kind.
constexpr std::array<std::string_view, kKindCount> kNames = {
    "F", "B", "I", "W", "R", "U", "UNSHARD", "RESHARD", "REDUCE_GRAD", "OFFLOAD", "RELOAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

std::int32_t last_microbatch(const Action& action) {
  return action.microbatch < 0 ? -1 : action.microbatch + action.count - 1;
}

}  // namespace

std::string_view name(Kind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

bool parse_kind(std::string_view name, Kind& out) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return false;
  out = static_cast<Kind>(found - kNames.begin());
  return true;
}

std::int32_t number_of(const StagePart& part, std::int32_t slices, const std::vector<StagePart>& blocks) {
  const auto before = std::lower_bound(blocks.begin(), blocks.end(), part) - blocks.begin();
  return part.stage * slices + part.slice + static_cast<std::int32_t>(before) + (part.block >= 0 ? 1 : 0);
}

StagePart part_of(std::int32_t number, std::int32_t slices, const std::vector<StagePart>& blocks) {
  const auto number_at = [&](const StagePart& block) {
    return block.stage * slices + block.slice + 1 + static_cast<std::int32_t>(&block - blocks.data());
  };
  const auto block = std::partition_point(blocks.begin(), blocks.end(), [&](const StagePart& one) { return number_at(one) < number; });
  if (block != blocks.end() && number_at(*block) == number) return *block;
  const std::int32_t slice = number - static_cast<std::int32_t>(block - blocks.begin());
  return {slice / slices, slice % slices};
}

std::string stage_text(std::int32_t stage, std::int32_t slices, const std::vector<StagePart>& blocks) {
  if (slices == 1) return std::to_string(stage);
  const StagePart part = part_of(stage, slices, blocks);
  return concat(part.stage, ".", part.slice, part.block < 0 ? "" : concat(".", part.block));
}

std::string text(const Action& action, std::int32_t slices, const std::vector<StagePart>& blocks) {
  const bool whole = !needs_microbatch(action.kind);
  std::string out = whole ? std::to_string(part_of(action.stage, slices, blocks).stage) : stage_text(action.stage, slices, blocks);
  if (action.count != 1) out += 'x' + std::to_string(action.count);
  if (action.version >= 0) out += '@' + std::to_string(action.version);
  if (action.ahead > 0) out += '+' + std::to_string(action.ahead);
  out += name(action.kind);
  if (action.microbatch >= 0) out += std::to_string(action.microbatch);
  return out;
}

std::int32_t Schedule::stages() const {
  std::int32_t last = -1;
  for (const auto& row : actors) {
    for (const Action& action : row) last = std::max(last, action.stage);
  }
  return last + 1;
}

std::int32_t Schedule::whole_stages() const {
  const std::int32_t all = stages();
  return all == 0 ? 0 : part_of(all - 1, slices, blocks).stage + 1;
}

std::int32_t Schedule::microbatches() const {
  std::int32_t last = -1;
  for (const auto& row : actors) {
    for (const Action& action : row) last = std::max(last, last_microbatch(action));
  }
  return last + 1;
}

StageShape chain(int stages, bool forward_only) {
  StageShape shape;
  shape.predecessors.resize(stages);
  for (int s = 1; s < stages; ++s) shape.predecessors[s] = {s - 1};
  shape.has_backward.assign(stages, !forward_only);
  shape.has_parameters.assign(stages, true);
  return shape;
}

std::vector<std::vector<std::int32_t>> told_predecessors(const StageShape& shape) {
  std::vector<std::vector<std::int32_t>> out;
  for (std::size_t number = 0; number < shape.predecessors.size(); ++number) {
    const StagePart part = part_of(static_cast<std::int32_t>(number), shape.slices, shape.blocks);
    if (part.slice > 0) continue;
    std::vector<std::int32_t>& feeding = out.emplace_back();
    for (const std::int32_t before : shape.predecessors[number]) feeding.push_back(part_of(before, shape.slices, shape.blocks).stage);
  }
  if (out == chain(static_cast<int>(out.size())).predecessors) out.clear();
  return out;
}

StageShape chain_with_head(int stages, int head_shards, bool forward_only) {
  if (head_shards == 1) return chain(stages, forward_only);
  StageShape shape = chain(stages + head_shards + 1, forward_only);
  const std::int32_t join = stages + head_shards;
  shape.predecessors[join].clear();
  for (std::int32_t part = stages; part < join; ++part) {
    shape.predecessors[part] = {stages - 1};
    shape.predecessors[join].push_back(part);
  }
  return shape;
}

StageShape shape_of(const Schedule& schedule) {
  const auto is_backward = [](const Action& action) { return is_compute(action.kind) && action.kind != Kind::F; };
  const bool forward_only = std::none_of(schedule.actors.begin(), schedule.actors.end(),
                                         [&](const auto& row) { return std::any_of(row.begin(), row.end(), is_backward); });
  StageShape shape = chain(schedule.whole_stages(), forward_only);
  if (!schedule.predecessors.empty()) shape.predecessors = schedule.predecessors;
  for (std::size_t stage = 0; stage < schedule.forward_times.size(); ++stage)
    shape.has_backward[stage] = shape.has_parameters[stage] = false;  // those that train update the parameters
  const std::vector<bool> unversioned = unversioned_stages(schedule);
  for (std::size_t stage = 0; stage < unversioned.size(); ++stage)
    if (unversioned[stage]) shape.has_parameters[stage] = false;
  return sliced(shape, schedule.slices, schedule.blocks);
}

std::vector<std::int32_t> actor_of_stage(const Schedule& schedule) {
  std::vector<std::int32_t> actors(schedule.stages(), -1);
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    for (const Action& action : schedule.actors[a]) {
      std::int32_t& actor = actors[action.stage];
      if (action.kind == Kind::F && actor < 0) actor = static_cast<std::int32_t>(a);
    }
  }
  return actors;
}

}  // namespace penstock
