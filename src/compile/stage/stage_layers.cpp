// SPDX-License-Identifier: Apache-2.0
#include "stage/stage_layers.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "ops/definition.h"
#include "stage/loop.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// "h.3" of "h.3.attn"; "" where no part of the path is a number.
std::string_view layer_name(std::string_view origin) {
  for (std::size_t begin = 0; begin < origin.size();) {
    const std::size_t end = std::min(origin.find('.', begin), origin.size());
    const std::string_view part = origin.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) return origin.substr(0, end);
    begin = end + 1;
  }
  return {};
}

struct StageLayer {
  StageId stage{};
  int number = -1;  // in the stage, in the order of the ops; -1: the op is in no layer

  bool operator==(const StageLayer&) const = default;
};

// By op; of backward ops and constants none.
IdVector<OpId, StageLayer> layers_of(const Graph& body, const IdVector<StageId, std::string>& stages) {
  std::map<std::string_view, StageId> number;
  for (const StageId stage : stages.ids()) number[stages[stage]] = stage;
  IdVector<StageId, std::map<std::string_view, int>> known(stages.size());
  IdVector<OpId, StageLayer> out(body.ops.size());
  for (const OpId i : body.ops.ids()) {
    const Op& op = body.ops[i];
    const auto stage = number.find(op.stage);
    const std::string_view name = layer_name(op.origin);
    if (op.phase != Phase::forward || is_constant(op) || stage == number.end() || name.empty()) continue;
    auto& of_stage = known[stage->second];
    out[i] = {stage->second, of_stage.try_emplace(name, static_cast<int>(of_stage.size())).first->second};
  }
  return out;
}

// Which values forward ops of another layer read, also through views.
IdVector<ValueId, bool> read_by_others(const Graph& body, const IdVector<OpId, StageLayer>& layers) {
  const IdVector<ValueId, OpId> producer = producers(body);
  IdVector<ValueId, bool> out(body.values.size());
  for (const ValueId output : body.outputs) out[output] = true;
  for (std::size_t i = body.ops.size(); i-- > 0;) {
    const Op& op = body.ops[i];
    if (op.phase != Phase::forward) continue;
    if (is_view(op) && out[op.results[0]]) out[op.operands[0]] = true;
    for (const ValueId operand : op.operands)
      if (const OpId from = producer[operand]; from && layers[from] != layers[OpId(i)]) out[operand] = true;
  }
  return out;
}

}  // namespace

std::vector<int> layer_counts(const Graph& step, const IdVector<StageId, std::string>& stages) {
  std::vector<int> out(stages.size(), 0);
  for (const StageLayer& layer : layers_of(*step.ops[loop_of(step)].body, stages))
    if (layer.number >= 0) out[layer.stage.index()] = std::max(out[layer.stage.index()], layer.number + 1);
  return out;
}

Graph mark_layers(StagedStep staged, const std::vector<int>& again) {
  Op& loop = staged.step.ops[loop_of(staged.step)];
  Graph body = *loop.body;
  const IdVector<OpId, StageLayer> layers = layers_of(body, staged.stages);
  const IdVector<ValueId, bool> kept = read_by_others(body, layers);
  for (const OpId i : body.ops.ids()) {
    Op& op = body.ops[i];
    const bool is_again = layers[i].number >= 0 && layers[i].number < again[layers[i].stage.index()];
    if (is_again && std::ranges::none_of(op.results, [&](ValueId result) { return kept[result]; })) op.attributes[kRecompute] = true;
  }
  loop.body = std::make_shared<const Graph>(std::move(body));
  return std::move(staged.step);
}

}  // namespace penstock
