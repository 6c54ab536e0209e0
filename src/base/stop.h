// SIGINT and SIGTERM at any time. The first ends the process at once, or where something must be finished first, when that is done; a
// second ends it at once.
#pragma once

namespace penstock {

// From now on the signals do so, with exit code 128 + the signal's number: 130 and 143. One that is ignored stays ignored.
void end_on_signals();

// While one lives, in any thread, the first signal is only taken note of. The end of the last one then ends the process, what was printed
// included, unless an exception is on its way: its message comes first.
class StopLater {
 public:
  StopLater();
  ~StopLater();
  StopLater(const StopLater&) = delete;
};

// A signal came while a StopLater lived.
bool stop_requested();
// The exit code of a process that ends by itself after a signal; 0 where none came.
int stop_code();

}  // namespace penstock
