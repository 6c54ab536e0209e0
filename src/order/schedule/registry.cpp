// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/papers.h"
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/folded.h"
#include "schedule/forward_stages.h"
#include "schedule/generators.h"
#include "schedule/kinds.h"
#include "schedule/options.h"
#include "schedule/traits.h"

namespace penstock {
namespace {

struct Entry {
  ScheduleInfo info;
  Schedule (*make)(const ScheduleOptions&);
  bool splits_backward = false, has_attention_apart = false;
};

// The schedules that update within a window of steps, behind all others.
std::vector<Entry> with_windows(std::vector<Entry> all) {
  const std::vector<Entry> of_windows = {
      {{"pipedream",
        "1f1b that is never drained: a stage is updated after each step, and reads what its forward read",
        false,
        {"--in-flight", "--window"}},
       pipedream},
      {{"pipedream-2bw",
        "pipedream with two versions of the parameters: a step reads that before the last",
        false,
        {"--in-flight", "--window"}},
       pipedream_2bw},
      {{"hetpipe",
        "pipedream in which a step reads one version in all stages: that of which N steps in flight are missing",
        false,
        {"--in-flight", "--window"}},
       hetpipe},
      {{"layerpipe",
        "eager-1f1b that is never drained: a stage reads parameters twice as many updates late as in pipedream",
        false,
        {"--in-flight", "--window", "--balance"}},
       layerpipe},
      {{"nestpipe",
        "zb-h1, step by step: nothing is late, and lookups of the next step can be ahead (pipeline.prefetch)",
        false,
        {"--window"}},
       nestpipe,
       true},
      {{"xpipe", "pipedream whose forwards and backwards read parameters predicted to one time", false, {"--in-flight", "--window"}},
       xpipe},
      {{"pipeoptim", "pipedream whose forwards read parameters predicted to their own update", false, {"--in-flight", "--window"}},
       pipeoptim},
  };
  all.insert(all.end(), of_windows.begin(), of_windows.end());
  return all;
}

// The schedules for long sequences, behind all others.
std::vector<Entry> with_sequences(std::vector<Entry> all) {
  const std::vector<Entry> of_sequences = {
      {{.name = "terapipe",
        .summary = "gpipe over --slices of each sequence: the bubble divided by slices",
        .chunked = false,
        .orders_slices = true},
       terapipe},
      {{.name = "seq1f1b", .summary = "1f1b over --slices: n+p-1-i slices in flight", .chunked = false, .orders_slices = true}, seq1f1b},
      {{.name = "slimpipe",
        .summary = "1f1b over --slices with warm-up n+2(p-1-i): little memory, and latency hidden",
        .chunked = false,
        .takes = {"--head-shards"},
        .orders_slices = true},
       slimpipe},
      {{.name = "slimpipe-exchange",
        .summary = "slimpipe in which actors at early slices do blocks of the attention of later ones: slices cost alike",
        .chunked = true,
        .takes = {"--head-shards"},
        .orders_slices = true},
       slimpipe_exchange},
      {{"helixpipe",
        "attention, as stages of its own, of p micro-batches on p actors: no bubble from it, at gpipe's memory",
        true,
        {"--group"}},
       helixpipe,
       false,
       true},
  };
  all.insert(all.end(), of_sequences.begin(), of_sequences.end());
  return all;
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = with_windows(with_sequences({
      {{"sequential", "one micro-batch after the other: the reference", true}, sequential},
      {{"gpipe", "all forwards, then all backwards", true}, gpipe},
      {{"breadth-first", "each chunk runs all micro-batches before the next: gpipe's memory, the bubble divided by chunks", true},
       breadth_first},
      {{"1f1b",
        "one forward, one backward: GPipe's time at the memory of p-i micro-batches",
        false,
        {"--in-flight", "--self-conditioning"}},
       one_forward_one_backward},
      {{"eager-1f1b", "1f1b with warm-up 2(p-i)-1, which hides the latency of transfers", false, {"--in-flight"}},
       eager_one_forward_one_backward},
      {{"interleaved-1f1b", "several chunks per actor: the bubble divided by chunks, more transfers", true, {"--group"}},
       interleaved_one_forward_one_backward},
      {{"interleaved-zb", "interleaved-1f1b with the backward split: a third of its bubble", true, {"--group"}},
       interleaved_zero_bubble,
       true},
      {{"zb-h1", "backward split in two, weight gradients fill the drain: a third of 1f1b's bubble", false}, zero_bubble_h1, true},
      {{"zb-h2", "zb-h1 with warm-up 2(p-i)-1: no bubble in an actor's own span, latency hidden by --transfers", false, {"--transfers"}},
       zero_bubble_h2,
       true},
      {{"kfkb", "k forwards, k backwards: 1f1b in bunches, which hides latency", false, {"--group"}}, k_forward_k_backward},
      {{"crosspipe", "greedy for slow links: what can run runs, within a limit of micro-batches", false, {"--in-flight", "--transfers"}},
       crosspipe},
      {{"graphpipe", "1f1b whose warm-up follows the longest path through branching stages", false}, graphpipe_chain},
      {{"zeropp",
        "units of micro-batches, chunk by chunk, backward split: sharded parameters are gathered once per unit",
        true,
        {"--unit"}},
       zeropp,
       true},
      {{"zb-v", "stages go down the actors and back: no bubble in an actor's own span, at 1f1b's memory", true}, zero_bubble_v, true},
      {{"v-half", "zb-v's placement at half of 1f1b's memory and half its bubble", true}, v_half, true},
      {{"v-min", "zb-v's placement at a third of 1f1b's memory and two thirds of its bubble", true}, v_min, true},
      {{"dualpipe", "both directions at once with two copies, forward and backward paired to hide communication", false}, dual_pipe, true},
      {{"dualpipe-v", "half of dualpipe on zb-v's placement, with one copy", true}, dual_pipe_v, true},
      {{"dualpipe-v-jaxpp", "dualpipe-v as JaxPP orders it: all weight gradients last", true}, dual_pipe_v_jaxpp, true},
      {{"chimera", "two opposite pipelines with two copies, each filling the other's start", false}, chimera},
      {{"bitpipe", "two opposite V pipelines with two copies: half of chimera's bubble", true}, bitpipe},
      {{"hanayo", "down the actors and back, chunks/2 times: chimera's short ways with one copy", true}, hanayo},
      {{"bidirectional", "two backbones, one down the actors and one up, each filling the other's idle time", true, {"--balance"}},
       bidirectional},
  }));
  return all;
}

template <class Condition>
std::vector<std::string> names_of(const Condition& condition) {
  std::vector<std::string> out;
  for (const Entry& entry : entries()) {
    if (condition(entry.info)) out.push_back(entry.info.name);
  }
  return out;
}

bool takes(const ScheduleInfo& info, std::string_view flag) {
  return std::find(info.takes.begin(), info.takes.end(), flag) != info.takes.end();
}

// Returns the flags that a schedule takes, for messages. Some flags no run has: there are only tables with them.
std::string taken(const ScheduleInfo& info) {
  std::vector<std::string> by_all, by_tables;
  for (const std::string& flag : info.takes)
    (option_of(flag).configured == ScheduleOption::Configured::nowhere ? by_tables : by_all).push_back(flag);
  if (by_tables.empty()) return concat("it takes ", join(by_all, ", "));
  return concat("it takes ", join(by_all, ", "), by_all.empty() ? "" : "; ", "in penstock schedule ", by_all.empty() ? "" : "also ",
                join(by_tables, ", "));
}

// Throws Error for an option that only other schedules take.
void check_taken(const ScheduleInfo& info, const ScheduleOption& option) {
  const std::string flag = option.flag();
  if (option.taken_by != ScheduleOption::TakenBy::some || takes(info, flag)) return;
  const std::vector<std::string> own = info.takes.empty() ? info.takes : std::vector{taken(info)};
  throw Error(concat(info.name, " takes no ", flag), own,
              concat("schedules that do: ", join(names_of([&](const ScheduleInfo& other) { return takes(other, flag); }), ", ")));
}

void check_transfers(const ScheduleInfo& info, const ScheduleOptions& options) {
  const std::vector<double>& transfers = options.transfers;
  if (transfers.empty()) return;
  if (transfers.size() != 1 && transfers.size() != static_cast<std::size_t>(options.actors - 1)) {
    throw Error(concat(info.name, ": --transfers gives ", transfers.size(), " times for the ", options.actors - 1, " links of ",
                       options.actors, " actors"),
                {}, "give one for all links, or one for each");
  }
  for (const double time : transfers) {
    if (!(time >= 0 && time <= 1e6)) throw Error(concat(info.name, ": --transfers must be from 0 to 1e6, not ", number(time)));
  }
}

// Throws Error for frozen stages whose times are none, and beside what has no idle time of a step or other stages in front.
void check_frozen(const ScheduleInfo& info, const ScheduleOptions& options) {
  if (options.frozen.empty()) return;
  for (const double time : options.frozen)
    if (!is_relative_time(time)) throw Error(concat(info.name, ": --frozen must be ", kRelativeTimes, ", not ", number(time)));
  if (takes(info, "--window"))
    throw Error(concat(info.name, " orders a window's steps itself, so it takes no --frozen"), {},
                "frozen stages are placed in a table of one step, which --window repeats: 1f1b, zb-h1, gpipe");
  for (const auto& [flag, is_given] : {std::pair("--slices", options.slices > 1), std::pair("--head-shards", options.head_shards > 1)})
    if (is_given) throw Error(concat(info.name, ": --frozen and ", flag, " do not go together"), {}, concat("leave out ", flag));
}

void check_balance(const ScheduleInfo& info, const ScheduleOptions& options) {
  for (const double time : options.balance)
    if (!is_relative_time(time)) throw Error(concat(info.name, ": --balance must be ", kRelativeTimes, ", not ", number(time)));
}

void check(const ScheduleInfo& info, const ScheduleOptions& options) {
  if (options.chunks > 1 && !info.chunked) {
    throw Error(concat(info.name, " takes one stage per actor, not ", options.chunks, " chunks"), {},
                "schedules that take chunks: " + join(names_of([](const ScheduleInfo& other) { return other.chunked; }), ", "));
  }
  for (const ScheduleOption& option : schedule_options())
    if (option.is_given(options)) check_taken(info, option);
  check_bounds(info.name, options);
  check_frozen(info, options);
  check_balance(info, options);
  check_transfers(info, options);
  check_size(info.name, options, options.chunks);
}

std::vector<std::vector<Action>> split_backwards(const std::vector<std::vector<Action>>& rows) {
  std::vector<std::vector<Action>> out;
  for (const auto& row : rows) {
    auto& split = out.emplace_back();
    for (Action action : row) {
      action.fused_with_next = false;
      if (action.kind == Kind::B) {
        action.kind = Kind::I;
        split.push_back(action);
        action.kind = Kind::W;
      }
      split.push_back(action);
    }
  }
  return out;
}

const Entry& entry_named(std::string_view name) {
  const auto found = std::find_if(entries().begin(), entries().end(), [&](const Entry& entry) { return entry.info.name == name; });
  if (found != entries().end()) return *found;
  const std::vector<std::string> names = names_of([](const ScheduleInfo&) { return true; });
  const std::string near = hint_for(name, names);
  throw Error(concat("there is no schedule ", quote(name)), {"schedules: " + join(names, ", ")},
              near.empty() ? "a table of your own is named by its file, ending in .csv" : near);
}

}  // namespace

void check_size(const std::string& name, const ScheduleOptions& options, int chunks) {
  const int stages = options.actors * chunks + static_cast<int>(options.frozen.size());
  if (1.0 * stages * options.microbatches * options.window * options.slices <= kMostForwards) return;
  throw Error(concat(name, ": a table of ", options.actors, " actors x ", chunks, " chunks x ", options.microbatches, " micro-batches",
                     options.window > 1 ? concat(" x ", options.window, " steps") : "",
                     options.slices > 1 ? concat(" x ", options.slices, " slices") : "", " is too large"),
              {concat("the product may be up to ", kMostForwards)});
}

void require_balance(std::string_view name, const ScheduleOptions& options, int count, std::string_view of, std::string_view each) {
  if (std::ssize(options.balance) != count)
    throw Error(concat(name, ": --balance gives ", options.balance.size(), " times for ", count, " ", of), {},
                concat("give one for each ", each));
}

bool splits_backward(std::string_view schedule) {
  return entry_named(schedule).splits_backward;
}

bool has_attention_apart(std::string_view schedule) {
  return entry_named(schedule).has_attention_apart;
}

bool takes(std::string_view schedule, std::string_view flag) {
  return takes(entry_named(schedule).info, flag);
}

Schedule make_schedule(std::string_view name, const ScheduleOptions& options) {
  const Entry& entry = entry_named(name);
  check(entry.info, options);
  ScheduleOptions own = options;
  if (!entry.info.orders_slices) own.slices = 1;
  const bool is_drained = !takes(entry.info, "--window");
  if (is_drained) own.window = 1;
  Schedule schedule = own.self_conditioning ? self_conditioned(entry.make(own)) : entry.make(own);
  if (!own.frozen.empty())
    schedule = with_frozen_stages(std::move(schedule), own.frozen, options.window);
  else if (is_drained && options.window > 1)
    schedule = repeated(std::move(schedule), options.window);
  schedule.name = entry.info.name;
  if (options.split_backward) schedule.actors = split_backwards(schedule.actors);
  if (options.forward_only) schedule = forwards_of(std::move(schedule));
  return own.slices == options.slices ? schedule : sliced(schedule, options.slices);
}

const std::vector<ScheduleInfo>& schedules() {
  static const std::vector<ScheduleInfo> all = [] {
    std::vector<ScheduleInfo> out;
    for (const Entry& entry : entries()) out.push_back(entry.info);
    return out;
  }();
  return all;
}

}  // namespace penstock
