#include "runtime/byte_dataset.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/hash.h"
#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kSplitKey = 0x76616c6964617465;  // fixed: the split does not depend on the run's seed

bool is_skipped_folder(const std::string& name) {
  return name.starts_with('.') || name.starts_with("build") || name == "node_modules" || name == "__pycache__" || name == "runs";
}

// No zero byte among the first ones: what `grep` and `git` call text.
bool looks_like_text(const MappedFile& file) {
  const auto begin = file.bytes().first(std::min<std::size_t>(file.bytes().size(), 8192));
  return std::find(begin.begin(), begin.end(), std::byte{0}) == begin.end();
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

// Walks all paths; folders give only what looks like text, files named by the user are taken as they are.
std::vector<std::pair<std::string, MappedFile>> open_all(const std::vector<std::string>& paths) {
  std::vector<std::pair<std::string, MappedFile>> out;
  for (const std::string& path : paths) {
    const bool folder = fs::is_directory(path);
    for (const std::string& name : folder ? files_of(path) : std::vector<std::string>{path}) {
      MappedFile file(name);
      if (file.bytes().empty() && !folder) throw Error(concat(name, " is empty"), {}, "name a text of some kilobytes");
      if (!file.bytes().empty() && (!folder || looks_like_text(file))) out.emplace_back(name, std::move(file));
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
    : context_(context), batch_(batch), seed_(seed) {
  Hash names;
  offsets_.push_back(0);
  for (auto& [name, file] : open_all(paths)) {
    names.add(fs::path(name).filename().string());
    names.add(file.bytes().size());
    offsets_.push_back(offsets_.back() + static_cast<std::int64_t>(file.bytes().size()));
    files_.push_back(std::move(file));
  }
  fingerprint_ = names.value();
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
  return concat(bytes_text(static_cast<double>(bytes())), " of text in ", files(), " files");
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

void ByteDataset::copy_window(std::int64_t begin, std::span<std::int64_t> out) const {
  std::size_t file = static_cast<std::size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), begin) - offsets_.begin()) - 1;
  for (std::int64_t& token : out) {
    while (begin >= offsets_[file + 1]) ++file;
    token = static_cast<std::int64_t>(files_[file].bytes()[static_cast<std::size_t>(begin - offsets_[file])]);
    ++begin;
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
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t sample = input.samples[static_cast<std::size_t>(first_row + row)];
      copy_window(sample * context_ + (port.name == "targets"),
                  values.subspan(static_cast<std::size_t>(row * context_), static_cast<std::size_t>(context_)));
    }
  } else {
    throw Error(concat("text has no data for port ", quote(port.name)), {"it gives tokens, targets, rows and seed"});
  }
}

}  // namespace penstock
