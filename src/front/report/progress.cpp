// SPDX-License-Identifier: Apache-2.0
#include "report/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "base/text.h"
#include "report/table.h"

namespace penstock {
namespace {

constexpr std::chrono::seconds kLineEvery(5);  // time between lines where a line cannot be written over
constexpr int kBarWidth = 24;                  // characters

}  // namespace

Terminal terminal_of(std::FILE* stream) {
  const bool is_terminal = ::isatty(::fileno(stream)) == 1;
  const char* no_colour = std::getenv("NO_COLOR");
  return {is_terminal, is_terminal && (no_colour == nullptr || *no_colour == '\0')};
}

std::string rough_duration(double seconds) {
  const auto whole = [](double value) { return static_cast<std::int64_t>(std::llround(value)); };
  if (whole(seconds) < 60) return concat(whole(seconds), " s");
  const std::int64_t minutes = whole(seconds / 60);
  return minutes < 60 ? concat(minutes, " min") : concat(minutes / 60, " h ", minutes % 60, " min");
}

std::string progress_text(const StepMetrics& metrics, std::int64_t steps, const ProgressKnown& known) {
  std::string out = concat("step ", metrics.step, "/", steps, "  loss ", fixed(metrics.loss, 3));
  if (known.validation_loss) out += concat("  validation ", fixed(*known.validation_loss, 3));
  out += concat("  ", short_number(metrics.rate), " ", metrics.counted, "/s");
  if (known.peak > 0) out += concat("  ", fixed(100 * metrics.flops / known.peak, 0), " % of peak");
  if (std::isfinite(metrics.bubble)) out += concat("  bubble ", fixed(100 * metrics.bubble, 0), " %");
  out += concat("  ", short_number(metrics.seen), " ", metrics.counted, " seen");
  return known.seconds_left ? concat(out, "  ", rough_duration(*known.seconds_left), " left") : out;
}

Progress::Progress(std::FILE* stream, Terminal terminal, std::int64_t steps, double peak)
    : stream_(stream), terminal_(terminal), steps_(steps), known_{.peak = peak} {}

Progress::~Progress() {
  if (open_line_) std::fputc('\n', stream_);
}

// Estimated from the time between the steps that have been shown, which includes what came between them.
std::optional<double> Progress::seconds_left(std::int64_t step, Clock::time_point now) {
  if (!first_) first_ = {step, now};
  if (step <= first_->first || step >= steps_) return {};
  const double taken = std::chrono::duration<double>(now - first_->second).count();
  return taken / static_cast<double>(step - first_->first) * static_cast<double>(steps_ - step);
}

void Progress::draw_bar(const std::string& text, std::int64_t step) {
  const std::size_t filled = kBarWidth * step / steps_;
  const std::string bar = std::string(filled, '=') + std::string(kBarWidth - filled, ' ');
  const char* begin = terminal_.colour ? "\033[36m" : "";
  const char* end = terminal_.colour ? "\033[0m" : "";
  // \033[K clears the rest of a longer line that was there before.
  std::fprintf(stream_, "\r[%s%s%s] %s\033[K", begin, bar.c_str(), end, text.c_str());
  open_line_ = true;
}

void Progress::show(const StepMetrics& metrics) {
  if (metrics.validation_loss) known_.validation_loss = metrics.validation_loss;
  const Clock::time_point now = Clock::now();
  known_.seconds_left = seconds_left(metrics.step, now);
  const std::string text = progress_text(metrics, steps_, known_);
  if (terminal_.is_terminal) {
    draw_bar(text, metrics.step);
  } else {
    const bool due = !last_line_ || now - *last_line_ >= kLineEvery;
    if (!due && !metrics.validation_loss && metrics.step != steps_) return;
    last_line_ = now;
    std::fprintf(stream_, "%s\n", text.c_str());
  }
  std::fflush(stream_);
}

}  // namespace penstock
