// SPDX-License-Identifier: Apache-2.0
#include "data/sequence_dataset.h"

#include <algorithm>

#include "base/invariant.h"
#include "base/text.h"
#include "base/words.h"
#include "data/row_ports.h"
#include "penstock/error.h"
#include "penstock/trace.h"

namespace penstock {

SequenceDataset::SequenceDataset(Sequences sequences, const std::string& named, std::int64_t context, const SampleDraw& draw, bool pairs)
    : sequences_(std::move(sequences)), context_(context), pairs_(pairs) {
  for (std::int64_t i = 0; i < sequences_.size(); ++i) {
    const Sample sample = pairs_ ? pair_of(i) : text_of(i);
    left_out_ += sample.length + sample.input < 1;
    if (sample.length + sample.input < 1) continue;
    cut_ += sample.length + sample.input < sequences_.lengths(i).tokens() - (pairs_ ? 0 : 1);
    samples_.push_back(sample);
  }
  order_ = SampleOrder(std::ssize(samples_), draw);
  order_.check("sequences", named, "documents");
}

SequenceDataset::Sample SequenceDataset::text_of(std::int64_t sequence) const {
  const SequenceLengths lengths = sequences_.lengths(sequence);
  const std::int64_t length = std::min(lengths.tokens() - 1, context_), not_counted = std::max<std::int64_t>(lengths.input - 1, 0);
  return {sequence, length, std::max<std::int64_t>(length - not_counted, 0)};
}

SequenceDataset::Sample SequenceDataset::pair_of(std::int64_t sequence) const {
  const SequenceLengths lengths = sequences_.lengths(sequence);
  const std::int64_t target = std::min(lengths.target, context_);
  return {sequence, target, target, std::min(lengths.input, context_)};
}

const SequenceDataset::Sample& SequenceDataset::sequence(std::int64_t sample) const {
  if (sample < 0 || sample >= std::ssize(samples_)) throw Error(concat("sequence ", sample, " was asked for, there are ", samples_.size()));
  return samples_[sample];
}

void SequenceDataset::fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows,
                           std::span<std::byte> out) const {
  invariant(port.type.dtype == DType::i64 && out.size() % sizeof(std::int64_t) == 0, "data ports are i64");
  const std::span<std::int64_t> values(reinterpret_cast<std::int64_t*>(out.data()), out.size() / sizeof(std::int64_t));
  if (data_name(port) == "seed") {
    std::ranges::fill(values, input.seed);
  } else if (data_name(port) == "count") {
    values[0] = 0;
    for (std::int64_t sample : input.samples) values[0] += sequence(sample).counted;
  } else {
    const std::int64_t width = std::ssize(values) / rows;
    for (std::int64_t row = 0; row < rows; ++row)
      fill_row(port, samples_in_row(input, first_row + row), !input.begins.empty(), values.subspan(row * width, width));
  }
}

void SequenceDataset::fill_row(const Port& port, std::span<const std::int64_t> samples, bool several, std::span<std::int64_t> out) const {
  const std::string_view name = data_name(port);
  if (name == "rows" && !several) {
    out[0] = samples[0];
    return;
  }
  std::vector<RowPlace> places;
  RowPlace next;
  for (const std::int64_t sample : samples) {
    next.length = sequence(sample).length;
    next.input_length = sequence(sample).input;
    places.push_back(next);
    next.begin += next.length;
    next.input_begin += next.input_length;
  }
  if (fill_row_port(name, places, out)) return;
  if (name != "rows" && name != "tokens" && name != "targets" && name != "inputs")
    throw Error(concat("sequences have no data for port ", quote(port.name)),
                {"they give tokens, targets, inputs, where these stand, rows, seed and count"});
  std::ranges::fill(out, name == "targets" ? kIgnored : 0);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::int64_t begin = name == "inputs" ? places[i].input_begin : places[i].begin;
    const std::int64_t length = name == "inputs" ? places[i].input_length : places[i].length;
    if (begin + length > std::ssize(out))
      throw Error(concat("sequence ", samples[i], " has ", length, " tokens, its micro-batch ", std::ssize(out) - begin));
    copy_sequence(name, samples[i], out.subspan(begin, length));
  }
}

void SequenceDataset::copy_sequence(std::string_view port, std::int64_t sample, std::span<std::int64_t> out) const {
  if (port == "rows") {
    std::ranges::fill(out, sample);
    return;
  }
  const Sample& of = sequence(sample);
  if (port == "inputs") return sequences_.copy(of.sequence, 0, out);
  if (pairs_) {
    // A target's first token is predicted from 0.
    const std::int64_t begin = sequences_.lengths(of.sequence).input;
    if (port == "targets") return sequences_.copy(of.sequence, begin, out);
    if (out.size() > 1) sequences_.copy(of.sequence, begin, out.subspan(1));
    return;
  }
  const std::int64_t skipped = port == "targets" ? of.length - of.counted : 0;
  sequences_.copy(of.sequence, skipped + (port == "targets"), out.subspan(skipped));
}

std::string SequenceDataset::summary() const {
  const auto tokens = [](const Sample& sample) { return sample.input + sample.length; };
  const auto [least, most] = std::ranges::minmax(samples_, {}, tokens);
  return concat(counted(std::ssize(samples_), "sequence"), " of ", tokens(least), " to ", tokens(most), " tokens",
                cut_ > 0 ? concat(" (", cut_, " cut)") : "", left_out_ > 0 ? concat(" (", left_out_, " without a target left out)") : "");
}

}  // namespace penstock
