// SPDX-License-Identifier: Apache-2.0
#include "data/text_dataset.h"

#include <algorithm>
#include <filesystem>

#include "base/invariant.h"
#include "base/text.h"
#include "base/words.h"
#include "data/text_files.h"
#include "penstock/error.h"

namespace penstock {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kHeldBytes =
    64 << 20;  // of text that is kept in memory: reading it again and again takes half a percent of a small step

// Returns the folder's files whose names begin with the prefix, in order; none where it is no folder.
std::vector<std::string> entries(const char* folder, std::string_view prefix) {
  std::vector<std::string> out;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(prefix)) out.push_back(entry.path().string());
  std::ranges::sort(out);
  return out;
}

}  // namespace

std::vector<std::string> default_text() {
  std::vector<std::string> out;
  std::error_code ignored;
  const fs::path project = PENSTOCK_SOURCE;
  for (const char* name : {"README.md", "cli", "docs", "include", "src", "tests"})
    if (fs::exists(project / name, ignored)) out.push_back((project / name).string());
  const std::vector<std::string> headers = entries("/usr/include/c++", "");
  if (!headers.empty()) out.push_back(headers.back());
  if (!out.empty()) return out;
  for (const char* folder : {"/usr/lib", "/usr/local/lib"})  // Python's own modules, where the program was installed without what built it
    for (const std::string& modules : entries(folder, "python3.")) out.push_back(modules);
  return out;
}

TextDataset::TextDataset(const std::vector<std::string>& paths, const Tokenizer& tokenizer, std::int64_t context, const SampleDraw& draw)
    : offsets_{0}, context_(context) {
  const TextFiles text = open_text(paths);
  skipped_ = text.skipped;
  for (const SteadyFile& file : text.files) {
    files_.push_back(tokenizer.tokens_of(file));
    offsets_.push_back(offsets_.back() + files_.back()->size());
    bytes_ += file.size();
  }
  if (bytes_ <= kHeldBytes)
    for (const std::unique_ptr<TokenSource>& file : files_) file->hold();
  fingerprint_ = hash_of(text.files) ^ tokenizer.fingerprint();
  const std::string where = join(paths, ", ");
  if (files_.empty())
    throw Error(concat("no text in ", where.empty() ? "an empty list of paths" : where), {}, "--text takes files and folders");
  order_ = SampleOrder(std::max<std::int64_t>(size() - 1, 0) / context_, draw);
  if (training_size() < draw.batch)
    throw Error(concat("the text is shorter than one batch: ", size(), " tokens in ", where),
                {concat("one batch takes ", draw.batch, " sequences of ", context_, " tokens; ", std::max<std::int64_t>(training_size(), 0),
                        " sequences are there beside validation")},
                "name more text, or lower train.batch or model.context");
}

std::string TextDataset::summary() const {
  return concat(bytes_text(static_cast<double>(bytes_)), " of text in ", counted(files(), "file"),
                size() == bytes_ ? "" : concat(", ", counted(size(), "token")),
                skipped_ > 0 ? concat(" (", counted(skipped_, "file"), " without text left out)") : "");
}

// Copies the windows of some rows, starting `ahead` tokens after their beginnings.
void TextDataset::copy_rows(const StepInput& input, std::int64_t first_row, std::int64_t ahead, std::span<std::int64_t> out) const {
  for (std::int64_t row = first_row; !out.empty(); ++row, out = out.subspan(context_)) {
    const std::int64_t sample = sample_in_row(input, row);
    if (sample < 0 || sample >= order_.samples) throw Error(concat("sample ", sample, " was asked for, the text has ", order_.samples));
    const std::int64_t begin = sample * context_ + ahead;
    std::size_t file = static_cast<std::size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), begin) - offsets_.begin()) - 1;
    for (std::int64_t done = 0; done < context_; ++file) {
      const std::int64_t size = std::min(context_ - done, offsets_[file + 1] - begin - done);
      files_[file]->copy(begin + done - offsets_[file], out.subspan(done, size));
      done += size;
    }
  }
}

void TextDataset::fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows,
                       std::span<std::byte> out) const {
  invariant(port.type.dtype == DType::i64 && out.size() % sizeof(std::int64_t) == 0, "data ports are i64");
  const std::span<std::int64_t> values(reinterpret_cast<std::int64_t*>(out.data()), out.size() / sizeof(std::int64_t));
  if (data_name(port) == "seed") {
    std::fill(values.begin(), values.end(), input.seed);
  } else if (data_name(port) == "rows") {
    for (std::size_t row = 0; row < values.size(); ++row) values[row] = row_in_step(input, first_row + static_cast<std::int64_t>(row));
  } else if (data_name(port) == "tokens" || data_name(port) == "targets") {
    invariant(static_cast<std::int64_t>(values.size()) == rows * context_, "tokens are [rows, context]");
    copy_rows(input, first_row, data_name(port) == "targets", values);
  } else {
    throw Error(concat("text has no data for port ", quote(port.name)), {"it gives tokens, targets, rows and seed"});
  }
}

}  // namespace penstock
