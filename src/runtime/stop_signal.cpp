#include "runtime/stop_signal.h"

#include <ctime>

namespace penstock {

StopSignal::StopSignal() {
  sigemptyset(&set_);
  sigaddset(&set_, SIGTERM);
  sigaddset(&set_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set_, &previous_);
}

StopSignal::~StopSignal() {
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

bool StopSignal::requested() {
  const timespec now = {};
  if (!requested_ && sigtimedwait(&set_, nullptr, &now) > 0) {
    requested_ = true;
    pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }
  return requested_;
}

}  // namespace penstock
