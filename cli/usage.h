// SPDX-License-Identifier: Apache-2.0
// Messages for command lines that no command accepts, and all messages in the words that the user wrote.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "penstock/trace.h"

namespace penstock {

// The message: "error: ...\n  hint: ...\n". It names the wrong word, why it is wrong, and a way out.
std::string usage_message(const CLI::App& program, const CLI::Error& usage, const ModelRegistry& models);

// An option may have older names. The message, which calls it by its first one, with the name that is among the user's words in its place;
// hints keep the first one.
std::string in_words_of(const std::vector<std::string>& words, const CLI::App& program, const std::string& message);

// The words with an argument that stands behind "--set key=value" ahead of it: --set takes several settings, so that the parser would take
// the argument for a further one. The same for the other options of values with =, up to a word --.
std::vector<std::string> with_arguments_ahead(const std::vector<std::string>& words);

}  // namespace penstock
