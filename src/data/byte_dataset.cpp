#include "data/byte_dataset.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "base/hash.h"
#include "base/invariant.h"
#include "base/text.h"
#include "base/words.h"
#include "data/text_check.h"
#include "penstock/error.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSplitKey = 0x76616c6964617465;  // a constant, so that the split does not depend on the run's seed

bool is_skipped_folder(const std::string& name) {
  return name.starts_with('.') || name.starts_with("build") || name == "node_modules" || name == "__pycache__" || name == "runs";
}

[[noreturn]] void fail_no_text(const std::string& name, const std::string& why) {
  const bool tensors = why.find("safetensors") != std::string::npos;
  throw Error(concat(name, " is no text: ", why), {},
              tensors ? "--init starts from parameters" : "a model reads text byte by byte; files of tokens, or in UTF-16, are not read");
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  while (!error && it != end) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (it->is_directory(ignored)) {
      if (is_skipped_folder(name)) it.disable_recursion_pending();
    } else if (it->is_regular_file(ignored) && !name.starts_with('.')) {
      out.push_back(it->path().string());
    }
    it.increment(error);
  }
  if (error) throw Error(concat("cannot read ", folder, ": ", error.message()));
  std::sort(out.begin(), out.end());
  return out;
}

// Opens all files of these paths. A file that is no text is an error where the user named it; in a folder it is left out and counted in
// `skipped`.
std::vector<SteadyFile> open_all(const std::vector<std::string>& paths, std::int64_t& skipped) {
  std::vector<SteadyFile> out;
  for (const std::string& path : paths) {
    std::error_code ignored;
    const bool folder = fs::is_directory(path, ignored);
    for (const std::string& name : folder ? files_of(path) : std::vector<std::string>{path}) {
      SteadyFile file(name);
      if (file.size() == 0 && !folder) throw Error(concat(name, " is empty"), {}, "name a text of some kilobytes");
      std::vector<std::byte> begin(std::min(static_cast<std::size_t>(file.size()), kTextProbe));
      SteadyFile::Reading(file).read(0, begin);
      const std::string why = why_no_text(begin);
      if (!why.empty() && !folder) fail_no_text(name, why);
      skipped += !why.empty();
      if (file.size() > 0 && why.empty()) out.push_back(std::move(file));
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> default_text() {
  std::vector<std::string> out;
  std::error_code ignored;
  const fs::path project = PENSTOCK_SOURCE;
  for (const char* name : {"README.md", "cli", "docs", "include", "src", "tests"})
    if (fs::exists(project / name, ignored)) out.push_back((project / name).string());
  std::set<std::string> versions;
  for (const fs::directory_entry& entry : fs::directory_iterator("/usr/include/c++", ignored)) versions.insert(entry.path().string());
  if (!versions.empty()) out.push_back(*versions.rbegin());
  return out;
}

ByteDataset::ByteDataset(const std::vector<std::string>& paths, std::int64_t context, std::int64_t batch, double validation,
                         std::int64_t seed)
    : offsets_{0}, context_(context), batch_(batch), seed_(seed) {
  files_ = open_all(paths, skipped_);
  for (const SteadyFile& file : files_) offsets_.push_back(offsets_.back() + file.size());
  fingerprint_ = hash_files();
  const std::string where = join(paths, ", ");
  if (files_.empty())
    throw Error(concat("no text in ", where.empty() ? "an empty list of paths" : where), {}, "--text takes files and folders");
  samples_ = (bytes() - 1) / context_;
  validation_ = static_cast<std::int64_t>(static_cast<double>(samples_) * validation);
  if (validation > 0) validation_ = std::max<std::int64_t>(validation_, 1);
  if (training_size() < batch_)
    throw Error(concat("the text is shorter than one batch: ", bytes(), " bytes in ", where),
                {concat("one batch takes ", batch_, " sequences of ", context_, " bytes; ", training_size(),
                        " sequences are there beside validation")},
                "name more text, or lower train.batch or model.context");
}

std::string ByteDataset::summary() const {
  return concat(bytes_text(static_cast<double>(bytes())), " of text in ", counted(files(), "file"),
                skipped_ > 0 ? concat(" (", counted(skipped_, "file"), " without text left out)") : "");
}

std::int64_t ByteDataset::sample_at(std::int64_t place) const {
  const Permutation split(static_cast<std::uint64_t>(samples_), kSplitKey);
  return static_cast<std::int64_t>(split(static_cast<std::uint64_t>(place)));
}

std::vector<std::int64_t> ByteDataset::training_samples(std::int64_t position) const {
  std::vector<std::int64_t> out;
  for (const std::int64_t end = position + batch_; position < end; ++position) {
    const std::int64_t epoch = position / training_size();
    const Permutation order(static_cast<std::uint64_t>(training_size()),
                            mix_key(static_cast<std::uint64_t>(seed_), static_cast<std::uint64_t>(epoch)));
    out.push_back(sample_at(validation_ + static_cast<std::int64_t>(order(static_cast<std::uint64_t>(position % training_size())))));
  }
  return out;
}

std::vector<std::int64_t> ByteDataset::validation_samples(std::int64_t batch) const {
  invariant(validation_ > 0, "validation samples were asked for");
  std::vector<std::int64_t> out;
  for (std::int64_t row = 0; row < batch_; ++row) out.push_back(sample_at((batch * batch_ + row) % validation_));
  return out;
}

// Hashes pieces of 64 KiB of every file at equal distances, no more than kMost together: so a start takes no longer for a larger text, and
// a text that fits is hashed whole.
std::uint64_t ByteDataset::hash_files() const {
  constexpr std::int64_t kPiece = 64 << 10, kMost = 64 << 20;
  const std::int64_t distance = kPiece * std::max<std::int64_t>(1, (bytes() + kMost - 1) / kMost);
  Hash hash;
  std::vector<std::byte> piece(kPiece);
  for (const SteadyFile& file : files_) {
    hash.add(fs::path(file.path()).filename().string());
    hash.add(static_cast<std::uint64_t>(file.size()));
    const SteadyFile::Reading reading(file);
    for (std::int64_t at = 0; at < file.size(); at += distance) {
      const std::span<std::byte> part = std::span(piece).first(std::min(kPiece, file.size() - at));
      reading.read(at, part);
      hash.add(std::span<const std::byte>(part));
    }
  }
  return hash.value();
}

// Copies the windows of some rows, starting `ahead` bytes after their beginnings.
void ByteDataset::copy_rows(const StepInput& input, std::int64_t first_row, std::int64_t ahead, std::span<std::int64_t> out) const {
  std::vector<std::byte> window(context_);
  std::size_t opened = files_.size();
  std::optional<SteadyFile::Reading> reading;
  for (std::int64_t row = first_row; !out.empty(); ++row, out = out.subspan(window.size())) {
    const std::int64_t sample = sample_in_row(input, row);
    if (sample < 0 || sample >= samples_) throw Error(concat("sample ", sample, " was asked for, the text has ", samples_));
    const std::int64_t begin = sample * context_ + ahead;
    std::size_t file = static_cast<std::size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), begin) - offsets_.begin()) - 1;
    for (std::int64_t done = 0; done < context_; ++file) {
      if (file != opened) reading.emplace(files_[opened = file]);
      const std::int64_t size = std::min(context_ - done, offsets_[file + 1] - begin - done);
      reading->read(begin + done - offsets_[file], std::span(window).subspan(done, size));
      done += size;
    }
    std::transform(window.begin(), window.end(), out.begin(), [](std::byte byte) { return static_cast<std::int64_t>(byte); });
  }
}

void ByteDataset::fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows,
                       std::span<std::byte> out) const {
  invariant(port.type.dtype == DType::i64 && out.size() % sizeof(std::int64_t) == 0, "data ports are i64");
  const std::span<std::int64_t> values(reinterpret_cast<std::int64_t*>(out.data()), out.size() / sizeof(std::int64_t));
  if (port.name == "seed") {
    std::fill(values.begin(), values.end(), input.seed);
  } else if (port.name == "rows") {
    for (std::size_t row = 0; row < values.size(); ++row) values[row] = first_row + static_cast<std::int64_t>(row);
  } else if (port.name == "tokens" || port.name == "targets") {
    invariant(static_cast<std::int64_t>(values.size()) == rows * context_, "tokens are [rows, context]");
    copy_rows(input, first_row, port.name == "targets", values);
  } else {
    throw Error(concat("text has no data for port ", quote(port.name)), {"it gives tokens, targets, rows and seed"});
  }
}

}  // namespace penstock
