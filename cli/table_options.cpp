#include "cli/table_options.h"

#include <CLI/CLI.hpp>
#include <tuple>

#include "base/text.h"
#include "base/words.h"
#include "config/config.h"
#include "penstock/error.h"
#include "rules/load_schedule.h"

namespace penstock {

void add_table_options(CLI::App& command, TableChoice& choice) {
  ScheduleOptions& options = choice.options;
  options.microbatches = static_cast<int>(Config::Pipeline().microbatches);  // the default of a configuration
  choice.flags = {
      command.add_option("--actors", options.actors, "how many actors")->capture_default_str(),
      command.add_option("--microbatches", options.microbatches, "micro-batches of a step")->capture_default_str(),
      command.add_option("--window", options.window, "training steps in the table")->capture_default_str(),
      command.add_option("--chunks", options.chunks, "stages per actor")->capture_default_str(),
      command.add_option("--slices", options.slices, "slices of each sequence, one after the other in every stage")->capture_default_str(),
      command.add_option("--head-shards", options.head_shards, "parts of the vocabulary, each a stage behind the others")
          ->capture_default_str(),
      command.add_option("--in-flight", options.in_flight, "most micro-batches an actor holds [as the schedule chooses]"),
      command.add_option("--group", options.group, "micro-batches that go through a chunk, or forward and back, together"),
      command.add_option("--unit", options.unit, "micro-batches for which parameters are gathered once [all]"),
      command
          .add_option("--transfers", options.transfers,
                      "time of a transfer over a stage's forward, that the order allows for: 0.5, or each link's: 0,0,2")
          ->delimiter(','),
      command
          .add_option("--frozen", options.frozen,
                      "stages in front that are not trained: what a forward of each takes over that of a stage that is: 1,0.5")
          ->delimiter(','),
      command
          .add_option("--balance", options.balance,
                      "times of the actors' stages: weight gradients run where actors get to equal work: 4,2,1,1")
          ->delimiter(','),
      command.add_flag("--self-conditioning", options.self_conditioning,
                       "each micro-batch first goes forward through all stages, and what comes out enters them again"),
      command.add_flag("--split-backward", options.split_backward, "each B as I and then W, fused pairs apart"),
      command.add_flag("--forward-only", options.forward_only, "a table for validation, without backward"),
  };
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
  return load_schedule(choice.what, choice.options);
}

std::string stages_in_words(const Schedule& schedule) {
  const std::string stages = counted(schedule.whole_stages(), "stage");
  return schedule.slices == 1 ? stages : concat(stages, " of ", schedule.slices, " slices");
}

}  // namespace penstock
