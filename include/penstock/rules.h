// A schedule as rules: where stages are, which kind of action an actor prefers, in which order it takes those of a kind, and how much may
// be in flight. Whenever an actor is free it starts the first action that is ready and allowed; so the rules and costs make a table. After
// the schedule language of FlexPipe (2510.05112).
//
//   penstock rules 1
//   placement loop 2      // chain (otherwise), loop [V], wave [V], `stages` and the actor of each; `bidirectional` before it: odd
//                         // micro-batches take the actors the other way round, on copies of the stages. Without V as many as --chunks
//   edges 0>2 1>2         // which stages feed which, where they are no chain
//   prefer B F            // kinds, the most wanted first: F and B, or F, I and W where the backward is split. F/B: they take turns,
//                         // F/F/B/B: of two
//   warm-up F             // instead, before an actor's first backward has started; kinds that are left out wait for another phase,
//   steady B F            // from then on,
//   drain I W             // and after its last forward has started
//   order F groups p      // of one kind: `depth` (who has come furthest), `breadth` (who has come least far), or groups of micro-batches,
//                         // within each of them breadth; groups 1 otherwise
//   limit p-r             // a forward starts while fewer of the actor's live, each stage's counted for itself, until B or W has ended
//   limit p-r until I     // until I has ended
//   limit each p-s        // of each stage on the actor
//   times F 1 B 1         // what the table is made for, where nothing is measured; otherwise B takes 2, the others 1
//
// Numbers: whole ones, p (actors), m (micro-batches), v (stages per actor), r (the actor, from 0), s (the stage; with `each`), + - * /
// (rounded down), min(a, b), max(a, b), parentheses.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

struct Variables {
  std::int64_t p = 1, m = 1, v = 1, r = 0, s = 0;
};

// In reverse Polish notation: a number (operation 'n'), a variable by its letter, or + - * /, '<' (min), '>' (max) of the two before.
struct Expression {
  struct Term {
    char operation = 'n';
    std::int64_t number = 0;
    bool operator==(const Term&) const = default;
  };
  std::vector<Term> terms;
  std::string place;  // "my.rules:3:7", where it was read from; empty otherwise, and no part of what it says

  Expression() = default;
  Expression(std::int64_t number) : terms{{'n', number}} {}
  Expression(std::string_view text);  // throws Error
  Expression(const char* text) : Expression(std::string_view(text)) {}

  bool uses(char variable) const;
  // Throws Error where it divides by zero or overflows.
  std::int64_t value(const Variables& variables) const;
  bool operator==(const Expression& other) const { return terms == other.terms; }
};
std::string print(const Expression& expression);

struct RulesPlacement {
  enum class Path : std::uint8_t { chain, loop, wave, stages };
  Path path = Path::chain;
  bool bidirectional = false;
  int chunks = 0;                    // of loop and wave; 0: as ScheduleOptions says
  std::vector<std::int32_t> actors;  // of `stages`: of each stage
};

// Kinds, the most wanted first; those of one rank take turns, of as many as a kind stands there. Empty: as the rules otherwise say.
using Preference = std::vector<std::vector<Kind>>;

struct RulesOrder {
  enum class Way : std::uint8_t { groups, depth, breadth };
  Way way = Way::groups;
  Expression size = 1;  // of groups

  bool operator==(const RulesOrder&) const = default;
};

struct RulesLimit {
  Expression most;
  bool each = false;         // of each stage, not of all on the actor
  bool until_input = false;  // until I has ended, not W
};

struct Rules {
  std::string name;    // the file
  bool split = false;  // backward is I and W; also where a preference names them
  RulesPlacement placement;
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;  // from, to; empty: a chain
  Preference prefer;                                         // empty: backward, F, W
  Preference warm_up, steady, drain;                         // empty: `prefer`
  std::array<RulesOrder, 3> orders;                          // of F; B or I; W
  std::vector<RulesLimit> limits;                            // all of them hold
  std::array<std::int32_t, 4> times = {1, 2, 1, 1};          // of F, B, I, W, of an actor's whole share
};

// Throws Error with file:line:column.
Rules parse_rules(std::string_view text, std::string_view file);
// Reads back as the same rules.
std::string print(const Rules& rules);
std::string print(const RulesLimit& limit);  // "limit p-r"

// The table, where actions take the rules' times and transfers none. Throws Error where the
// rules do not fit the options or cannot be written as text, or where they come to a point at which nothing may run: which actor waits, for
// what, under which limit.
Schedule make_schedule(const Rules& rules, const ScheduleOptions& options);
// What the rules say that stages feed.
StageShape shape_of(const Rules& rules, const ScheduleOptions& options);

}  // namespace penstock
