#include "cli/table_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

void add_table_options(CLI::App& command, TableChoice& choice) {
  ScheduleOptions& options = choice.options;
  choice.flags = {
      command.add_option("--actors", options.actors, "how many actors")->capture_default_str(),
      command.add_option("--microbatches", options.microbatches, "micro-batches of a step")->capture_default_str(),
      command.add_option("--chunks", options.chunks, "stages per actor")->capture_default_str(),
      command.add_flag("--forward-only", options.forward_only, "a table for validation, without backward"),
  };
}

bool names_file(const std::string& what) {
  return what.ends_with(".csv") || what.find('/') != std::string::npos;
}

Schedule table_of(const TableChoice& choice) {
  if (!names_file(choice.what)) return make_schedule(choice.what, choice.options);
  if (std::any_of(choice.flags.begin(), choice.flags.end(), [](const CLI::Option* flag) { return flag->count() > 0; })) {
    throw Error(concat(choice.what, " says itself how many actors, stages and micro-batches it has"), {},
                "leave out --actors, --microbatches, --chunks and --forward-only");
  }
  return parse_schedule(read_file(choice.what), choice.what);
}

}  // namespace penstock
