// SPDX-License-Identifier: Apache-2.0
#include "base/stop.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>

namespace penstock {
namespace {

// Signals reach a process, not an object, so what their handler knows belongs to the process.
std::atomic<int> requested = 0;  // the first signal that came; 0: none
std::atomic<int> later = 0;      // number of living StopLaters
static_assert(std::atomic<int>::is_always_lock_free, "a signal's handler uses them");

constexpr int kSignalled = 128;  // shells add it too

// handle() notes the request before it reads the count; ~StopLater lowers the count before it reads the request. So one of the two sees
// that nothing is left to wait for. A terminal that closes is said twice, by the system and by the shell, and output that nobody reads is
// said at every write: that is no wish for haste.
extern "C" void handle(int signal) {
  int none = 0;
  const bool first = requested.compare_exchange_strong(none, signal);
  if (later == 0 || !(first || signal == SIGHUP || signal == SIGPIPE)) ::_exit(kSignalled + signal);
}

}  // namespace

void end_on_signals() {
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of a file's size fails then, as on a full disk, and is said
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

StopLater::StopLater() {
  ++later;
}

StopLater::~StopLater() {
  if (--later > 0 || requested == 0 || std::uncaught_exceptions() > 0) return;
  std::fflush(stdout);
  ::_exit(stop_code());
}

bool stop_requested() {
  return requested != 0;
}

int stop_code() {
  return requested == 0 ? 0 : kSignalled + requested;
}

}  // namespace penstock
