#include "data/text_pairs.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/errors.h"
#include "support/temporary.h"

namespace penstock {
namespace {

std::string text_of(const std::vector<TextPair>& pairs) {
  return join(pairs, "", [](const TextPair& pair) { return concat(pair.target, ":\n", pair.input, "\n\n"); });
}

TEST(TextPairs, FunctionsWithoutTheirDocstrings) {
  EXPECT_EQ(text_of(python_functions(R"(import os
class A:
    @property
    def b(self, x="a:b",
          y=')'):  # def no(): "no"
        """Gives b,
        or what is there.

        No more of it."""
        # kept
        def inner():
            r'Is \n inside.'
            return '''
def fake():
    "no"
'''
        return x

    async def c(self): return 1
    def d(self):
        b"no docstring"
    def e(self):
        'One' ' two'
def f():
    u"Only \"this\"."

x = 1
)")),
            R"(Gives b, or what is there.:
def b(self, x="a:b",
      y=')'):  # def no(): "no"
    # kept
    def inner():
        r'Is \n inside.'
        return '''
def fake():
"no"
'''
    return x

Is \n inside.:
def inner():
    return '''
def fake():
"no"
'''

Only "this".:
def f():

)");
  for (const char* text : {"", "def f(", "def f():\n  '''x", "\\", "def f():\n\t\"a\\", "'"})
    EXPECT_EQ(text_of(python_functions(text)), "") << text;
}

TEST(TextPairs, DeclarationsAndTheirComments) {
  EXPECT_EQ(text_of(cpp_declarations(R"(/** @file x.h
 *  A file. */
/**
 *  @brief  Adds @a x to @p y,
 *  in place.
 *  @param x  A number.
 */
template<typename T>
  T& add(T x,  T& y) { return y += x; }
/// Counts. /// no
/// All.
inline int count(); // here
int other; ///< Behind.
/** First paragraph.

    Second. */
#define NO
/*! Last one */ struct S { int a; };
// "/** no */ int x;"
)")),
            R"(Adds x to y, in place.:
template<typename T> T& add(T x, T& y)

Counts. /// no All.:
inline int count()

Last one:
struct S

)");
  for (const char* text : {"", "/**", "/** a", "///", "/// a\n", "/** a */", "/*"}) EXPECT_EQ(text_of(cpp_declarations(text)), "") << text;
}

std::string page(std::string_view roff) {
  const std::optional<TextPair> found = manual_page(roff);
  return found ? text_of({*found}) : "none";
}

TEST(TextPairs, ManualPages) {
  EXPECT_EQ(page(".\\\" c\n.TH LS 1\n.SH NAME\nls, dir \\- list \\fBdirectory\\fR contents\n.SH DESCRIPTION\n.BR ls (1)\nlists "
                 "\\(lqall\\(rq \\s-1it\\s0 "
                 "\\*(Aq can\\e.\n.nf\n.B \"a  b\"\n"),
            "list directory contents:\nDESCRIPTION\nls(1)\nlists \"all\" it  can\\.\na  b\n\n\n");
  EXPECT_EQ(page(".Dd May\n.Sh NAME\n.Nm cat\n.Nd concatenate files\n.Sh SYNOPSIS\n.Nm\n.Op Fl b\n"),
            "concatenate files:\nSYNOPSIS\nFl b\n\n\n");
  EXPECT_EQ(page(".so man1/ls.1\n"), "none");
  EXPECT_EQ(page(".SH NAME\nls\n.SH A\nb\n"), "none") << "it describes nothing";
  for (const char* text : {"", ".", "'", ".SH", ".SH NAME\n\\", ".SH NAME\na - b\n.SH X\n\\f", ".SH NAME\na - b\n.SH X\n\\h'"})
    EXPECT_NO_THROW(page(text)) << text;
}

TEST(TextPairs, NoneAreAnError) {
  const test::TemporaryFolder folder;
  const PairKind man = pair_kinds().back();
  EXPECT_EQ(man.name, "man");
  EXPECT_EQ(
      test::message_of([&] { collect_pairs(man, {}); }),
      "this machine has no folder for \"man\"\n  wanted: manual pages and the descriptions behind their names\n  hint: name a folder that "
      "has some");
  EXPECT_EQ(test::message_of([&] { collect_pairs(man, {folder.path().string()}); }),
            concat("nothing is there for \"man\" in ", folder.path().string(),
                   "\n  wanted: manual pages and the descriptions behind their names\n  hint: name a folder that has some"));
}

}  // namespace
}  // namespace penstock
