// SPDX-License-Identifier: Apache-2.0
// In which order samples are read: a fixed share of them, equal for every seed and spread evenly, is kept for validation; each epoch passes
// once over the rest in its own order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

// How samples are drawn: so many for a step, by the run's seed. `validation`: the share that is kept, at least one sample where it is above
// 0.
struct SampleDraw {
  std::int64_t batch = 1;
  double validation = 0;
  std::int64_t seed = 0;
};

struct SampleOrder {
  std::int64_t samples = 0, kept = 0;  // in all, and for validation
  std::int64_t batch = 1, seed = 0;

  SampleOrder() = default;
  SampleOrder(std::int64_t samples, const SampleDraw& draw);
  std::int64_t trained() const { return samples - kept; }
  // Throws Error where a batch takes more than there are to train on: of `what`, which lie in `named`, where the user may name more
  // `sources`.
  void check(const std::string& what, const std::string& named, const std::string& sources) const;
  // The batch that follows after so many training samples were read. There must be one outside of validation.
  std::vector<std::int64_t> training(std::int64_t position) const;
  // Batch 0, 1, ...; they start again where there are fewer.
  std::vector<std::int64_t> validation(std::int64_t batch_number) const;
};

}  // namespace penstock
