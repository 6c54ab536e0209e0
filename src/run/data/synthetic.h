// SPDX-License-Identifier: Apache-2.0
// Synthetic data for the ports that no real data fills. A value depends on the run's seed, the sample's number, the port's name and the
// element's place only. How a response depends on its inputs, and the pattern of a class, do not even depend on the seed: they are the
// task.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace penstock {

// The port of that name. Throws Error with the names that exist.
const DataPort& find_port(const std::vector<DataPort>& ports, const std::string& name);

// Draws one sample of `port`, which is one of `ports` and no text; `out` has exactly its size. Values are drawn in f64 and rounded to the
// port's dtype.
void fill_synthetic(const std::vector<DataPort>& ports, const DataPort& port, std::int64_t seed, std::int64_t sample,
                    std::span<std::byte> out);

// An endless data set: no training sample comes twice.
class SyntheticDataset : public Dataset {
 public:
  SyntheticDataset(std::vector<DataPort> ports, std::int64_t batch, std::int64_t seed);
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override;
  std::vector<std::int64_t> training_samples(std::int64_t position) const override { return samples_from(position, batch_); }
  std::vector<std::int64_t> validation_samples(std::int64_t batch) const override {
    return samples_from(kFirstValidation + batch * batch_, batch_);
  }
  std::int64_t tokens() const override { return 0; }
  std::string summary() const override;
  std::uint64_t fingerprint() const override;

 private:
  std::vector<DataPort> ports_;
  std::int64_t batch_, seed_;
};

}  // namespace penstock
