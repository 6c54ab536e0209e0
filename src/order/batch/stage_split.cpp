// SPDX-License-Identifier: Apache-2.0
#include "batch/stage_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr double kNoSplit = std::numeric_limits<double>::infinity();

void check_times(const char* what, const std::vector<double>& times, std::size_t count) {
  if (!times.empty() && times.size() != count)
    throw Error(concat(what, " has ", times.size(), " times, not ", count), {},
                "layers, all_reduce and backward have one each, links one fewer");
  for (const double time : times)
    if (!(time >= 0) || !std::isfinite(time)) throw Error(concat(what, " has a time of ", number(time)), {}, "a time is finite, 0 or more");
}

void check_problem(const StageSplitProblem& problem) {
  const std::size_t layers = problem.layers.size();
  if (layers == 0) throw Error("there are no layers", {}, "give a time for each");
  check_times("layers", problem.layers, layers);
  check_times("links", problem.links, layers - 1);
  check_times("all_reduce", problem.all_reduce, layers);
  check_times("backward", problem.backward, layers);
  if (problem.stages < 1 || static_cast<std::size_t>(problem.stages) > layers)
    throw Error(concat(problem.stages, " stages of ", layers, " layers"), {},
                concat("a stage has a layer or more: 1 to ", layers, " stages"));
  if (problem.microbatches < 1) throw Error(concat(problem.microbatches, " micro-batches"), {}, "at least one");
}

// The sums of a list's first entries, from none to all.
std::vector<double> sums_of(const std::vector<double>& times) {
  std::vector<double> out(times.size() + 1, 0);
  std::partial_sum(times.begin(), times.end(), out.begin() + 1);
  return out;
}

// The times of a stage of layers begin..end-1, whose link to the next counts as its own.
class Stages {
 public:
  explicit Stages(const StageSplitProblem& problem)
      : links_(problem.links),
        layers_(sums_of(problem.layers)),
        reduces_(sums_of(problem.all_reduce.empty() ? std::vector<double>(problem.layers.size(), 0) : problem.all_reduce)) {
    std::vector<double> backward = problem.backward;
    if (backward.empty())
      for (const double time : problem.layers) backward.push_back(2 * time / 3);
    backwards_ = sums_of(backward);
  }
  std::size_t count() const { return layers_.size() - 1; }
  double slowest(std::size_t begin, std::size_t end) const {
    const double link = links_.empty() || end == count() ? 0 : links_[end - 1];
    return std::max(layers_[end] - layers_[begin], link);
  }
  double exposed(std::size_t begin, std::size_t end) const { return std::max(0.0, reduces_[end] - reduces_[begin] - backwards_[begin]); }

 private:
  const std::vector<double>& links_;
  std::vector<double> layers_, reduces_, backwards_;
};

// The split whose slowest stage is fastest among those in which every stage exposes less than `limit`; no begins where there is none.
StageSplit least_slowest(const Stages& of, int stages, double limit) {
  const std::size_t layers = of.count(), count = static_cast<std::size_t>(stages);
  // At [stages so far][layers so far]: the slowest of these stages, and where the last of them begins.
  std::vector<std::vector<double>> least(count + 1, std::vector<double>(layers + 1, kNoSplit));
  std::vector<std::vector<std::size_t>> begin(count + 1, std::vector<std::size_t>(layers + 1, 0));
  least[0][0] = 0;
  for (std::size_t s = 1; s <= count; ++s)
    for (std::size_t end = s; end + (count - s) <= layers; ++end)
      for (std::size_t from = s - 1; from < end; ++from) {
        if (of.exposed(from, end) >= limit) continue;
        const double slowest = std::max(least[s - 1][from], of.slowest(from, end));
        if (slowest < least[s][end]) least[s][end] = slowest, begin[s][end] = from;
      }
  StageSplit out;
  out.slowest = least[count][layers];
  for (std::size_t s = count, end = layers; s > 0 && out.slowest < kNoSplit; --s) {
    const std::size_t from = begin[s][end];
    out.exposed = std::max(out.exposed, of.exposed(from, end));
    out.begins.insert(out.begins.begin(), static_cast<int>(from));
    end = from;
  }
  return out;
}

}  // namespace

// Splits that expose ever less, each the fastest of those that do, until they are slower by more than what is left to be hidden. So one
// with the least time is among them: none that exposes less has a faster slowest stage than the one before it.
StageSplit split_stages(const StageSplitProblem& problem) {
  check_problem(problem);
  const Stages of(problem);
  const double passes = problem.microbatches + 2.0 * problem.stages - 2;
  StageSplit best;
  best.time = kNoSplit;
  for (double limit = kNoSplit; limit > 0;) {
    StageSplit split = least_slowest(of, problem.stages, limit);
    if (split.begins.empty() || passes * split.slowest >= best.time) break;
    limit = split.exposed;
    split.time = passes * split.slowest + split.exposed;
    if (split.time < best.time) best = std::move(split);
  }
  return best;
}

}  // namespace penstock
