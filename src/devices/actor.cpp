#include "devices/actor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace penstock {
namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

Actor::Actor(std::shared_ptr<const Program> program, int device, Executor& executor, Transport& transport, const DataSource& data,
             std::chrono::nanoseconds deadline)
    : program_(std::move(program)),
      device_(device),
      own_(program_->devices[static_cast<std::size_t>(device)]),
      first_(own_.instructions.data()),
      executor_(executor),
      transport_(transport),
      data_(data),
      deadline_(deadline),
      state_(own_),
      inner_(own_.instructions.size(), kNoEvent) {
  memory_.reserve(own_.slots.size());
  for (std::size_t slot = 0; slot < own_.slots.size(); ++slot) memory_.push_back(executor_.memory(SlotId(static_cast<std::int64_t>(slot))));
  for (const Instruction& instruction : own_.instructions) {
    if (instruction.opcode != Opcode::output) continue;
    const TensorType& type = program_->outputs[static_cast<std::size_t>(instruction.port)].type;
    outputs_.push_back({instruction.port, std::vector<std::byte>(static_cast<std::size_t>(type.bytes()))});
  }
}

DeviceReport Actor::step(const StepInput& input, bool record_spans) {
  input_ = &input;
  record_ = record_spans;
  next_output_ = 0;
  busy_ = waiting_ = {};
  spans_.clear();
  if (record_) spans_.reserve(2 * own_.instructions.size());
  state_.reset();
  transport_.begin_step(*program_, device_);
  begin_ = Clock::now();
  for (Wait w; !(w = advance(state_, *this)).finished();) wait(w.event);

  DeviceReport report;
  report.begin = begin_.time_since_epoch().count();
  report.end = Clock::now().time_since_epoch().count();
  report.busy = seconds(busy_);
  report.waiting = seconds(waiting_);
  report.planned_bytes = own_.device_bytes();
  report.measured_bytes = report.planned_bytes + executor_.extra_bytes();
  report.spans = std::move(spans_);
  return report;
}

bool Actor::on_compute_lane(std::size_t instruction) const {
  return first_[instruction].opcode == Opcode::run || first_[instruction].opcode == Opcode::copy;
}

bool Actor::on_executor(std::size_t instruction) const {
  return on_compute_lane(instruction) || is_host_copy(first_[instruction].opcode);
}

void Actor::span(std::size_t instruction, Clock::time_point begin, Clock::time_point end, bool waited) {
  if (record_)
    spans_.push_back({device_, static_cast<std::uint32_t>(instruction), waited, (begin - begin_).count(), (end - begin_).count(), 0});
}

Event Actor::run(const Instruction& instruction) {
  const std::size_t index = number(instruction);
  const Clock::time_point begin = Clock::now();
  inner_[index] = executor_.issue(instruction);
  const Clock::time_point end = Clock::now();
  busy_ += end - begin;
  span(index, begin, end);
  if (record_) spans_.back().allocated = executor_.last_run_bytes();
  return inner_[index] == kNoEvent ? kNoEvent : static_cast<Event>(index);
}

Event Actor::start(const Instruction& instruction) {
  const std::size_t index = number(instruction);
  const Clock::time_point begin = record_ ? Clock::now() : Clock::time_point();
  inner_[index] = kNoEvent;
  switch (instruction.opcode) {
    case Opcode::input:
      fill(instruction);
      break;
    case Opcode::output:
      collect(instruction);
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

Event Actor::transfer(const Instruction& instruction) {
  const std::span<std::byte> bytes = memory_[instruction.slot.index()];
  try {
    return instruction.opcode == Opcode::send ? transport_.send(instruction.peer, instruction.tag, bytes)
                                              : transport_.receive(instruction.peer, instruction.tag, bytes);
  } catch (const PeerLost& lost) {
    fail_lost(lost, number(instruction));
  }
}

Event Actor::collective(const Instruction& instruction) {
  const std::vector<std::int32_t>& members = program_->groups[static_cast<std::size_t>(instruction.group)];
  CollectiveCall call{instruction.opcode, instruction.group, instruction.tag, place_in_group(members, device_).value()};
  if (instruction.opcode == Opcode::broadcast) call.root = place_in_group(members, instruction.peer).value();
  for (const SlotId operand : own_.operands_of(instruction)) {
    call.from = memory_[operand.index()];
    if (const Slot& slot = own_.slots[operand.index()]; !slot.parts.empty()) call.dtype = slot.parts[0].dtype;
  }
  for (const Result& result : own_.results_of(instruction)) call.to = memory_[result.slot.index()];
  try {
    return transport_.collective(call);
  } catch (const PeerLost& lost) {
    fail_lost(lost, number(instruction));
  }
}

// A part of the batch, straight into the slot.
void Actor::fill(const Instruction& instruction) {
  const Port& port = program_->data[static_cast<std::size_t>(instruction.port)];
  const std::int64_t all = port.type.shape.empty() ? 1 : port.type.shape[0];
  const bool part = port.split && instruction.microbatch >= 0;
  const std::int64_t rows = part ? all / program_->microbatches : all;
  const std::int64_t bytes = all == 0 ? 0 : port.type.bytes() / all * rows;
  data_.fill(port, *input_, part ? rows * instruction.microbatch : 0, rows,
             memory_[instruction.slot.index()].first(static_cast<std::size_t>(bytes)));
}

void Actor::collect(const Instruction& instruction) {
  std::vector<std::byte>& out = outputs_[next_output_++].bytes;
  std::memcpy(out.data(), memory_[instruction.slot.index()].data(), out.size());
}

bool Actor::done(Event event) {
  const auto index = static_cast<std::size_t>(event);
  return on_executor(index) ? executor_.done(inner_[index]) : transport_.done(inner_[index]);
}

// Time spent waiting for the compute lane is the device's own work; only transfers and host copies make it wait.
void Actor::wait(Event event) {
  const auto index = static_cast<std::size_t>(event);
  const bool compute = on_compute_lane(index);
  const Clock::time_point begin = Clock::now();
  bool in_time = false;
  try {
    in_time = on_executor(index) ? executor_.wait(inner_[index], begin + deadline_) : transport_.wait(inner_[index], begin + deadline_);
  } catch (const PeerLost& lost) {
    fail_lost(lost, index);
  }
  if (!in_time) fail_late(index);
  const Clock::time_point end = Clock::now();
  (compute ? busy_ : waiting_) += end - begin;
  span(index, begin, end, true);
}

// The instruction that could not go on.
std::string Actor::waiter() const {
  if (state_.next >= own_.instructions.size()) return "the end of the step";
  return describe(*program_, device_, state_.next);
}

// Whom it waits for.
std::vector<std::int32_t> Actor::peers_of(const Instruction& instruction) const {
  if (!is_collective(instruction.opcode)) return {instruction.peer};
  std::vector<std::int32_t> members = program_->groups[static_cast<std::size_t>(instruction.group)];
  std::erase(members, device_);
  return members;
}

void Actor::fail_late(std::size_t waited_for) const {
  const std::string what = concat("device ", device_, " waited longer than the deadline of ", seconds(deadline_), " s in ",
                                  describe(*program_, device_, waited_for));
  const std::vector<std::string> details = {concat("needed by: ", waiter()), concat("program: ", program_->name)};
  const std::string hint = "raise the deadline if a step may take that long";
  if (on_executor(waited_for)) throw Error(what, details, hint);
  const std::vector<std::int32_t> peers = peers_of(first_[waited_for]);
  throw PeerLost(peers, what, details, concat("see what device ", join_devices(peers, " or "), " was doing; ", hint));
}

void Actor::fail_lost(const PeerLost& lost, std::size_t waited_for) const {
  const std::vector<std::int32_t> peers = peers_of(first_[waited_for]);
  throw PeerLost(peers,
                 concat("device ", join_devices(peers, " or "), " was lost while device ", device_, " waited in ",
                        describe(*program_, device_, waited_for)),
                 {concat("needed by: ", waiter()), concat("program: ", program_->name), concat("the transport says: ", lost.what())});
}

}  // namespace penstock
