// SPDX-License-Identifier: Apache-2.0
#include "trace/update.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "base/words.h"
#include "ops/builder.h"
#include "ops/inline_graph.h"
#include "ops/optimiser.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Strings = std::vector<std::string>;
using Kept = std::vector<KeptTensor>;

ParameterGroup numbers_of(const OptimiserOptions& options, const ParameterSpec& spec) {
  const auto index = static_cast<std::size_t>(spec.group);
  if (!options.groups.empty() && index >= options.groups.size())
    throw Error(concat("parameter ", quote(spec.name), " is of group ", spec.group, ", there are ", options.groups.size()));
  ParameterGroup out = options.groups.empty() ? options.numbers : options.groups[index];
  if (!spec.decay) out.weight_decay = 0;
  return out;
}

// --- updates by a row

// With the weight decay in the gradient where the row has it there.
UpdateSite as_read(const OptimiserInfo& row, UpdateSite site) {
  double& decay = site.numbers.weight_decay;
  if (!row.decays_gradient || decay == 0) return site;
  site.gradient = site.gradient + site.parameter * decay;
  decay = 0;
  return site;
}

// Low precision is computed in f32.
Tensor widened(Tensor x) {
  return byte_size(x.dtype()) < 4 ? to(x, DType::f32) : x;
}

Updated by_graph(const OptimiserInfo& row, UpdateSite site) {
  const DType own = site.parameter.dtype();
  std::vector<DType> own_kept;
  for (Tensor* x : {&site.parameter, &site.gradient}) *x = widened(*x);
  for (Tensor& x : site.kept) {
    own_kept.push_back(x.dtype());
    x = widened(x);
  }
  Updated out = row.update(site);
  out.parameter = to(out.parameter, own);
  for (std::size_t i = 0; i < out.kept.size(); ++i) out.kept[i] = to(out.kept[i], own_kept[i]);
  return out;
}

// The op, for emit_all and those of ops/optimiser.h.
UpdateOp op_of(const FusedUpdate& fused, const UpdateSite& site) {
  UpdateOp out{fused.op, {site.parameter, site.gradient}, {}};
  out.operands.insert(out.operands.end(), site.kept.begin(), site.kept.end());
  out.operands.push_back(site.rate);
  if (fused.reads_step) out.operands.push_back(site.step);
  for (const UpdateNumber& number : update_numbers())
    if (std::ranges::find(fused.numbers, number.name) != fused.numbers.end())
      out.attributes[std::string(number.name)] = site.numbers.*number.value;
  return out;
}

Updated as_updated(const std::vector<Tensor>& results) {
  return {results[0], {results.begin() + 1, results.end()}};
}

Updated by_row(const OptimiserInfo& row, const UpdateSite& site) {
  const UpdateSite read = as_read(row, site);
  if (!row.fused) return by_graph(row, read);
  const UpdateOp op = op_of(*row.fused, read);
  return as_updated(emit_all(op.name, op.operands, op.attributes));
}

// --- exported updates

// The inputs of an exported update that are no state of the optimiser's.
const Strings kGiven = {"parameter", "gradient", "learning_rate", "step"};

Updated by_export(const Graph& update, const UpdateSite& site) {
  std::vector<Tensor> operands = {site.parameter, site.gradient, to(site.rate, DType::f64), site.step};
  operands.insert(operands.end(), site.kept.begin(), site.kept.end());
  return as_updated(inline_graph(*site.step.builder(), update, operands));
}

const Graph& update_of(const OptimiserOptions& options, const ParameterSpec& spec) {
  const auto found = options.updates.find(spec.name);
  if (found == options.updates.end()) throw Error(concat("the optimiser has no update of parameter ", quote(spec.name)));
  const Graph& update = found->second;
  const std::vector<TensorType> given = {spec.type, spec.type, {DType::f64, {}}, {DType::i64, {}}};
  const auto refuse = [&](const std::string& why) {
    throw Error(
        concat("the update of parameter ", quote(spec.name), ", ", spec.type.text(), ", ", why), {},
        "it goes from parameter, gradient, learning_rate f64[], step i64[] and what is kept to the next parameter and the next kept");
  };
  if (update.inputs.size() < given.size() || update.outputs.size() + kGiven.size() != update.inputs.size() + 1)
    refuse(concat("has ", counted(std::ssize(update.inputs), "input"), " and ", counted(std::ssize(update.outputs), "output")));
  for (std::size_t i = 0; i < given.size(); ++i)
    if (const auto& [type, name] = update.values[update.inputs[i]]; name != kGiven[i] || type != given[i])
      refuse(concat("reads ", name, " ", type.text(), " as input ", i));
  for (std::size_t i = 0; i < update.outputs.size(); ++i)
    if (update.type(update.outputs[i]) != update.type(update.inputs[i == 0 ? 0 : i + kGiven.size() - 1]))
      refuse(concat("gives ", update.type(update.outputs[i]).text(), " as output ", i));
  return update;
}

Kept kept_of(const OptimiserOptions& options, const ParameterSpec& spec) {
  if (options.updates.empty()) return find_optimiser(options.name).kept(spec.type);
  Kept out;
  const Graph& update = update_of(options, spec);
  for (std::size_t i = kGiven.size(); i < update.inputs.size(); ++i) {
    const auto& [type, name] = update.values[update.inputs[i]];
    out.push_back({name, type});
  }
  return out;
}

// --- checks

// Throws Error for a number that the update cannot be made with, or not with finite results.
void check_numbers(const OptimiserOptions& options) {
  const auto check = [](std::string_view what, double value, const char* range, bool good) {
    if (!good || !std::isfinite(value))
      throw Error(concat("the optimiser's ", what, " is ", number(value)), {concat("it must be ", range)});
  };
  const auto check_group = [&](const ParameterGroup& group) {
    for (const auto& [name, member, below_one] : update_numbers())
      check(name, group.*member, below_one ? "at least 0 and below 1" : "at least 0",
            group.*member >= 0 && (!below_one || group.*member < 1));
  };
  check_group(options.numbers);
  std::ranges::for_each(options.groups, check_group);
  check("learning_rate", options.learning_rate, "at least 0", options.learning_rate >= 0);
  check("warmup", options.warmup, "at least 0", options.warmup >= 0);
  constexpr double kLeastClip = std::numeric_limits<float>::min();  // a smaller one is 0 in f32, and a norm of 0 is divided by it
  check("clip", options.clip, "0, which clips nothing, or no less than 1.2e-38", options.clip == 0 || options.clip >= kLeastClip);
}

// Throws Error for a number that was chosen, and that the row would not read.
void check_taken(const OptimiserInfo& row, const ParameterGroup& numbers) {
  for (const auto& [name, member, _] : update_numbers())
    if (numbers.*member != ParameterGroup().*member && std::ranges::find(row.takes, name) == row.takes.end())
      throw Error(concat("the optimiser ", row.name, " takes no ", name, ", which is ", number(numbers.*member)),
                  {concat("it takes ", join(row.takes, ", "))}, concat("leave out ", name, ", or take another optimiser"));
}

void check(const OptimiserOptions& options) {
  check_numbers(options);
  const OptimiserInfo* row = options.updates.empty() ? &find_optimiser(options.name) : nullptr;
  if (row) check_taken(*row, options.numbers);
  // A decay that is part of the gradient is not clipped with it.
  constexpr auto by_one_op = +[](const OptimiserInfo& info) { return info.fused && !info.decays_gradient; };
  if (!options.validated || options.clip == 0 || (row && by_one_op(*row))) return;
  throw Error(concat("the optimiser ", options.name, " makes no update that can be validated"),
              {concat("clip is ", number(options.clip)), concat("those do that are one op: ", optimisers_where(by_one_op))},
              "update at the end of a step (pipeline.update = \"end\"), or clip nothing (clip = 0)");
}

// --- steps

UpdateSite site_of(const ParameterSpec& spec, const TrainingState& state, const Gradients& from, const OptimiserOptions& options) {
  const std::size_t group = options.groups.empty() ? 0 : static_cast<std::size_t>(spec.group);
  UpdateSite out{state.parameters[spec.name], from.gradients[spec.name], {}, from.rates[group], from.step, numbers_of(options, spec)};
  for (const KeptTensor& kept : kept_of(options, spec)) out.kept.push_back(state.kept[concat(kept.name, ":", spec.name)]);
  return out;
}

void set(TrainingState& next, const OptimiserOptions& options, const ParameterSpec& spec, const Updated& updated) {
  next.parameters.set(spec.name, updated.parameter);
  const Kept kept = kept_of(options, spec);
  for (std::size_t i = 0; i < kept.size(); ++i) next.kept.set(concat(kept[i].name, ":", spec.name), updated.kept[i]);
}

}  // namespace

bool is_kept_by_optimiser(std::string_view state) {
  return state == "step" || state.find(':') != std::string_view::npos;
}

std::vector<std::pair<std::string, TensorType>> kept_states(const OptimiserOptions& options, const std::vector<ParameterSpec>& trained) {
  check(options);
  Strings names;  // in the order in which they first come: all tensors of a name stand together
  std::vector<Kept> kept;
  for (const ParameterSpec& spec : trained) {
    for (const KeptTensor& each : kept.emplace_back(kept_of(options, spec)))
      if (std::ranges::find(names, each.name) == names.end()) names.push_back(each.name);
  }
  std::vector<std::pair<std::string, TensorType>> out;
  for (const std::string& name : names)
    for (std::size_t i = 0; i < trained.size(); ++i)
      for (const KeptTensor& each : kept[i])
        if (each.name == name) out.emplace_back(concat(name, ":", trained[i].name), each.type);
  return out;
}

TrainingState update(const TrainingState& state, const Gradients& from, const std::vector<ParameterSpec>& trained,
                     const OptimiserOptions& options) {
  TrainingState next;
  next.step = from.step;
  for (const ParameterSpec& spec : trained) {
    const UpdateSite site = site_of(spec, state, from, options);
    const bool exported = !options.updates.empty();
    set(next, options, spec, exported ? by_export(options.updates.at(spec.name), site) : by_row(find_optimiser(options.name), site));
  }
  return next;
}

TrainingState validated_update(const TrainingState& state, const Gradients& from, const Factors& factors,
                               const std::vector<ParameterSpec>& trained, const OptimiserOptions& options) {
  const OptimiserInfo& row = find_optimiser(options.name);
  TrainingState next;
  next.step = from.step;
  for (const ParameterSpec& spec : trained) {
    const UpdateOp op = op_of(*row.fused, site_of(spec, state, from, options));
    set(next, options, spec, as_updated(update_validated(op, update_ahead(op, factors.assumed), factors.assumed, factors.known)));
  }
  return next;
}

}  // namespace penstock
