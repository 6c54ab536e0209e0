#include "runtime/measured.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/text.h"

namespace penstock {
namespace {

constexpr double kNanosecond = 1e-9;

Activity activity_of(const Instruction& instruction, const Span& span) {
  const bool compute = instruction.opcode == Opcode::run || instruction.opcode == Opcode::copy;
  Activity out;
  out.begin = static_cast<double>(span.begin) * kNanosecond;
  out.end = static_cast<double>(span.end) * kNanosecond;
  out.device = span.device;
  out.lane = compute ? Lane::compute : Lane::host;
  out.action = instruction.action;
  if (instruction.action) out.kind = instruction.kind;
  out.stage = instruction.stage;
  out.microbatch = instruction.microbatch;
  if (instruction.opcode == Opcode::run) out.task = static_cast<std::int32_t>(instruction.task.index());
  out.item = static_cast<std::int32_t>(span.instruction);
  return out;
}

// Starting the ends of one transfer.
struct Ends {
  const Activity* send = nullptr;
  const Activity* receive = nullptr;
};

Activity transfer_of(const Program& program, const Ends& ends) {
  const DeviceProgram& sender = program.devices[static_cast<std::size_t>(ends.send->device)];
  Activity out = *ends.send;
  out.lane = Lane::transfer;
  out.begin = std::max(ends.send->begin, ends.receive->begin);
  out.end = std::max(ends.send->end, ends.receive->end);
  out.peer = ends.receive->device;
  out.bytes = static_cast<double>(slot_bytes(sender.slots[sender.instructions[static_cast<std::size_t>(out.item)].slot.index()]));
  return out;
}

}  // namespace

Timeline timeline_of(const Program& program, const StepResult& result, const std::string& title) {
  Timeline out;
  out.title = title;
  for (std::size_t device = 0; device < program.devices.size(); ++device) out.devices.push_back(concat("device ", device));
  for (const Task& task : program.tasks) out.tasks.push_back(task.name);

  const auto instruction_of = [&](const Activity& activity) -> const Instruction& {
    return program.devices[static_cast<std::size_t>(activity.device)].instructions[static_cast<std::size_t>(activity.item)];
  };
  for (const DeviceReport& report : result.devices)
    for (const Span& span : report.spans)
      out.activities.push_back(activity_of(program.devices[static_cast<std::size_t>(span.device)].instructions[span.instruction], span));

  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Ends> transfers;  // (from, to, tag)
  for (const Activity& activity : out.activities) {
    const Instruction& instruction = instruction_of(activity);
    if (instruction.opcode == Opcode::send) transfers[{activity.device, instruction.peer, instruction.tag}].send = &activity;
    if (instruction.opcode == Opcode::recv) transfers[{instruction.peer, activity.device, instruction.tag}].receive = &activity;
  }
  std::vector<Activity> moved;
  for (const auto& [key, ends] : transfers)
    if (ends.send != nullptr && ends.receive != nullptr) moved.push_back(transfer_of(program, ends));
  out.activities.insert(out.activities.end(), moved.begin(), moved.end());
  std::stable_sort(out.activities.begin(), out.activities.end(), [](const Activity& a, const Activity& b) { return a.begin < b.begin; });
  for (const Activity& activity : out.activities) out.makespan = std::max(out.makespan, activity.end);
  return out;
}

}  // namespace penstock
