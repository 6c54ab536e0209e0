// SPDX-License-Identifier: Apache-2.0
#include "cli/table_options.h"

#include <CLI/CLI.hpp>
#include <tuple>
#include <type_traits>
#include <variant>

#include "base/text.h"
#include "base/words.h"
#include "cli/command_tree.h"
#include "config/config.h"
#include "penstock/error.h"
#include "rules/load_schedule.h"
#include "schedule/options.h"

namespace penstock {

void add_table_options(CLI::App& command, TableChoice& choice) {
  begin_group(command, groups::kSchedule);
  choice.options = Config::Pipeline().table;  // the defaults of a configuration
  for (const ScheduleOption& option : schedule_options()) {
    const std::string flag = option.flag(), help = concat(option.unit, option.unit.empty() ? "" : " ", option.meaning);
    const auto add = [&]<class T>(T ScheduleOptions::* member) -> CLI::Option* {
      T& value = choice.options.*member;
      if constexpr (std::is_same_v<T, bool>)
        return command.add_flag(flag, value, help);
      else if constexpr (std::is_same_v<T, int>)
        return command.add_option(flag, value, help)->capture_default_str();
      else
        return command.add_option(flag, value, help)->delimiter(',');
    };
    choice.flags.push_back(std::visit(add, option.member));
  }
}

namespace {

std::string given(const std::vector<const CLI::Option*>& flags) {
  std::vector<std::string> names;
  for (const CLI::Option* flag : flags)
    if (flag->count() > 0) names.push_back(flag->get_name());
  return join(names, ", ");
}

}  // namespace

bool names_file(const std::string& what) {
  return names_table(what) || names_rules(what);
}

void check_size(const TableChoice& choice, int most_actors, int most_forwards) {
  const auto& [actors, microbatches, chunks, slices] =
      std::tie(choice.options.actors, choice.options.microbatches, choice.options.chunks, choice.options.slices);
  if (actors > most_actors) throw Error(concat("--actors ", actors, " are too many"), {}, concat("up to ", most_actors, " are looked at"));
  if (1.0 * actors * microbatches * chunks * slices > most_forwards)
    throw Error(concat("a table of ", actors, " actors x ", chunks, " chunks x ", microbatches, " micro-batches",
                       slices > 1 ? concat(" x ", slices, " slices") : "", " is too large"),
                {concat("the product may be up to ", most_forwards)});
}

Schedule table_of(const TableChoice& choice) {
  if (!names_table(choice.what)) check_size(choice, 1 << 22, 1 << 22);
  if (const std::string flags = given(choice.flags); names_table(choice.what) && !flags.empty()) {
    throw Error(concat(choice.what, " says itself how many actors, stages and micro-batches it has"), {}, "leave out " + flags);
  }
  if (names_rules(choice.what) && choice.options.head_shards > 1)
    throw Error(concat(choice.what, " says by its placement and edges which stages there are"), {}, "leave out --head-shards");
  return load_schedule(choice.what, choice.options);
}

std::string stages_in_words(const Schedule& schedule) {
  const std::string stages = counted(schedule.whole_stages(), "stage");
  return schedule.slices == 1 ? stages : concat(stages, " of ", schedule.slices, " slices");
}

}  // namespace penstock
