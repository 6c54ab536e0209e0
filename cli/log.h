// SPDX-License-Identifier: Apache-2.0
// Progress and notes, which a command writes beside its answer, to standard error and to a file.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace penstock {

struct Log {
  bool quiet = false;    // nothing on standard error; errors are said all the same
  bool verbose = false;  // every step, where otherwise some are left out
  std::string file;      // to which all is added, every line behind the time; empty: none

  // A line, without its end, on standard error unless quiet, and in the file.
  void say(const std::string& line) const;
  // A line in the file alone. Throws Error where it cannot be written.
  void keep(const std::string& line) const;
};

// Adds --quiet, --verbose and --log-file. `log` must outlive the command's parse.
void add_log_options(CLI::App& command, Log& log);

}  // namespace penstock
