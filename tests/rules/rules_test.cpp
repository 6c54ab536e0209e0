// SPDX-License-Identifier: Apache-2.0
// The text of rules: what it means, that it reads back, and what it says where it is wrong.
#include <gtest/gtest.h>

#include "penstock/rules.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

std::string read_back(const std::string& text) {
  return print(parse_rules("penstock rules 1\n" + text, "my.rules"));
}

// Without where: "my.rules:2:7: ".
std::string error_of(const std::string& text) {
  const std::string message = message_of([&] { read_back(text); });
  return message.substr(0, message.find('\n'));
}

TEST(Expression, Values) {
  const Variables at{.p = 4, .m = 8, .v = 2, .n = 3, .r = 1, .s = 5};
  const std::pair<const char*, std::int64_t> cases[] = {{"p", 4},       {"p-r-1", 2},    {"p-(r-1)", 4},   {"2*(p-1-r)+(v-1)*p+1", 9},
                                                        {"m/3", 2},     {"(0-m)/3", -3}, {"min(p, m)", 4}, {"max(p, m)*v", 16},
                                                        {"8/(2*2)", 2}, {"8/2*2", 8},    {"-3+s", 2},      {"n+p", 7}};
  for (const auto& [text, value] : cases) EXPECT_EQ(Expression(text).value(at), value) << text;
}

TEST(Expression, PrintsWithAsFewParenthesesAsItReads) {
  const std::pair<const char*, const char*> cases[] = {{"((p))", "p"},
                                                       {"(p-r)-1", "p-r-1"},
                                                       {"p-(r-1)", "p-(r-1)"},
                                                       {"(2 * p) + 1", "2*p+1"},
                                                       {"(p+1)*2", "(p+1)*2"},
                                                       {"8/(2*2)", "8/(2*2)"},
                                                       {"min( p,max(1,r) )", "min(p, max(1, r))"}};
  for (const auto& [text, printed] : cases) {
    EXPECT_EQ(print(Expression(text)), printed);
    EXPECT_EQ(Expression(printed), Expression(text));
  }
}

TEST(Expression, Failures) {
  EXPECT_EQ(message_of([] { Expression("p/r").value({.p = 2}); }), "p/r divides by zero\n  where p = 2, m = 1, v = 1, n = 1, r = 0, s = 0");
  EXPECT_EQ(message_of([] { Expression("m*m*m").value({.m = 1 << 30}); }).substr(0, 31), "m*m*m does not fit into 64 bits");
  EXPECT_EQ(message_of([] { Expression("p+"); }).substr(0, 33), "expression:1:3: expected a number");
  EXPECT_EQ(message_of([] { Expression("p q"); }).substr(0, 49), "expression:1:3: expected the end of the expressio");
  EXPECT_EQ(message_of([] { Expression("2000000000"); }).substr(0, 43), "expression:1:1: numbers go up to 1000000000");
  const std::string deep = std::string(200, '(') + "1" + std::string(200, ')');
  EXPECT_NE(message_of([&] { Expression(std::string_view(deep)); }).find("more than 100 parentheses within each other"), std::string::npos);
}

TEST(Rules, ReadBack) {
  const std::string all =
      "penstock rules 1\n"
      "placement bidirectional wave 2\n"
      "edges 0>2 1>2\n"
      "prefer I F W\n"
      "warm-up F\n"
      "steady F/I W\n"
      "drain I/W\n"
      "order F depth\n"
      "order I breadth\n"
      "order W groups max(p, 2)\n"
      "limit p-r until I\n"
      "limit each 2*p-s\n"
      "recompute beyond 2\n"
      "offload each beyond max(0, 2-s)\n"
      "gather turns\n"
      "update\n"
      "slices\n"
      "window undrained missing p-1\n"
      "times F 2 I 3\n";
  EXPECT_EQ(print(parse_rules(all, "all.rules")), all);
  EXPECT_EQ(read_back(""), "penstock rules 1\nplacement chain\n");
  EXPECT_EQ(read_back("limit p limit 2 // both\norder F groups 1"), "penstock rules 1\nplacement chain\nlimit p\nlimit 2\n");
  EXPECT_EQ(read_back("offload gather window undrained"), "penstock rules 1\nplacement chain\noffload\ngather\nwindow undrained\n");
  EXPECT_EQ(read_back("recompute beyond 0"), "penstock rules 1\nplacement chain\nrecompute\n");
  EXPECT_EQ(read_back("placement stages 0 1\n1 0"), "penstock rules 1\nplacement stages 0 1 1 0\n");
}

// What a text says can be said in C++.
TEST(Rules, InCpp) {
  Rules rules;
  rules.prefer = {{Kind::B}, {Kind::F}};
  rules.limits = {{.most = "p-r"}};
  EXPECT_EQ(print(rules), read_back("prefer B F limit p-r"));
  EXPECT_EQ(make_schedule(rules, {.actors = 2, .microbatches = 3}).actors, make_schedule("1f1b", {.actors = 2, .microbatches = 3}).actors);
}

TEST(Rules, FailuresInCpp) {
  const auto error = [](const Rules& rules) {
    const std::string message = message_of([&] { make_schedule(rules, {}); });
    return message.substr(0, message.find('\n'));
  };
  Rules mixed, empty, unnumbered;
  mixed.name = "mine";
  mixed.prefer = {{Kind::F, Kind::I}, {Kind::B}};
  empty.placement.path = RulesPlacement::Path::stages;
  unnumbered.limits.emplace_back();
  EXPECT_EQ(error(mixed), "mine:3:12: B of a backward that is split");
  EXPECT_EQ(error(empty), "rules:3:1: expected an integer");
  EXPECT_EQ(error(unnumbered), "rules:4:1: expected a number");
}

TEST(Rules, Failures) {
  const std::pair<const char*, const char*> cases[] = {
      {"limt p", "my.rules:2:1: unknown rule \"limt\""},
      {"placement ring", "my.rules:2:11: expected a placement"},
      {"placement loop 0", "my.rules:2:16: stages per actor must be 1 to 1048576, not 0"},
      {"placement stages 0 -1", "my.rules:2:20: an actor must be 0 to 1048576, not -1"},
      {"placement chain\nplacement loop", "my.rules:3:1: a second \"placement\""},
      {"edges 0>1 2>1", "my.rules:2:11: stage 2 cannot feed stage 1"},
      {"edges 0-1", "my.rules:2:8: expected \">\""},
      {"prefer B F B", "my.rules:2:12: B stands twice"},
      {"prefer B/F/B", "my.rules:2:12: B stands twice"},
      {"prefer B W", "my.rules:2:10: W of a backward that is whole"},
      {"prefer I W F limit p drain B", "my.rules:2:28: B of a backward that is split"},
      {"prefer limit", "my.rules:2:8: expected a kind"},
      {"order F random", "my.rules:2:9: expected an order"},
      {"order I depth order I depth", "my.rules:2:15: a second \"order I\""},
      {"order F groups s", "my.rules:2:16: s is a stage, and this is not of one"},
      {"limit s", "my.rules:2:7: s is a stage, and this is not of one"},
      {"limit", "my.rules:2:6: expected a number"},
      {"limit p until F", "my.rules:2:15: a limit lasts until I, or without \"until\" for as long as activations live"},
      {"times F -1", "my.rules:2:9: a time must be 0 to 1048576, not -1"},
      {"times I 1 B 1", "my.rules:2:11: B of a backward that is split"},
      {"recompute 2", "my.rules:2:11: expected a word"},
      {"recompute each", "my.rules:2:15: expected \"beyond\""},
      {"recompute beyond s", "my.rules:2:18: s is a stage, and this is not of one"},
      {"offload\nrecompute\noffload beyond 1", "my.rules:4:1: a second \"offload\""},
      {"recompute offload", "my.rules:2:11: nothing is left to offload where all is recomputed"},
      {"prefer R B F", "my.rules:2:8: R follows from the order of F and its backward"},
      {"drain B F\nU", "my.rules:3:1: U follows from the order of F and its backward"},
      {"window drained", "my.rules:2:8: expected a window"},
      {"window undrained missing p-r", "my.rules:2:26: r is an actor, and all of a step read one version"},
      {"limit p-r)", "my.rules:2:10: expected a word"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(error_of(text), message) << text;
  const auto has_hint = [](const std::string& text, const std::string& hint) {
    return message_of([&] { read_back(text); }).find("hint: " + hint) != std::string::npos;
  };
  EXPECT_TRUE(has_hint("recomput", "did you mean recompute?"));
  EXPECT_TRUE(has_hint("prefer B F REDUCE_GRAD", "write `gather`"));
  EXPECT_TRUE(has_hint("prefer RELOAD", "write `offload`"));
  EXPECT_TRUE(has_hint("window drained", "undrained [missing UPDATES]"));
  EXPECT_EQ(message_of([] { parse_rules("penstock graph 1", "x"); }).substr(0, 50), "x:1:1: this is a penstock graph, not a penstock ru");
}

}  // namespace
}  // namespace penstock
