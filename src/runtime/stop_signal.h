// SIGTERM and SIGINT as something a loop asks for.
#pragma once

#include <csignal>

namespace penstock {

// While it lives, the signals stay pending for requested(). Made before other threads, which inherit the mask. Once requested()
// said so, the next signal ends the process as usual.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;

  bool requested();  // from now on true once a signal came

 private:
  sigset_t set_, previous_;
  bool requested_ = false;
};

}  // namespace penstock
