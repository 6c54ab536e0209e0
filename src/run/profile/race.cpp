// SPDX-License-Identifier: Apache-2.0
#include "penstock/race.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "penstock/error.h"
#include "profile/profile.h"

namespace penstock {
namespace {

void drop_slow(const std::vector<Sample>& samples, std::vector<std::size_t>& running) {
  std::sort(running.begin(), running.end(), [&](std::size_t a, std::size_t b) { return samples[a].median < samples[b].median; });
  const std::size_t least = (running.size() + 1) / 2;
  while (running.size() > least && samples[running.back()].median > kBehind * samples[running.front()].median) running.pop_back();
  std::sort(running.begin(), running.end());
}

}  // namespace

std::vector<Sample> race(const std::vector<TimedStep>& programs, const RaceOptions& options) {
  if (options.rounds < 1 || options.steps < 1)
    throw Error(concat("a race of ", options.rounds, " rounds of ", options.steps, " steps"), {}, "both are above 0");
  const auto turn = [&](const TimedStep& step) {
    std::vector<double> seconds;
    for (std::int64_t i = 0; i < options.warm_up; ++i) step();
    for (std::int64_t i = 0; i < options.steps; ++i) seconds.push_back(step());
    return sample_of(std::move(seconds)).median;
  };

  std::vector<std::vector<double>> turns(programs.size());
  std::vector<Sample> samples(programs.size());
  std::vector<std::size_t> running(programs.size());
  std::iota(running.begin(), running.end(), std::size_t{0});
  for (int round = 0; round < options.rounds; ++round) {
    if (options.progress) options.progress(concat("round ", round + 1, " of ", options.rounds, ": ", running.size(), " tables"));
    if (options.restart) options.restart();
    for (const std::size_t i : running) {
      turns[i].push_back(turn(programs[i]));
      samples[i] = sample_of(turns[i]);
    }
    drop_slow(samples, running);
  }
  return samples;
}

bool is_ahead(const Sample& a, const Sample& b) {
  return a.count != b.count ? a.count > b.count : a.median < b.median;
}

}  // namespace penstock
