#include "data/sequence_dataset.h"

#include <algorithm>
#include <numeric>

#include "base/invariant.h"
#include "base/json.h"
#include "base/text.h"
#include "base/words.h"
#include "data/text_files.h"
#include "penstock/error.h"
#include "penstock/trace.h"

namespace penstock {
namespace {

bool has_lines(const SteadyFile& file) {
  return file.path().ends_with(".jsonl");
}

std::string read_all(const SteadyFile& file, std::int64_t offset, std::int64_t bytes) {
  std::string out(static_cast<std::size_t>(bytes), '\0');
  SteadyFile::Reading(file).read(offset, std::as_writable_bytes(std::span(out)));
  return out;
}

// What a line of a .jsonl file says: all bytes of the sequence, and so many of them are an input.
struct Line {
  std::string text;
  std::int64_t input = 0;
};

Line parse_line(const std::string& line, const std::string& place) {
  const JsonFile file{place, "each line is an object with \"text\", or with \"input\" and \"target\""};
  const nlohmann::json value = parse_json(line, file);
  const JsonNode node(value, file);
  node.check_keys({"text", "input", "target"});
  if (node.has("text")) {
    node.check_keys({"text"});
    return {node.at("text").text()};
  }
  const std::string& input = node.at("input").text();
  return {input + node.at("target").text(), std::ssize(input)};
}

}  // namespace

SequenceDataset::SequenceDataset(const std::vector<std::string>& paths, std::int64_t context, std::int64_t batch, double validation,
                                 std::int64_t seed)
    : context_(context), order_(0, 0, 1, 0) {
  files_ = open_text(paths).files;
  for (std::int32_t file = 0; file < std::ssize(files_); ++file) {
    if (has_lines(files_[file])) {
      add_lines(file);
      continue;
    }
    const std::int64_t bytes = std::min(files_[file].size(), context_ + 1);
    cut_ += bytes < files_[file].size();
    left_out_ += bytes < 2;
    if (bytes >= 2) sequences_.push_back({file, 0, bytes, bytes - 1, bytes - 1});
  }
  fingerprint_ = hash_of(files_);
  order_ = SampleOrder(std::ssize(sequences_), validation, batch, seed);
  if (order_.samples - order_.kept < batch)
    throw Error(concat("there are fewer sequences than one batch takes: ", sequences_.size(), " in ", join(paths, ", ")),
                {concat("one batch takes ", batch, "; ", order_.samples - order_.kept, " are there beside validation")},
                "name more documents, or lower train.batch");
}

void SequenceDataset::add_lines(std::int32_t file) {
  const std::string all = read_all(files_[file], 0, files_[file].size());
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\n', begin), all.size());
    ++number;
    if (end > begin) {
      const Line line = parse_line(all.substr(begin, end - begin), concat(files_[file].path(), ":", number));
      const std::int64_t length = std::min(std::ssize(line.text) - 1, context_);
      cut_ += length < std::ssize(line.text) - 1;
      left_out_ += length < 1;
      const std::int64_t counted = std::min(length, length - line.input + 1);
      if (length >= 1)
        sequences_.push_back(
            {file, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end - begin), length, std::max<std::int64_t>(counted, 0)});
    }
    begin = end + 1;
  }
}

const SequenceDataset::Sequence& SequenceDataset::sequence(std::int64_t sample) const {
  if (sample < 0 || sample >= std::ssize(sequences_))
    throw Error(concat("sequence ", sample, " was asked for, there are ", sequences_.size()));
  return sequences_[sample];
}

std::string SequenceDataset::text_of(const Sequence& sequence) const {
  const SteadyFile& file = files_[sequence.file];
  std::string text = read_all(file, sequence.offset, sequence.bytes);
  return has_lines(file) ? parse_line(text, file.path()).text : text;
}

void SequenceDataset::fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows,
                           std::span<std::byte> out) const {
  invariant(port.type.dtype == DType::i64 && out.size() % sizeof(std::int64_t) == 0, "data ports are i64");
  const std::span<std::int64_t> values(reinterpret_cast<std::int64_t*>(out.data()), out.size() / sizeof(std::int64_t));
  const std::string_view name = data_name(port);
  if (name == "seed") {
    std::ranges::fill(values, input.seed);
  } else if (name == "count") {
    values[0] = 0;
    for (std::int64_t sample : input.samples) values[0] += sequence(sample).counted;
  } else if (name == "rows") {
    for (std::int64_t row = 0; row < rows; ++row) values[row] = sample_in_row(input, first_row + row);
  } else if (name == "tokens" || name == "targets") {
    for (std::int64_t row = 0; row < rows; ++row)
      copy_sequence(sample_in_row(input, first_row + row), name == "targets", values.subspan(row * port.type.shape[1], port.type.shape[1]));
  } else {
    throw Error(concat("sequences have no data for port ", quote(port.name)), {"they give tokens, targets, rows, seed and count"});
  }
}

void SequenceDataset::copy_sequence(std::int64_t sample, bool targets, std::span<std::int64_t> out) const {
  const Sequence& of = sequence(sample);
  if (of.length > std::ssize(out)) throw Error(concat("sequence ", sample, " has ", of.length, " tokens, its micro-batch ", out.size()));
  const std::string text = text_of(of);
  const std::int64_t first_counted = targets ? of.length - of.counted : 0;
  for (std::int64_t i = 0; i < std::ssize(out); ++i) {
    const bool is_there = i >= first_counted && i < of.length;
    out[i] = is_there ? static_cast<unsigned char>(text[i + targets]) : targets ? kIgnored : 0;
  }
}

std::string SequenceDataset::summary() const {
  const auto shorter = [](const Sequence& a, const Sequence& b) { return a.length < b.length; };
  const auto [least, most] = std::minmax_element(sequences_.begin(), sequences_.end(), shorter);
  return concat(counted(std::ssize(sequences_), "sequence"), " of ", least->length, " to ", most->length, " tokens",
                cut_ > 0 ? concat(" (", cut_, " cut)") : "", left_out_ > 0 ? concat(" (", left_out_, " without a target left out)") : "");
}

}  // namespace penstock
