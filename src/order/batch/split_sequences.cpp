// SPDX-License-Identifier: Apache-2.0
#include "batch/split_sequences.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The chunks of one sequence; the last may be shorter than the bounds say.
std::vector<Chunk> chunks_of(std::int64_t length, const std::vector<double>& bounds) {
  std::vector<Chunk> chunks;
  std::int64_t begin = 0;
  for (const double bound : bounds) {
    const auto end = std::llround(bound);
    if (end >= length) break;
    if (end > begin) chunks.push_back({.before = begin, .tokens = end - begin, .shorts = {}});
    begin = end;
  }
  chunks.push_back({.before = begin, .tokens = length - begin, .shorts = {}});
  return chunks;
}

// Puts short sequences into the open chunks, or into new ones.
struct Packing {
  const SequenceCosts& costs;
  double capacity = kInfinity, time_limit = 0;
  std::vector<Chunk> chunks;  // open ones

  void add(std::int64_t length) {
    const double more = costs.time(0, static_cast<double>(length));
    Chunk* best = nullptr;
    double least = kInfinity, least_limit = kInfinity;
    for (Chunk& chunk : chunks) {
      if (static_cast<double>(chunk.total() + length) > capacity) continue;
      const double time = chunk.time(costs) + more;
      least_limit = std::min(least_limit, time);
      const double per_token = chunk.time(costs) / static_cast<double>(chunk.total());
      if (time > time_limit || per_token >= least) continue;
      least = per_token;
      best = &chunk;
    }
    if (least_limit == kInfinity) {
      chunks.push_back({.before = 0, .tokens = 0, .shorts = {length}});
      time_limit = std::max(time_limit, more);
    } else if (best == nullptr) {
      time_limit = least_limit;
      add(length);
    } else {
      best->shorts.push_back(length);
    }
  }
};

}  // namespace

SequenceCosts sequence_costs(const StageCostsOf& costs, double length) {
  const auto works = [&](double tokens, double squares) {
    BatchLoad load;
    load.input = tokens;
    load.input_squares = squares;
    std::vector<double> out;
    for (const StageCosts& stage : costs(load)) out.push_back(stage.of(Kind::F) + stage.of(Kind::B));
    return out;
  };
  const std::vector<double> none = works(0, 0), tokens = works(length, 0), squares = works(0, length * length);
  SequenceCosts out;
  for (std::size_t s = 0; s < none.size(); ++s) {
    const SequenceCosts stage{(squares[s] - none[s]) / (length * length), (tokens[s] - none[s]) / length, none[s]};
    if (stage.time(0, length) > out.time(0, length)) out = stage;
  }
  if (out.time(0, length) == 0) out.a2 = 1;
  return out;
}

std::int64_t Chunk::total() const {
  return std::accumulate(shorts.begin(), shorts.end(), tokens);
}

double Chunk::time(const SequenceCosts& costs) const {
  double sum = costs.time(static_cast<double>(before), static_cast<double>(tokens));
  for (const std::int64_t length : shorts) sum += costs.time(0, static_cast<double>(length));
  return sum;
}

std::vector<double> cut_bounds(double length, int pieces, const SequenceCosts& costs) {
  std::vector<double> bounds;
  for (int j = 1; j < pieces; ++j) {
    const double time = costs.time(0, length) * j / pieces;
    // a1 x^2 + a2 x = time, in the form that is exact for a small a1.
    bounds.push_back(2 * time / (costs.a2 + std::sqrt(costs.a2 * costs.a2 + 4 * costs.a1 * time)));
  }
  return bounds;
}

SplitSequences split_sequences(std::vector<std::int64_t> lengths, int pieces, const SequenceCosts& costs, double capacity) {
  if (lengths.empty()) throw Error("there are no sequences to split");
  const auto longest = static_cast<double>(*std::max_element(lengths.begin(), lengths.end()));
  return split_at(cut_bounds(longest, pieces, costs), costs.time(0, longest) / pieces, std::move(lengths), costs, capacity);
}

SplitSequences split_at(std::vector<double> bounds, double time_limit, std::vector<std::int64_t> lengths, const SequenceCosts& costs,
                        double capacity) {
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  SplitSequences out{.bounds = std::move(bounds), .sequences = {}};
  const double first = out.bounds.empty() ? static_cast<double>(lengths[0]) : std::round(out.bounds[0]);
  Packing packing{costs, capacity, time_limit, {}};
  for (const std::int64_t length : lengths) {
    if (static_cast<double>(length) <= first) continue;
    std::vector<Chunk> chunks = chunks_of(length, out.bounds);
    packing.chunks.push_back(chunks.back());
    chunks.pop_back();
    out.sequences.push_back(std::move(chunks));
  }
  for (const std::int64_t length : lengths)
    if (static_cast<double>(length) <= first) packing.add(length);
  for (std::size_t i = 0; i < packing.chunks.size(); ++i) {
    if (i >= out.sequences.size()) out.sequences.emplace_back();
    out.sequences[i].push_back(std::move(packing.chunks[i]));
  }
  for (const std::vector<Chunk>& sequence : out.sequences)
    for (const Chunk& chunk : sequence)
      if (static_cast<double>(chunk.total()) > capacity)
        throw Error(concat("a chunk of ", chunk.total(), " tokens is above the capacity of ", number(capacity)), {},
                    "cut into more pieces, or give more memory");
  std::stable_sort(out.sequences.begin(), out.sequences.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return out;
}

}  // namespace penstock
