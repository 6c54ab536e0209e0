// A schedule as rules: where stages are, which kind of action an actor prefers, in which order it takes those of a kind, and how much may
// be in flight. Whenever an actor is free it starts the first action that is ready and allowed; so the rules and costs make a table. After
// the schedule language of FlexPipe (2510.05112).
//
//   penstock rules 1
//   placement loop 2      // chain (the default), loop [V], wave [V], or `stages` and the actor of each. V stages per actor; without it, as
//                         // many as --chunks says. `bidirectional` before it: odd micro-batches take the actors the other way round, on
//                         // copies of the stages
//   edges 0>2 1>2         // which stages feed which, where they are no chain
//   prefer B F            // kinds, the most wanted first: F and B, or F, I and W where the backward is split. F/B: the two take turns;
//                         // F/F/B/B: two of each in turn
//   warm-up F             // used instead of `prefer` until an actor's first backward has started; kinds left out wait for another phase
//   steady B F            // used from then on
//   drain I W             // used once the actor's last forward has started
//   order F groups p      // the order within one kind: `depth` (who has come furthest), `breadth` (who has come least far), or bunches of
//                         // micro-batches with breadth inside each; groups 1 is the default
//   limit p-r             // a forward starts while fewer of the actor's micro-batches are live; each stage counts for itself, until B or W
//                         // has ended
//   limit p-r until I     // the same, counted until I has ended
//   limit each p-s        // a limit for each stage on the actor
//   times F 1 B 1         // times that the table is made for, where nothing is measured; by default B takes 2, the others 1
//
// Numbers are whole: p (actors), m (micro-batches), v (stages per actor), r (the actor, from 0), s (the stage; only with `each`), + - * /
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

// An expression in reverse Polish notation. A term is a number (operation 'n'), a variable by its letter, or one of + - * /, '<' (min) and
// '>' (max), which takes the two values before it.
struct Expression {
  struct Term {
    char operation = 'n';
    std::int64_t number = 0;
    bool operator==(const Term&) const = default;
  };
  std::vector<Term> terms;
  std::string place;  // where it was read from ("my.rules:3:7"), or empty; not part of its value

  Expression() = default;
  Expression(std::int64_t number) : terms{{'n', number}} {}
  Expression(std::string_view text);  // throws Error
  Expression(const char* text) : Expression(std::string_view(text)) {}

  bool uses(char variable) const;
  // Throws Error where the expression divides by zero or overflows.
  std::int64_t value(const Variables& variables) const;
  bool operator==(const Expression& other) const { return terms == other.terms; }
};
std::string print(const Expression& expression);

struct RulesPlacement {
  enum class Path : std::uint8_t { chain, loop, wave, stages };
  Path path = Path::chain;
  bool bidirectional = false;
  int chunks = 0;                    // stages per actor, for loop and wave; 0: as ScheduleOptions says
  std::vector<std::int32_t> actors;  // for `stages`: the actor of each stage
};

// Kinds, the most wanted first. Those of one rank take turns: each gets as many turns as it stands there. Empty: the default of the rules.
using Preference = std::vector<std::vector<Kind>>;

struct RulesOrder {
  enum class Way : std::uint8_t { bunches, depth, breadth };
  Way way = Way::bunches;
  Expression size = 1;  // micro-batches in a bunch

  bool operator==(const RulesOrder&) const = default;
};

struct RulesLimit {
  Expression most;
  bool each = false;         // whether it limits each stage and not all of the actor together
  bool until_input = false;  // whether a forward counts until I has ended and not until W has
};

struct Rules {
  std::string name;    // the file that it was read from
  bool split = false;  // whether backward is I and W; it is also where a preference names them
  RulesPlacement placement;
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;  // (from, to); empty: a chain
  Preference prefer;                                         // empty: backward, F, W
  Preference warm_up, steady, drain;                         // empty: `prefer`
  std::array<RulesOrder, 3> orders;                          // for F; for B or I; for W
  std::vector<RulesLimit> limits;                            // all of them hold at once
  std::array<std::int32_t, 4> times = {1, 2, 1, 1};          // relative times of F, B, I and W for all stages of an actor together
};

// Throws Error with file:line:column.
Rules parse_rules(std::string_view text, std::string_view file);
// The text reads back as the same rules.
std::string print(const Rules& rules);
std::string print(const RulesLimit& limit);  // "limit p-r"

// The table that follows when actions take the rules' times and transfers take none, in options.slices. Throws Error where the rules do not
// fit the options or cannot be written as text, and where they come to a point at which nothing may run: it says which actor waits, for
// what, under which limit.
Schedule make_schedule(const Rules& rules, const ScheduleOptions& options);

}  // namespace penstock
