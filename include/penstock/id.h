// Strong ids: an index that cannot be mistaken for an index into something else.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace penstock {

template <class Tag>
struct Id {
  std::int32_t value = -1;  // -1: none

  constexpr Id() = default;
  constexpr explicit Id(std::int64_t v) : value(static_cast<std::int32_t>(v)) {}
  constexpr explicit operator bool() const { return value >= 0; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  constexpr auto operator<=>(const Id&) const = default;
};

using ValueId = Id<struct ValueTag>;  // index into Graph::values
using OpId = Id<struct OpTag>;        // index into Graph::ops
using TaskId = Id<struct TaskTag>;    // index into Program::tasks
using SlotId = Id<struct SlotTag>;    // index into DeviceProgram::slots

}  // namespace penstock

template <class Tag>
struct std::hash<penstock::Id<Tag>> {
  std::size_t operator()(penstock::Id<Tag> id) const noexcept { return std::hash<std::int32_t>{}(id.value); }
};
