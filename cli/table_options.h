// SPDX-License-Identifier: Apache-2.0
// The choice of a schedule's table on the command line: a name with options that shape the table, or a file.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

struct TableChoice {
  std::string what;  // a schedule's name, FILE.csv or FILE.rules
  ScheduleOptions options;
  std::vector<const CLI::Option*> flags;  // the flags that set `options`
};

// Adds a flag for everything in ScheduleOptions. `choice` must outlive the command's parse.
void add_table_options(CLI::App& command, TableChoice& choice);

// Whether it is no schedule's name, but ends or reads like a file's.
bool names_file(const std::string& what);
// Throws Error where a table by the choice's options would have more actors than this or, counting all stages' micro-batches, more forwards
// than this.
void check_size(const TableChoice& choice, int most_actors, int most_forwards);
// Makes the table by name, or reads the file. Throws Error, also for more than 2^22 forwards, and where a file is given flags that it
// answers itself.
Schedule table_of(const TableChoice& choice);
// "4 stages", or "4 stages of 8 slices".
std::string stages_in_words(const Schedule& schedule);

}  // namespace penstock
