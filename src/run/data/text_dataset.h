// SPDX-License-Identifier: Apache-2.0
// Text files as a data set of samples of equal length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/sample_order.h"
#include "data/tokenizer.h"

namespace penstock {

// The text of a run that names none: this project's own sources and documents and the C++ headers of the compiler, as far as they are on
// the machine, and where neither is, Python's own modules.
std::vector<std::string> default_text();

// The files, read as one text; sample i is the window of context+1 tokens from i*context on. A fixed share of the samples, spread over all
// files and equal for every seed, is kept for validation.
class TextDataset : public Dataset {
 public:
  // Takes files and, recursively, the text files of folders in the order of their names; hidden files and build folders are left out.
  // Throws Error: unreadable, a named file that is no text, no text at all, or not enough of it for one batch of training (and of
  // validation, if any is wanted).
  TextDataset(const std::vector<std::string>& paths, const Tokenizer& tokenizer, std::int64_t context, const SampleDraw& draw);

  // Fills ports "tokens" and "targets" i64 [batch, context], "rows" i64 [batch] (numbers of the rows), "seed" i64 []. Throws Error for a
  // file that was changed since, and for samples that do not exist.
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override;

  // Each epoch passes once over the training samples in its own order.
  std::vector<std::int64_t> training_samples(std::int64_t position) const override { return order_.training(position); }
  // Batches count from 0, and start again where there are fewer.
  std::vector<std::int64_t> validation_samples(std::int64_t batch) const override { return order_.validation(batch); }
  std::int64_t tokens() const override { return context_; }
  std::string summary() const override;  // a phrase: "1.2 MB of text in 30 files (2 files without text left out)"

  std::int64_t size() const { return offsets_.back(); }  // in tokens
  std::int64_t files() const { return std::ssize(files_); }
  std::int64_t training_size() const { return order_.trained(); }
  std::int64_t validation_size() const { return order_.kept; }
  std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  void copy_rows(const StepInput& input, std::int64_t first_row, std::int64_t ahead, std::span<std::int64_t> out) const;

  std::vector<std::unique_ptr<TokenSource>> files_;
  std::vector<std::int64_t> offsets_;  // position of each file's first token in the whole text; last: its size
  std::int64_t bytes_ = 0;
  std::int64_t context_;
  SampleOrder order_;
  std::int64_t skipped_ = 0;  // files of folders that are no text
  std::uint64_t fingerprint_ = 0;
};

}  // namespace penstock
