// SPDX-License-Identifier: Apache-2.0
#include "batch/batch_costs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Axis = std::vector<std::int64_t>;

std::array<std::int64_t, 3> lengths_of(const BatchShape& shape) {
  return {shape.samples, shape.input, shape.target};
}

std::string shape_text(const BatchShape& shape) {
  return concat(shape.samples, " samples of ", shape.input, shape.target > 0 ? concat(" and ", shape.target) : "", " tokens");
}

void check_cost(double value, const std::string& what) {
  if (!(value >= 0) || std::isinf(value)) throw Error(concat(what, " is ", number(value), "; it must be a number and not negative"));
}

// A value of an axis lies between two entries; it is `share` of the way from the lower to the upper.
struct Between {
  std::size_t low = 0, high = 0;
  double share = 0;
};

std::optional<Between> between(const Axis& axis, std::int64_t value) {
  if (value < axis.front() || value > axis.back()) return std::nullopt;
  const auto high = static_cast<std::size_t>(std::lower_bound(axis.begin(), axis.end(), value) - axis.begin());
  if (axis[high] == value) return Between{high, high, 0};
  const double width = static_cast<double>(axis[high] - axis[high - 1]);
  return Between{high - 1, high, static_cast<double>(value - axis[high - 1]) / width};
}

struct Grid {
  std::array<Axis, 3> axes;
  std::map<std::array<std::size_t, 3>, ShapeCost> costs;  // by places along the axes

  std::optional<ShapeCost> operator()(const BatchShape& shape) const {
    std::array<Between, 3> place;
    for (std::size_t a = 0; a < 3; ++a) {
      const std::optional<Between> found = between(axes[a], lengths_of(shape)[a]);
      if (!found) return std::nullopt;
      place[a] = *found;
    }
    ShapeCost sum;
    for (unsigned corner = 0; corner < 8; ++corner) {
      double weight = 1;
      std::array<std::size_t, 3> at{};
      for (std::size_t a = 0; a < 3; ++a) {
        const bool high = (corner >> a & 1) != 0;
        at[a] = high ? place[a].high : place[a].low;
        weight *= high ? place[a].share : 1 - place[a].share;
      }
      const ShapeCost& cost = costs.at(at);
      sum = {sum.time + weight * cost.time, sum.stored + weight * cost.stored, sum.peak + weight * cost.peak};
    }
    return sum;
  }
};

void check_axes(const std::array<Axis, 3>& axes) {
  for (std::size_t a = 0; a < 3; ++a) {
    for (const std::int64_t value : axes[a]) {
      const bool none = a == 2 && value == 0 && axes[a].size() == 1;
      if (!none && (value < 1 || !std::has_single_bit(static_cast<std::uint64_t>(value))))
        throw Error(concat("a measured point has ", value, std::array{" samples", " input tokens", " target tokens"}[a]), {},
                    "measure at powers of two");
    }
  }
}

void check_formula(const CostFormula& f) {
  check_cost(f.fixed, "the fixed time of a micro-batch");
  check_cost(f.stored, "the memory that a token stores");
  check_cost(f.peak, "the memory that a token peaks at");
  if (!(f.linear > 0) || !(f.quadratic > 0))
    throw Error(concat("the time of a token is divided by ", number(!(f.linear > 0) ? f.linear : f.quadratic), "; it must be positive"));
}

ShapeCost cost_by(const CostFormula& f, const BatchLoad& load) {
  const double encoder = load.input / f.linear + load.input_squares / f.quadratic;
  const double decoder = load.target / f.linear + load.target_squares / f.quadratic + load.products / f.quadratic;
  const double tokens = load.input + load.target;
  return {f.fixed + std::max(encoder, load.target > 0 ? decoder : 0), f.stored * tokens, f.peak * tokens};
}

}  // namespace

ShapeCosts formula_costs(const CostFormula& formula) {
  check_formula(formula);
  return [formula](const BatchShape& shape) { return std::optional(cost_by(formula, padded_load(shape))); };
}

StageCostsOf stage_costs(const CostFormula& formula, int stages) {
  check_formula(formula);
  return [formula, stages](const BatchLoad& load) {
    const ShapeCost cost = cost_by(formula, load);
    StageCosts of;
    for (const auto& [kind, thirds] : {std::pair{Kind::F, 1}, {Kind::B, 2}, {Kind::I, 1}, {Kind::W, 1}, {Kind::R, 1}})
      of.of(kind) = cost.time * thirds / 3;
    of.live = cost.stored;
    return std::vector<StageCosts>(static_cast<std::size_t>(stages), of);
  };
}

ShapeCosts slowest_stage(StageCostsOf costs, bool recompute) {
  return [costs = std::move(costs), recompute](const BatchShape& shape) {
    ShapeCost out;
    for (const StageCosts& stage : costs(padded_load(shape))) {
      out.time = std::max(out.time, stage.of(Kind::F) + stage.of(Kind::B) + (recompute ? stage.of(Kind::R) : 0));
      out.stored = std::max(out.stored, recompute ? stage.kept : stage.live);
      out.peak = std::max(out.peak, stage.live);
    }
    return std::optional(out);
  };
}

// While a backward runs all that the forward had is there again.
ShapeCosts slowest_stage(StageCostsOf costs, Recompute mode) {
  return [of = slowest_stage(std::move(costs)), mode](BatchShape shape) {
    const std::optional<ShapeCost> plain = of(shape);
    shape.recompute = mode;
    std::optional<ShapeCost> out = of(shape);
    out->peak = plain->peak;
    return out;
  };
}

const std::vector<std::string>& recompute_words() {
  static const std::vector<std::string> words = {"none", "selective", "inputs"};
  return words;
}

ShapeCosts grid_costs(const std::vector<CostPoint>& points) {
  if (points.empty()) throw Error("there are no measured points");
  std::array<std::set<std::int64_t>, 3> values;
  for (const CostPoint& point : points)
    for (std::size_t a = 0; a < 3; ++a) values[a].insert(lengths_of(point.shape)[a]);
  Grid grid;
  for (std::size_t a = 0; a < 3; ++a) grid.axes[a].assign(values[a].begin(), values[a].end());
  check_axes(grid.axes);
  for (const auto& [shape, cost] : points) {
    const std::string what = shape_text(shape);
    check_cost(cost.time, "the time of " + what);
    check_cost(cost.stored, "the stored memory of " + what);
    check_cost(cost.peak, "the peak memory of " + what);
    std::array<std::size_t, 3> place{};
    for (std::size_t a = 0; a < 3; ++a) place[a] = between(grid.axes[a], lengths_of(shape)[a])->low;
    if (!grid.costs.emplace(place, cost).second) throw Error(concat("the costs of ", what, " are there twice"));
  }
  const auto& [samples, inputs, targets] = grid.axes;
  for (std::size_t n = 0; n < samples.size(); ++n)
    for (std::size_t e = 0; e < inputs.size(); ++e)
      for (std::size_t d = 0; d < targets.size(); ++d)
        if (!grid.costs.contains({n, e, d}))
          throw Error(concat("the costs of ", shape_text({samples[n], inputs[e], targets[d]}), " are missing"), {},
                      "give a point for each crossing of the axes");
  return grid;
}

}  // namespace penstock
