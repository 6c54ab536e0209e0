// SPDX-License-Identifier: Apache-2.0
// The processes of one run, and the facts that each tells the others.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "penstock/ranks.h"

namespace penstock {

// ranks_from_environment() with other variables; `get` gives nullptr for one that is not set.
std::optional<Ranks> ranks_from(const std::function<const char*(const char*)>& get);

// This process's place among those that its launcher (penstock launch, torchrun, mpirun or srun) started on this host; 0: none did. Throws
// Error where the launcher's variable is no number.
int local_rank_from(const std::function<const char*(const char*)>& get);

// Facts that must be equal in all processes of a run.
struct Hello {
  std::string build;         // build_id() of base/build_id.h
  std::string torch;         // libtorch's version
  int size = 0;              // number of processes
  std::string run;           // what all do, and with which data: lines, those of a configuration after their [section]
  std::string process = {};  // this_process(), which is each one's own
};
std::string print(const Hello& hello);
Hello parse_hello(const std::string& text);  // lines that cannot be read leave their field empty
// Throws Error naming the first difference between rank 0 and `rank`.
void check_hello(const Hello& first, const Hello& other, int rank);

// Compares how two ranks describe a call that both should make: its name, and a line for each tensor that it is given. Throws Error naming
// the first difference between rank 0's and that of `rank`.
void check_call(const std::string& first, const std::string& other, int rank);

}  // namespace penstock
