// SPDX-License-Identifier: Apache-2.0
// The text of --help.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "cli/command_tree.h"

namespace penstock {

// The command's summary, use, arguments and options in their groups, commands and examples, in lines of at most 100 letters.
std::string help_text(const CommandText& command);

// Prints help_text() for --help of the app that it is given to and of those below.
std::shared_ptr<CLI::FormatterBase> help_formatter();

}  // namespace penstock
