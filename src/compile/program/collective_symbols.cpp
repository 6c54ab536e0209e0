// SPDX-License-Identifier: Apache-2.0
#include "program/collective_symbols.h"

#include <algorithm>

namespace penstock::checks {
namespace {

// A part of a slot by its bytes.
struct Extent {
  std::int64_t begin = 0, end = 0;
  const TensorType* type = nullptr;
  Symbol symbol = 0;
};
using Extents = std::vector<Extent>;  // ascending

Extents extents(const SlotSymbols& of) {
  Extents out;
  for (std::int64_t begin = 0; const TensorType& part : of.slot->parts) {
    out.push_back({begin, begin + part.bytes(), &part, of.parts[out.size()]});
    begin = (out.back().end + kAlignment - 1) / kAlignment * kAlignment;
  }
  return out;
}

// The sum of what all members give, as if it were a slot like the first member's. Where their parts do not lie alike, terms are summed with
// what lies between others' parts, and this collective alone knows what comes of it.
Extents sum_of(Opcode opcode, std::uint64_t number, std::span<const SlotSymbols> given) {
  Extents sum = extents(given[0]);
  const bool alike = std::ranges::all_of(given, [&](const SlotSymbols& g) { return g.slot->parts == given[0].slot->parts; });
  const std::int64_t bytes = slot_bytes(*given[0].slot);
  for (std::size_t p = 0; p < sum.size(); ++p) {
    Hash hash;
    hash.add(mix(Origin::collective, opcode, alike ? 0 : number + 1, bytes, sum[p].begin));
    for (std::size_t m = 0; alike && m < given.size(); ++m) hash.add(given[m].parts[p]);
    sum[p].symbol = hash.value();
  }
  return sum;
}

// The bytes that a slot is filled with: bytes `skip` to `skip + length` of each source, one after the other.
struct Filling {
  std::span<const Extents> sources;
  std::int64_t skip = 0, length = 0;
};

// Returns the symbol of one part of the slot: the source's where it is a whole part of a source, else all its bytes by where they come
// from. Bytes between parts are known by the collective alone.
Symbol filled(const Filling& from, std::uint64_t number, const Extent& part) {
  Hash hash;
  hash.add(mix(Origin::moved, part.type->dtype));
  for (const std::int64_t size : part.type->shape) hash.add(static_cast<std::uint64_t>(size));
  for (std::int64_t at = part.begin, end = at; at < part.end; at = end) {
    const std::int64_t source = at / from.length, place = from.skip + at % from.length;
    const Extents& parts = from.sources[static_cast<std::size_t>(source)];
    const auto found = std::ranges::upper_bound(parts, place, {}, &Extent::end);
    const bool inside = found != parts.end() && found->begin <= place;
    end = std::min(part.end, at - at % from.length + from.length);
    if (found != parts.end()) end = std::min(end, at + (inside ? found->end : found->begin) - place);
    if (inside && end - at == part.end - part.begin && end - at == found->end - found->begin && *found->type == *part.type)
      return found->symbol;
    const Symbol origin = inside ? found->symbol : mix(Origin::collective, number, source, place);
    hash.add(mix(Origin::moved, origin, inside ? place - found->begin : 0, end - at));
  }
  return hash.value();
}

void fill(const Filling& from, std::uint64_t number, SlotSymbols& slot) {
  slot.parts.assign(slot.slot->parts.size(), 0);
  const Extents parts = extents(slot);
  for (std::size_t p = 0; p < parts.size(); ++p) slot.parts[p] = filled(from, number, parts[p]);
}

}  // namespace

void share_symbols(Opcode opcode, std::uint64_t number, std::size_t root, std::span<const SlotSymbols> given,
                   std::span<SlotSymbols> taken) {
  std::vector<Extents> sources;
  if (reduces(opcode)) {
    sources.push_back(sum_of(opcode, number, given));
  } else if (opcode == Opcode::broadcast) {
    sources.push_back(extents(given[root]));
  } else {
    for (const SlotSymbols& member : given) sources.push_back(extents(member));
  }
  const bool in_pieces = opcode == Opcode::reduce_scatter || opcode == Opcode::all_to_all;
  const auto members = static_cast<std::int64_t>(taken.size());
  const std::int64_t bytes = slot_bytes(*given[root].slot), length = in_pieces ? bytes / members : bytes;
  const SlotSymbols* before = nullptr;
  for (std::int64_t m = 0; m < members; ++m) {
    SlotSymbols& own = taken[static_cast<std::size_t>(m)];
    if (own.slot == nullptr) continue;
    if (before != nullptr && !in_pieces && before->slot->parts == own.slot->parts)
      own.parts = before->parts;  // what is filled alike is worked out once
    else
      fill({sources, in_pieces ? m * length : 0, length}, number, own);
    before = &own;
  }
}

}  // namespace penstock::checks
