// SPDX-License-Identifier: Apache-2.0
// Strong ids: an index that cannot be mistaken for an index into something else. What is computed with stays a plain integer: schedules
// reckon with stages and actors (stage = chunk * actors + actor), transports with ranks.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace penstock {

// A position in a list of one kind, which the tag names; ids compare as their numbers.
template <class Tag>
struct Id {
  std::int32_t value = -1;  // -1: none

  constexpr Id() = default;
  constexpr explicit Id(std::int64_t v) : value(static_cast<std::int32_t>(v)) {}
  constexpr explicit operator bool() const { return value >= 0; }                  // whether it is a position, and not none
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }  // the position, of an id that is not none
  constexpr auto operator<=>(const Id&) const = default;
};

// The ids 0 .. count-1, to loop over.
template <class Id>
struct Ids {
  // Gives the ids one after the other.
  struct Iterator {
    Id id;  // the one that it stands at
    // They do what a range-based `for` asks of an iterator.
    constexpr Id operator*() const { return id; }
    constexpr Iterator& operator++() { return ++id.value, *this; }
    constexpr bool operator==(const Iterator&) const = default;
  };
  std::int64_t count = 0;  // how many there are

  constexpr Iterator begin() const { return {Id(0)}; }    // id 0
  constexpr Iterator end() const { return {Id(count)}; }  // behind the last
};
// Returns the ids 0 .. count-1.
template <class Id>
constexpr Ids<Id> ids(std::int64_t count) {
  return {count};
}

// A vector in which ids are positions. Plain integers are taken too, but no ids of something else.
template <class Id, class T>
struct IdVector : std::vector<T> {
  IdVector() = default;
  IdVector(std::vector<T>&& items) : std::vector<T>(std::move(items)) {}
  using std::vector<T>::vector;
  using std::vector<T>::operator[];
  // The item at this position, which must be in the vector: nothing checks it.
  constexpr decltype(auto) operator[](Id id) { return (*this)[id.index()]; }
  constexpr decltype(auto) operator[](Id id) const { return (*this)[id.index()]; }
  constexpr Ids<Id> ids() const { return {std::ssize(*this)}; }  // all positions, in order
};

using ValueId = Id<struct ValueTag>;          // position in Graph::values
using OpId = Id<struct OpTag>;                // position in Graph::ops
using StageId = Id<struct StageTag>;          // position in StageDag::names
using StageTaskId = Id<struct StageTaskTag>;  // position in StageDag::tasks
using BundleId = Id<struct BundleTag>;        // position in StageDag::bundles
using InputId = Id<struct InputTag>;          // position in the inputs of the step
using ResultId = Id<struct ResultTag>;        // position in the results of the loop
using ActorId = Id<struct ActorTag>;          // row of the table; from the pass `devices` on a device of the program
using BlockId = Id<struct BlockTag>;          // position in Draft::blocks
using InstanceId = Id<struct InstanceTag>;    // position in Draft::instances
using TransferId = Id<struct TransferTag>;    // position in Draft::transfers
using TaskId = Id<struct TaskTag>;            // position in Program::tasks
using SlotId = Id<struct SlotTag>;            // position in DeviceProgram::slots

}  // namespace penstock

template <class Tag>
struct std::hash<penstock::Id<Tag>> {
  std::size_t operator()(penstock::Id<Tag> id) const noexcept { return std::hash<std::int32_t>{}(id.value); }
};
