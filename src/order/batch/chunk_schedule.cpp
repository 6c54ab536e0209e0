// SPDX-License-Identifier: Apache-2.0
#include "batch/chunk_schedule.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"

namespace penstock {

Schedule chunk_schedule(int actors, const std::vector<int>& chunks, int warm_up) {
  const int count = std::accumulate(chunks.begin(), chunks.end(), 0);
  if (warm_up == 0) warm_up = *std::max_element(chunks.begin(), chunks.end());
  std::vector<std::int32_t> backwards;
  for (int end = 0; const int of_sequence : chunks) {
    end += of_sequence;
    for (int chunk = end; chunk-- > end - of_sequence;) backwards.push_back(chunk);
  }
  Schedule schedule{.name = "chunks", .actors = std::vector<std::vector<Action>>(at(actors)), .cells = {}};
  for (std::int32_t stage = 0; stage < actors; ++stage) {
    std::vector<Action>& row = schedule.actors[at(stage)];
    std::int32_t forwards = 0;
    const auto forwards_until = [&](int most) {
      for (; forwards < std::min(most, count); ++forwards) row.push_back({stage, Kind::F, forwards});
    };
    forwards_until(actors - 1 - stage + warm_up);
    for (const std::int32_t chunk : backwards) {
      forwards_until(chunk + 1);
      row.push_back({stage, Kind::B, chunk});
      forwards_until(forwards + 1);
    }
  }
  return schedule;
}

Schedule sequence_schedule(int actors, const std::vector<int>& chunks) {
  std::vector<std::size_t> all(chunks.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return sequence_schedule(actors, chunks, {all});
}

Schedule sequence_schedule(int actors, const std::vector<int>& chunks, const std::vector<std::vector<std::size_t>>& groups) {
  Schedule schedule{.name = "infinipipe",
                    .actors = std::vector<std::vector<Action>>(at(actors)),
                    .cells = {},
                    .slices = *std::max_element(chunks.begin(), chunks.end())};
  struct Place {
    std::size_t sequence;
    std::int32_t chunk;
  };
  for (const std::vector<std::size_t>& group : groups) {
    std::vector<int> of_group;
    std::vector<Place> places;
    for (const std::size_t s : group) {
      of_group.push_back(chunks[s]);
      for (std::int32_t c = 0; c < chunks[s]; ++c) places.push_back({s, c});
    }
    const Schedule table = chunk_schedule(actors, of_group);
    for (std::size_t actor = 0; actor < table.actors.size(); ++actor)
      for (Action action : table.actors[actor]) {
        const Place& place = places[at(action.microbatch)];
        action.stage = number_of({action.stage, place.chunk}, schedule.slices);
        action.microbatch = static_cast<std::int32_t>(place.sequence);
        schedule.actors[actor].push_back(action);
      }
  }
  return schedule;
}

}  // namespace penstock
