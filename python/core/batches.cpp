// SPDX-License-Identifier: Apache-2.0
// Batch planners for samples that Python has.
#include "batches.h"

#include <pybind11/stl.h>

#include <map>

#include "base/numbers.h"
#include "base/text.h"
#include "batch/batch_planners.h"
#include "penstock/error.h"

namespace py = pybind11;

namespace penstock {
namespace {

// A module reads a row for each sample. Throws Error for a planner of other rows, of other pieces of a text, or of other data.
const BatchPlannerInfo& planner_of_rows(const std::string& name) {
  const BatchPlannerInfo& planner = find_batch_planner(name);
  std::vector<std::string> known;
  for (const BatchPlannerInfo& row : batch_planners())
    if (row.plan != nullptr && row.rows != BatchRows::ragged) known.push_back(row.name);
  const std::string hint = join(known, " or ");
  if (planner.plan == nullptr)
    throw Error(concat("batch planner ", quote(name), " plans no batches of samples by their lengths"), {planner.summary}, hint);
  if (planner.rows == BatchRows::ragged)
    throw Error(concat("batch planner ", quote(name), " puts samples one after the other in a row"),
                {planner.summary, "a module of PyTorch reads a row for each sample: in one row its attention would mix them"}, hint);
  return planner;
}

// The rows of tokens: lengths (input, target), of which `decoder` says whether targets are rows of their own. `numbers`: fixed, linear,
// quadratic (CostFormula, in milliseconds), memory (tokens that live on a stage; 0: any number), round, candidates and seed.
SearchedBatchProblem problem_of(const std::vector<std::pair<std::int64_t, std::int64_t>>& lengths, bool decoder, int actors,
                                const std::map<std::string, double>& numbers) {
  SearchedBatchProblem out{.samples = {}, .order = {}, .decoder = decoder, .actors = actors, .costs = {}};
  for (const auto& [input, target] : lengths) out.samples.push_back({input, target});
  check_samples(out.samples, decoder);
  out.round = static_cast<std::int64_t>(numbers.at("round"));
  out.samples = padded(std::move(out.samples), decoder, out.round);
  out.order = longest_first(out.samples);
  const CostFormula formula{.fixed = numbers.at("fixed") * kMillisecond,
                            .linear = numbers.at("linear") / kMillisecond,
                            .quadratic = numbers.at("quadratic") / kMillisecond};
  out.costs = stage_costs(formula, actors);
  if (numbers.at("memory") > 0) out.limit = numbers.at("memory");
  out.candidates = static_cast<std::int64_t>(numbers.at("candidates"));
  out.seed = static_cast<std::uint64_t>(numbers.at("seed"));
  return out;
}

}  // namespace

void bind_batches(py::module_& module) {
  module.def("check_batch_planner", [](const std::string& name) { planner_of_rows(name); });
  // (samples of each micro-batch by their numbers, the table of these, its predicted seconds, the most tokens that live on a stage)
  module.def(
      "plan_batch",
      [](const std::string& name, const std::vector<std::pair<std::int64_t, std::int64_t>>& lengths, bool decoder, int actors,
         const std::map<std::string, double>& numbers, bool split, bool recompute) {
        SearchedBatchProblem problem = problem_of(lengths, decoder, actors, numbers);
        problem.split = split;
        problem.recompute = recompute;
        const Schedule none;
        PlannedBatch plan = planner_of_rows(name).plan({.batch = std::move(problem), .table = none});
        return std::tuple(std::move(plan.samples), std::move(plan.schedule), plan.time, plan.peak);
      },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace penstock
