// SPDX-License-Identifier: Apache-2.0
// The costs of a micro-batch of some shape on the slowest stage: time and memory, by a formula or by measured points.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "batch/lengths.h"
#include "penstock/compile.h"
#include "penstock/table.h"

namespace penstock {

// The costs of one micro-batch on one stage. Memory is in any one unit, such as bytes or tokens.
struct ShapeCost {
  double time = 0;    // forward and backward
  double stored = 0;  // kept from the forward until the backward
  double peak = 0;    // the most that is there at once while it runs
};

// None where such a micro-batch cannot run, or was not measured.
using ShapeCosts = std::function<std::optional<ShapeCost>(const BatchShape&)>;

// A choice of how much of the forward is computed again in the backward, with the costs of micro-batches then.
struct RecomputeMode {
  std::string name;
  ShapeCosts costs;
};

// n samples of s tokens take fixed + n (s/linear + s^2/quadratic). An encoder of e tokens takes that, a decoder of d tokens
// n (d/linear + d^2/quadratic + e d/quadratic), and the slower of the two counts. Every token stores `stored` and peaks at `peak`.
struct CostFormula {
  double fixed = 0;
  double linear = kInfinity, quadratic = kInfinity;
  double stored = 1, peak = 1;
};
// Throws Error where a number is negative or no number, or a divisor is 0.
ShapeCosts formula_costs(const CostFormula& formula);

// The costs of a micro-batch on each stage.
using StageCostsOf = std::function<std::vector<StageCosts>(const BatchLoad&)>;
// Every stage takes what the formula says: a third in F, two in the backward, of which half in I and half in W. With R, nothing is kept.
// Throws Error as formula_costs does.
StageCostsOf stage_costs(const CostFormula& formula, int stages);
// Costs of padded micro-batches on the stage that takes longest, and on the one that holds most; with R, where `recompute`.
ShapeCosts slowest_stage(StageCostsOf costs, bool recompute = false);
// The same where backwards themselves compute so much again (BatchShape::recompute).
ShapeCosts slowest_stage(StageCostsOf costs, Recompute mode);
const std::vector<std::string>& recompute_words();  // "none", ...: of each, in their order

struct CostPoint {
  BatchShape shape;
  ShapeCost cost;
};
// Between the points, which are at powers of two along each axis (targets: or all 0), costs are linear along each axis; outside there are
// none. Throws Error unless there is one point at each crossing of the axes, with costs that are numbers and not negative.
ShapeCosts grid_costs(const std::vector<CostPoint>& points);

}  // namespace penstock
