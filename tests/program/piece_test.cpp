#include "program/piece.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "base/text.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

TEST(Piece, NamesReadBack) {
  EXPECT_EQ(piece_name("first:h.0.w", 0, 768), "first:h.0.w[0:768]");
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {5, 17}, {largest - 1, largest}}) {
    const Piece piece = parse_piece(piece_name("first:w", begin, end));
    EXPECT_EQ(piece.tensor, "first:w");
    EXPECT_EQ(piece.begin, begin);
    EXPECT_EQ(piece.end, end);
    EXPECT_FALSE(piece.whole());
  }
}

TEST(Piece, OtherNamesAreOfWholeTensors) {
  for (const char* name : {"w", "", "first:w", "w[3]", "w[]", "w[0:3].weight", "a:w[3]", "w]", ":]"}) {
    const Piece piece = parse_piece(name);
    EXPECT_EQ(piece.tensor, name);
    EXPECT_TRUE(piece.whole());
  }
}

TEST(Piece, DamagedNames) {
  for (const char* name : {"w[3:3]", "w[5:3]", "w[:]", "w[1:]", "w[:1]", "w[-1:3]", "w[0:03]", "w[00:3]", "w[ 0:3]", "w[0:3 ]", "w[0:+3]",
                           "w[a:b]", "w[0:1:2]", "w[0:9223372036854775808]", "w[9223372036854775808:9]", "[0:3]", "w[0:9][0:3]"})
    EXPECT_EQ(message_of([&] { parse_piece(name); }),
              concat("state ", quote(name), " names no piece of a tensor\n  hint: a piece is tensor[begin:end], with 0 <= begin < end"));
}

std::string covered(const std::vector<Piece>& pieces, std::int64_t begin, std::int64_t end) {
  return join(cover(pieces, begin, end), " ", [](const Cut& cut) { return concat(cut.piece, ":", cut.begin, "-", cut.end); });
}

TEST(Piece, Covers) {
  const std::vector<Piece> pieces = {{"w", 6, 9}, {"w", 0, 4}, {"w", 3, 6}, {"w", 1, 2}};
  EXPECT_EQ(covered(pieces, 0, 9), "1:0-4 2:4-6 0:6-9");
  EXPECT_EQ(covered(pieces, 5, 7), "2:5-6 0:6-7");
  EXPECT_EQ(covered(pieces, 7, 12), "0:7-9");
  EXPECT_EQ(covered(pieces, 9, 12), "");
  EXPECT_EQ(covered({{"w", 0, 4}, {"w", 5, 6}}, 2, 6), "0:2-4");
  EXPECT_EQ(end_of(pieces), 9);
  EXPECT_EQ(gap_in(pieces), "");
  EXPECT_EQ(gap_in({}), "");
  EXPECT_EQ(gap_in({{"w", 0, 4}, {"w", 8, 9}, {"w", 5, 6}}), "[4:5]");
  EXPECT_EQ(gap_in({{"w", 3, 9}}), "[0:3]");
}

}  // namespace
}  // namespace penstock
