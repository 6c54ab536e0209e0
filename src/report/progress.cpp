#include "report/progress.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/text.h"
#include "report/table.h"

namespace penstock {
namespace {

constexpr std::chrono::seconds kLineEvery(5);  // where lines cannot be written over
constexpr int kBarWidth = 24;                  // characters

}  // namespace

Terminal terminal_of(std::FILE* stream) {
  const bool is_terminal = ::isatty(::fileno(stream)) == 1;
  const char* no_colour = std::getenv("NO_COLOR");
  return {is_terminal, is_terminal && (no_colour == nullptr || *no_colour == '\0')};
}

std::string progress_text(const StepMetrics& metrics, std::int64_t steps, std::optional<double> validation_loss) {
  std::string out = concat("step ", metrics.step, "/", steps, "  loss ", fixed(metrics.loss, 3));
  if (validation_loss) out += concat("  validation ", fixed(*validation_loss, 3));
  return out + concat("  ", short_number(metrics.rate), " ", metrics.counted, "/s  bubble ", fixed(100 * metrics.bubble, 0), " %");
}

Progress::Progress(std::FILE* stream, Terminal terminal, std::int64_t steps) : stream_(stream), terminal_(terminal), steps_(steps) {}

Progress::~Progress() {
  if (open_line_) std::fputc('\n', stream_);
}

void Progress::draw_bar(const StepMetrics& metrics) {
  const auto filled = static_cast<std::size_t>(kBarWidth * metrics.step / steps_);
  const std::string bar = std::string(filled, '=') + std::string(kBarWidth - filled, ' ');
  const char* begin = terminal_.colour ? "\033[36m" : "";
  const char* end = terminal_.colour ? "\033[0m" : "";
  // \033[K clears what a longer line left.
  std::fprintf(stream_, "\r[%s%s%s] %s\033[K", begin, bar.c_str(), end, progress_text(metrics, steps_, validation_loss_).c_str());
  open_line_ = true;
}

void Progress::show(const StepMetrics& metrics) {
  if (metrics.validation_loss) validation_loss_ = metrics.validation_loss;
  if (terminal_.is_terminal) {
    draw_bar(metrics);
  } else {
    const Clock::time_point now = Clock::now();
    const bool due = !last_line_ || now - *last_line_ >= kLineEvery;
    if (!due && !metrics.validation_loss && metrics.step != steps_) return;
    last_line_ = now;
    std::fprintf(stream_, "%s\n", progress_text(metrics, steps_, validation_loss_).c_str());
  }
  std::fflush(stream_);
}

}  // namespace penstock
