// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM, SIGHUP and SIGPIPE (nobody reads any more what it prints) end the process. The first one ends it at once or, where
// something must be finished first, when that is done; a second one ends it at once, but SIGHUP and SIGPIPE.
#pragma once

namespace penstock {

// Installs the handlers. The exit code is 128 + the signal's number: 130, 143, 129 and 141. A signal that is ignored stays ignored. Files
// that grow beyond the limit of their size (ulimit -f) end no process from then on: the write fails.
void end_on_signals();

// While one lives, in any thread, the first signal is only noted. The end of the last one then ends the process, after printing what was
// written, unless an exception is on its way: its message comes first.
class StopLater {
 public:
  StopLater();
  ~StopLater();
  StopLater(const StopLater&) = delete;
};

// Whether a signal came while a StopLater lived.
bool stop_requested();
// The exit code of a process that ends by itself after a signal; 0 where none came.
int stop_code();

}  // namespace penstock
