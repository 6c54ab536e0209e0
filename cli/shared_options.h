// SPDX-License-Identifier: Apache-2.0
// Options that several commands have, each in one place so that it has one name, one unit and one meaning everywhere.
#pragma once

#include <CLI/App.hpp>
#include <functional>
#include <string>
#include <vector>

namespace penstock {

// Each begins the group Output; what is given must outlive the command's parse.
void add_json_flag(CLI::App& command, bool& json);
void add_show_flag(CLI::App& command, bool& show);
void add_timeline_option(CLI::App& command, std::string& timeline);

// --set KEY=VALUE, which parse_override() of config/config.h reads.
void add_set_option(CLI::App& command, std::vector<std::string>& settings);

// An option of bytes, with or without a unit (parse_bytes), above 0. `names` may have older ones behind the first. Throws Error, naming the
// first, for a value that is not above 0; what is no size is wrong usage.
CLI::Option* add_bytes_option(CLI::App& command, const std::string& names, std::function<void(double)> take, const std::string& meaning);

}  // namespace penstock
