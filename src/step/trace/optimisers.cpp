// SPDX-License-Identifier: Apache-2.0
// The rows of optimisers(). Scalars are f64 until a tensor is multiplied by them: 1 - beta^step loses digits where beta is next to one.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "penstock/optimiser.h"

namespace penstock {
namespace {

using Site = UpdateSite;
using Kept = std::vector<KeptTensor>;

Tensor times(Tensor x, Tensor scalar) {
  return x * to(scalar, x.dtype());
}

// Between a and b, which weighs `share`.
Tensor between(Tensor a, Tensor b, double share) {
  return a * (1 - share) + b * share;
}

Tensor at_least(Tensor x, double limit) {
  return maximum(x, full_like(x, limit));
}

Tensor rate_of(const Site& site) {
  return to(site.rate, DType::f64);
}

// The parameter after weight decay by itself (Loshchilov & Hutter 2019).
Tensor decayed(const Site& site) {
  const double decay = site.numbers.weight_decay;
  return decay == 0 ? site.parameter : times(site.parameter, rate_of(site) * -decay + 1.0);
}

Kept one_like(const TensorType& parameter) {
  return {{"first", parameter}};
}

Kept two_like(const TensorType& parameter) {
  return {{"first", parameter}, {"second", parameter}};
}

// --- Adam (Kingma & Ba, 1412.6980) and its kin

struct Moments {
  Tensor first, second;
  Tensor root;  // of the second moment as it would be if it had not begun at zero, and eps
};

Moments moments_of(const Site& site) {
  const ParameterGroup& n = site.numbers;
  const Tensor g = site.gradient, second = between(site.kept[1], g * g, 1 - n.beta2);
  const Tensor begun = sqrt(pow(n.beta2, to(site.step, DType::f64)) * -1.0 + 1.0);
  return {between(site.kept[0], g, 1 - n.beta1), second, times(sqrt(second), full_like(begun, 1) / begun) + n.eps};
}

Updated adam(const Site& site) {
  const auto [first, second, root] = moments_of(site);
  const Tensor size = rate_of(site) / (pow(site.numbers.beta1, to(site.step, DType::f64)) * -1.0 + 1.0);
  return {decayed(site) - times(first, size) / root, {first, second}};
}

// Beside the moments, how much of 1 the product of the momenta so far lacks.
Kept kept_by_nadam(const TensorType& parameter) {
  return {{"first", parameter}, {"second", parameter}, {"lacking", {DType::f64, {}}}};
}

// Dozat, Incorporating Nesterov Momentum into Adam (2016), with a momentum that rises to beta1: beta1 (1 - 0.96^(0.004 step) / 2).
Updated nadam(const Site& site) {
  const auto momentum = [&](Tensor step) { return (pow(0.96, to(step, DType::f64) * 4e-3) * -0.5 + 1.0) * site.numbers.beta1; };
  const auto [first, second, root] = moments_of(site);
  const Tensor now = momentum(site.step), next = momentum(site.step + 1.0), one = full_like(now, 1);
  const Tensor product = (one - site.kept[2]) * now, rate = rate_of(site);
  const Tensor by_gradient = rate * (one - now) / (one - product), by_moment = rate * next / (one - product * next);
  return {decayed(site) - (times(site.gradient, by_gradient) + times(first, by_moment)) / root, {first, second, one - product}};
}

// --- momentum

Updated sgd_by_ops(const Site& site) {
  const Tensor gradient = site.gradient + site.parameter * site.numbers.weight_decay;
  const Tensor velocity = site.kept[0] * site.numbers.momentum + gradient;
  return {site.parameter - times(velocity, site.rate), {velocity}};
}

// Sutskever et al. 2013: it looks ahead by its momentum.
Updated nesterov(const Site& site) {
  const auto& [p, g, kept, rate, step, n] = site;
  const Tensor velocity = sgd({p, kept[0]}, g, rate, n).velocity;
  const Tensor gradient = n.weight_decay == 0 ? g : g + p * n.weight_decay;
  return {p - times(gradient + velocity * n.momentum, rate), {velocity}};
}

// Chen et al., 2302.06675, algorithm 2: a step is the sign of a mean that leans more to the gradient than the one that is kept.
Updated lion(const Site& site) {
  const Tensor mean = between(site.kept[0], site.gradient, 1 - site.numbers.beta1);
  const Tensor sign = to(gt(mean, 0.0), mean.dtype()) - to(lt(mean, 0.0), mean.dtype());
  return {decayed(site) - times(sign, rate_of(site)), {between(site.kept[0], site.gradient, 1 - site.numbers.beta2)}};
}

// --- optimisers of whole tensors

// Adafactor keeps the means of squared gradients of each row and each column, over the last two dims; for a vector it keeps all.
Kept kept_by_adafactor(const TensorType& parameter) {
  if (parameter.shape.size() < 2) return {{"second", parameter}};
  TensorType rows = parameter, columns = parameter;
  rows.shape.back() = 1;
  columns.shape[columns.shape.size() - 2] = 1;
  return {{"rows", rows}, {"columns", columns}};
}

double epsilon_of(DType dtype) {
  return dtype == DType::f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

// Shazeer & Stern, 1804.04235, algorithms 4 and 5, with the constants of torch.optim.Adafactor: a mean of squares in which the t-th step
// weighs t^-0.8, steps relative to the parameter's size (at least 1e-3) and no longer than 1, each as a root mean square.
Updated adafactor(const Site& site) {
  const auto& [p, g, kept, rate, step, n] = site;
  const double eps = epsilon_of(p.dtype());
  const Tensor t = to(step, DType::f64), weight = pow(t, -0.8), squares = g * g;
  const auto towards = [&](Tensor mean, Tensor now) { return mean + times(now - mean, weight); };
  Tensor second;
  std::vector<Tensor> next;
  if (p.rank() < 2) {
    second = towards(kept[0], squares);
    next = {second};
  } else {
    next = {towards(kept[0], mean(squares, {-1}, true)), towards(kept[1], mean(squares, {-2}, true))};
    second = next[0] * next[1] / at_least(mean(next[0], {-2}, true), eps);
  }
  const Tensor step_by = rsqrt(clamp(second, eps * eps)) * g;
  // By a sum, of which devices can have terms.
  const auto size = [](Tensor x) { return sqrt(to(sum(x * x), DType::f64) / static_cast<double>(x.type().elements())); };
  const Tensor relative = minimum(to(rate, DType::f64), full_like(t, 1) / sqrt(t)) * at_least(size(p), 1e-3);
  return {decayed(site) - times(step_by, relative / at_least(size(step_by), 1)), next};
}

// Whether Muon makes the update's matrix orthogonal; all else goes by AdamW, at the same rate.
bool is_matrix(const TensorType& parameter) {
  return parameter.shape.size() == 2;
}

Kept kept_by_muon(const TensorType& parameter) {
  return is_matrix(parameter) ? one_like(parameter) : two_like(parameter);
}

// x with all singular values near 1, by five steps of Newton-Schulz (Jordan et al., Muon, 2024) on its shorter side; in x's type, where
// torch.optim.Muon takes bf16.
Tensor orthogonal(Tensor x) {
  const bool is_tall = x.size(0) > x.size(1);
  if (is_tall) x = transpose(x, 0, 1);
  x = x / at_least(sqrt(sum(x * x)), 1e-7);
  for (int i = 0; i < 5; ++i) {
    const Tensor gram = mm(x, transpose(x, 0, 1));
    x = x * 3.4445 + mm(gram * -4.775 + mm(gram, gram) * 2.0315, x);
  }
  return is_tall ? transpose(x, 0, 1) : x;
}

// Jordan et al., with steps as large as AdamW's: 0.2 sqrt(longer side) (Liu et al., 2502.16982, section 2.2).
Updated muon(const Site& site) {
  const auto& [p, g, kept, rate, step, n] = site;
  if (!is_matrix(p.type())) {
    const AdamWState by_adamw = adamw({p, kept[0], kept[1]}, g, rate, step, n);
    return {by_adamw.parameter, {by_adamw.first, by_adamw.second}};
  }
  const Tensor mean = between(kept[0], g, 1 - n.momentum);
  const double size = 0.2 * std::sqrt(static_cast<double>(std::max(p.size(0), p.size(1))));
  return {decayed(site) - times(orthogonal(between(g, mean, n.momentum)), rate_of(site) * size), {mean}};
}

std::vector<std::string> names_where(bool (*condition)(const OptimiserInfo&)) {
  std::vector<std::string> out;
  for (const OptimiserInfo& row : optimisers())
    if (condition(row)) out.push_back(row.name);
  return out;
}

}  // namespace

std::span<const UpdateNumber> update_numbers() {
  static constexpr UpdateNumber all[] = {{"beta1", &ParameterGroup::beta1, true},
                                         {"beta2", &ParameterGroup::beta2, true},
                                         {"eps", &ParameterGroup::eps},
                                         {"weight_decay", &ParameterGroup::weight_decay},
                                         {"momentum", &ParameterGroup::momentum}};
  return all;
}

const std::vector<OptimiserInfo>& optimisers() {
  static const std::vector<std::string> of_adam = {"beta1", "beta2", "eps", "weight_decay"};
  static const FusedUpdate by_adamw{"adamw", of_adam, true}, by_sgd{"sgd", {"momentum", "weight_decay"}};
  static const std::vector<OptimiserInfo> all = {
      {"adamw", "Adam whose weights decay by themselves", of_adam, false, two_like, adam, by_adamw},
      {"adam", "steps by the gradient's mean over the root of its squares' mean", of_adam, true, two_like, adam, by_adamw},
      {"nadam", "adam that looks ahead by its momentum, which rises", of_adam, true, kept_by_nadam, nadam},
      {"sgd", "gradient descent with momentum", {"momentum", "weight_decay"}, false, one_like, sgd_by_ops, by_sgd},
      {"nesterov", "sgd that looks ahead by its momentum", {"momentum", "weight_decay"}, false, one_like, nesterov},
      {"lion", "steps of one size, by the sign of the gradient's mean", {"beta1", "beta2", "weight_decay"}, false, one_like, lion},
      {"adafactor",
       "of a matrix it keeps means of rows and columns, in place of moments",
       {"weight_decay"},
       false,
       kept_by_adafactor,
       adafactor},
      {"muon",
       "orthogonal steps of matrices; adamw of all else",
       {"beta1", "beta2", "eps", "weight_decay", "momentum"},
       false,
       kept_by_muon,
       muon},
  };
  return all;
}

const OptimiserInfo& find_optimiser(std::string_view name) {
  const auto found = std::ranges::find(optimisers(), name, &OptimiserInfo::name);
  if (found != optimisers().end()) return *found;
  constexpr auto every = +[](const OptimiserInfo&) { return true; };
  throw Error(concat("no optimiser ", quote(name)), {concat("there are ", optimisers_where(every))},
              did_you_mean(name, names_where(every)));
}

std::string optimisers_where(bool (*condition)(const OptimiserInfo&)) {
  std::vector<std::string> names = names_where(condition);
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : concat(join(names, ", "), " and ", last);
}

}  // namespace penstock
