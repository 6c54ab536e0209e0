// SPDX-License-Identifier: Apache-2.0
#include "lower/stage_bytes.h"

#include <algorithm>

#include "base/numbers.h"

namespace penstock {
namespace {

bool is_backward(Kind kind) {
  return kind == Kind::B || kind == Kind::I || kind == Kind::W;
}

double bytes_of(const Bundle& bundle) {
  double bytes = 0;
  for (const TensorType& type : bundle.types) bytes += static_cast<double>(type.bytes());
  return bytes;
}

bool is_sent(const StageDag& dag, const Bundle& bundle, StageId stage) {
  const auto is_other = [&](StageTaskId t) { return dag.tasks[t].kind == Kind::F && dag.tasks[t].stage != stage; };
  const auto is_own = [&](StageTaskId t) { return dag.tasks[t].kind == Kind::F && dag.tasks[t].stage == stage; };
  return std::ranges::any_of(bundle.producers, is_own) && std::ranges::any_of(bundle.readers, is_other);
}

}  // namespace

std::vector<StageBytes> stage_bytes(const LowerInput& input) {
  const StageDag& dag = input.dag;
  std::vector<StageBytes> out(dag.names.size());
  const auto read_by = [&](const Bundle& bundle, StageId stage, auto&& is_reader) {
    return std::ranges::any_of(bundle.readers, [&](StageTaskId t) {
      const StageTask& task = dag.tasks[t];
      return task.stage == stage && task.shape_class == 0 && is_reader(task);
    });
  };
  for (const StageId stage : dag.names.ids()) {
    const bool recomputes = std::ranges::any_of(dag.tasks, [&](const StageTask& t) { return t.stage == stage && t.kind == Kind::R; });
    for (const Bundle& bundle : dag.bundles) {
      if (bundle.source != Bundle::Source::data && bundle.source != Bundle::Source::edge) continue;
      if (is_sent(dag, bundle, stage)) out[at(stage.value)].sent += bytes_of(bundle);
      const bool from_backward = std::ranges::any_of(bundle.producers, [&](StageTaskId t) { return is_backward(dag.tasks[t].kind); });
      const bool is_read = read_by(bundle, stage, [](const StageTask& t) { return is_backward(t.kind); });
      const bool again = read_by(bundle, stage, [](const StageTask& t) { return t.kind == Kind::R; });
      const bool made_again = std::ranges::any_of(bundle.producers, [&](StageTaskId t) { return dag.tasks[t].kind == Kind::R; });
      if (from_backward || (!is_read && !again)) continue;
      if (is_read) out[at(stage.value)].live += bytes_of(bundle);
      if (!recomputes || again || !made_again) out[at(stage.value)].kept += bytes_of(bundle);
    }
  }
  return out;
}

}  // namespace penstock
