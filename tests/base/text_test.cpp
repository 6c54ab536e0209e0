#include "base/text.h"

#include <gtest/gtest.h>

#include "base/cursor.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

TEST(Text, NumbersReadBack) {
  for (double value : {0.0, 1.0, -2.5, 1e-5, 1e300, 0.1, 1.0 / 3}) {
    const std::string shown = number(value);
    Cursor cursor("f", shown);
    EXPECT_TRUE(cursor.number_is_real()) << shown;
    EXPECT_EQ(cursor.real(), value);
  }
}

TEST(Text, QuotedReadsBack) {
  const std::string odd = "a\"b\\c\nd\te\x01\xff";
  const std::string shown = quote(odd);
  Cursor cursor("f", shown);
  EXPECT_EQ(cursor.string(), odd);
}

TEST(Text, NearestFindsTypos) {
  EXPECT_EQ(nearest("widht", {"width", "heads", "layers"}), "width");
  EXPECT_EQ(nearest("zzz", {"width", "heads"}), "");
}

TEST(Text, BytesHaveUnits) {
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
}

TEST(Cursor, FailureShowsPlaceLineAndCaret) {
  Cursor cursor("plan.txt", "one\n  two x");
  cursor.expect("one");
  cursor.expect("two");
  EXPECT_EQ(message_of([&] { cursor.expect("three"); }), "plan.txt:2:7: expected \"three\"\n    two x\n        ^ near here");
}

TEST(Cursor, HeaderNamesBothKinds) {
  EXPECT_NE(message_of([] { Cursor("f", "penstock graph 1").header("program", 1); }).find("this is a penstock graph, not a penstock program"),
            std::string::npos);
}

TEST(Cursor, FilesAreNamedWhenUnreadable) {
  EXPECT_EQ(message_of([] { read_file("/nonexistent/x"); }), "cannot read /nonexistent/x: No such file or directory");
}

}  // namespace
}  // namespace penstock
