// SPDX-License-Identifier: Apache-2.0
#include "program/piece.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/text.h"
#include "support/errors.h"
#include "support/random_pieces.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::KnownPiece;
using test::message_of;

TEST(Piece, NamesReadBack) {
  EXPECT_EQ(piece_name("first:h.0.w", 0, 768), "first:h.0.w[0:768]");
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {5, 17}, {largest - 1, largest}}) {
    const Piece piece = parse_piece(piece_name("first:w", begin, end));
    EXPECT_EQ(piece, (Piece{"first:w", {{begin, end}}}));
    EXPECT_FALSE(piece.whole());
    EXPECT_FALSE(piece.is_strided());
  }
}

TEST(Piece, NamesOfPiecesOfPiecesReadBack) {
  const std::map<std::string, Piece> names = {{"w[0:64/128]", {"w", {{0, 64, 128}}}},
                                              {"w[0:64/128][0:1000]", {"w", {{0, 64, 128}, {0, 1000}}}},
                                              {"w[0:9][0:3]", {"w", {{0, 9}, {0, 3}}}},
                                              {"w[3][0:8][2:4/4]", {"w[3]", {{0, 8}, {2, 4, 4}}}},
                                              {"w[0:1/2][1:2/2][0:1]", {"w", {{0, 1, 2}, {1, 2, 2}, {0, 1}}}}};
  for (const auto& [name, piece] : names) {
    EXPECT_EQ(parse_piece(name), piece) << name;
    EXPECT_EQ(piece_name(piece), name);
  }
  EXPECT_TRUE(parse_piece("w[0:64/128][0:1000]").is_strided());
}

TEST(Piece, OtherNamesAreOfWholeTensors) {
  for (const char* name : {"w", "", "first:w", "w[3]", "w[]", "w[0:3].weight", "a:w[3]", "w]", ":]", "w[0/3]"}) {
    const Piece piece = parse_piece(name);
    EXPECT_EQ(piece.tensor, name);
    EXPECT_TRUE(piece.whole());
  }
}

TEST(Piece, DamagedNames) {
  const auto expect = [](const char* name, const char* hint) {
    EXPECT_EQ(message_of([&] { parse_piece(name); }), concat("state ", quote(name), " names no piece of a tensor\n  hint: ", hint));
  };
  for (const char* name : {"w[3:3]",
                           "w[5:3]",
                           "w[:]",
                           "w[1:]",
                           "w[:1]",
                           "w[-1:3]",
                           "w[0:03]",
                           "w[00:3]",
                           "w[ 0:3]",
                           "w[0:3 ]",
                           "w[0:+3]",
                           "w[a:b]",
                           "w[0:1:2]",
                           "w[0:9223372036854775808]",
                           "w[9223372036854775808:9]",
                           "[0:3]",
                           "w[3:3][0:3]",
                           "w[0:3][:]",
                           "[0:3][0:1]",
                           "[0:3/4]"})
    expect(name, "a piece is tensor[begin:end], with 0 <= begin < end");
  for (const char* name : {"w[0:5/4]", "w[2:2/4]", "w[0:4/0]", "w[0:4/]", "w[0:4/-4]", "w[0:4/04]", "w[0:4/4/4]", "w[:/]", "w[0:2/4:4]",
                           "w[0/2:4]", "w[0:2/9223372036854775808]", "w[-1:2/4]", "w[0:5/4][0:1]"})
    expect(name, "a piece is tensor[begin:end/stride], with 0 <= begin < end <= stride");
  expect("w[2:8][0:7]", "[0:7] is cut from 6 elements");
  expect("w[2:8][0:2/4]", "[0:2/4] is cut from 6 elements");
  expect("w[2:3][0:2]", "[0:2] is cut from 1 element");
  expect("w[0:8][0:2/4][1:5]", "[1:5] is cut from 4 elements");
}

std::string covered(const std::vector<Piece>& pieces, std::int64_t begin, std::int64_t end) {
  const std::vector<PieceCopy> copies = cover(pieces, {"w", {{begin, end}}}, end);
  return join(copies, " ", [&](const PieceCopy& copy) {
    const std::int64_t from = pieces[copy.piece].cuts.front().begin + copy.from;
    EXPECT_EQ(begin + copy.to, from);
    return concat(copy.piece, ":", from, "-", from + copy.count);
  });
}

TEST(Piece, Covers) {
  const std::vector<Piece> pieces = {{"w", {{6, 9}}}, {"w", {{0, 4}}}, {"w", {{3, 6}}}, {"w", {{1, 2}}}};
  EXPECT_EQ(covered(pieces, 0, 9), "1:0-4 2:4-6 0:6-9");
  EXPECT_EQ(covered(pieces, 5, 7), "2:5-6 0:6-7");
  EXPECT_EQ(covered(pieces, 7, 12), "0:7-9");
  EXPECT_EQ(covered(pieces, 9, 12), "");
  EXPECT_EQ(covered({{"w", {{0, 4}}}, {"w", {{5, 6}}}}, 2, 6), "0:2-4");
  EXPECT_EQ(gap_in(pieces, 9), "");
  EXPECT_EQ(gap_in(pieces, 10), "[9:10]");
  EXPECT_EQ(gap_in({}, 0), "");
  EXPECT_EQ(gap_in({{"w", {{0, 4}}}, {"w", {{8, 9}}}, {"w", {{5, 6}}}}, 9), "[4:5]");
  EXPECT_EQ(gap_in({{"w", {{3, 9}}}}, 9), "[0:3]");
  EXPECT_EQ(gap_in({{"w", {{0, 2, 6}}}, {"w", {{4, 6, 6}}}}, 18), "[2:4]");
}

// Where each row is cut alike, the rows are not looked at one by one.
TEST(Piece, OfItselfIsOneCopy) {
  const std::vector<Piece> pieces = {{"w", {{64, 128, 128}}}, {"w", {{0, 64, 128}}}};
  EXPECT_EQ(cover(pieces, pieces[0], 4096 * 128).size(), 1u);
  EXPECT_EQ(cover(pieces, {"w"}, 4096 * 128).size(), 2u * 4096);
  const std::int64_t rows = std::int64_t{1} << 50;
  EXPECT_EQ(gap_in(pieces, 128 * rows), "");
  EXPECT_FALSE(find_misfit(pieces, 128 * rows));
  std::vector<Piece> ranges = {pieces[0], pieces[1], pieces[1]};
  ranges[1].cuts.push_back({0, rows});
  ranges[2].cuts.push_back({rows, 64 * rows});
  EXPECT_FALSE(find_misfit(ranges, 128 * rows));
}

// Their cuts are not alike, so that the elements are looked at one after the other.
TEST(Piece, OfOtherCutsTileToo) {
  const std::vector<std::vector<std::string>> tilings = {{"w[0:2/4]", "w[6:8/8]", "w[2:4/8]"},
                                                         {"w[0:2/4]", "w[2:4]", "w[6:16][0:2/10]", "w[8:24][2:4/4]"},
                                                         {"w[2:4/4][2:12]", "w[2:4][0:2]", "w[0:2/4]"}};
  for (const std::vector<std::string>& names : tilings) {
    SCOPED_TRACE(join(names, " "));
    std::vector<Piece> pieces;
    for (const std::string& name : names) pieces.push_back(parse_piece(name));
    EXPECT_FALSE(find_misfit(pieces, 24));
    EXPECT_EQ(gap_in(pieces, 24), "");
    pieces.pop_back();
    EXPECT_TRUE(find_misfit(pieces, 24));
    EXPECT_NE(gap_in(pieces, 24), "");
  }
}

// Names can say anything: neither a size too large to be true nor one that no memory has is believed, and none takes long.
TEST(Piece, SizesTooLargeToBeTrue) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  const Piece few = {"w", {{0, 1, largest}}}, far = {"w", {{0, 1, 2}, {largest / 4, largest / 4 + 1}}};
  EXPECT_EQ(least_elements(few, 1), largest);
  EXPECT_EQ(least_elements(few, 2), largest);
  EXPECT_FALSE(fits(few, least_elements(few, 2), 2));
  EXPECT_EQ(gap_in({few, far}, least_elements(far, 1)), concat("[1:", largest / 4 * 2, "]"));
}

std::vector<Piece> names_of(const std::vector<KnownPiece>& known) {
  std::vector<Piece> out;
  for (const KnownPiece& piece : known) out.push_back(piece.piece);
  return out;
}

std::vector<std::int64_t> by_runs(const Piece& piece, std::int64_t elements) {
  std::vector<std::int64_t> out;
  for_each_run(piece, elements, [&](const PieceRun& run) {
    EXPECT_EQ(run.at, std::ssize(out));
    for (std::int64_t i = run.begin; i < run.end; ++i) out.push_back(i);
  });
  return out;
}

// The elements that copies give a wanted piece, which they fill from its begin on.
std::vector<std::int64_t> by_copies(const std::vector<KnownPiece>& held, const Piece& wanted, std::int64_t elements) {
  std::vector<std::int64_t> out;
  for (const PieceCopy& copy : cover(names_of(held), wanted, elements)) {
    EXPECT_EQ(copy.to, std::ssize(out));
    const auto from = held[copy.piece].elements.begin() + copy.from;
    EXPECT_LE(copy.from + copy.count, std::ssize(held[copy.piece].elements));
    out.insert(out.end(), from, from + copy.count);
  }
  return out;
}

const std::uint64_t kRounds = test::rounds(400u);

TEST(RandomPieces, HaveTheElementsOfTheirParts) {
  for (std::uint64_t seed = 0; seed < kRounds; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    test::Random random(seed);
    const Shape shape = test::random_sizes(random);
    const std::int64_t elements = TensorType{DType::f32, shape}.elements();
    std::int64_t least = 0;
    for (const auto& [piece, of_part, expected] : test::random_pieces(random, "w", shape)) {
      SCOPED_TRACE(piece_name(piece));
      EXPECT_EQ(parse_piece(piece_name(piece)), piece);
      EXPECT_EQ(by_runs(piece, elements), expected);
      const std::int64_t held = std::ssize(expected);
      EXPECT_EQ((TensorType{DType::f32, of_part}.elements()), held);
      EXPECT_EQ(elements_of(piece, elements), held);
      EXPECT_TRUE(fits(piece, elements, held));
      EXPECT_FALSE(fits(piece, elements, held + 1));
      EXPECT_LE(least_elements(piece, held), elements);
      least = std::max(least, least_elements(piece, held));
      for (std::int64_t from = 0; from <= elements; ++from) {
        const auto next = std::ranges::lower_bound(expected, from);
        EXPECT_EQ(run_from(piece, elements, from).begin, next == expected.end() ? elements : *next);
      }
    }
    EXPECT_EQ(least, elements);
  }
}

TEST(RandomPieces, AnyMakeAnyOther) {
  for (std::uint64_t seed = 0; seed < kRounds; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    test::Random random(seed);
    const Shape shape = test::random_sizes(random);
    const std::int64_t elements = TensorType{DType::f32, shape}.elements();
    std::vector<KnownPiece> held = test::random_pieces(random, "w", shape);
    const std::vector<KnownPiece> wanted = test::random_pieces(random, "w", shape);
    if (test::coin(random, 0.5)) held.insert(held.end(), wanted.begin(), wanted.begin() + 1);
    std::ranges::shuffle(held, random);
    EXPECT_EQ(gap_in(names_of(held), elements), "");
    for (const KnownPiece& piece : wanted) {
      EXPECT_EQ(by_copies(held, piece.piece, elements), piece.elements) << piece_name(piece.piece);
      for (const KnownPiece& other : held) {
        std::vector<std::int64_t> both;
        std::ranges::set_intersection(piece.elements, other.elements, std::back_inserter(both));
        EXPECT_EQ(overlap(piece.piece, other.piece, elements), !both.empty());
      }
    }
  }
}

TEST(RandomPieces, WhatDoesNotTileIsFound) {
  for (std::uint64_t seed = 0; seed < kRounds; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    test::Random random(seed);
    const Shape shape = test::random_sizes(random);
    const std::int64_t elements = TensorType{DType::f32, shape}.elements();
    std::vector<KnownPiece> pieces = test::random_pieces(random, "w", shape);
    std::ranges::shuffle(pieces, random);
    EXPECT_FALSE(find_misfit(names_of(pieces), elements));
    const KnownPiece last = pieces.back();
    std::int64_t end = last.elements.front();
    while (std::ranges::binary_search(last.elements, end)) ++end;

    pieces.pop_back();
    const std::optional<Misfit> gap = find_misfit(names_of(pieces), elements);
    ASSERT_TRUE(gap);
    EXPECT_EQ(gap->before, gap->piece);
    EXPECT_EQ(gap->begin, last.elements.front());
    EXPECT_EQ(gap_in(names_of(pieces), elements), piece_name("", gap->begin, gap->end));
    EXPECT_EQ(gap->end, end);
    EXPECT_EQ(by_copies(pieces, {"w"}, elements).size(), static_cast<std::size_t>(gap->begin));

    for (int twice = 0; twice < 2; ++twice) pieces.push_back(last);
    const std::optional<Misfit> overlap = find_misfit(names_of(pieces), elements);
    ASSERT_TRUE(overlap);
    EXPECT_NE(overlap->before, overlap->piece);
    EXPECT_EQ(overlap->begin, last.elements.front());
    EXPECT_EQ(gap_in(names_of(pieces), elements), "");
  }
}

}  // namespace
}  // namespace penstock
