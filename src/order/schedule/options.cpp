// SPDX-License-Identifier: Apache-2.0
#include "schedule/options.h"

#include <algorithm>

#include "base/invariant.h"
#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Options = ScheduleOptions;
using enum ScheduleOption::Configured;
using enum ScheduleOption::TakenBy;

const ScheduleOption kOptions[] = {
    {"actors", "actors", "that share the stages", &Options::actors, 1, 4096, all, here, true},
    {"microbatches", "micro-batches", "of a step", &Options::microbatches, 1, 1e6, all, here, true},
    {"window", "steps", "of training that the table is for", &Options::window, 1, 4096, all},
    {"chunks", "stages", "of each actor", &Options::chunks, 1, 4096, all, here, true},
    {"slices", "slices", "of each sequence, one after the other in every stage", &Options::slices, 1, 1e6, all, elsewhere, true},
    {"head_shards", "parts", "of the vocabulary, each a stage behind the others", &Options::head_shards, 1, 4096, some, elsewhere},
    {"forward_only", "", "a table for validation, without backward", &Options::forward_only, 0, 1, all, nowhere},
    {"self_conditioning", "", "each micro-batch first goes forward through all stages, and what comes out enters them again",
     &Options::self_conditioning, 0, 1, some, elsewhere},
    {"frozen", "shares", "of a stage's forward that each stage in front takes which is not trained: 1,0.5", &Options::frozen, 0, 1e6,
     registered},
    {"balance", "times", "of each actor's stage, or of a stage of each backbone, by which work is placed and ordered: 4,2,1,1",
     &Options::balance, 0, 1e6, some, nowhere},
    {"in_flight", "micro-batches", "that an actor holds at most; 0: as the schedule chooses", &Options::in_flight},
    {"group", "micro-batches", "that go through a chunk, or forward and back, together; 0: as the schedule chooses", &Options::group},
    {"unit", "micro-batches", "for which sharded parameters are gathered once; 0: all", &Options::unit},
    {"transfers", "share", "of a stage's forward that a transfer takes: of every link, 0.5, or of each, 0,0,2", &Options::transfers},
    {"split_backward", "", "each B as I and then W, fused pairs apart", &Options::split_backward, 0, 1, registered},
};

}  // namespace

std::string ScheduleOption::flag() const {
  std::string out = "--" + std::string(name);
  std::ranges::replace(out, '_', '-');
  return out;
}

bool ScheduleOption::is_given(const ScheduleOptions& options) const {
  static const ScheduleOptions usual;
  return std::visit([&](const auto at) { return options.*at != usual.*at; }, member);
}

std::span<const ScheduleOption> schedule_options() {
  return kOptions;
}

const ScheduleOption& option_of(std::string_view flag) {
  const auto found = std::ranges::find_if(kOptions, [&](const ScheduleOption& row) { return row.flag() == flag; });
  invariant(found != std::end(kOptions), "a schedule takes options that there are");
  return *found;
}

namespace {

// Throws Error for a value that is none of the option's.
struct SetOption {
  const ScheduleOption& row;
  ScheduleOptions& options;
  const OptionValue& value;

  [[noreturn]] void fail(const char* wanted) const { throw Error(concat("option ", quote(row.name), " needs ", wanted)); }
  void within(double number) const {
    if (number >= row.least && number <= row.most) return;
    throw Error(concat("option ", quote(row.name), " is ", number, "; it must be at least ", row.least, " and at most ", row.most));
  }

  void operator()(int ScheduleOptions::* member) const {
    const auto* number = std::get_if<int>(&value);
    if (!number) fail("a whole number");
    within(*number);
    options.*member = *number;
  }
  void operator()(bool ScheduleOptions::* member) const {
    const auto* flag = std::get_if<bool>(&value);
    if (!flag) fail("true or false");
    options.*member = *flag;
  }
  void operator()(std::vector<double> ScheduleOptions::* member) const {
    const auto* list = std::get_if<std::vector<double>>(&value);
    if (!list) fail("a list of numbers");
    for (const double number : *list) within(number);
    options.*member = *list;
  }
};

}  // namespace

void set_option(ScheduleOptions& options, const std::string& name, const OptionValue& value) {
  std::vector<std::string> names;
  for (const ScheduleOption& row : kOptions) {
    if (row.name == name) return std::visit(SetOption{row, options, value}, row.member);
    names.emplace_back(row.name);
  }
  const std::string near = did_you_mean(name, names);
  throw Error(concat("there is no option ", quote(name), " of schedules"), {}, near.empty() ? "options: " + join(names, ", ") : near);
}

void check_bounds(std::string_view name, const ScheduleOptions& options) {
  for (const ScheduleOption& row : kOptions) {
    const auto* number = std::get_if<int ScheduleOptions::*>(&row.member);
    if (!number || !row.is_given(options)) continue;
    const int given = options.**number;
    if (given < 1) throw Error(concat(name, ": ", row.flag(), " must be at least 1, not ", given));
    if (!row.is_size && given > row.most) throw Error(concat(name, ": ", row.flag(), " must be at most ", row.most, ", not ", given));
  }
}

}  // namespace penstock
