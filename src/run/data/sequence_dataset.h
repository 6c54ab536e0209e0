// SPDX-License-Identifier: Apache-2.0
// Sequences that have lengths of their own as a data set: their order, and how they fill a model's ports.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/sample_order.h"
#include "data/sequences.h"

namespace penstock {

// Pairs of tokens and targets: of a sequence of n+1 tokens the first n are read, and the last n are their targets, of which only those that
// follow on the input are counted. Where pairs are read apart (Model::reads), the n tokens of an input are those of a row of inputs, and
// the n of a target are n targets; read are 0 and all but the last of them. What is longer than the model's context is cut there.
class SequenceDataset : public Dataset {
 public:
  // Sequences in which no token follows on another are left out, but where `pairs` are read apart. Throws Error where there are fewer than
  // a batch of training takes; `named` says in messages where they come from.
  SequenceDataset(Sequences sequences, const std::string& named, std::int64_t context, const SampleDraw& draw, bool pairs = false);

  // Ports "tokens", "targets" and "inputs" i64 [rows, length], of any length: behind the sequences of a row stand zeros, and targets of
  // kIgnored. A sequence that is longer is an Error. The ports of data/row_ports.h say where they stand. "rows" gives the samples' numbers,
  // so that dropout does not depend on how a batch is cut; "seed"; "count" i64 [] the targets of the whole step that are counted.
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override;

  std::vector<std::int64_t> training_samples(std::int64_t position) const override { return order_.training(position); }
  std::vector<std::int64_t> validation_samples(std::int64_t batch) const override { return order_.validation(batch); }
  std::int64_t tokens() const override { return context_; }
  std::string summary() const override;
  std::uint64_t fingerprint() const override { return sequences_.fingerprint(); }
  std::int64_t length(std::int64_t sample) const override { return sequence(sample).length + sequence(sample).input; }
  std::int64_t target_length(std::int64_t sample) const override { return pairs_ ? sequence(sample).length : 0; }

 private:
  struct Sample {
    std::int64_t sequence = 0;             // its number in sequences_
    std::int64_t length = 0, counted = 0;  // tokens that are read, and targets that are counted
    std::int64_t input = 0;                // of a pair that is read apart: tokens of its input
  };
  Sample text_of(std::int64_t sequence) const;
  Sample pair_of(std::int64_t sequence) const;
  const Sample& sequence(std::int64_t sample) const;
  void fill_row(const Port& port, std::span<const std::int64_t> samples, bool several, std::span<std::int64_t> out) const;
  void copy_sequence(std::string_view port, std::int64_t sample, std::span<std::int64_t> out) const;

  Sequences sequences_;
  std::vector<Sample> samples_;
  std::int64_t context_, cut_ = 0, left_out_ = 0;  // sequences that are cut, and left out
  SampleOrder order_;
  bool pairs_;
};

}  // namespace penstock
