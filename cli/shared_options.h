// SPDX-License-Identifier: Apache-2.0
// Options that several commands have, each in one place so that it has one name, one unit and one meaning everywhere.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

#include "base/amount.h"

namespace penstock {

// Each begins the group Output; what is given must outlive the command's parse. --json does not go with a --show that is there already.
void add_json_flag(CLI::App& command, bool& json);
void add_show_flag(CLI::App& command, bool& show);
void add_timeline_option(CLI::App& command, std::string& timeline);

// --set KEY=VALUE, which parse_override() of config/config.h reads.
void add_set_option(CLI::App& command, std::vector<std::string>& settings);

// An option of a quantity, with or without a unit (parse_amount); help says how a unit is written. `names` may have older ones behind the
// first.
CLI::Option* add_amount_option(CLI::App& command, const std::string& names, Quantity quantity, std::function<void(Amount)> take,
                               const std::string& meaning);
// The same without asking whether there was a unit, and above 0: the parse throws Error, naming the first name, for what is not.
CLI::Option* add_positive_option(CLI::App& command, const std::string& names, Quantity quantity, std::function<void(double)> take,
                                 const std::string& meaning);

// Options that have an effect only beside `needed`, as "--planner pipedream", and whether that holds here. One that the parser can see by
// itself, another option, is said by CLI::Option::needs.
struct Beside {
  std::vector<std::string> names;
  bool holds;
  std::string needed;
};
// Throws Error for one that is given and would have no effect.
void check_beside(const CLI::App& command, const std::vector<Beside>& options);

}  // namespace penstock
