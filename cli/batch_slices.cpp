// SPDX-License-Identifier: Apache-2.0
// penstock batch slices, exchange: TeraPipe's planner and SlimPipe's exchange of attention.
#include "batch/slice_sequences.h"
#include "cli/batch.h"
#include "schedule/exchange_blocks.h"

namespace penstock {
namespace {

using SliceTimes = std::vector<std::vector<double>>;  // [length - 1][context]; infinite where not measured

SliceTimes read_times(const JsonNode& matrix, int length) {
  matrix.check_list();
  if (matrix.value().size() != at(length))
    matrix.fail(concat("has ", matrix.value().size(), " rows for a length of ", length), "there is a row for slices of each length from 1");
  SliceTimes times;
  matrix.each_element([&](const JsonNode& row) {
    std::vector<double>& entries = times.emplace_back();
    row.each_element([&](const JsonNode& node) { entries.push_back(node.value().is_null() ? kInfinity : figure(node)); });
    const std::size_t most = at(length) - times.size();
    if (entries.size() != most + 1)
      row.fail(concat("has ", entries.size(), " entries; a slice of length ", times.size(), " has from 0 to ", most, " before it"));
  });
  return times;
}

SliceCost measured_slices(const JsonNode& instance, int length) {
  std::vector<SliceTimes> times;  // by the number of sequences
  const auto read = [&](const JsonNode& matrix) { times.push_back(read_times(matrix, length)); };
  if (is_given(instance, "sequences")) {
    instance.at("times").each_element(read);
  } else {
    read(instance.at("times"));
  }
  return [times](int sequences, int slice, int context) {
    return at(sequences) > times.size() ? kInfinity : times[at(sequences - 1)][at(slice - 1)][at(context)];
  };
}

SliceCost slice_costs_of(const JsonNode& instance, int length) {
  const SliceFormula formula{.fixed = figure_or(instance, "fixed", 0),
                             .per_token = figure_or(instance, "per_token", 0),
                             .per_pair = figure_or(instance, "per_pair", 0)};
  const bool given = formula.fixed + formula.per_token + formula.per_pair > 0;
  if (given && is_given(instance, "times")) instance.fail("has both \"times\" and a formula", "leave out one of them");
  if (is_given(instance, "times")) return measured_slices(instance, length);
  if (!given) instance.fail("has no costs", "give \"fixed\", \"per_token\" and \"per_pair\", or \"times\"");
  return formula;
}

SliceProblem slice_problem_of(const JsonNode& instance) {
  constexpr std::int64_t kMostLength = 16'384, kMost = 1'000'000'000;
  const auto length = static_cast<int>(required(instance, "length").whole(1, kMostLength));
  const int sequences = small_whole_or(instance, "sequences", 1);
  if (std::int64_t{sequences} * length * length > kMost)
    instance.fail(concat("has too much to try, ", sequences, " sequences of length ", length), "count the length in units of more tokens");
  return {.actors = small_whole(instance, "actors"), .sequences = sequences, .length = length};
}

BatchAnswer solve_slices(const JsonNode& instance) {
  const SliceProblem problem = slice_problem_of(instance);
  const SliceCost cost = slice_costs_of(instance, problem.length);
  const SlicePlan best = slice_sequences(problem, cost), equal = equal_slices(problem, cost);
  if (best.groups.empty()) instance.fail("has too few times: no slices with a time are a whole sequence", "measure more lengths");
  nlohmann::ordered_json sequences = nlohmann::ordered_json::array(), slices = sequences;
  for (const SliceGroup& group : best.groups) {
    sequences.push_back(group.sequences);
    slices.push_back(group.slices);
  }
  nlohmann::ordered_json uniform = equal.groups.empty() ? nullptr : exact(equal.time);
  return {{{"time", exact(best.time)},
           {"t_max", exact(best.longest)},
           {"sum", exact(best.sum)},
           {"sequences", sequences},
           {"slices", slices},
           {"uniform", uniform}}};
}

BatchAnswer solve_exchange(const JsonNode& instance) {
  constexpr int kMost = 65'536;
  const int actors = small_whole(instance, "actors"), slices = small_whole(instance, "slices");
  if (actors * slices > kMost) instance.fail(concat("has ", actors * slices, " slices of all actors; ", kMost, " are the most"));
  const BlockExchange exchange = exchange_blocks(actors, slices);
  nlohmann::ordered_json moves = nlohmann::ordered_json::array();
  for (std::size_t round = 0; round < exchange.rounds.size(); ++round) {
    for (const BlockMove& move : exchange.rounds[round].moves) {
      nlohmann::ordered_json blocks = nlohmann::ordered_json::array();
      for (int k = 0; k < move.count; ++k) blocks.push_back(move.first + k);
      moves.push_back({round, move.from, move.to, blocks});
    }
  }
  return {{{"moved", exchange.moved},
           {"blocks", exchange.blocks},
           {"before", exact(exchange.before)},
           {"after", exact(exchange.after)},
           {"moves", moves}}};
}

}  // namespace

std::vector<BatchKind> slice_kinds() {
  return {
      {"slices",
       "sequences into slices of least time, and a batch into groups of sequences (TeraPipe)",
       {"actors", "length", "sequences", "fixed", "per_token", "per_pair", "times"},
       solve_slices},
      {"exchange", "which blocks of attention move between actors at different slices (SlimPipe)", {"actors", "slices"}, solve_exchange}};
}

}  // namespace penstock
