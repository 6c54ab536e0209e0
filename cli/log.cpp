// SPDX-License-Identifier: Apache-2.0
#include "cli/log.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/text.h"
#include "cli/command_tree.h"
#include "penstock/error.h"

namespace penstock {

void Log::say(const std::string& line) const {
  if (!quiet) std::fprintf(stderr, "%s\n", line.c_str());
  keep(line);
}

// Opened for each line: lines are few, and what stands in the file is whole whenever the command ends.
void Log::keep(const std::string& line) const {
  if (file.empty()) return;
  std::FILE* out = std::fopen(file.c_str(), "a");
  if (!out) throw Error(concat("--log-file ", file, ": ", std::strerror(errno)), {}, "name a file in a folder that is there");
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", &parts);
  std::fprintf(out, "%s %s\n", time, line.c_str());
  std::fclose(out);
}

void add_log_options(CLI::App& command, Log& log) {
  begin_group(command, groups::kOutput);
  CLI::Option* quiet = command.add_flag("--quiet", log.quiet, "No progress and no notes on standard error; errors are said");
  command.add_flag("--verbose", log.verbose, "Say every step, where otherwise some are left out")->excludes(quiet);
  const auto take = [&log](const std::string& file) {
    const std::filesystem::path folder = std::filesystem::path(file).parent_path();
    std::error_code ignored;
    if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
      throw Error(concat("--log-file ", file, ": there is no folder ", folder.string()), {}, "name a file in a folder that is there");
    log.file = file;
  };
  command.add_option_function<std::string>("--log-file", take, "Also add progress and notes to this file, each line behind the time")
      ->type_name("FILE");
}

}  // namespace penstock
