// SPDX-License-Identifier: Apache-2.0
// One device's part of a step: drives the interpreter with an executor and a transport.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "devices/cluster.h"
#include "devices/commit.h"
#include "devices/data_reader.h"
#include "devices/executor.h"
#include "penstock/program.h"
#include "program/interpreter.h"

namespace penstock {

// Runs the same program any number of times. Everything is allocated here: nothing while a step runs, except what is asked for
// (spans) or what a transport does inside. All calls come from the device's own thread.
class DeviceRunner {
 public:
  // `executor` has loaded this device's program and loads no other while the runner lives. All references outlive the runner.
  // A wait longer than `deadline` ends the step. `commit` is told before state is written.
  DeviceRunner(std::shared_ptr<const Program> program, int device, Executor& executor, Transport& transport, const DataSource& data,
               Commit& commit, std::chrono::nanoseconds deadline);

  // Throws Error naming device, instruction and peer when a wait passes its deadline or a peer is lost, Aborted where the step was given
  // up; the runner is then unusable.
  // Where the transport has a recorder, the second step of the program is recorded, and from then on it is replayed, unless spans are asked
  // for. Throws NotRecorded, with nothing done.
  DeviceReport step(const StepInput& input, bool record_spans);

  struct Output {
    std::int32_t port = 0;  // of Program::outputs
    std::span<std::byte> bytes{};
  };
  // The outputs that the last step gave to the controller.
  const std::vector<Output>& outputs() const { return outputs_; }

  // The Machine of program/interpreter.h. An event is the number of the instruction that started it. Of an asynchronous executor done()
  // says true and notes the event: what starts next starts after it.
  Event run(const Instruction& instruction);
  Event start(const Instruction& instruction);
  bool done(Event event);
  void release(SlotId) {}  // the memory plan knew

 private:
  using Clock = std::chrono::steady_clock;

  void place_on_host();
  void issue();
  void record();
  StepRecorder::Turn turn();
  void place_inputs();
  // The rows of a data port that an input instruction reads.
  struct InputRows {
    const Port* port;
    std::int64_t first, count, bytes;
  };
  InputRows rows_of(const Instruction& instruction) const;
  void read_rows(const InputRows& rows, std::span<std::byte> out) const;
  std::size_t number(const Instruction& instruction) const { return static_cast<std::size_t>(&instruction - first_); }
  bool on_compute_lane(std::size_t instruction) const;
  bool on_executor(std::size_t instruction) const;  // on its compute lane or that of host copies
  bool by_reader(std::size_t instruction) const { return reader_ && read_ahead_[instruction]; }
  void begin_to_write(std::size_t instruction);
  Event transfer(const Instruction& instruction);
  Event collective(const Instruction& instruction);
  std::vector<std::int32_t> peers_of(const Instruction& instruction) const;
  Event fill(const Instruction& instruction);
  Event collect(const Instruction& instruction);
  void order(DeviceLane lane);
  void put_behind(DeviceLane lane, Event event);
  void note_begin(std::size_t instruction);
  void take_times();
  void wait(Event event);
  void finish();
  bool wait_on_lanes(Event event);
  void span(std::size_t instruction, Clock::time_point begin, Clock::time_point end, bool waited = false);
  [[noreturn]] void fail_late(std::size_t waited_for) const;
  [[noreturn]] void fail_lost(const PeerLost& lost, std::size_t waited_for) const;
  std::size_t first_under_way(std::size_t from) const;
  std::string waiter() const;

  std::shared_ptr<const Program> program_;
  int device_;
  const DeviceProgram& own_;
  const Instruction* first_;
  Executor& executor_;
  Transport& transport_;
  DeviceLanes* lanes_;  // null: none
  bool asynchronous_;
  const DataSource& data_;
  Commit& commit_;
  std::vector<bool> writes_state_;                      // by instruction
  std::vector<bool> read_ahead_;                        // by instruction: an input that something else than its reader follows
  std::optional<DataReader> reader_{};                  // of these, where they lie in the host's memory
  std::chrono::nanoseconds usual_deadline_, deadline_;  // where a step says none; the present step's
  DeviceState state_;
  IdVector<SlotId, std::span<std::byte>> memory_;  // where each slot lies on the device
  std::vector<Event> inner_;                       // the executor's or transport's event, by instruction
  std::vector<Event> noted_;                       // inner events that the compute lane waits for before anything else starts
  Event tail_ = kNoEvent;                          // of the compute lane, if it was given nothing since
  std::array<Event, kLanes> seen_;                 // the last tail_ that each lane waited for
  std::vector<std::byte> input_bytes_;             // on their way into a slot
  std::shared_ptr<std::byte[]> on_host_;           // the executor's: what follows lies there
  std::vector<std::span<std::byte>> inputs_;       // by instruction, of an executor with lanes: the same until its event is done
  std::vector<Output> outputs_;                    // in program order; next_output_ is the next to be filled
  std::size_t next_output_ = 0;
  const StepInput* input_ = nullptr;
  std::shared_ptr<StepRecorder> recorder_;  // null: steps are issued
  StepRecorder::Readiness readiness_ = StepRecorder::Readiness::fresh;
  bool recording_ = false;
  bool record_ = false;
  std::vector<Span> spans_;
  std::vector<Event> begins_;  // by span of an asynchronous device: where its lane was
  Clock::time_point begin_;
  Clock::duration busy_{}, waiting_{};
};

}  // namespace penstock
