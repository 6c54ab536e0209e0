// Hints for command lines that no command accepts.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "penstock/trace.h"

namespace penstock {

// The message: "error: ...\n  hint: ...\n".
std::string usage_message(const CLI::App& program, const CLI::Error& usage, const ModelRegistry& models);

}  // namespace penstock
