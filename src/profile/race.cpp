#include "profile/race.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
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

std::vector<Sample> race(Cluster& cluster, const std::vector<Program>& programs, const StateSource& state, const RaceOptions& options) {
  std::vector<std::uint64_t> keys;
  for (const Program& program : programs) keys.push_back(cluster.load(program));
  std::int64_t step = 0;
  const auto turn = [&](std::uint64_t key) {
    std::vector<double> seconds;
    for (std::int64_t i = 0; i < options.warm_up; ++i) cluster.step(key, options.input(++step));
    for (std::int64_t i = 0; i < options.steps; ++i) seconds.push_back(cluster.step(key, options.input(++step)).seconds);
    return sample_of(std::move(seconds)).median;
  };

  std::vector<std::vector<double>> turns(programs.size());
  std::vector<Sample> samples(programs.size());
  std::vector<std::size_t> running(programs.size());
  std::iota(running.begin(), running.end(), std::size_t{0});
  for (int round = 0; round < options.rounds; ++round) {
    if (options.progress) options.progress(concat("round ", round + 1, " of ", options.rounds, ": ", running.size(), " tables"));
    cluster.set_state(state);  // starts again, as many steps on few batches lead nowhere
    for (const std::size_t i : running) {
      turns[i].push_back(turn(keys[i]));
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
