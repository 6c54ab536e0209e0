// SPDX-License-Identifier: Apache-2.0
#include "simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <queue>

#include "base/invariant.h"
#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"
#include "program/interpreter.h"
#include "simulate/recorder.h"

namespace penstock {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The ends of a transfer.
enum End : std::size_t { kSender = 0, kReceiver = 1 };

struct TransferState {
  double started[2] = {-1, -1};       // by end; -1: not yet
  double done[2] = {kNever, kNever};  // when each end may go on
  double path = 0;                    // longest chain up to what is sent
};
struct RecordedTransfer {
  std::int64_t activity = -1;
  std::int64_t before[2] = {-1, -1};  // what was recorded last at each end when it started
};

struct CollectiveState {
  std::size_t missing = 0;   // members that have not started it
  double seconds = 0;        // what it takes then
  double start_seconds = 0;  // each member's thread is kept so long by starting it
  bool last_copies = false;  // the last member's thread does the work
  double ready = 0;          // when the last did start it
  double path = 0;           // longest chain up to what any member gives
  std::int64_t cause = -1;   // of the last to start
  std::size_t first = 0;     // its members, in World::waits
};

// When what was started beside a device's compute is done for it: a host copy, or a collective for one of its members.
struct Beside {
  double done = kNever;
  std::int64_t activity = -1;
};

struct Clock {
  double now = 0;
  double busy = 0, kept = 0;      // in runs; in all instructions
  std::int64_t cause = -1;        // the activity that let the device come to `now`
  IdVector<SlotId, double> path;  // of each slot: longest chain up to what is in it
};

// Links of one medium share a lane; any other has its own.
struct LinkLane {
  const Link* link;
  std::size_t lane;
};
struct Carrier {
  double free_at = 0;
  std::int64_t newest = -1;  // activity
};

// Over which link each transfer goes, and how much of it.
struct Wires {
  std::vector<double> bytes;      // by transfer: in the order of memory here, scattered where they are needed
  std::vector<std::uint32_t> of;  // by transfer: in `links`
  std::vector<LinkLane> links;
  std::size_t lanes = 0;
  bool ordered = false;  // who starts a transfer first matters to others
};

Wires wires_of(const Program& program, const std::vector<checks::Transfer>& transfers, const Network& network) {
  Wires wires;
  std::map<std::pair<std::int32_t, std::int32_t>, std::uint32_t> by_pair;
  std::map<std::int32_t, std::size_t> by_medium;
  wires.of.reserve(transfers.size());
  std::pair<std::int32_t, std::int32_t> last(-1, -1);  // transfers come grouped by pair
  wires.bytes.reserve(transfers.size());
  for (const checks::Transfer& transfer : transfers) {
    const DeviceProgram& from = program.devices[transfer.from];
    wires.bytes.push_back(static_cast<double>(slot_bytes(from.slots[from.instructions[transfer.sender].slot])));
    const std::pair pair(transfer.from, transfer.to);
    if (pair == last) {
      wires.of.push_back(wires.of.back());
      continue;
    }
    last = pair;
    const auto [it, fresh] = by_pair.emplace(pair, static_cast<std::uint32_t>(wires.links.size()));
    if (fresh) {
      const Link& link = network.at(transfer.from, transfer.to);
      const std::size_t lane = link.medium < 0 ? wires.lanes : by_medium.emplace(link.medium, wires.lanes).first->second;
      wires.lanes = std::max(wires.lanes, lane + 1);
      wires.links.push_back({&link, lane});
      wires.ordered = wires.ordered || link.medium >= 0 || link.second_end_copies;
    }
    wires.of.push_back(it->second);
  }
  return wires;
}

std::vector<CollectiveState> collectives_of(const Program& program, const std::vector<checks::Collective>& all, const Network& network) {
  std::vector<CollectiveState> out;
  std::size_t first = 0;
  for (const checks::Collective& collective : all) {
    const std::vector<std::int32_t>& members = program.groups[collective.group];
    const DeviceProgram& any = program.devices[members[0]];
    const Instruction& instruction = any.instructions[collective.instructions[0]];
    const double bytes = bytes_beside(any, instruction);
    const Link& link = network.at(members[0], members[1]);
    // Threads of one process: the last to come reads what all give and writes what all take.
    CollectiveState& state = out.emplace_back();
    const double moved = bytes * static_cast<double>(instruction.opcode == Opcode::reduce_scatter ? 1 : members.size());
    state.last_copies = link.second_end_copies;
    state.seconds = state.last_copies ? moved / link.bandwidth : collective_seconds(instruction.opcode, bytes, members, network);
    if (const auto measured = network.collectives.find(instruction.opcode); measured != network.collectives.end())
      state.start_seconds = measured->second.start_seconds;
    state.missing = members.size();
    state.first = first;
    first += members.size();
  }
  return out;
}

// All devices, as far as they have come. An event is 2 * transfer + end, or, after those of all transfers, the place of a member of a
// collective or a host copy in `waits`.
struct World {
  const Program& program;
  const Durations& durations;
  const SimulateOptions& options;
  const Link& host_link;
  const checks::Transfers matches;
  Wires wires{};
  std::vector<TransferState> transfers{};
  std::vector<Carrier> lanes{};
  std::vector<CollectiveState> collectives{};
  std::vector<Beside> waits{};         // of members of all collectives, then of host copies as they are started
  std::vector<Carrier> group_lanes{};  // by group
  std::vector<Carrier> host_lanes{};   // by device
  std::vector<DeviceState> devices{};
  std::vector<Clock> clocks{};
  std::vector<Event> asleep{};        // what each device sleeps for
  std::vector<std::int32_t> woken{};  // devices that slept for what has an end now
  double longest_path = 0;
  std::optional<Recorder> recorder{};
  std::vector<RecordedTransfer> recorded{};  // by transfer, if recording
};

World world_of(const Program& program, const Durations& durations, const Network& network, const SimulateOptions& options) {
  World world{program, durations, options, network.host, checks::match_transfers(program)};
  const std::size_t devices = program.devices.size();
  world.wires = wires_of(program, world.matches.all, network);
  world.transfers.resize(world.matches.all.size());
  world.lanes.resize(world.wires.lanes);
  world.collectives = collectives_of(program, world.matches.collectives, network);
  for (const CollectiveState& collective : world.collectives) world.waits.resize(collective.first + collective.missing);
  world.group_lanes.resize(program.groups.size());
  world.host_lanes.resize(devices);
  world.clocks.resize(devices);
  world.asleep.assign(devices, kNoEvent);
  for (std::size_t d = 0; d < devices; ++d) {
    world.devices.emplace_back(program.devices[d]);
    world.clocks[d].path.resize(program.devices[d].slots.size());
    if (!options.begin.empty()) world.clocks[d].now = options.begin[d];
  }
  if (options.record) {
    world.recorder.emplace(program);
    world.recorded.resize(world.transfers.size());
  }
  return world;
}

std::size_t place(const World& world, std::size_t device, const Instruction& instruction) {
  return static_cast<std::size_t>(&instruction - world.program.devices[device].instructions.data());
}

// Returns the seconds that it takes to start a transfer (or an input, an output).
double start_seconds(const World& world, std::size_t device, std::size_t instruction) {
  const std::int32_t number = world.matches.of[device][instruction];
  const double seconds = world.durations[device][instruction];
  if (number < 0) return seconds;
  if (at(number) >= world.transfers.size()) return seconds + world.collectives[at(number) - world.transfers.size()].start_seconds;
  const Link& link = *world.wires.links[world.wires.of[number]].link;
  const bool sends = static_cast<std::size_t>(world.matches.all[number].from) == device;
  return seconds + link.start_seconds + (sends ? world.wires.bytes[number] * link.send_seconds_per_byte : 0);
}

bool of_transfer(const World& world, Event event) {
  return at(event) < 2 * world.transfers.size();
}
const Beside& wait_of(const World& world, Event event) {
  return world.waits[at(event) - 2 * world.transfers.size()];
}
Event event_of_wait(const World& world, std::size_t wait) {
  return static_cast<Event>(2 * world.transfers.size() + wait);
}
double arrival(const World& world, Event event) {
  return of_transfer(world, event) ? world.transfers[at(event) / 2].done[at(event) % 2] : wait_of(world, event).done;
}
std::int64_t activity(const World& world, Event event) {
  return of_transfer(world, event) ? world.recorded[at(event) / 2].activity : wait_of(world, event).activity;
}

void extend_paths(World& world, std::size_t device, const Instruction& instruction, double seconds) {
  const DeviceProgram& program = world.program.devices[device];
  std::vector<double>& paths = world.clocks[device].path;
  double path = 0;
  for (SlotId operand : program.operands_of(instruction)) path = std::max(path, paths[operand.index()]);
  for (const Result& result : program.results_of(instruction))
    if (result.mode != ResultMode::store) path = std::max(path, paths[result.slot.index()]);
  path += seconds;
  world.longest_path = std::max(world.longest_path, path);
  for (const Result& result : program.results_of(instruction)) paths[result.slot.index()] = path;
}

// Seconds until the device sees done what the instruction starts (SimulateOptions::arrivals); NaN: not known.
double replayed(const World& world, std::size_t device, std::size_t instruction) {
  if (world.options.arrivals == nullptr) return std::numeric_limits<double>::quiet_NaN();
  return (*world.options.arrivals)[device][instruction];
}

// `kept`: seconds that starting it has taken.
Event start_host_copy(World& world, std::size_t device, const Instruction& instruction, double kept) {
  const DeviceProgram& program = world.program.devices[device];
  Clock& clock = world.clocks[device];
  const SlotId from = program.operands_of(instruction)[0], to = program.results_of(instruction)[0].slot;
  const double seconds = static_cast<double>(slot_bytes(program.slots[from])) / world.host_link.bandwidth;
  Carrier& lane = world.host_lanes[device];
  const bool queues = lane.free_at > clock.now;
  const double begin = queues ? lane.free_at : clock.now;
  lane.free_at = begin + seconds;
  Beside copy{lane.free_at + world.host_link.latency};
  if (const double known = replayed(world, device, place(world, device, instruction)); !std::isnan(known)) copy.done = clock.now + known;
  clock.path[to] = clock.path[from] + kept + seconds;
  world.longest_path = std::max(world.longest_path, clock.path[to]);
  if (world.recorder && copy.done > begin)
    copy.activity = lane.newest = world.recorder->beside(device, instruction, begin, copy.done, queues ? lane.newest : clock.cause);
  world.waits.push_back(copy);
  return event_of_wait(world, world.waits.size() - 1);
}

// All members have started it, the device just now. A group does one collective after the other.
void complete_collective(World& world, std::size_t device, std::size_t number) {
  CollectiveState& state = world.collectives[number];
  Clock& clock = world.clocks[device];
  const checks::Collective& collective = world.matches.collectives[number];
  const std::vector<std::int32_t>& members = world.program.groups[collective.group];
  Carrier& lane = world.group_lanes[collective.group];
  const double begin = std::max(state.ready, lane.free_at);
  const std::int64_t cause = lane.free_at > state.ready ? lane.newest : state.cause;
  lane.free_at = begin + state.seconds;
  if (state.last_copies) {
    clock.kept += lane.free_at - clock.now;
    clock.now = lane.free_at;
  }
  const double path = state.path + state.seconds;
  world.longest_path = std::max(world.longest_path, path);
  for (std::size_t m = 0; m < members.size(); ++m) {
    const std::size_t member = at(members[m]);
    const Instruction& own = world.program.devices[member].instructions[collective.instructions[m]];
    for (const Result& result : world.program.devices[member].results_of(own)) world.clocks[member].path[result.slot] = path;
    Beside& wait = world.waits[state.first + m];
    wait.done = lane.free_at;
    if (const double known = replayed(world, member, at(collective.instructions[m])); !std::isnan(known)) wait.done = state.ready + known;
    if (world.recorder) wait.activity = lane.newest = world.recorder->beside(member, own, begin, std::max(begin, wait.done), cause);
    if (member == device) {
      if (state.last_copies && world.recorder) clock.cause = wait.activity;
    } else if (world.asleep[member] == event_of_wait(world, state.first + m)) {
      world.woken.push_back(members[m]);
    }
  }
}

Event start_collective(World& world, std::size_t device, std::size_t number, const Instruction& instruction) {
  CollectiveState& state = world.collectives[number];
  const Clock& clock = world.clocks[device];
  for (const SlotId operand : world.program.devices[device].operands_of(instruction))
    state.path = std::max(state.path, clock.path[operand]);
  if (clock.now >= state.ready) state.cause = clock.cause;
  state.ready = std::max(state.ready, clock.now);
  if (--state.missing == 0) complete_collective(world, device, number);
  const std::vector<std::int32_t>& group = world.program.groups[instruction.group];
  return event_of_wait(world, state.first + *place_in_group(group, static_cast<std::int32_t>(device)));
}

// Both ends have started; `second` did so just now. On lanes, starts come in the order of time: a pair's in its program order.
void complete_transfer(World& world, std::size_t number, End second) {
  TransferState& transfer = world.transfers[number];
  const checks::Transfer& ends = world.matches.all[number];
  const LinkLane& over = world.wires.links[world.wires.of[number]];
  const Link& link = *over.link;
  Carrier& lane = world.lanes[over.lane];
  Clock& clock = world.clocks[second == kSender ? ends.from : ends.to];
  const double seconds = world.wires.bytes[number] / link.bandwidth;
  const double ready = std::max(transfer.started[kSender], transfer.started[kReceiver]);
  const bool queues = !link.second_end_copies && lane.free_at > ready;
  const double begin = queues ? lane.free_at : ready;
  const std::int32_t other = second == kSender ? ends.to : ends.from;
  const bool wakes = world.asleep[other] == static_cast<Event>(2 * number + (1 - second));
  if (wakes) world.woken.push_back(other);
  transfer.done[kSender] = transfer.done[kReceiver] = begin + seconds + link.latency;
  if (link.second_end_copies) {
    const double kept = seconds + (wakes ? link.wake_seconds : 0);
    clock.now += kept;
    clock.kept += kept;
    transfer.done[second] = clock.now;
  } else {
    lane.free_at = begin + seconds;
  }
  const double known[2] = {replayed(world, at(ends.from), at(ends.sender)), replayed(world, at(ends.to), at(ends.receiver))};
  for (const End end : {kSender, kReceiver})
    if (!std::isnan(known[end])) transfer.done[end] = ready + known[end];
  double& path = world.clocks[ends.to].path[world.program.devices[ends.to].instructions[ends.receiver].slot];
  path = transfer.path + seconds;
  world.longest_path = std::max(world.longest_path, path);
  if (!world.recorder) return;
  const double end = std::max(transfer.done[kSender], transfer.done[kReceiver]);
  RecordedTransfer& recorded = world.recorded[number];
  const std::int64_t cause = queues ? lane.newest : recorded.before[transfer.started[kReceiver] > transfer.started[kSender]];
  const Instruction& send = world.program.devices[ends.from].instructions[ends.sender];
  recorded.activity = lane.newest = world.recorder->transfer(at(ends.from), send, begin, end, cause);
  if (link.second_end_copies) clock.cause = recorded.activity;
}

Event start_transfer(World& world, std::size_t device, std::size_t number, const Instruction& instruction) {
  const End end = instruction.opcode == Opcode::send ? kSender : kReceiver;
  const Clock& clock = world.clocks[device];
  TransferState& transfer = world.transfers[number];
  transfer.started[end] = clock.now;
  if (world.recorder) world.recorded[number].before[end] = clock.cause;
  if (end == kSender) transfer.path = clock.path[instruction.slot];
  if (transfer.started[1 - end] >= 0) complete_transfer(world, number, end);
  return static_cast<Event>(2 * number + end);
}

// One device, as the Machine of program/interpreter.h.
struct VirtualDevice {
  World& world;
  std::size_t device;
  Clock& clock;

  Event run(const Instruction& instruction) {
    const double begin = clock.now, seconds = world.durations[device][place(world, device, instruction)];
    clock.now += seconds;
    clock.busy += seconds;
    clock.kept += seconds;
    extend_paths(world, device, instruction, seconds);
    if (world.recorder) clock.cause = world.recorder->run(device, instruction, begin, clock.now, clock.cause);
    return kNoEvent;
  }

  Event start(const Instruction& instruction) {
    const std::size_t here = place(world, device, instruction);
    const std::int32_t number = world.matches.of[device][here];
    const double begin = clock.now, seconds = start_seconds(world, device, here);
    clock.now += seconds;
    clock.kept += seconds;
    if (instruction.opcode == Opcode::input) clock.path[instruction.slot] = seconds;
    if (world.recorder) record_start(instruction, begin, seconds);
    if (is_host_copy(instruction.opcode)) return start_host_copy(world, device, instruction, seconds);
    if (is_collective(instruction.opcode)) return start_collective(world, device, at(number) - world.transfers.size(), instruction);
    return number < 0 ? kNoEvent : start_transfer(world, device, at(number), instruction);
  }

  bool done(Event event) const { return arrival(world, event) <= clock.now; }

  void release(SlotId slot) {
    if (world.recorder) world.recorder->release(device, slot, clock.now);
  }

  void record_start(const Instruction& instruction, double begin, double seconds) {
    Recorder& recorder = *world.recorder;
    if (defines_slot(instruction.opcode)) recorder.define(device, instruction.slot, begin);
    for (const Result& result : world.program.devices[device].results_of(instruction))
      if (result.mode == ResultMode::store) recorder.define(device, result.slot, begin);
    if (seconds > 0) clock.cause = recorder.host(device, instruction, begin, clock.now, clock.cause);
  }
};

enum class Turn : std::uint8_t { finished, asleep, ready };

// Runs a device until it waits for what has not been started, or up to instruction `stop`, or to a wait whose end is known.
Turn advance_to(World& world, std::int32_t number, std::size_t stop) {
  const std::size_t device = at(number);
  VirtualDevice machine{world, device, world.clocks[device]};
  world.asleep[device] = kNoEvent;
  const Wait wait = advance(world.devices[device], machine, stop);
  if (wait.finished()) return Turn::finished;
  if (wait.event == kStopped) return Turn::ready;
  const double time = arrival(world, wait.event);
  if (time == kNever) {
    world.asleep[device] = wait.event;
    return Turn::asleep;
  }
  machine.clock.now = time;
  if (world.recorder) machine.clock.cause = activity(world, wait.event);
  return Turn::ready;
}

// Where every link has a lane of its own, nothing depends on which device is simulated first. Returns how many devices finished.
std::size_t run_freely(World& world) {
  for (std::size_t d = world.devices.size(); d-- > 0;) world.woken.push_back(static_cast<std::int32_t>(d));
  std::size_t finished = 0;
  while (!world.woken.empty()) {
    const std::int32_t device = world.woken.back();
    world.woken.pop_back();
    Turn turn;
    while ((turn = advance_to(world, device, std::numeric_limits<std::size_t>::max())) == Turn::ready) continue;
    finished += turn == Turn::finished;
  }
  return finished;
}

std::size_t next_transfer(const DeviceState& state, std::size_t from) {
  const std::vector<Instruction>& all = state.device->instructions;
  const auto meets = [](Opcode opcode) { return opcode == Opcode::send || opcode == Opcode::recv || is_collective(opcode); };
  while (from < all.size() && !meets(all[from].opcode)) ++from;
  return from;
}

// Transfers and collectives start in the order of time: a device stops before each of its own, and the one whose is the earliest goes on.
std::size_t run_in_order(World& world) {
  using Entry = std::pair<double, std::int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto enqueue = [&](std::int32_t device) {
    const DeviceState& state = world.devices[device];
    const bool ends = state.next >= state.device->instructions.size();
    queue.emplace(world.clocks[device].now + (ends ? 0 : start_seconds(world, at(device), state.next)), device);
  };
  for (std::size_t d = 0; d < world.devices.size(); ++d) {
    const std::int32_t device = static_cast<std::int32_t>(d);
    if (advance_to(world, device, next_transfer(world.devices[d], 0)) != Turn::finished) enqueue(device);
  }
  std::size_t finished = world.devices.size() - queue.size();
  while (!queue.empty()) {
    const std::int32_t device = queue.top().second;
    queue.pop();
    const DeviceState& state = world.devices[device];
    const Turn turn = advance_to(world, device, next_transfer(state, state.next + 1));
    finished += turn == Turn::finished;
    if (turn == Turn::ready) enqueue(device);
    for (; !world.woken.empty(); world.woken.pop_back()) enqueue(world.woken.back());
  }
  return finished;
}

bool starts_in_order(const World& world) {
  return world.wires.ordered || std::any_of(world.collectives.begin(), world.collectives.end(),
                                            [](const CollectiveState& collective) { return collective.last_copies; });
}

void check_durations(const Program& program, const Durations& durations) {
  invariant(durations.size() == program.devices.size(), "durations are given for every device");
  for (std::size_t d = 0; d < durations.size(); ++d) {
    invariant(durations[d].size() == program.devices[d].instructions.size(), "durations are given for every instruction");
    const auto bad = std::find_if_not(durations[d].begin(), durations[d].end(), [](double s) { return s >= 0 && std::isfinite(s); });
    if (bad != durations[d].end())
      throw Error(concat(checks::place(program, static_cast<int>(d), static_cast<std::size_t>(bad - durations[d].begin())), ": it takes ",
                         number(*bad), " seconds"),
                  {}, "durations are 0 or more");
  }
}

}  // namespace

double Simulation::lower_bound() const {
  return std::max(busiest_device, critical_path);
}

double Simulation::bubble() const {
  const double total = static_cast<double>(busy.size()) * makespan;
  return total > 0 ? 1 - std::accumulate(busy.begin(), busy.end(), 0.0) / total : 0;
}

Simulation simulate(const Program& program, const Durations& durations, const Network& network, const SimulateOptions& options) {
  check_durations(program, durations);
  World world = world_of(program, durations, network, options);
  const std::size_t finished = starts_in_order(world) ? run_in_order(world) : run_freely(world);
  if (finished < program.devices.size())
    throw Error(concat("program @", program.name, " never finishes"), {}, "penstock verify names the cycle");
  Simulation out;
  for (const Clock& clock : world.clocks) {
    out.busy.push_back(clock.busy);
    out.finished.push_back(clock.now);
    out.makespan = std::max(out.makespan, clock.now);
    out.busiest_device = std::max(out.busiest_device, clock.kept);
  }
  out.critical_path = world.longest_path;
  if (world.recorder) out.timeline = world.recorder->take(out.makespan);
  return out;
}

}  // namespace penstock
