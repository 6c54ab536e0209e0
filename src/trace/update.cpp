#include "trace/update.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "base/words.h"
#include "exported/inline_graph.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Strings = std::vector<std::string>;

// The values that one parameter's update reads, and the options of all.
struct Site {
  const ParameterSpec& spec;
  const TrainingState& state;
  Tensor gradient, rate, step;
  const OptimiserOptions& options;

  Tensor parameter() const { return state.parameters[spec.name]; }
  Tensor kept(const std::string& name) const { return state.kept[concat(name, ":", spec.name)]; }
};

Site site_of(const ParameterSpec& spec, const TrainingState& state, const Parameters& gradients, const std::vector<Tensor>& rates,
             Tensor step, const OptimiserOptions& options) {
  return {spec, state, gradients[spec.name], rates[options.groups.empty() ? 0 : static_cast<std::size_t>(spec.group)], step, options};
}

// The options of a parameter's group.
ParameterGroup group_of(const OptimiserOptions& o, const ParameterSpec& spec) {
  const auto index = static_cast<std::size_t>(spec.group);
  if (!o.groups.empty() && index >= o.groups.size())
    throw Error(concat("parameter ", quote(spec.name), " is of group ", spec.group, ", there are ", o.groups.size()));
  ParameterGroup out = o.groups.empty() ? ParameterGroup{o.beta1, o.beta2, o.eps, o.weight_decay, o.momentum} : o.groups[index];
  if (!spec.decay) out.weight_decay = 0;
  return out;
}

void set(TrainingState& next, const Site& site, Tensor parameter, const Strings& names, const std::vector<Tensor>& kept) {
  next.parameters.set(site.spec.name, parameter);
  for (std::size_t i = 0; i < names.size(); ++i) next.kept.set(concat(names[i], ":", site.spec.name), kept[i]);
}

// These set what an update leaves of one parameter.
void set_sgd(TrainingState& next, const Site& site) {
  const ParameterGroup o = group_of(site.options, site.spec);
  const Tensor parameter = site.parameter();
  const SgdResult result = sgd(parameter, site.gradient, site.kept("first"), site.rate, o.momentum, o.weight_decay);
  if (site.options.name == "sgd") return set(next, site, result.parameter, {"first"}, {result.velocity});
  const Tensor decayed = o.weight_decay == 0 ? site.gradient : site.gradient + parameter * o.weight_decay;
  const Tensor ahead = parameter - (decayed + result.velocity * o.momentum) * to(site.rate, parameter.dtype());
  set(next, site, ahead, {"first"}, {result.velocity});
}

void set_adam(TrainingState& next, const Site& site) {
  ParameterGroup o = group_of(site.options, site.spec);
  const Tensor parameter = site.parameter();
  Tensor gradient = site.gradient;
  if (site.options.name == "adam" && o.weight_decay != 0) {
    gradient = gradient + parameter * o.weight_decay;
    o.weight_decay = 0;
  }
  const AdamWResult result =
      adamw(parameter, gradient, site.kept("first"), site.kept("second"), site.rate, site.step, o.beta1, o.beta2, o.eps, o.weight_decay);
  set(next, site, result.parameter, {"first", "second"}, {result.first, result.second});
}

// The inputs of an exported update that are no state of the optimiser's.
const Strings kGiven = {"parameter", "gradient", "learning_rate", "step"};

Strings kept_by(const Graph& update) {
  Strings out;
  for (std::size_t i = kGiven.size(); i < update.inputs.size(); ++i) out.push_back(update.values[update.inputs[i]].name);
  return out;
}

void set_exported(TrainingState& next, const Site& site) {
  const Graph& update = site.options.updates.at(site.spec.name);
  const Strings kept = kept_by(update);
  std::vector<Tensor> operands = {site.parameter(), site.gradient, to(site.rate, DType::f64), site.step};
  for (const std::string& name : kept) operands.push_back(site.kept(name));
  const std::vector<Tensor> results = inline_graph(*site.step.builder(), update, operands);
  set(next, site, results[0], kept, {results.begin() + 1, results.end()});
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

// The name and the type of each tensor that the optimiser keeps of a parameter.
std::vector<std::pair<std::string, TensorType>> kept_of(const OptimiserOptions& options, const ParameterSpec& spec) {
  std::vector<std::pair<std::string, TensorType>> out = {{"first", spec.type}};
  if (options.name == "adamw" || options.name == "adam") out.emplace_back("second", spec.type);
  if (options.name != "exported") return out;
  out.clear();
  const Graph& update = update_of(options, spec);
  for (std::size_t i = kGiven.size(); i < update.inputs.size(); ++i) {
    const auto& [type, name] = update.values[update.inputs[i]];
    out.emplace_back(name, type);
  }
  return out;
}

// Throws Error for a number that the update cannot be made with, or not with finite results: each moment is divided by 1 - beta^step.
void check_numbers(const OptimiserOptions& options) {
  const auto check = [](const char* what, double value, const char* range, bool good) {
    if (!good || !std::isfinite(value))
      throw Error(concat("the optimiser's ", what, " is ", number(value)), {concat("it must be ", range)});
  };
  const auto check_group = [&](const ParameterGroup& group) {
    check("beta1", group.beta1, "at least 0 and below 1", group.beta1 >= 0 && group.beta1 < 1);
    check("beta2", group.beta2, "at least 0 and below 1", group.beta2 >= 0 && group.beta2 < 1);
    check("eps", group.eps, "at least 0", group.eps >= 0);
    check("weight_decay", group.weight_decay, "at least 0", group.weight_decay >= 0);
    check("momentum", group.momentum, "at least 0", group.momentum >= 0);
  };
  check_group({options.beta1, options.beta2, options.eps, options.weight_decay, options.momentum});
  std::ranges::for_each(options.groups, check_group);
  check("learning_rate", options.learning_rate, "at least 0", options.learning_rate >= 0);
  check("warmup", options.warmup, "at least 0", options.warmup >= 0);
  constexpr double kLeastClip = std::numeric_limits<float>::min();  // a smaller one is 0 in f32, and a norm of 0 is divided by it
  check("clip", options.clip, "0, which clips nothing, or no less than 1.2e-38", options.clip == 0 || options.clip >= kLeastClip);
}

void check(const OptimiserOptions& options) {
  check_numbers(options);
  const Strings known = {"adamw", "adam", "sgd", "nesterov"};
  if (options.name != "exported" && std::ranges::find(known, options.name) == known.end())
    throw Error(concat("no optimiser ", quote(options.name)), {"there are adamw, adam, sgd and nesterov"},
                did_you_mean(options.name, known));
  if (options.validated && options.clip > 0 && options.name != "adamw")
    throw Error(concat("validated updates need adamw, the optimiser is ", options.name), {concat("clip is ", options.clip)},
                "take adamw, another way to update, or no clipping (clip = 0)");
}

}  // namespace

bool is_kept_by_optimiser(std::string_view state) {
  return state == "step" || state.find(':') != std::string_view::npos;
}

std::vector<std::pair<std::string, TensorType>> kept_states(const OptimiserOptions& options, const std::vector<ParameterSpec>& trained) {
  check(options);
  Strings names;  // in the order in which they first come: all tensors of a name stand together
  std::vector<std::vector<std::pair<std::string, TensorType>>> kept;
  for (const ParameterSpec& spec : trained) {
    for (const auto& each : kept.emplace_back(kept_of(options, spec)))
      if (std::ranges::find(names, each.first) == names.end()) names.push_back(each.first);
  }
  std::vector<std::pair<std::string, TensorType>> out;
  for (const std::string& name : names)
    for (std::size_t i = 0; i < trained.size(); ++i)
      for (const auto& [own, type] : kept[i])
        if (own == name) out.emplace_back(concat(name, ":", trained[i].name), type);
  return out;
}

TrainingState update(const TrainingState& state, const Parameters& gradients, const std::vector<Tensor>& rates, Tensor step,
                     const std::vector<ParameterSpec>& trained, const OptimiserOptions& options) {
  TrainingState next;
  next.step = step;
  const bool adam = options.name == "adamw" || options.name == "adam";
  const auto set_next = options.name == "exported" ? set_exported : adam ? set_adam : set_sgd;
  for (const ParameterSpec& spec : trained) set_next(next, site_of(spec, state, gradients, rates, step, options));
  return next;
}

TrainingState validated_update(const TrainingState& state, const Parameters& gradients, Tensor assumed, Tensor factor,
                               const std::vector<Tensor>& rates, Tensor step, const std::vector<ParameterSpec>& trained,
                               const OptimiserOptions& options) {
  TrainingState next;
  next.step = step;
  for (const ParameterSpec& spec : trained) {
    const Site site = site_of(spec, state, gradients, rates, step, options);
    const ParameterGroup o = group_of(options, spec);
    const AdamWAhead ahead = adamw_ahead(site.parameter(), site.gradient, site.kept("first"), site.kept("second"), site.rate, step, assumed,
                                         o.beta1, o.beta2, o.eps, o.weight_decay);
    const AdamWResult result =
        adamw_validated(ahead, site.gradient, site.rate, step, assumed, factor, o.beta1, o.beta2, o.eps, o.weight_decay);
    set(next, site, result.parameter, {"first", "second"}, {result.first, result.second});
  }
  return next;
}

}  // namespace penstock
