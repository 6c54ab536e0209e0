// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>
#include <sstream>

#include "base/cursor.h"
#include "support/errors.h"
#include "support/temporary.h"

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
  EXPECT_EQ(nearest("f23", {"f64", "f32"}), "f32");
  // A word that shares half of its letters is another word.
  for (const char* other : {"momentum", "batch", "lr"})
    EXPECT_EQ(nearest(other, {"width", "bag", "tied", "distance", "documents"}), "") << other;
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

TEST(Text, SplitAndTrim) {
  EXPECT_EQ(split("a,,b,", ','), (std::vector<std::string>{"a", "", "b", ""}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim("  "), "");
}

TEST(Cursor, TokensEndWhereWordsEnd) {
  Cursor cursor("f", "states state // state\n state=-7 2.5e-1x");
  EXPECT_FALSE(cursor.accept("state"));
  EXPECT_EQ(cursor.word(), "states");
  EXPECT_TRUE(cursor.accept("state"));
  EXPECT_TRUE(cursor.accept("state"));
  cursor.expect("=");
  EXPECT_TRUE(cursor.next_is_number());
  EXPECT_EQ(cursor.integer(), -7);
  EXPECT_EQ(cursor.real(), 0.25);
  EXPECT_FALSE(cursor.at_end());
  EXPECT_EQ(cursor.peek(), 'x');
}

TEST(Cursor, NamesHoldColonsInside) {
  Cursor cursor("f", "first:h.0.w: a->b");
  EXPECT_EQ(cursor.name(), "first:h.0.w");
  cursor.expect(":");
  cursor.skip();
  EXPECT_EQ(cursor.name(), "a");
  EXPECT_TRUE(cursor.accept("->"));
}

TEST(Cursor, BadNumbersAndTexts) {
  const auto says = [](const std::string& text, auto&& read) {
    Cursor cursor("f", text);
    const std::string message = message_of([&] { read(cursor); });
    return message.substr(0, message.find('\n'));
  };
  EXPECT_EQ(says("99999999999999999999", [](Cursor& c) { c.integer(); }), "f:1:1: this number does not fit into 64 bits");
  EXPECT_EQ(says("x", [](Cursor& c) { c.integer(); }), "f:1:1: expected an integer");
  EXPECT_EQ(says("x", [](Cursor& c) { c.real(); }), "f:1:1: expected a number");
  EXPECT_EQ(says("x", [](Cursor& c) { c.string(); }), "f:1:1: expected a quoted text");
  EXPECT_EQ(says("\"ab\n\"", [](Cursor& c) { c.string(); }), "f:1:1: this text has no closing quote");
  EXPECT_EQ(says("\"\\q\"", [](Cursor& c) { c.string(); }), "f:1:3: unknown escape in a text");
  EXPECT_EQ(says("\"\\xzz\"", [](Cursor& c) { c.string(); }), "f:1:4: expected two hexadecimal digits");
  EXPECT_EQ(says("penstock graph 2", [](Cursor& c) { c.header("graph", 1); }),
            "f:1:1: version 2 of penstock graph; this build reads version 1");
  EXPECT_EQ(says("hello", [](Cursor& c) { c.header("graph", 1); }), "f:1:1: expected \"penstock graph 1\" as the first line");
}

TEST(Cursor, LongLinesAreShownAroundTheCaret) {
  const std::string text = std::string(500, 'a') + " ! " + std::string(500, 'b');
  Cursor cursor("f", text);
  cursor.word();
  const std::vector<std::string> lines = split(message_of([&] { cursor.expect("?"); }), '\n');
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "f:1:502: expected \"?\"");
  EXPECT_EQ(lines[1].size(), 102u);
  EXPECT_EQ(lines[1][lines[2].find('^')], '!');
}

TEST(Cursor, HeaderNamesBothKinds) {
  EXPECT_NE(
      message_of([] { Cursor("f", "penstock graph 1").header("program", 1); }).find("this is a penstock graph, not a penstock program"),
      std::string::npos);
}

TEST(Cursor, FilesAreNamedWhenUnreadable) {
  EXPECT_EQ(message_of([] { read_file("/nonexistent/x"); }),
            "cannot read /nonexistent/x: No such file or directory\n  hint: there is no folder /nonexistent");
}

// Opening a pipe would wait for its writer, and a device may have no end.
TEST(ReadFile, TakesRegularFilesOnly) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0666), 0);
  EXPECT_EQ(message_of([&] { read_file(folder.file("pipe")); }), concat("cannot read ", folder.file("pipe"), ": it is a pipe, not a file"));
  EXPECT_EQ(message_of([] { read_file("/dev/zero"); }), "cannot read /dev/zero: it is a device, not a file");
  EXPECT_EQ(message_of([] { read_file("/tmp"); }), "cannot read /tmp: it is a folder, not a file");
}

TEST(ReadFile, ReadsWhatHasNoLengthToo) {
  EXPECT_NE(read_file("/proc/self/status").find("Name:"), std::string::npos);
  const test::TemporaryFolder folder;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100'000}}) {
    write_file(folder.file("f"), std::string(size, 'x'));
    EXPECT_EQ(read_file(folder.file("f")), std::string(size, 'x'));
  }
}

TEST(Text, NumbersAreWrittenAsAStreamWould) {
  for (const double value : {0.0, -0.0, 1.0, 0.1, 1.0 / 3, 1e5, 123456.0, 999999.5, 1234567.0, 1e21, -2.5e-7, 1e-5, 1e-4, 5e-324, 1.7e308,
                             std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    std::ostringstream stream;
    stream << value << '|' << static_cast<float>(value);
    EXPECT_EQ(concat(value, '|', static_cast<float>(value)), stream.str());
  }
  EXPECT_EQ(concat("a", std::string("b"), std::string_view("c"), 'd', true, -7, std::uint64_t{18446744073709551615u}),
            "abcd1-718446744073709551615");
  EXPECT_EQ(hex(0) + " " + hex(255) + " " + hex(18446744073709551615u), "0 ff ffffffffffffffff");
}

}  // namespace
}  // namespace penstock
