// SPDX-License-Identifier: Apache-2.0
// Numbered samples to train on: real text, or synthetic data where the model reads none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "devices/cluster.h"

namespace penstock {

class Dataset : public DataSource {
 public:
  // The samples of the batch that follows after `position` training samples were read.
  virtual std::vector<std::int64_t> training_samples(std::int64_t position) const = 0;
  // Samples of validation batch 0, 1, ...: none of them is a training sample, and a batch is the same in every call.
  virtual std::vector<std::int64_t> validation_samples(std::int64_t batch) const = 0;
  virtual std::int64_t tokens() const = 0;  // tokens in a sample; 0: it is no text
  virtual std::string summary() const = 0;  // a phrase for the user
  // Tokens in this sample, at most tokens(), where samples have lengths of their own; 0 where they have not.
  virtual std::int64_t length(std::int64_t /*sample*/) const { return 0; }
  // The number of these that are a target which has a row of its own; 0 where samples are texts.
  virtual std::int64_t target_length(std::int64_t /*sample*/) const { return 0; }
  // Images of this sample, where the model reads any.
  virtual std::int64_t images(std::int64_t /*sample*/) const { return 0; }
};

// Validation samples of endless data sets: beyond every training sample.
inline constexpr std::int64_t kFirstValidation = std::int64_t{1} << 40;
// A batch of theirs: so many that follow on each other.
std::vector<std::int64_t> samples_from(std::int64_t first, std::int64_t batch);

// The number of the sample in a row of the step's batch. Throws Error where the batch has no such row.
std::int64_t sample_in_row(const StepInput& input, std::int64_t row);
// The same where rows hold several samples (StepInput::begins) or one.
std::span<const std::int64_t> samples_in_row(const StepInput& input, std::int64_t row);

// The row's place in the batch of its own step.
std::int64_t row_in_step(const StepInput& input, std::int64_t row);

// The unit that a rate of training counts: "tokens" or "samples".
std::string counted(const Dataset& data);

// The text, documents or pairs that the configuration names, or draws for a model without text ports. Throws Error: as TextDataset and
// SequenceDataset do, for several of these, for a tokenizer that has more tokens than the model's vocabulary, for a text that is
// named although the model reads none, and for a model with ports of both kinds.
std::shared_ptr<const Dataset> make_dataset(const Config& config, const Model& model);

}  // namespace penstock
