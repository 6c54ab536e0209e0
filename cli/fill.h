// SPDX-License-Identifier: Apache-2.0
// Filling a step's idle time with frozen layers, on the command line: flags, figures and what fills which interval.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "simulate/fill_idle.h"

namespace penstock {

struct FillChoice {
  std::optional<std::string> chains;   // "4x3;8x1.5": chains, each of COUNTxTIME or TIME between commas; none: nothing is filled
  std::optional<std::string> quantum;  // of a batch, for partial batches; none: 1/8
  std::optional<int> steps;            // drawn and timed one behind the other; none: one, and what it computes for the next
};

// Adds --fill, --quantum and --steps. `choice` must outlive the command's parse.
void add_fill_options(CLI::App& command, FillChoice& choice);

// Throws Error, naming the flag, for text that is no chain, a count or a time that is none, and for a time with a unit unless times are in
// seconds.
std::vector<FrozenChain> parse_chains(const std::string& text, bool seconds);
// The n of a quantum 1/n, written so or as a decimal. Throws Error that names the flag.
int parse_quantum(const std::string& text);

struct FilledStep {
  Timeline step;  // without frozen layers
  std::vector<FrozenChain> chains;
  FrozenFill fill;
  Timeline drawn;            // the step, or the steps, with them
  std::optional<int> steps;  // FillChoice's
};
// Whether --fill is given. Throws Error where only other flags of it are.
bool is_given(const FillChoice& choice);
// The choice has chains. Throws Error that names the flag.
FilledStep filled_step(const FillChoice& choice, const Timeline& step);

// Figures, and a row for each interval with what is in it.
std::string text_of(const FilledStep& filled);
nlohmann::ordered_json json_of(const FilledStep& filled);

}  // namespace penstock
