#include <algorithm>
#include <array>

#include "base/text.h"
#include "penstock/schedule.h"
#include "schedule/kinds.h"

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

std::string stage_text(std::int32_t stage, std::int32_t slices) {
  if (slices == 1) return std::to_string(stage);
  return concat(stage / slices, ".", stage % slices);
}

std::string text(const Action& action, std::int32_t slices) {
  std::string out = needs_microbatch(action.kind) ? stage_text(action.stage, slices) : std::to_string(action.stage / slices);
  if (action.count != 1) out += 'x' + std::to_string(action.count);
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

StageShape chain_of(const Schedule& schedule) {
  const auto is_backward = [](const Action& action) { return is_compute(action.kind) && action.kind != Kind::F; };
  const bool forward_only = std::none_of(schedule.actors.begin(), schedule.actors.end(),
                                         [&](const auto& row) { return std::any_of(row.begin(), row.end(), is_backward); });
  return sliced(chain((schedule.stages() + schedule.slices - 1) / schedule.slices, forward_only), schedule.slices);
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
