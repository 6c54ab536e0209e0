// SPDX-License-Identifier: Apache-2.0
#include "devices/device_runner.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/invariant.h"
#include "base/text.h"
#include "program/state_parts.h"
#include "trace/microbatch_port.h"

namespace penstock {
namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

DeviceLane lane_of(Opcode opcode) {
  if (is_host_copy(opcode)) return DeviceLane::host_copy;
  const bool compute = opcode == Opcode::run || opcode == Opcode::copy || opcode == Opcode::input || opcode == Opcode::output;
  return compute ? DeviceLane::compute : DeviceLane::transfer;
}

// By instruction: an input whose reader is not the first run behind it.
std::vector<bool> inputs_ahead(const Program& program, const DeviceProgram& device) {
  std::vector<bool> out(device.instructions.size());
  std::span<const SlotId> read;
  for (std::size_t i = device.instructions.size(); i-- > 0;) {
    const Instruction& instruction = device.instructions[i];
    if (instruction.opcode == Opcode::run || instruction.opcode == Opcode::copy) read = device.operands_of(instruction);
    out[i] = instruction.opcode == Opcode::input && program.data[instruction.port].name != kMicrobatchPort &&
             std::ranges::find(read, instruction.slot) == read.end();
  }
  return out;
}

// In a window each step counts from 0.
void number_microbatches(const Port& port, const StepInput& input, std::int64_t first, std::span<std::byte> out) {
  const std::int64_t of_step = port.type.elements() / input.steps;
  for (std::size_t i = 0; i * sizeof(std::int64_t) < out.size(); ++i) {
    const std::int64_t number = (first + static_cast<std::int64_t>(i)) % of_step;
    std::memcpy(out.data() + i * sizeof number, &number, sizeof number);
  }
}

}  // namespace

DeviceRunner::DeviceRunner(std::shared_ptr<const Program> program, int device, Executor& executor, Transport& transport,
                           const DataSource& data, Commit& commit, std::chrono::nanoseconds deadline)
    : program_(std::move(program)),
      device_(device),
      own_(program_->devices[device]),
      first_(own_.instructions.data()),
      executor_(executor),
      transport_(transport),
      lanes_(executor.lanes()),
      asynchronous_(executor.asynchronous()),
      data_(data),
      commit_(commit),
      read_ahead_(inputs_ahead(*program_, own_)),
      usual_deadline_(deadline),
      deadline_(deadline),
      state_(own_),
      inner_(own_.instructions.size(), kNoEvent),
      inputs_(lanes_ ? own_.instructions.size() : 0),
      recorder_(asynchronous_ && executor.replays() ? transport.recorder(*program_) : nullptr) {
  invariant(!asynchronous_ || (lanes_ && transport.lanes() == lanes_), "an asynchronous executor shares its lanes with its transport");
  if (!lanes_ && std::ranges::find(read_ahead_, true) != read_ahead_.end()) reader_.emplace(data_);
  noted_.reserve(own_.instructions.size());
  for (const Instruction& instruction : own_.instructions) writes_state_.push_back(!checks::states_written(own_, instruction).empty());
  memory_.reserve(own_.slots.size());
  for (std::size_t slot = 0; slot < own_.slots.size(); ++slot) memory_.push_back(executor_.address(SlotId(slot)));
  for (const Instruction& instruction : own_.instructions) {
    if (instruction.opcode == Opcode::input && !lanes_)
      input_bytes_.resize(std::max(input_bytes_.size(), memory_[instruction.slot].size()));
    if (instruction.opcode == Opcode::output) outputs_.push_back({instruction.port});
  }
  place_on_host();
}

// Gives inputs of an executor with lanes, and outputs, their places in one block.
void DeviceRunner::place_on_host() {
  constexpr std::size_t kLine = 64;  // bytes: no two of them share a cache line
  std::vector<std::pair<std::span<std::byte>*, std::size_t>> places;
  for (const Instruction& instruction : own_.instructions)
    if (instruction.opcode == Opcode::input && lanes_)
      places.emplace_back(&inputs_[number(instruction)], static_cast<std::size_t>(rows_of(instruction).bytes));
  for (Output& output : outputs_) places.emplace_back(&output.bytes, static_cast<std::size_t>(program_->outputs[output.port].type.bytes()));
  std::size_t offset = 0;
  for (const auto& [place, bytes] : places) offset += (bytes + kLine - 1) / kLine * kLine;
  on_host_ = executor_.host_memory(offset);
  offset = 0;
  for (const auto& [place, bytes] : places) {
    *place = {on_host_.get() + offset, bytes};
    offset += (bytes + kLine - 1) / kLine * kLine;
  }
}

DeviceReport DeviceRunner::step(const StepInput& input, bool record_spans) {
  input_ = &input;
  deadline_ = input.deadline > 0 ? std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(input.deadline))
                                 : usual_deadline_;
  record_ = record_spans;
  busy_ = waiting_ = {};
  spans_.clear();
  begins_.clear();
  if (record_) spans_.reserve(2 * own_.instructions.size());
  if (asynchronous_) lanes_->keep_times(record_);
  transport_.begin_step(*program_, device_);
  begin_ = Clock::now();
  try {
    StepRecorder::Turn how = turn();
    if (how == StepRecorder::Turn::record) {
      record();
      how = turn();
    }
    if (how == StepRecorder::Turn::issue) issue();
    take_times();
    executor_.check_step();
  } catch (const NotRecorded&) {
    throw;
  } catch (...) {
    if (lanes_) lanes_->stop();
    if (reader_) reader_->stop();
    throw;
  }

  DeviceReport report;
  report.begin = begin_.time_since_epoch().count();
  report.end = Clock::now().time_since_epoch().count();
  const bool is_known = !asynchronous_ || record_;
  report.busy = is_known ? seconds(busy_) : std::numeric_limits<double>::quiet_NaN();
  report.waiting = is_known ? seconds(waiting_) : report.busy;
  report.planned_bytes = own_.device_bytes();
  report.measured_bytes = report.planned_bytes + executor_.extra_bytes();
  report.spans = std::move(spans_);
  return report;
}

void DeviceRunner::issue() {
  next_output_ = 0;
  tail_ = kNoEvent;
  seen_.fill(kNoEvent);
  state_.reset();
  for (Wait w; !(w = advance(state_, *this)).finished();) wait(w.event);
  executor_.end_step();
  if (lanes_ && !recording_) finish();
  if (readiness_ == StepRecorder::Readiness::fresh) readiness_ = StepRecorder::Readiness::issued;
}

StepRecorder::Turn DeviceRunner::turn() {
  if (!recorder_) return StepRecorder::Turn::issue;
  const StepRecorder::Readiness mine = record_ ? StepRecorder::Readiness::fresh : readiness_;
  if (mine == StepRecorder::Readiness::recorded) place_inputs();
  return recorder_->arrive(mine, commit_, Clock::now() + deadline_);
}

void DeviceRunner::record() {
  try {
    recorder_->begin(*lanes_);
    recording_ = true;
    issue();
    order(DeviceLane::compute);
    recording_ = false;
    recorder_->end(*lanes_);
  } catch (const std::exception& error) {
    recording_ = false;
    if (!recorder_->fail(*lanes_)) throw NotRecorded(error.what());
    return;
  }
  readiness_ = StepRecorder::Readiness::recorded;
}

void DeviceRunner::place_inputs() {
  for (const Instruction& instruction : own_.instructions)
    if (instruction.opcode == Opcode::input) read_rows(rows_of(instruction), inputs_[number(instruction)]);
}

bool DeviceRunner::on_compute_lane(std::size_t instruction) const {
  return lane_of(first_[instruction].opcode) == DeviceLane::compute;
}

bool DeviceRunner::on_executor(std::size_t instruction) const {
  return lane_of(first_[instruction].opcode) != DeviceLane::transfer;
}

// The order that a host keeps by waiting: the compute lane waits for what was noted, and another lane for all that the compute lane has.
void DeviceRunner::order(DeviceLane lane) {
  for (const Event event : noted_) put_behind(DeviceLane::compute, event);
  if (lane == DeviceLane::compute || !noted_.empty()) tail_ = kNoEvent;
  noted_.clear();
  if (lane == DeviceLane::compute) return;
  if (tail_ == kNoEvent) tail_ = lanes_->record(DeviceLane::compute);
  if (Event& seen = seen_[static_cast<std::size_t>(lane)]; seen != tail_) put_behind(lane, seen = tail_);
}

void DeviceRunner::put_behind(DeviceLane lane, Event event) {
  if (lanes_->after(lane, event, Clock::now() + deadline_)) return;
  fail_late(static_cast<std::size_t>(std::ranges::find(inner_, event) - inner_.begin()));
}

// An asynchronous device's own clock is read when the step has ended.
void DeviceRunner::span(std::size_t instruction, Clock::time_point begin, Clock::time_point end, bool waited) {
  if (record_)
    spans_.push_back({device_, static_cast<std::uint32_t>(instruction), waited, (begin - begin_).count(), (end - begin_).count(), 0});
}

void DeviceRunner::note_begin(std::size_t instruction) {
  if (record_ && asynchronous_) begins_.push_back(lanes_->record(lane_of(first_[instruction].opcode)));
}

// Gives the spans the times of the device, on which they lie otherwise than its host has issued them.
void DeviceRunner::take_times() {
  if (!asynchronous_) return;
  busy_ = {};
  for (std::size_t i = 0; i < begins_.size(); ++i) {
    Span& span = spans_[i];
    span.begin = lanes_->time_of(begins_[i]).count();
    span.end = std::max(span.begin, lanes_->time_of(inner_[span.instruction]).count());
    if (first_[span.instruction].opcode == Opcode::run) busy_ += std::chrono::nanoseconds(span.end - span.begin);
  }
  waiting_ = std::max(Clock::duration(), Clock::now() - begin_ - busy_);
  std::ranges::stable_sort(spans_, {}, &Span::begin);
}

void DeviceRunner::begin_to_write(std::size_t instruction) {
  if (writes_state_[instruction] && !recording_ && !commit_.begin()) throw Aborted();
}

Event DeviceRunner::run(const Instruction& instruction) {
  const std::size_t index = number(instruction);
  begin_to_write(index);
  const Clock::time_point begin = Clock::now();
  if (asynchronous_) order(DeviceLane::compute);
  note_begin(index);
  inner_[index] = executor_.issue(instruction);
  const Clock::time_point end = Clock::now();
  busy_ += end - begin;
  span(index, begin, end);
  if (record_ && !asynchronous_) spans_.back().allocated = executor_.last_run_bytes();
  return inner_[index] == kNoEvent ? kNoEvent : static_cast<Event>(index);
}

Event DeviceRunner::start(const Instruction& instruction) {
  const std::size_t index = number(instruction);
  begin_to_write(index);
  const Clock::time_point begin = record_ ? Clock::now() : Clock::time_point();
  if (asynchronous_) order(lane_of(instruction.opcode));
  note_begin(index);
  switch (instruction.opcode) {
    case Opcode::input:
      inner_[index] = fill(instruction);
      break;
    case Opcode::output:
      inner_[index] = collect(instruction);
      break;
    case Opcode::offload:
    case Opcode::reload:
      inner_[index] = executor_.issue(instruction);
      break;
    case Opcode::send:
    case Opcode::recv:
      inner_[index] = transfer(instruction);
      break;
    default:
      inner_[index] = collective(instruction);
  }
  if (record_) span(index, begin, Clock::now());
  return inner_[index] == kNoEvent ? kNoEvent : static_cast<Event>(index);
}

Event DeviceRunner::transfer(const Instruction& instruction) {
  const std::span<std::byte> bytes = memory_[instruction.slot];
  try {
    return instruction.opcode == Opcode::send ? transport_.send(instruction.peer, instruction.tag, bytes)
                                              : transport_.receive(instruction.peer, instruction.tag, bytes);
  } catch (const PeerLost& lost) {
    fail_lost(lost, number(instruction));
  }
}

Event DeviceRunner::collective(const Instruction& instruction) {
  const std::vector<std::int32_t>& members = program_->groups[instruction.group];
  CollectiveCall call{instruction.opcode, instruction.group, instruction.tag, place_in_group(members, device_).value()};
  if (instruction.opcode == Opcode::broadcast) call.root = place_in_group(members, instruction.peer).value();
  for (const SlotId operand : own_.operands_of(instruction)) {
    call.from = memory_[operand];
    if (const Slot& slot = own_.slots[operand]; !slot.parts.empty()) call.dtype = slot.parts[0].dtype;
  }
  for (const Result& result : own_.results_of(instruction)) call.to = memory_[result.slot];
  try {
    return transport_.collective(call);
  } catch (const PeerLost& lost) {
    fail_lost(lost, number(instruction));
  }
}

DeviceRunner::InputRows DeviceRunner::rows_of(const Instruction& instruction) const {
  const Port& port = program_->data[instruction.port];
  const std::int64_t all = port.type.shape.empty() ? 1 : port.type.shape[0];
  const bool part = port.split && instruction.microbatch >= 0;
  const std::int64_t rows = part ? all / program_->microbatches : all;
  return {&port, part ? rows * instruction.microbatch : std::max<std::int64_t>(port.row, 0), rows,
          all == 0 ? 0 : port.type.bytes() / all * rows};
}

void DeviceRunner::read_rows(const InputRows& rows, std::span<std::byte> out) const {
  if (rows.port->name == kMicrobatchPort)
    number_microbatches(*rows.port, *input_, rows.first, out);
  else
    data_.fill(*rows.port, *input_, rows.first, rows.count, out);
}

// A part of the batch.
Event DeviceRunner::fill(const Instruction& instruction) {
  const std::size_t index = number(instruction);
  const InputRows rows = rows_of(instruction);
  if (by_reader(index)) return reader_->read({rows.port, input_, rows.first, rows.count, memory_[instruction.slot].first(rows.bytes)});
  if (!lanes_) input_bytes_.resize(std::max<std::size_t>(input_bytes_.size(), rows.bytes));
  const std::span<std::byte> out = lanes_ ? inputs_[index] : std::span(input_bytes_).first(rows.bytes);
  if (!recording_) read_rows(rows, out);
  return executor_.write(instruction.slot, 0, out);
}

Event DeviceRunner::collect(const Instruction& instruction) {
  return executor_.read(instruction.slot, 0, outputs_[next_output_++].bytes);
}

bool DeviceRunner::done(Event event) {
  const std::size_t index = event;
  if (asynchronous_) {
    if (!on_compute_lane(index)) noted_.push_back(inner_[index]);
    return true;
  }
  if (by_reader(index)) return reader_->done(inner_[index]);
  return on_executor(index) ? executor_.done(inner_[index]) : transport_.done(inner_[index]);
}

// Time spent waiting for the compute lane is the device's own work; only transfers and host copies make it wait.
void DeviceRunner::wait(Event event) {
  const std::size_t index = event;
  const bool compute = on_compute_lane(index);
  const Clock::time_point begin = Clock::now();
  bool in_time = false;
  try {
    const Deadline deadline = begin + deadline_;
    if (by_reader(index))
      in_time = reader_->wait(inner_[index], deadline);
    else
      in_time = on_executor(index) ? executor_.wait(inner_[index], deadline) : transport_.wait(inner_[index], deadline);
  } catch (const PeerLost& lost) {
    fail_lost(lost, index);
  }
  if (!in_time) fail_late(index);
  const Clock::time_point end = Clock::now();
  (compute ? busy_ : waiting_) += end - begin;
  span(index, begin, end, true);
}

// An asynchronous device's only wait of its host; of others that have lanes, the one that shows what failed on them. The deadline is one of
// each instruction's, as where the host waits for each.
void DeviceRunner::finish() {
  const Clock::time_point begin = Clock::now();
  order(DeviceLane::compute);
  const Event last = lanes_->record(DeviceLane::compute);
  for (std::size_t before = inner_.size(), late = 0; !wait_on_lanes(last); before = late)
    if (late = first_under_way(late); late == before && late < inner_.size()) fail_late(late);
  waiting_ += Clock::now() - begin;
}

bool DeviceRunner::wait_on_lanes(Event event) {
  try {
    return lanes_->wait(event, Clock::now() + deadline_);
  } catch (const PeerLost& lost) {
    const auto is_to_blame = [&](std::int32_t peer) {
      return lost.peers().empty() || std::ranges::find(lost.peers(), peer) != lost.peers().end();
    };
    std::size_t transfer = first_under_way(0);
    while (transfer < inner_.size() && (on_executor(transfer) || std::ranges::none_of(peers_of(first_[transfer]), is_to_blame)))
      transfer = first_under_way(transfer + 1);
    if (transfer == inner_.size()) throw;
    fail_lost(lost, transfer);
  }
}

std::size_t DeviceRunner::first_under_way(std::size_t from) const {
  while (from < inner_.size() && (inner_[from] == kNoEvent || lanes_->done(inner_[from]))) ++from;
  return from;
}

// The instruction that could not go on.
std::string DeviceRunner::waiter() const {
  if (state_.next >= own_.instructions.size()) return "the end of the step";
  return describe(*program_, device_, state_.next);
}

// Whom it waits for.
std::vector<std::int32_t> DeviceRunner::peers_of(const Instruction& instruction) const {
  if (!is_collective(instruction.opcode)) return {instruction.peer};
  std::vector<std::int32_t> members = program_->groups[instruction.group];
  std::erase(members, device_);
  return members;
}

void DeviceRunner::fail_late(std::size_t waited_for) const {
  const std::string what = concat("device ", device_, " waited longer than the deadline of ", seconds(deadline_), " s in ",
                                  describe(*program_, device_, waited_for));
  const std::vector<std::string> details = {concat("needed by: ", waiter()), concat("program: ", program_->name)};
  const std::string hint = "raise the deadline if a step may take that long";
  if (on_executor(waited_for)) throw Error(what, details, hint);
  const std::vector<std::int32_t> peers = peers_of(first_[waited_for]);
  throw PeerLost(peers, what, details, concat("see what device ", join_devices(peers, " or "), " was doing; ", hint));
}

void DeviceRunner::fail_lost(const PeerLost& lost, std::size_t waited_for) const {
  const std::vector<std::int32_t> peers = peers_of(first_[waited_for]);
  throw PeerLost(peers,
                 concat("device ", join_devices(peers, " or "), " was lost while device ", device_, " waited in ",
                        describe(*program_, device_, waited_for)),
                 {concat("needed by: ", waiter()), concat("program: ", program_->name), concat("the transport says: ", lost.what())});
}

}  // namespace penstock
