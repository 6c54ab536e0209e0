// SPDX-License-Identifier: Apache-2.0
#include "lower/passes.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>

#include "base/text.h"
#include "base/words.h"
#include "lower/member_inputs.h"
#include "lower/window.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::array kPasses = {
    LowerPass{"blocks", "Which gradients, moments and parameters devices can hold in shares follows from what is computed of a gradient.",
              find_blocks},
    LowerPass{"actions", "Each action of the table is its stage's task for a micro-batch; here it becomes a run on instances.",
              lower_actions},
    LowerPass{"offload",
              "What a stage leaves to its own backward alone can wait in the host's memory, which is known once all readers are.",
              offload_residuals},
    LowerPass{"reduce", "Devices that share an actor's micro-batches have terms of its sums, which become sums while other stages run.",
              reduce_over_groups},
    LowerPass{"before", "What the loop reads and each micro-batch would make anew is made once, on every actor that reads it.",
              build_before},
    LowerPass{"after", "What depends on the loop's sums runs where it moves the fewest bytes, and decides where state lives.", build_after},
    LowerPass{"refresh", "Copies of a state that its owner alone updates are out of date when the step ends.", refresh_copies},
    LowerPass{"devices", "Up to here an actor is one device; now each of its devices gets its part of the micro-batches and its shares.",
              spread_groups},
    LowerPass{"steps", "A device does the steps of a window in one row, in the order of the table, on one set of states.", nullptr,
              join_steps},
    LowerPass{"waves", "Workers that update by themselves take each other's updates a wave at a time, behind their own.", exchange_waves},
    LowerPass{"versions", "An update writes over a state that something behind it still reads as it was before, or as it will be.",
              read_table_versions},
    LowerPass{"lookups", "The keys of the next step are there, so its rows of a table can be looked up while this step computes.",
              look_up_rows},
    LowerPass{"workers",
              "Each worker has a table of its own, of which its devices take their rows, and sums with the others what all have.", nullptr,
              join_workers},
    LowerPass{"axes", "Members of the mesh's axes have steps of their own up to here; together they are the devices of the program.",
              nullptr, join_axes},
    LowerPass{"transfers", "What is read elsewhere than where it was made is sent as soon as it is there, once to each reader.",
              make_transfers},
    LowerPass{"order", "Both ends of a pair must start its transfers in one order, or a link with one queue would deadlock.",
              order_transfers},
    LowerPass{"frees", "A slot is freed when nothing can need it, and late enough that no device waits at its free.", place_frees},
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The position of the pass behind the one of this name; empty: the first.
std::size_t behind(std::string_view pass) {
  return pass.empty() ? 0 : find_pass(pass) + 1;
}

}  // namespace

std::span<const LowerPass> lower_passes() {
  return kPasses;
}

std::size_t find_pass(std::string_view name) {
  const auto found = std::ranges::find(kPasses, name, &LowerPass::name);
  if (found != kPasses.end()) return static_cast<std::size_t>(found - kPasses.begin());
  std::vector<std::string> names;
  for (const LowerPass& pass : kPasses) names.emplace_back(pass.name);
  throw Error(concat("lowering has no pass ", quote(name)), {"its passes: " + join(names, ", ")}, did_you_mean(name, names));
}

TableDrafts begin_table(LowerInput input, std::int32_t member, std::int32_t worker) {
  TableDrafts out;
  out.steps.resize(input.schedule.steps);
  out.input = std::move(input);
  for (std::int32_t step = 0; step < std::ssize(out.steps); ++step) out.steps[step].of = {member, worker, step};
  return out;
}

void run_passes(const LowerInput& input, Draft& draft, std::string_view last) {
  const std::size_t end = last.empty() ? kPasses.size() : find_pass(last) + 1;
  for (std::size_t p = behind(draft.after); p < end; ++p) {
    if (kPasses[p].change) kPasses[p].change(input, draft);
    draft.after = kPasses[p].name;
  }
}

namespace {

void change(TableDrafts& table, Draft& draft, std::string_view last) {
  if (table.steps.size() == 1) return run_passes(table.input, draft, last);
  run_passes(step_input(table.input, draft.of.step), draft, last);
}

void run_pass(const LowerPass& pass, Lowering& lowering) {
  if (pass.join) pass.join(lowering);
  for (TableDrafts& table : lowering)
    for (Draft& draft : table.steps)
      if (pass.join)
        draft.after = pass.name;
      else
        change(table, draft, pass.name);
}

// Hands out what lowering begins with, each table of a member when its turn comes.
template <class Take>
void take_tables(const Graph& traced, const Schedule& schedule, const CompileOptions& options, const Take& take) {
  check_workers(schedule, options);
  for (std::size_t worker = 0; worker <= options.others.size(); ++worker) {
    std::int32_t member = 0;
    take_members(traced, worker == 0 ? schedule : options.others[worker - 1], options, [&](LowerInput input) {
      take(begin_table(checked_input(std::move(input)), member++, static_cast<std::int32_t>(worker)));
    });
  }
}

// Lowers a table of one member as far as that does not depend on others.
TableDrafts lowered_alone(TableDrafts table) {
  for (Draft& draft : table.steps) change(table, draft, "devices");
  Lowering alone;
  alone.push_back(std::move(table));
  run_passes(alone, "lookups");
  return std::move(alone[0]);
}

DraftOf of(const TableDrafts& table) {
  return table.steps[0].of;
}

}  // namespace

void run_passes(Lowering& lowering, std::string_view last, const PassWatch& watch) {
  const std::size_t end = last.empty() ? kPasses.size() : find_pass(last) + 1;
  for (std::size_t p = behind(lowering[0].steps[0].after); p < end; ++p) {
    const auto start = std::chrono::steady_clock::now();
    run_pass(kPasses[p], lowering);
    const double seconds = seconds_since(start);
    if (watch) watch(kPasses[p], lowering, seconds);
  }
}

Lowering begin_lowering(const Graph& traced, const Schedule& schedule, const CompileOptions& options) {
  Lowering out;
  take_tables(traced, schedule, options, [&](TableDrafts table) { out.push_back(std::move(table)); });
  std::ranges::stable_sort(out, {}, of);
  return out;
}

Lowering with_drafts(Lowering lowering, std::vector<Draft> drafts) {
  const std::string after = drafts.empty() ? "" : drafts[0].after;
  const auto is_done = [&](void (*join)(Lowering&)) {
    return behind(after) > static_cast<std::size_t>(std::ranges::find(kPasses, join, &LowerPass::join) - kPasses.begin());
  };
  if (is_done(join_workers)) std::erase_if(lowering, [](const TableDrafts& table) { return of(table).worker > 0; });
  if (is_done(join_axes)) lowering.resize(1);
  std::size_t next = 0;
  for (TableDrafts& table : lowering) {
    if (is_done(join_steps)) table.steps.resize(1);
    for (Draft& draft : table.steps) {
      if (next == drafts.size() || drafts[next].of != draft.of || drafts[next].after != after)
        throw Error(
            concat("draft ", next, " is not that of member ", draft.of.member, ", worker ", draft.of.worker, ", step ", draft.of.step),
            {concat("after ", after.empty() ? "no pass" : after, " there is one for each, in this order")},
            "read all drafts of one lowering");
      draft = std::move(drafts[next++]);
    }
    const auto is_data = [&](std::int32_t input) { return input >= table.input.step.state && input < std::ssize(table.input.step.inputs); };
    if (!std::ranges::all_of(table.steps[0].whole_ports, is_data)) throw Error("a draft has ports of inputs that are no data of the step");
    if (is_done(join_steps) && is_window(table.input)) table.input = window_input(table.input, table.steps[0].whole_ports);
    for (const Draft& draft : table.steps) verify(table.steps.size() == 1 ? table.input : step_input(table.input, draft.of.step), draft);
  }
  if (next < drafts.size()) throw Error(concat("there are ", drafts.size(), " drafts, and ", next, " are read"), {}, "read one lowering");
  return lowering;
}

std::string print(const Lowering& lowering) {
  std::string out;
  for (const TableDrafts& table : lowering)
    for (const Draft& draft : table.steps) out += print(draft);
  return out;
}

Program lower(Lowering lowering, TaskPool* pool) {
  run_passes(lowering);
  return program_of(lowering[0].input, std::move(lowering[0].steps[0]), pool);
}

Program lower(std::vector<LowerInput> members, TaskPool* pool) {
  Lowering lowering;
  for (LowerInput& input : members)
    lowering.push_back(lowered_alone(begin_table(std::move(input), static_cast<std::int32_t>(lowering.size()), 0)));
  return lower(std::move(lowering), pool);
}

Program lower(const Graph& traced, const Schedule& schedule, const CompileOptions& options) {
  Lowering lowering;
  take_tables(traced, schedule, options, [&](TableDrafts table) {
    lowering.push_back(lowered_alone(std::move(table)));
    if (lowering.size() == 1) return;
    // Joined, it only has to say whose it is.
    lowering.back().input.step = {};
    lowering.back().input.dag = {};
  });
  std::ranges::stable_sort(lowering, {}, of);
  return lower(std::move(lowering));
}

void dump_passes(Lowering lowering, const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::string before = print(lowering);
  int number = 0;
  run_passes(lowering, {}, [&](const LowerPass& pass, const Lowering& now, double seconds) {
    const std::string text = print(now), after = concat("\nafter ", pass.name, "\n");
    std::string said = text;
    for (std::size_t at = said.find(after); at != std::string::npos; at = said.find(after, at)) said.erase(at, after.size() - 1);
    const std::string digits = concat(++number < 10 ? "0" : "", number);
    const std::string comment = concat("// ", pass.reason, "\n// ", short_decimal(1000 * seconds, 3), " ms",
                                       said == before ? ", unchanged: the draft is that of the pass before\n" : "\n");
    write_file(concat(folder, "/", digits, "-", pass.name, ".txt"), comment + text);
    before = std::move(said);
  });
}

}  // namespace penstock
