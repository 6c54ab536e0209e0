// SPDX-License-Identifier: Apache-2.0
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
//   recompute             // F keeps no residuals, and R makes them again right ahead of the backward; where the backward comes next on
//                         // the actor, they are kept
//   recompute beyond 2    // the same of an F that begins while the residuals of so many are kept on the actor, from F to the end of B or W
//   recompute each beyond p-s  // counted for each stage on the actor
//   offload beyond 2      // residuals that are not made again go to host memory behind their F, and come back beside the action before
//                         // their backward; but where that action comes right behind F, and but for so many that are kept on the
//                         // device; also `each`
//   gather                // UNSHARD, RESHARD and REDUCE_GRAD of each stretch (with_gathers); in tables of one step
//   gather turns          // the same, but that a stage which goes on in the other direction keeps its parameters
//   update                // U of a stage right behind the last that its actor does of it in the step; without, at the step's end
//   slices                // F, B, I and W are of one slice each, all of which the rules order and limits count; without, a micro-batch's
//                         // slices run one after the other
//   window undrained      // the micro-batches of all steps of a window are ordered together; without, each step by itself
//   window undrained missing 1 // the same, and all F of a step read what the updates but the last so many before it have made
//   times F 1 B 1         // times that the table is made for, where nothing is measured; by default B takes 2, the others 1
//
// Numbers are whole: p (actors), m (micro-batches of a step), v (stages per actor), n (slices), r (the actor, from 0), s (the stage; only
// with `each`), + - * / (rounded down), min(a, b), max(a, b), parentheses.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// The values of the variables in an expression.
struct Variables {
  std::int64_t p = 1, m = 1, v = 1, n = 1, r = 0, s = 0;  // as the letters are explained above
};

// An expression in reverse Polish notation. A term is a number (operation '#'), a variable by its letter, or one of + - * /, '<' (min) and
// '>' (max), which takes the two values before it.
struct Expression {
  // A number, a variable or an operation.
  struct Term {
    char operation = '#';     // as above
    std::int64_t number = 0;  // of operation '#'
    bool operator==(const Term&) const = default;
  };
  std::vector<Term> terms;  // in order; operands stand before their operation
  std::string place;        // where it was read from ("my.rules:3:7"), or empty; not part of its value

  Expression() = default;
  Expression(std::int64_t number) : terms{{'#', number}} {}
  Expression(std::string_view text);  // throws Error
  Expression(const char* text) : Expression(std::string_view(text)) {}

  bool uses(char variable) const;  // whether a term is this variable
  // Throws Error where the expression divides by zero or overflows.
  std::int64_t value(const Variables& variables) const;
  bool operator==(const Expression& other) const { return terms == other.terms; }
};
std::string print(const Expression& expression);

// The rule `placement`: which actor each stage is on.
struct RulesPlacement {
  // The order in which stages lie on the actors.
  enum class Path : std::uint8_t { chain, loop, wave, stages };
  Path path = Path::chain;           // as `placement` names it
  bool bidirectional = false;        // whether odd micro-batches go the other way, on copies
  int chunks = 0;                    // stages per actor, for loop and wave; 0: as ScheduleOptions says
  std::vector<std::int32_t> actors;  // for `stages`: the actor of each stage
};

// Kinds, the most wanted first. Those of one rank take turns: each gets as many turns as it stands there. Empty: the default of the rules.
using Preference = std::vector<std::vector<Kind>>;

// The rule `order`: which micro-batch comes first within one kind.
struct RulesOrder {
  // The ways that `order` names; bunches are its groups.
  enum class Way : std::uint8_t { bunches, depth, breadth };
  Way way = Way::bunches;  // as `order` names it
  Expression size = 1;     // micro-batches in a bunch

  bool operator==(const RulesOrder&) const = default;
};

// The rule `limit`: when a forward may start.
struct RulesLimit {
  Expression most;           // a forward starts while fewer are live
  bool each = false;         // whether it limits each stage and not all of the actor together
  bool until_input = false;  // whether a forward counts until I has ended and not until W has
};

// Residuals that F does not keep on the device: of an F that begins while those of so many are kept.
struct RulesResiduals {
  Expression beyond = std::int64_t{0};  // residuals that are kept
  bool each = false;                    // whether it counts each stage for itself and not all of the actor together
};

// A schedule's rules, as the text above says them.
struct Rules {
  std::string name;                                          // the file that it was read from
  bool split = false;                                        // whether backward is I and W; it is also where a preference names them
  RulesPlacement placement;                                  // of stages on actors
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;  // (from, to); empty: a chain
  Preference prefer;                                         // empty: backward, F, W
  Preference warm_up, steady, drain;                         // empty: `prefer`
  std::array<RulesOrder, 3> orders;                          // for F; for B or I; for W
  std::vector<RulesLimit> limits;                            // all of them hold at once
  std::optional<RulesResiduals> recompute, offload;          // what is recomputed is not offloaded
  // Whether parameters are gathered, as the rule `gather` says.
  enum class Gather : std::uint8_t { none, stretches, turns };
  Gather gather = Gather::none;       // none: no UNSHARD
  bool update = false;                // whether stages are updated where they end, also in tables of one step
  bool slices = false;                // whether slices are ordered one by one
  bool undrained = false;             // whether steps of a window are ordered together
  std::optional<Expression> missing;  // of an undrained window: updates that the F of a step do not see; else each reads the newest
  std::array<std::int32_t, 4> times = {1, 2, 1, 1};  // relative times of F, B, I and W for all stages of an actor together
};

// Throws Error with file:line:column.
Rules parse_rules(std::string_view text, std::string_view file);
// The text reads back as the same rules.
std::string print(const Rules& rules);
std::string print(const RulesLimit& limit);  // "limit p-r"

// The table that follows when actions take the rules' times and transfers take none, in options.slices and for a window of options.window
// steps. Throws Error where the rules do not
// fit the options or cannot be written as text, and where they come to a point at which nothing may run: it says which actor waits, for
// what, under which limit.
Schedule make_schedule(const Rules& rules, const ScheduleOptions& options);

}  // namespace penstock
