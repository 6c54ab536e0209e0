// SPDX-License-Identifier: Apache-2.0
// Equal symbols of what collectives give mean equal bytes: random slots, beside the bytes themselves.
#include "program/collective_symbols.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using checks::mix;
using checks::Origin;
using checks::SlotSymbols;
using checks::Symbol;
using test::draw;
using test::Random;

using Bytes = std::vector<std::uint64_t>;  // a word stands for each byte

constexpr Opcode kOpcodes[] = {Opcode::all_reduce, Opcode::all_gather, Opcode::reduce_scatter, Opcode::broadcast, Opcode::all_to_all};

// The slot has exactly `bytes`, a multiple of kAlignment.
Slot random_slot(Random& random, std::int64_t bytes) {
  Slot slot;
  for (std::int64_t left = bytes; left > 0 && draw(random, 0, 4) > 0;) {
    const std::int64_t most = draw(random, 0, 2) == 0 ? left : std::min<std::int64_t>(left, 2 * kAlignment);
    const std::int64_t elements = draw(random, 0, static_cast<int>(most / 4));
    const Shape shape = draw(random, 0, 2) == 0 ? Shape{1, elements} : Shape{elements};
    slot.parts.push_back({draw(random, 0, 2) == 0 ? DType::i32 : DType::f32, shape});
    left = bytes - part_offset(slot, slot.parts.size());
  }
  slot.room = bytes;
  return slot;
}

// The bytes in a slot: in a part those that its symbol says, between parts some that nobody else has.
Bytes bytes_of(const SlotSymbols& of, std::uint64_t& unique) {
  Bytes out(static_cast<std::size_t>(slot_bytes(*of.slot)));
  for (std::uint64_t& byte : out) byte = ++unique;
  for (std::size_t p = 0; p < of.parts.size(); ++p)
    for (std::int64_t b = 0; b < of.slot->parts[p].bytes(); ++b)
      out[static_cast<std::size_t>(part_offset(*of.slot, p) + b)] = mix(Origin::input, of.parts[p], b);
  return out;
}

Bytes slice(const Bytes& of, std::size_t begin, std::size_t size) {
  return {of.begin() + static_cast<std::ptrdiff_t>(begin), of.begin() + static_cast<std::ptrdiff_t>(begin + size)};
}

// The bytes that the member gets. A sum is told by its terms, its place and the size.
Bytes result_of(Opcode opcode, std::size_t root, std::size_t member, const std::vector<Bytes>& given) {
  const std::size_t size = given[root].size(), piece = size / given.size();
  Bytes out;
  if (opcode == Opcode::broadcast) return given[root];
  if (opcode == Opcode::all_gather || opcode == Opcode::all_to_all) {
    for (const Bytes& of : given) {
      const Bytes moved = opcode == Opcode::all_gather ? of : slice(of, member * piece, piece);
      out.insert(out.end(), moved.begin(), moved.end());
    }
    return out;
  }
  for (std::size_t at = 0; at < size; ++at) {
    Hash sum;
    sum.add(mix(Origin::sum, opcode, at, size));
    for (const Bytes& of : given) sum.add(of[at]);
    out.push_back(sum.value());
  }
  return opcode == Opcode::reduce_scatter ? slice(out, member * piece, piece) : out;
}

// Collectives of the members' slots with symbols of few values, so that many parts are equal; `seen` has each symbol's type and bytes.
struct Compared {
  Opcode opcode;
  std::vector<Slot> from, to;
  std::map<Symbol, std::pair<TensorType, Bytes>> seen{};
  std::size_t again = 0;  // parts that had a symbol seen before

  void share(Random& random, std::uint64_t number, std::uint64_t& unique) {
    const std::size_t members = from.size(), root = static_cast<std::size_t>(draw(random, 0, static_cast<int>(members) - 1));
    std::vector<SlotSymbols> given, taken;
    std::vector<Bytes> bytes;
    for (std::size_t m = 0; m < members; ++m) {
      given.push_back({&from[m]});
      for (std::size_t p = 0; p < from[m].parts.size(); ++p)
        given[m].parts.push_back(
            mix(Origin::state, from[m].parts[p].dtype, from[m].parts[p].elements(), from[m].parts[p].shape.size(), draw(random, 0, 1)));
      taken.push_back({&to[m]});
      bytes.push_back(bytes_of(given[m], unique));
    }
    share_symbols(opcode, number, opcode == Opcode::broadcast ? root : 0, given, taken);
    for (std::size_t m = 0; m < members; ++m) {
      const Bytes result = result_of(opcode, opcode == Opcode::broadcast ? root : 0, m, bytes);
      for (std::size_t p = 0; p < to[m].parts.size(); ++p) {
        const TensorType& type = to[m].parts[p];
        Bytes part = slice(result, static_cast<std::size_t>(part_offset(to[m], p)), static_cast<std::size_t>(type.bytes()));
        const auto [it, added] = seen.try_emplace(taken[m].parts[p], type, part);
        again += !added;
        EXPECT_TRUE(it->second == std::pair(type, std::move(part))) << name(opcode) << ", member " << m << ", part " << p;
      }
    }
  }
};

TEST(CollectiveSymbols, OfEqualValueAreOfEqualBytes) {
  std::map<Opcode, std::size_t> again;
  std::uint64_t unique = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(1000u) && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const Opcode opcode = kOpcodes[seed % std::size(kOpcodes)];
    const std::int64_t members = draw(random, 2, 4), piece = kAlignment * draw(random, 1, 3), all = members * piece;
    const bool in_pieces = opcode == Opcode::reduce_scatter || opcode == Opcode::all_to_all;
    Compared compared{opcode, {}, {}};
    for (std::int64_t m = 0; m < members; ++m) {
      const bool alike = m > 0 && draw(random, 0, 9) > 0;
      compared.from.push_back(alike ? compared.from[0] : random_slot(random, in_pieces ? all : piece));
      const Slot to = random_slot(random, opcode == Opcode::all_gather || opcode == Opcode::all_to_all ? all : piece);
      compared.to.push_back(opcode == Opcode::all_reduce ? compared.from.back() : alike ? compared.to[0] : to);
    }
    for (std::uint64_t number = 0; number < 10; ++number) compared.share(random, number, unique);
    again[opcode] += compared.again;
  }
  for (const Opcode opcode : kOpcodes) EXPECT_GE(again[opcode], test::rounds(500u)) << name(opcode);
}

}  // namespace
}  // namespace penstock
