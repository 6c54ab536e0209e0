// SPDX-License-Identifier: Apache-2.0
// An exported module's micro-batch for given sizes, as plans run it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exported/exported.h"
#include "penstock/graph.h"
#include "penstock/trace.h"

namespace penstock {

struct JointStep {
  std::int64_t samples = 1;
  // The joint graph. Beside the module's inputs it reads the divisors of the whole batch ("count.0", ...; batch_counts.h).
  Graph graph;
  // batch_counts.h says what these are; without divisors they are empty.
  std::vector<Graph> counts;
  std::vector<bool> means;
  Graph divisors;
  std::vector<int> shares;
  std::vector<std::string> notes;
  std::vector<ExportedOutput> outputs;  // of the graph, in its order, but for what is added to buffers, which stands behind them
  // The buffers that the module updates, and which output is added to each; none: nothing.
  std::vector<Carried> carried;
  std::vector<std::optional<std::size_t>> added;

  std::size_t loss() const;  // which output it is
  // Which output the module gives under this name, beside the loss; none: it gives none.
  std::optional<std::size_t> given(const std::string& name) const;
};

// `in_f64`: what the module has in f32 is in f64. Throws Error: sizes that are missing or that the export does not allow, a graph that does
// not fit the header, buffers and divisions that no plan can run alike.
JointStep joint_step(const Exported& exported, const Sizes& sizes, bool in_f64 = false);

}  // namespace penstock
