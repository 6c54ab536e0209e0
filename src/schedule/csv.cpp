#include <algorithm>
#include <charconv>
#include <limits>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/schedule.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

constexpr std::string_view kFused = "OVERLAP_F_B";  // torch's name of a fused pair, whatever it holds

struct Place {
  std::string_view file;
  std::size_t row, cell;  // from 1
};

std::string shown(std::string_view text) {
  return quote(text.size() <= 40 ? text : std::string(text.substr(0, 37)) + "...");
}

[[noreturn]] void fail(const Place& place, std::string_view cell, const std::string& why, const std::string& hint = {}) {
  throw Error(
      concat(place.file, ":", place.row, ":", place.cell, ": cannot read ", shown(cell), " as an action"),
      {why, "an action is a stage, a kind and a micro-batch, such as 2F0 or 3B5; the cells of a row are its actor's actions in order"},
      hint);
}

// Takes the digits at the start of `text`. False where there are none or where the number is too large.
bool take_number(std::string_view& text, std::int32_t& out) {
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (failure != std::errc() || text.front() == '-') return false;
  text.remove_prefix(end - text.data());
  return true;
}

std::string_view take_word(std::string_view& text) {
  const auto is_letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; };
  const auto end = std::find_if_not(text.begin(), text.end(), is_letter);
  const std::string_view word = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  text.remove_prefix(word.size());
  return word;
}

bool take(std::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

Kind take_kind(std::string_view& rest, const Place& place, std::string_view cell) {
  const std::string_view word = take_word(rest);
  Kind kind = Kind::F;
  if (parse_kind(word, kind)) return kind;
  std::vector<std::string> known;
  for (int k = 0; k < kKindCount; ++k) known.emplace_back(name(static_cast<Kind>(k)));
  const std::string near = word.size() > 1 ? nearest(word, known) : "";
  fail(place, cell, word.empty() ? "a kind is missing" : concat("there is no kind ", shown(word)),
       near.empty() ? "kinds are " + join(known, " ") : "did you mean " + near + "?");
}

Action parse_action(std::string_view cell, const Place& place) {
  std::string_view rest = cell;
  Action action;
  if (!take_number(rest, action.stage)) fail(place, cell, "it does not start with the number of a stage");
  if (take(rest, '.') && !take_number(rest, action.slice)) fail(place, cell, "a slice's number is missing after '.'");
  if (take(rest, 'x') && (!take_number(rest, action.count) || action.count < 1)) {
    fail(place, cell, "how many micro-batches is missing after 'x'");
  }
  action.kind = take_kind(rest, place, cell);
  if (rest.empty()) {
    if (needs_microbatch(action.kind)) fail(place, cell, concat("the micro-batch is missing after ", name(action.kind)));
    return action;
  }
  if (!take_number(rest, action.microbatch)) fail(place, cell, concat("after ", name(action.kind), " stands no micro-batch"));
  if (!rest.empty()) fail(place, cell, concat(shown(rest), " follows the action"), "cells are separated by commas");
  if (action.microbatch > std::numeric_limits<std::int32_t>::max() - action.count) fail(place, cell, "the micro-batch is too large");
  return action;
}

// "(0F3;1B2)OVERLAP_F_B": the actions between the parentheses, all but the last fused with the next.
std::vector<Action> parse_fused(std::string_view cell, const Place& place) {
  const std::size_t close = cell.find(')');
  if (close == std::string_view::npos || cell.substr(close + 1) != kFused) {
    fail(place, cell, concat("a fused pair is written (0F3;1B2)", kFused));
  }
  std::vector<Action> actions;
  for (const std::string& part : split(cell.substr(1, close - 1), ';')) {
    actions.push_back(parse_action(trim(part), place));
    if (!is_compute(actions.back().kind)) fail(place, cell, "only F, B, I and W can be fused");
    actions.back().fused_with_next = true;
  }
  actions.back().fused_with_next = false;
  return actions;
}

// A cell as a CSV writer may have quoted it (Python's quotes a row's only cell if it is empty).
std::string_view unquoted(std::string_view cell) {
  cell = trim(cell);
  if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') cell = trim(cell.substr(1, cell.size() - 2));
  return cell;
}

void parse_row(std::string_view line, std::string_view file, Schedule& schedule) {
  std::vector<Action>& row = schedule.actors.emplace_back();
  std::vector<std::int32_t>& cells = schedule.cells.emplace_back();
  Place place{file, schedule.actors.size(), 1};
  for (std::size_t begin = 0; begin <= line.size(); ++place.cell) {
    const std::size_t end = std::min(line.find(',', begin), line.size());
    const std::string_view cell = unquoted(line.substr(begin, end - begin));
    begin = end + 1;
    if (cell.empty()) continue;
    if (cell.front() == '(') {
      for (const Action& action : parse_fused(cell, place)) row.push_back(action);
    } else if (const Action action = parse_action(cell, place); !is_transfer(action.kind)) {
      row.push_back(action);
    }
    cells.resize(row.size(), static_cast<std::int32_t>(place.cell));
  }
}

// Every stage of a table has an action: a larger number is a slip, refused before anything is sized by it.
void check_stages(const Schedule& schedule) {
  std::int64_t actions = 0;
  for (const auto& row : schedule.actors) actions += static_cast<std::int64_t>(row.size());
  if (actions == 0) {
    throw Error(concat(schedule.name, ":1:1: the table has no action"), {"a schedule has one row per actor and one action per cell"},
                "print one with `penstock schedule 1f1b --actors 2 --microbatches 4`");
  }
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    for (std::size_t i = 0; i < schedule.actors[a].size(); ++i) {
      const Action& action = schedule.actors[a][i];
      if (action.stage < actions) continue;
      throw Error(concat(schedule.name, ":", a + 1, ":", schedule.cells[a][i], ": ", text(action), " names stage ", action.stage,
                         " of a table with ", actions, actions == 1 ? " action" : " actions"),
                  {"stages are numbered from 0 without gaps"});
    }
  }
}

}  // namespace

Schedule parse_schedule(std::string_view csv, std::string_view file) {
  Schedule schedule;
  schedule.name = file;
  while (!csv.empty()) {
    const std::size_t end = std::min(csv.find('\n'), csv.size());
    parse_row(csv.substr(0, end), file, schedule);
    csv.remove_prefix(std::min(end + 1, csv.size()));
  }
  check_stages(schedule);
  return schedule;
}

std::string print(const Schedule& schedule) {
  std::string out;
  for (const auto& row : schedule.actors) {
    bool inside = false;  // of a fused pair
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) out += inside ? ';' : ',';
      const bool fused = row[i].fused_with_next && i + 1 < row.size();
      if (fused && !inside) out += '(';
      out += text(row[i]);
      if (inside && !fused) out.append(")").append(kFused);
      inside = fused;
    }
    out += '\n';
  }
  return out;
}

}  // namespace penstock
