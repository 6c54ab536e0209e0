// A schedule's table on the command line: a name and what shapes it, or a file.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

struct TableChoice {
  std::string what;  // a schedule's name, FILE.csv or FILE.rules
  ScheduleOptions options;
  std::vector<const CLI::Option*> flags;  // of `options`
};

// Everything in ScheduleOptions. `choice` outlives the command's parse.
void add_table_options(CLI::App& command, TableChoice& choice);

// A name that is no schedule's but ends or reads like a file's.
bool names_file(const std::string& what);
// Throws Error where a table by the choice's options would be of more actors or, all stages' micro-batches together, more forwards than
// these.
void check_size(const TableChoice& choice, int most_actors, int most_forwards);
// By name, or as the file says. Throws Error, also for more than 2^22 forwards, and where a file is given flags that it answers itself.
Schedule table_of(const TableChoice& choice);
// What it is held against: the stages that its rules say, or a chain.
StageShape shape_of(const TableChoice& choice, const Schedule& schedule);

}  // namespace penstock
