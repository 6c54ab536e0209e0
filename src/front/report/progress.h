// SPDX-License-Identifier: Apache-2.0
// Shows the progress of training: a bar on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "report/step_metrics.h"

namespace penstock {

// The abilities of a stream.
struct Terminal {
  bool is_terminal = false;  // whether a line can be written over
  bool colour = false;       // whether it is a terminal and NO_COLOR is not set
};
Terminal terminal_of(std::FILE* stream);

// Facts beside a step's own metrics.
struct ProgressKnown {
  std::optional<double> validation_loss = {};  // the last one
  std::optional<double> seconds_left = {};
  double peak = 0;  // floating-point operations per second that the devices can do; 0: not known
};
// A line such as "step 12/400  loss 2.345  validation 2.400  31.2 k tokens/s  38 % of peak  bubble 12 %  24.6 k tokens seen  2 min left".
std::string progress_text(const StepMetrics& metrics, std::int64_t steps, const ProgressKnown& known = {});
// A duration rounded for people: "42 s", "8 min", "3 h 20 min".
std::string rough_duration(double seconds);

class Progress {
 public:
  // `peak` as in ProgressKnown.
  Progress(std::FILE* stream, Terminal terminal, std::int64_t steps, double peak = 0);
  ~Progress();  // ends the bar's line
  void show(const StepMetrics& metrics);

 private:
  using Clock = std::chrono::steady_clock;

  void draw_bar(const std::string& text, std::int64_t step);
  std::optional<double> seconds_left(std::int64_t step, Clock::time_point now);

  std::FILE* stream_;
  Terminal terminal_;
  std::int64_t steps_;
  ProgressKnown known_;
  std::optional<Clock::time_point> last_line_;
  std::optional<std::pair<std::int64_t, Clock::time_point>> first_;  // the first step that was shown, and when
  bool open_line_ = false;
};

}  // namespace penstock
