// Hints for command lines that no command takes.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "penstock/trace.h"

namespace penstock {

// "error: ...\n  hint: ...\n".
std::string usage_message(const CLI::App& program, const CLI::Error& usage, const ModelRegistry& models);

}  // namespace penstock
