// SPDX-License-Identifier: Apache-2.0
// Captured work, as chains of steps that wait for each other's points: done again any number of times, and checked for work that
// touches the same bytes in no order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "standin/streams.h"

namespace penstock::standin {

// One piece of what a stream was given in a capture.
struct Step {
  enum class Kind : std::uint8_t { work, reach, wait } kind;
  Work work = {};         // work
  std::size_t point = 0;  // reach, wait: its number in the capture
  Touched touched = {};   // work
};
using Chain = std::vector<Step>;  // of one stream

// The root's chain comes first. Each gets a stream of its own at the first launch.
struct Graph {
  std::vector<Chain> chains;
  std::size_t points = 0;
  std::vector<int> streams = {};
};

struct Place {
  std::size_t chain = 0, step = 0;
};
// Two pieces of work of different chains that touch the same bytes, and not both only to read them.
struct Collision {
  Place first, second;
};
std::vector<Collision> collisions(const Graph& graph);

// Whether the root waits, in the end, for all work.
bool is_joined(const Graph& graph);
// The collisions of which no wait says which comes first, the wait at `left_out` not counted.
std::vector<Collision> races(const Graph& graph, const std::vector<Collision>& collisions, const std::optional<Place>& left_out = {});
// For people.
std::string name_of(const Graph& graph, const Place& work);

// A wait that alone keeps the order of collisions.
struct NeededWait {
  Place wait;
  std::vector<Collision> without;  // first: what it waits for. Never empty.
};
// Takes the graph's steps times its waits. The root's waits, for the end of all, are none of these.
std::vector<NeededWait> needed_waits(const Graph& graph);

// A wait that a launch does without, as badly as can be: the first work of the collision begins when the second is done.
struct LeftOut {
  Place wait;
  Collision collision;
};
// Gives the work to the stream, any number of times, one after the other.
void launch(Graph& graph, int stream, const std::optional<LeftOut>& left_out = {});
// Waits until no launch is under way.
void destroy(std::unique_ptr<Graph> graph);

}  // namespace penstock::standin
