// Numbered samples to train on: real text, or synthetic data where the model reads none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cluster.h"
#include "runtime/config.h"

namespace penstock {

class Dataset : public DataSource {
 public:
  // The batch after `position` training samples were read.
  virtual std::vector<std::int64_t> training_samples(std::int64_t position) const = 0;
  // None of them is a training sample; the same for every call with the same `batch`, 0, 1, ...
  virtual std::vector<std::int64_t> validation_samples(std::int64_t batch) const = 0;
  virtual std::int64_t tokens() const = 0;  // of a sample; 0: it is no text
  virtual std::string summary() const = 0;  // a phrase for the user
};

// The number of the sample in a row of the step's batch. Throws Error where the batch has no such row.
std::int64_t sample_in_row(const StepInput& input, std::int64_t row);

// "tokens" or "samples": what a rate of training counts.
std::string counted(const Dataset& data);

// The text that the configuration names, or draws for a model without text ports. Throws Error: what ByteDataset throws, a text named
// for a model that reads none, and ports of both kinds in one model.
std::shared_ptr<const Dataset> make_dataset(const Config& config, const Model& model);

}  // namespace penstock
