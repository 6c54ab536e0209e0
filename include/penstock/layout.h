// SPDX-License-Identifier: Apache-2.0
// Layouts: how the members of one axis of a mesh of devices hold a tensor, and what an op makes of tensors that they hold so. A mesh of
// several axes is worked on one axis after the other: to each, what the members of those before hold is a tensor like any other.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "penstock/types.h"

namespace penstock {

struct Op;

// The name that a model gives a dim of a tensor, so that a configuration can say which axis it is split over. The dim is `outer` equal
// blocks of `units` equal units each (0: as many as a block has elements), and only whole units are given to members. The last dim of
// packed q, k and v is {"heads", 3, heads}.
struct DimName {
  std::string name;                   // "": the dim has none and is not split
  std::int64_t outer = 1, units = 0;  // numbers of blocks, and of units in each; 0: of one element
  bool operator==(const DimName&) const = default;
};

// An axis of the mesh inside an actor, with the names of the dims that are split over it.
struct LayoutAxis {
  std::string name;                                              // "tensor"
  int size = 1;                                                  // members
  std::set<std::string> dims;                                    // names of the dims that are split over it
  std::map<std::string, std::set<std::string>> stage_dims = {};  // instead of these, in stages that have names of their own
  bool in_groups =
      false;  // some members may do micro-batches by themselves: what the loop sums is terms on each, and it reads parameters whole
  bool operator==(const LayoutAxis&) const = default;
};

// `split`: dim `dim` is `outer` blocks of equal size, each of `units` units of equal size, of which the members take ranges, in order; the
// first (units mod members) members have one unit more than the others. A member's part is what it has of each block, one after the other,
// as a tensor of as many dims. So the last dim of packed q, k and v is 3 blocks of `heads` units: each member has its heads of all three.
//
//   8 columns, outer 1, units 2 (of 4), 2 members:   member 0: 0 1 2 3    member 1: 4 5 6 7
//   8 columns, outer 2, units 2 (of 2), 2 members:   member 0: 0 1 4 5    member 1: 2 3 6 7
//   the same, mirrored:                              member 0: 0 1 6 7    member 1: 2 3 4 5
//
// `flat`: the tensor lies in a block, tensors one behind the other of which the members take equal ranges of elements, in order, wherever
// that cuts them. `outer` elements of the block lie ahead of the tensor, and each member has `units` of the block's. What a member has of
// the tensor, maybe nothing, is a tensor of one dim. A collective moves a block as it lies, and no tensor of it is packed.
//
//   a block of 4 + 8 elements, 2 members; of the second tensor (outer 4, units 6):   member 0: 0 1    member 1: 2 3 4 5 6 7
struct Layout {
  // The ways in which members hold a tensor.
  enum class Kind : std::uint8_t {
    whole,  // every member has all of it, equal to the bit
    split,  // every member has a part
    term,   // the tensor is the sum of what the members have
    flat,   // every member has a range of the elements as they lie in memory
  };
  Kind kind = Kind::whole;            // decides which other fields count
  std::int32_t dim = -1;              // split
  std::int64_t outer = 1, units = 0;  // split, flat
  // In every second block the members take their ranges in reverse order, so that member m's places are as far from the end as from the
  // begin: what each has to do for a place behind others is the same. There are as many units as members, and `outer` is even.
  bool mirrored = false;
  // Split: where the members' ranges of a block end, in units; none: they are equal, but for one unit. It belongs to whoever asks for the
  // split.
  const std::vector<std::int64_t>* ends = nullptr;

  // Whether the tensor is held in this way.
  bool is_whole() const { return kind == Kind::whole; }
  bool is_split() const { return kind == Kind::split; }
  bool is_term() const { return kind == Kind::term; }
  bool is_flat() const { return kind == Kind::flat; }
  auto operator<=>(const Layout&) const = default;
};

inline constexpr Layout kWhole{};                           // every member has all
inline constexpr Layout kTerm{.kind = Layout::Kind::term};  // the tensor is the members' sum
inline constexpr Layout kFlat{.kind = Layout::Kind::flat};  // wherever in its block
// The split of dim `dim` among `members`; layouts that give every member the same are equal. `outer` divides the dim's size, and `units`
// what is left of it.
Layout split_layout(std::int64_t dim, std::int64_t outer, std::int64_t units, std::int64_t members);
Layout mirrored_layout(std::int64_t dim, std::int64_t members);

// The way in which attention is computed over a sequence that an axis splits.
enum class SplitAttention : std::uint8_t {
  automatic,  // by heads where every member has one, else in parts
  heads,      // each member has some heads, over all of the sequence (Ulysses, 2309.14509)
  parts,      // each member has some queries, and reads keys and values part by part
};

// A member's range of each block of the split dim, or, where the tensor lies flat, of its elements; `size` is how many there are. Where the
// split is mirrored, of every second one from the first on, and of the others that of the member as far from the end.
struct LayoutRange {
  std::int64_t begin = 0, end = 0;                   // in elements; without `end`
  std::int64_t size() const { return end - begin; }  // elements
};
LayoutRange range_of(const Layout& layout, std::int64_t size, std::int64_t members, std::int64_t member);
// The type of what a member has.
TensorType local_type(TensorType type, const Layout& layout, std::int64_t members, std::int64_t member);
// Where a tensor that is split along one dim is viewed as [blocks, size, inner], a member has range_of its `size`.
struct LayoutView {
  std::int64_t blocks = 1, size = 1, inner = 1;  // in elements; their product is the tensor's
};
LayoutView view_of(const Layout& split, const Shape& shape);
// The split of `to`, the same elements in the same order, in which every member has what it has of `from`; none: there is no such.
std::optional<Layout> reshaped(const Layout& split, const Shape& from, const Shape& to, std::int64_t members);
std::string text_of(const Layout& layout);  // "whole", "term", "flat", "split 1", "split 2 of 3" (blocks), "split 1 of 2, mirrored"

// Layouts of an op's operands and results along one axis with which each member computes the op on what it has, without communication.
struct LayoutRow {
  std::vector<Layout> operands, results;  // one for each of the op's
  bool operator==(const LayoutRow&) const = default;
};

// An op as its layouts are decided: on whole tensors.
struct LayoutSite {
  const Op& op;                                   // of the graph before it is split
  std::span<const TensorType> operands, results;  // types of whole tensors
  std::int64_t members = 1;                       // of the axis
};
// The row in which operand `operand` is split as given; none: the op needs it whole. No rule is asked of flat operands (ops/layouts.h).
using LayoutRule = std::optional<LayoutRow> (*)(const LayoutSite& site, std::size_t operand, const Layout& split);
// One member's part of an op in a row.
struct LocalSite {
  const LayoutSite& whole;                        // the op on whole tensors
  const LayoutRow& row;                           // the layouts that were chosen for it
  std::int64_t member = 0;                        // its number on the axis, from 0
  std::span<const TensorType> operands, results;  // what the member has

  // Returns what this member has of `size` places.
  LayoutRange range(const Layout& split, std::int64_t size) const { return range_of(split, size, whole.members, member); }
};
// Changes what a member's op, `local`, must say otherwise than the whole one's: attributes with sizes, places of the part.
using LocalRule = void (*)(const LocalSite& site, Op& local);

}  // namespace penstock
