// Sequences that have lengths of their own: documents, or pairs of an input and what is to follow on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/sample_order.h"
#include "data/steady_file.h"

namespace penstock {

// A byte is a token. Of a sequence of n+1 bytes the first n are tokens, and the last n their targets; of a pair only the bytes of what is
// to follow are counted as targets. What is longer than the model's context is cut there.
class SequenceDataset : public Dataset {
 public:
  // Takes files and folders, as ByteDataset does. Each file is one document; of a file *.jsonl each line is one sequence: an object with
  // "text", or with "input" and "target". Sequences without a target (fewer than 2 bytes) are left out. Throws Error: as open_text does, a
  // line that is no such object (file and line), or fewer sequences than a batch of training takes.
  SequenceDataset(const std::vector<std::string>& paths, std::int64_t context, std::int64_t batch, double validation, std::int64_t seed);

  // Ports "tokens" and "targets" i64 [rows, length], of any length: behind a sequence stand zeros, and targets of kIgnored. A sequence that
  // is longer is an Error. "rows" gives the samples' numbers, so that dropout does not depend on how a batch is cut; "seed"; "count" i64 []
  // the targets of the whole step that are counted.
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override;

  std::vector<std::int64_t> training_samples(std::int64_t position) const override { return order_.training(position); }
  std::vector<std::int64_t> validation_samples(std::int64_t batch) const override { return order_.validation(batch); }
  std::int64_t tokens() const override { return context_; }
  std::string summary() const override;
  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::int64_t length(std::int64_t sample) const override { return sequence(sample).length; }

 private:
  struct Sequence {
    std::int32_t file = 0;
    std::int64_t offset = 0, bytes = 0;    // in the file: the document, or the line
    std::int64_t length = 0, counted = 0;  // tokens, and targets that are counted
  };
  void add_lines(std::int32_t file);
  const Sequence& sequence(std::int64_t sample) const;
  std::string text_of(const Sequence& sequence) const;
  void copy_sequence(std::int64_t sample, bool targets, std::span<std::int64_t> out) const;

  std::vector<SteadyFile> files_;
  std::vector<Sequence> sequences_;
  std::int64_t context_, cut_ = 0, left_out_ = 0;  // sequences that are cut, and left out
  SampleOrder order_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace penstock
