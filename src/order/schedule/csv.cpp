// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "penstock/schedule.h"
#include "schedule/forward_stages.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

constexpr std::string_view kFeedsLine = "#feeds", kForwardLine = "#forward";  // in front of a file's rows
constexpr std::string_view kFused = "OVERLAP_F_B";                            // torch's name of a fused pair, whatever it holds

struct Place {
  std::string_view file;
  std::size_t row, cell;  // from 1
};

std::string text(const Place& place) {
  return concat(place.file, ":", place.row, ":", place.cell);
}

std::string shown(std::string_view text) {
  return quote(text.size() <= 40 ? text : std::string(text.substr(0, 37)) + "...");
}

[[noreturn]] void fail(const Place& place, std::string_view cell, const std::string& why, const std::string& hint = {}) {
  throw Error(
      concat(text(place), ": cannot read ", shown(cell), " as an action"),
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

// An action as it is written: its stage is that of the model.
struct Entry {
  Action action;
  std::int32_t slice = -1, block = -1;  // -1: it names none
};

std::string text(const Entry& entry) {
  std::string out = text(entry.action);
  const std::string block = entry.block >= 0 ? concat(".", entry.block) : "";
  if (entry.slice >= 0) out.insert(std::to_string(entry.action.stage).size(), concat(".", entry.slice, block));
  return out;
}

Entry parse_action(std::string_view cell, const Place& place) {
  std::string_view rest = cell;
  Entry entry;
  Action& action = entry.action;
  if (!take_number(rest, action.stage)) fail(place, cell, "it does not start with the number of a stage");
  if (take(rest, '.') && !take_number(rest, entry.slice)) fail(place, cell, "a slice's number is missing after '.'");
  if (entry.slice >= 0 && take(rest, '.')) {
    if (!take_number(rest, entry.block)) fail(place, cell, "a block's number is missing after the second '.'");
    if (entry.block >= entry.slice) {
      fail(place, cell, concat("block ", entry.block, " is not of a slice before slice ", entry.slice),
           "a block is attention to the keys of an earlier slice; that to a slice's own keys stays with it");
    }
  }
  if (take(rest, 'x') && (!take_number(rest, action.count) || action.count < 1)) {
    fail(place, cell, "how many micro-batches is missing after 'x'");
  }
  if (take(rest, '@')) {
    if (!take_number(rest, action.version)) fail(place, cell, "a version's number is missing after '@'");
    if (take(rest, '+') && !take_number(rest, action.ahead)) fail(place, cell, "by how many updates it is predicted is missing after '+'");
  }
  action.kind = take_kind(rest, place, cell);
  if (action.version >= 0 && !reads_parameters(action.kind)) {
    fail(place, cell, concat(name(action.kind), " reads no version of the parameters"), "F, B, I, W and R do");
  }
  if (entry.slice >= 0 && !needs_microbatch(action.kind)) {
    fail(place, cell, concat(name(action.kind), " is of a whole stage, not of a slice"), concat("write ", text(action)));
  }
  if (rest.empty()) {
    if (needs_microbatch(action.kind)) fail(place, cell, concat("the micro-batch is missing after ", name(action.kind)));
    return entry;
  }
  if (!take_number(rest, action.microbatch)) fail(place, cell, concat("after ", name(action.kind), " stands no micro-batch"));
  if (!rest.empty()) fail(place, cell, concat(shown(rest), " follows the action"), "cells are separated by commas");
  if (action.microbatch > std::numeric_limits<std::int32_t>::max() - action.count) fail(place, cell, "the micro-batch is too large");
  return entry;
}

// "(0F3;1B2)OVERLAP_F_B": the actions between the parentheses, all but the last fused with the next.
std::vector<Entry> parse_fused(std::string_view cell, const Place& place) {
  const std::size_t close = cell.find(')');
  if (close == std::string_view::npos || cell.substr(close + 1) != kFused) {
    fail(place, cell, concat("a fused pair is written (0F3;1B2)", kFused));
  }
  std::vector<Entry> entries;
  for (const std::string& part : split(cell.substr(1, close - 1), ';')) {
    Action& action = entries.emplace_back(parse_action(trim(part), place)).action;
    if (!is_compute(action.kind)) fail(place, cell, "only F, B, I and W can be fused");
    action.fused_with_next = true;
  }
  entries.back().action.fused_with_next = false;
  return entries;
}

// A cell as a CSV writer may have quoted it (Python's quotes a row's only cell if it is empty).
std::string_view unquoted(std::string_view cell) {
  cell = trim(cell);
  if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') cell = trim(cell.substr(1, cell.size() - 2));
  return cell;
}

// A table as it is written, and the columns of its entries.
struct Table {
  std::string_view file;
  // The lines in front of the rows; none: the file has none.
  std::optional<std::vector<std::pair<std::int32_t, std::int32_t>>> feeds;
  std::vector<double> forward_times;
  std::size_t in_front = 0;  // lines
  std::vector<std::vector<Entry>> rows;
  std::vector<std::vector<std::int32_t>> cells;
};

std::pair<std::int32_t, std::int32_t> parse_feeding(std::string_view cell, const Place& place) {
  std::pair<std::int32_t, std::int32_t> out;
  std::string_view rest = cell;
  if (take_number(rest, out.first) && take(rest, '>') && take_number(rest, out.second) && rest.empty() && out.first < out.second)
    return out;
  throw Error(concat(text(place), ": cannot read ", shown(cell), " as two stages of which the first feeds the second"), {},
              "write 0>1; a stage feeds stages of larger number");
}

double parse_forward_time(std::string_view cell, const Place& place) {
  double out = 0;
  const auto [end, failure] = std::from_chars(cell.data(), cell.data() + cell.size(), out);
  if (failure == std::errc() && end == cell.data() + cell.size() && is_relative_time(out)) return out;
  throw Error(concat(text(place), ": cannot read ", shown(cell), " as what a forward takes over that of a stage that is trained"), {},
              concat("it is ", kRelativeTimes));
}

// A line in front of the rows; what it says may not have been said.
void parse_line_in_front(std::string_view line, Table& table) {
  const std::vector<std::string> cells = split(line, ',');
  Place place{table.file, ++table.in_front, 1};
  const std::string_view what = unquoted(cells[0]);
  const bool feeds = what == kFeedsLine, known = feeds || what == kForwardLine;
  if (!known || !table.rows.empty() || (feeds ? table.feeds.has_value() : !table.forward_times.empty()))
    throw Error(concat(text(place), ": ", shown(what), known ? " stands twice, or behind a row" : " is not known"), {},
                concat("in front of a table's rows may stand ", kFeedsLine, ",0>1,1>2 and ", kForwardLine, ",0.5, once each"));
  if (feeds) table.feeds.emplace();
  for (std::size_t i = 1; i < cells.size(); ++i) {
    ++place.cell;
    if (const std::string_view cell = unquoted(cells[i]); cell.empty())
      continue;
    else if (feeds)
      table.feeds->push_back(parse_feeding(cell, place));
    else
      table.forward_times.push_back(parse_forward_time(cell, place));
  }
}

void parse_row(std::string_view line, Table& table) {
  std::vector<Entry>& row = table.rows.emplace_back();
  std::vector<std::int32_t>& cells = table.cells.emplace_back();
  Place place{table.file, table.in_front + table.rows.size(), 1};
  for (std::size_t begin = 0; begin <= line.size(); ++place.cell) {
    const std::size_t end = std::min(line.find(',', begin), line.size());
    const std::string_view cell = unquoted(line.substr(begin, end - begin));
    begin = end + 1;
    if (cell.empty()) continue;
    if (cell.front() == '(') {
      for (const Entry& entry : parse_fused(cell, place)) row.push_back(entry);
    } else {
      row.push_back(parse_action(cell, place));
    }
    cells.resize(row.size(), static_cast<std::int32_t>(place.cell));
  }
}

template <class Visit>
void for_each_entry(const Table& table, Visit&& visit) {
  for (std::size_t a = 0; a < table.rows.size(); ++a)
    for (std::size_t i = 0; i < table.rows[a].size(); ++i)
      visit(table.rows[a][i], Place{table.file, table.in_front + a + 1, static_cast<std::size_t>(table.cells[a][i])});
}

// Every stage of a table, and every slice, has an action: a larger number is a slip, refused before anything is sized by it.
void check_numbers(const Table& table) {
  std::int64_t actions = 0;
  for (const auto& row : table.rows) actions += static_cast<std::int64_t>(row.size());
  if (actions == 0) {
    throw Error(concat(table.file, ":1:1: the table has no action"), {"a schedule has one row per actor and one action per cell"},
                "print one with `penstock schedule 1f1b --actors 2 --microbatches 4`");
  }
  for_each_entry(table, [&](const Entry& entry, const Place& place) {
    const auto check = [&](const char* what, std::int32_t number) {
      if (number < actions) return;
      throw Error(concat(text(place), ": ", text(entry), " names ", what, " ", number, " of a table with ", actions,
                         actions == 1 ? " action" : " actions"),
                  {concat(what, "s are numbered from 0 without gaps")});
    };
    check("stage", entry.action.stage);
    check("slice", entry.slice);
  });
}

// Returns how many slices each stage has.
std::int32_t slices_of(const Table& table) {
  std::optional<std::pair<Entry, Place>> whole, largest;
  std::vector<std::set<std::int32_t>> named;  // slices of each stage
  for_each_entry(table, [&](const Entry& entry, const Place& place) {
    const std::size_t stage = static_cast<std::size_t>(entry.action.stage);
    if (stage >= named.size()) named.resize(stage + 1);
    if (!needs_microbatch(entry.action.kind)) return;
    if (entry.slice >= 0 && entry.block < 0) named[stage].insert(entry.slice);
    if (entry.slice < 0 && !whole) whole = {entry, place};
    if (entry.slice >= 0 && (!largest || entry.slice > largest->first.slice)) largest = {entry, place};
  });
  if (!largest) return 1;
  const auto& [last, place] = *largest;
  if (whole) {
    throw Error(concat(text(whole->second), ": ", text(whole->first), " names no slice"),
                {concat(text(last), " at ", text(place), " names one")}, "name a slice in every cell, or in none");
  }
  for (std::size_t stage = 0; stage < named.size(); ++stage) {
    std::int32_t slice = 0;
    while (named[stage].contains(slice)) ++slice;
    if (slice > last.slice) continue;
    throw Error(concat(text(place), ": ", text(last), " names slice ", last.slice, ", but stage ", stage, " has no slice ", slice),
                {"slices are numbered from 0 without gaps, and every stage has as many"},
                concat("add actions of ", stage, ".", slice, ", or correct the number"));
  }
  return last.slice + 1;
}

// The blocks that it names, in order.
std::vector<StagePart> blocks_of(const Table& table) {
  std::set<StagePart> blocks;
  for_each_entry(table, [&](const Entry& entry, const Place&) {
    if (entry.block >= 0) blocks.insert({entry.action.stage, entry.slice, entry.block});
  });
  return {blocks.begin(), blocks.end()};
}

// A U that names a micro-batch closes a step with it.
std::int32_t steps_of(const Table& table) {
  std::set<std::int32_t> closed;
  for_each_entry(table, [&](const Entry& entry, const Place&) {
    if (entry.action.kind == Kind::U && entry.action.microbatch >= 0) closed.insert(entry.action.microbatch);
  });
  return std::max<std::int32_t>(1, static_cast<std::int32_t>(closed.size()));
}

// Returns the predecessors of each stage. Throws where the lines in front of the rows name a stage that no row has.
std::vector<std::vector<std::int32_t>> predecessors_of(const Table& table, std::int32_t stages) {
  std::vector<std::vector<std::int32_t>> out;
  const auto check = [&](std::string_view what, std::int32_t stage) {
    if (stage < stages) return;
    throw Error(concat(table.file, ": ", what, " names stage ", stage, " of a table with ", counted(stages, "stage")), {},
                "leave it out, or add the stage's actions");
  };
  check(kForwardLine, static_cast<std::int32_t>(table.forward_times.size()) - 1);
  if (!table.feeds) return out;
  out.resize(static_cast<std::size_t>(stages));
  for (const auto& [from, to] : *table.feeds) {
    check(kFeedsLine, to);
    std::vector<std::int32_t>& before = out[static_cast<std::size_t>(to)];
    if (std::find(before.begin(), before.end(), from) == before.end()) before.push_back(from);
  }
  return out;
}

std::string text_in_front(const Schedule& schedule) {
  std::string out;
  if (!schedule.predecessors.empty()) {
    out += kFeedsLine;
    for (std::size_t stage = 0; stage < schedule.predecessors.size(); ++stage)
      for (const std::int32_t before : schedule.predecessors[stage]) out += concat(",", before, ">", stage);
    out += '\n';
  }
  if (!schedule.forward_times.empty()) {
    out += kForwardLine;
    for (const double time : schedule.forward_times) out += concat(",", number(time));
    out += '\n';
  }
  return out;
}

}  // namespace

Schedule parse_schedule(std::string_view csv, std::string_view file) {
  Table table{.file = file, .feeds = {}, .forward_times = {}, .rows = {}, .cells = {}};
  while (!csv.empty()) {
    const std::size_t end = std::min(csv.find('\n'), csv.size());
    const std::string_view line = csv.substr(0, end);
    line.starts_with('#') ? parse_line_in_front(line, table) : parse_row(line, table);
    csv.remove_prefix(std::min(end + 1, csv.size()));
  }
  check_numbers(table);
  Schedule schedule;
  schedule.name = file;
  schedule.slices = slices_of(table);
  schedule.blocks = blocks_of(table);
  schedule.steps = steps_of(table);
  for (const std::vector<Entry>& row : table.rows) {
    std::vector<Action>& actions = schedule.actors.emplace_back();
    for (const Entry& entry : row) {
      actions.push_back(entry.action);
      actions.back().stage = number_of({entry.action.stage, std::max(entry.slice, 0), entry.block}, schedule.slices, schedule.blocks);
    }
  }
  schedule.cells = std::move(table.cells);
  schedule.predecessors = predecessors_of(table, schedule.whole_stages());
  schedule.forward_times = std::move(table.forward_times);
  return schedule;
}

std::string print(const Schedule& schedule) {
  std::string out = text_in_front(schedule);
  for (const auto& row : schedule.actors) {
    bool inside = false;  // of a fused pair
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) out += inside ? ';' : ',';
      const bool fused = row[i].fused_with_next && i + 1 < row.size();
      if (fused && !inside) out += '(';
      out += text(row[i], schedule.slices, schedule.blocks);
      if (inside && !fused) out.append(")").append(kFused);
      inside = fused;
    }
    out += '\n';
  }
  return out;
}

}  // namespace penstock
