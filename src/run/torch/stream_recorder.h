// SPDX-License-Identifier: Apache-2.0
// Records the steps of a program on devices whose work is on streams: all that they issue becomes one graph.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "devices/step_recorder.h"
#include "torch/device_functions.h"

namespace penstock {

class StreamWatch;

class StreamRecorder final : public StepRecorder {
 public:
  // Makes a recorder of so many devices, which all share `device` of libtorch, one that has graphs (functions_of).
  StreamRecorder(c10::Device device, std::size_t devices);
  ~StreamRecorder() override;

  Turn arrive(Readiness readiness, Commit& commit, Deadline deadline) override;
  void begin(DeviceLanes& lanes) override;
  void end(DeviceLanes& lanes) override;
  bool fail(DeviceLanes& lanes) override;

  // Ends every wait with Aborted, until reset().
  void abort();
  void reset();
  // Whether a recording has failed since this was last asked.
  bool was_not_recorded();

 private:
  Turn decide(Commit& commit);
  void replay(Deadline deadline, std::unique_lock<std::mutex>& lock);
  void launch_and_wait(Deadline deadline);
  void stop_recording();
  void drop_graph();

  const DeviceFunctions& functions_;
  c10::impl::VirtualGuardImpl guard_;
  const std::size_t devices_;
  const c10::Stream root_;  // on which the graph is recorded and launched

  std::recursive_mutex issuing_;  // of the devices that issue what is recorded
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Readiness> arrived_;
  Turn turn_ = Turn::issue;            // the last that was decided
  std::uint64_t turns_ = 0;            // how many were
  bool given_up_ = false;              // the last one, before anything was done
  std::exception_ptr failure_;         // of the last replay
  std::vector<StreamWatch*> watches_;  // of the devices that were recorded
  bool records_ = true;                // false: it was tried, and could not be done
  bool recording_ = false, not_recorded_ = false, aborted_ = false;
  std::size_t ended_ = 0;  // devices whose part of the recording is complete
  c10::Event fork_;        // where streams of devices leave the root
  void* graph_ = nullptr;
};

}  // namespace penstock
