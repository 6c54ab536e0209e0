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

// The ends of a transfer; an event is 2 * transfer + end, or, after those of all transfers, the number of a member of a collective, and
// after those of a host copy.
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
  std::size_t first = 0;     // its members, in members_
};
struct MemberState {
  double done = kNever;
  std::int64_t activity = -1;
};

struct HostCopy {
  double done = 0;
  std::int64_t activity = -1;
};

struct Clock {
  double now = 0;
  double busy = 0, kept = 0;  // in runs; in all instructions
  std::int64_t cause = -1;    // the activity that let the device come to `now`
  std::vector<double> path;   // of each slot: longest chain up to what is in it
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

// All devices; and, as the Machine of program/interpreter.h, the one whose turn it is.
class VirtualTime {
 public:
  VirtualTime(const Program& program, const Durations& durations, const Network& network, const SimulateOptions& options)
      : program_(program),
        durations_(durations),
        options_(options),
        transfers_(checks::match_transfers(program)),
        states_(transfers_.all.size()),
        clocks_(program.devices.size()),
        asleep_(program.devices.size(), kNoEvent),
        host_link_(network.host),
        host_lanes_(program.devices.size()),
        group_lanes_(program.groups.size()) {
    if (options.record) {
      recorder_.emplace(program);
      recorded_.resize(states_.size());
    }
    for (std::size_t d = 0; d < clocks_.size(); ++d) {
      devices_.emplace_back(program.devices[d]);
      clocks_[d].path.resize(program.devices[d].slots.size());
      if (!options.begin.empty()) clocks_[d].now = options.begin[d];
    }
    find_links(network);
    find_collectives(network);
  }

  Simulation simulate() {
    const std::size_t finished = ordered_ ? run_in_order() : run_freely();
    if (finished < devices_.size())
      throw Error(concat("program @", program_.name, " never finishes"), {}, "penstock verify names the cycle");
    Simulation out;
    for (const Clock& clock : clocks_) {
      out.busy.push_back(clock.busy);
      out.finished.push_back(clock.now);
      out.makespan = std::max(out.makespan, clock.now);
      out.busiest_device = std::max(out.busiest_device, clock.kept);
    }
    out.critical_path = longest_path_;
    if (recorder_) out.timeline = recorder_->take(out.makespan);
    return out;
  }

  Event run(const Instruction& instruction) {
    const double begin = clock_->now, seconds = duration(instruction);
    clock_->now += seconds;
    clock_->busy += seconds;
    clock_->kept += seconds;
    extend_paths(instruction, seconds);
    if (recorder_) clock_->cause = recorder_->run(current_, instruction, begin, clock_->now, clock_->cause);
    return kNoEvent;
  }

  Event start(const Instruction& instruction) {
    const std::int32_t number = transfers_.of[current_][place(instruction)];
    const double begin = clock_->now, seconds = start_seconds(current_, place(instruction));
    clock_->now += seconds;
    clock_->kept += seconds;
    if (instruction.opcode == Opcode::input) clock_->path[instruction.slot.index()] = seconds;
    if (recorder_) {
      if (instruction.opcode == Opcode::recv || instruction.opcode == Opcode::input) recorder_->define(current_, instruction.slot, begin);
      for (const Result& result : device().results_of(instruction))
        if (result.mode == ResultMode::store) recorder_->define(current_, result.slot, begin);
      if (seconds > 0) clock_->cause = recorder_->host(current_, instruction, begin, clock_->now, clock_->cause);
    }
    if (is_host_copy(instruction.opcode)) return start_host_copy(instruction, seconds);
    if (is_collective(instruction.opcode)) return start_collective(at(number) - states_.size(), instruction);
    return number < 0 ? kNoEvent : start_transfer(at(number), instruction);
  }

  bool done(Event event) const { return arrival(event) <= clock_->now; }

  void release(SlotId slot) {
    if (recorder_) recorder_->release(current_, slot, clock_->now);
  }

 private:
  const DeviceProgram& device() const { return program_.devices[current_]; }
  std::size_t place(const Instruction& instruction) const { return static_cast<std::size_t>(&instruction - device().instructions.data()); }
  double duration(const Instruction& instruction) const { return durations_[current_][place(instruction)]; }
  // What starting a transfer (or an input, an output) takes.
  double start_seconds(std::size_t device, std::size_t instruction) const {
    const std::int32_t number = transfers_.of[device][instruction];
    if (number < 0) return durations_[device][instruction];
    if (at(number) >= states_.size()) return durations_[device][instruction] + collectives_[at(number) - states_.size()].start_seconds;
    const Link& link = *links_[link_of_[at(number)]].link;
    const bool sends = static_cast<std::size_t>(transfers_.all[at(number)].from) == device;
    return durations_[device][instruction] + link.start_seconds + (sends ? bytes_[at(number)] * link.send_seconds_per_byte : 0);
  }
  bool of_transfer(Event event) const { return at(event) < 2 * states_.size(); }
  bool of_host_copy(Event event) const { return at(event) >= 2 * states_.size() + members_.size(); }
  const MemberState& member(Event event) const { return members_[at(event) - 2 * states_.size()]; }
  const HostCopy& host_copy(Event event) const { return host_copies_[at(event) - 2 * states_.size() - members_.size()]; }
  double arrival(Event event) const {
    if (of_transfer(event)) return states_[at(event) / 2].done[at(event) % 2];
    return of_host_copy(event) ? host_copy(event).done : member(event).done;
  }
  std::int64_t activity(Event event) const {
    if (of_transfer(event)) return recorded_[at(event) / 2].activity;
    return of_host_copy(event) ? host_copy(event).activity : member(event).activity;
  }
  std::size_t own_place(std::int32_t group) const {
    return *place_in_group(program_.groups[at(group)], static_cast<std::int32_t>(current_));
  }

  void find_links(const Network& network) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::uint32_t> by_pair;
    std::map<std::int32_t, std::size_t> by_medium;
    link_of_.reserve(transfers_.all.size());
    std::pair<std::int32_t, std::int32_t> last(-1, -1);  // transfers come grouped by pair
    bytes_.reserve(transfers_.all.size());
    for (const checks::Transfer& transfer : transfers_.all) {
      const DeviceProgram& from = program_.devices[at(transfer.from)];
      bytes_.push_back(static_cast<double>(slot_bytes(from.slots[from.instructions[at(transfer.sender)].slot.index()])));
      const std::pair pair(transfer.from, transfer.to);
      if (pair == last) {
        link_of_.push_back(link_of_.back());
        continue;
      }
      last = pair;
      const auto [it, fresh] = by_pair.emplace(pair, static_cast<std::uint32_t>(links_.size()));
      if (fresh) {
        const Link& link = network.at(transfer.from, transfer.to);
        const std::size_t lane = link.medium < 0 ? lanes_.size() : by_medium.emplace(link.medium, lanes_.size()).first->second;
        if (lane == lanes_.size()) lanes_.emplace_back();
        links_.push_back({&link, lane});
        ordered_ = ordered_ || link.medium >= 0 || link.second_end_copies;
      }
      link_of_.push_back(it->second);
    }
  }

  void find_collectives(const Network& network) {
    for (const checks::Collective& collective : transfers_.collectives) {
      const std::vector<std::int32_t>& members = program_.groups[at(collective.group)];
      const DeviceProgram& any = program_.devices[at(members[0])];
      const Instruction& instruction = any.instructions[at(collective.instructions[0])];
      const double bytes = bytes_beside(any, instruction);
      const Link& link = network.at(members[0], members[1]);
      // Threads of one process: the last to come reads what all give and writes what all take.
      CollectiveState& state = collectives_.emplace_back();
      const double moved = bytes * static_cast<double>(instruction.opcode == Opcode::reduce_scatter ? 1 : members.size());
      state.last_copies = link.second_end_copies;
      state.seconds = state.last_copies ? moved / link.bandwidth : collective_seconds(instruction.opcode, bytes, members, network);
      if (const auto measured = network.collectives.find(instruction.opcode); measured != network.collectives.end())
        state.start_seconds = measured->second.start_seconds;
      state.missing = members.size();
      state.first = members_.size();
      members_.resize(members_.size() + members.size());
      ordered_ = ordered_ || state.last_copies;
    }
  }

  Event start_collective(std::size_t number, const Instruction& instruction) {
    CollectiveState& state = collectives_[number];
    for (const SlotId operand : device().operands_of(instruction)) state.path = std::max(state.path, clock_->path[operand.index()]);
    if (clock_->now >= state.ready) state.cause = clock_->cause;
    state.ready = std::max(state.ready, clock_->now);
    if (--state.missing == 0) complete_collective(number);
    return event_of(state, own_place(instruction.group));
  }
  Event event_of(const CollectiveState& state, std::size_t member) const {
    return static_cast<Event>(2 * states_.size() + state.first + member);
  }

  // All members have started it, the one whose turn it is just now. A group does one collective after the other.
  void complete_collective(std::size_t number) {
    CollectiveState& state = collectives_[number];
    const checks::Collective& collective = transfers_.collectives[number];
    const std::vector<std::int32_t>& members = program_.groups[at(collective.group)];
    Carrier& lane = group_lanes_[at(collective.group)];
    const double begin = std::max(state.ready, lane.free_at);
    const std::int64_t cause = lane.free_at > state.ready ? lane.newest : state.cause;
    lane.free_at = begin + state.seconds;
    if (state.last_copies) {
      clock_->kept += lane.free_at - clock_->now;
      clock_->now = lane.free_at;
    }
    const double path = state.path + state.seconds;
    longest_path_ = std::max(longest_path_, path);
    for (std::size_t m = 0; m < members.size(); ++m) {
      const std::size_t device = at(members[m]);
      const Instruction& own = program_.devices[device].instructions[at(collective.instructions[m])];
      for (const Result& result : program_.devices[device].results_of(own)) clocks_[device].path[result.slot.index()] = path;
      MemberState& member = members_[state.first + m];
      member.done = lane.free_at;
      if (options_.arrivals != nullptr) {
        const double known = (*options_.arrivals)[device][at(collective.instructions[m])];
        if (!std::isnan(known)) member.done = state.ready + known;
      }
      if (recorder_) member.activity = lane.newest = recorder_->beside(device, own, begin, std::max(begin, member.done), cause);
      if (device != current_ && asleep_[device] == event_of(state, m)) woken_.push_back(members[m]);
    }
    if (state.last_copies && recorder_) clock_->cause = members_[state.first + own_place(collective.group)].activity;
  }

  void extend_paths(const Instruction& instruction, double seconds) {
    double path = 0;
    for (SlotId operand : device().operands_of(instruction)) path = std::max(path, clock_->path[operand.index()]);
    for (const Result& result : device().results_of(instruction))
      if (result.mode != ResultMode::store) path = std::max(path, clock_->path[result.slot.index()]);
    path += seconds;
    longest_path_ = std::max(longest_path_, path);
    for (const Result& result : device().results_of(instruction)) clock_->path[result.slot.index()] = path;
  }

  // `kept`: seconds that starting it has taken.
  Event start_host_copy(const Instruction& instruction, double kept) {
    const SlotId from = device().operands_of(instruction)[0], to = device().results_of(instruction)[0].slot;
    const double seconds = static_cast<double>(slot_bytes(device().slots[from.index()])) / host_link_.bandwidth;
    Carrier& lane = host_lanes_[current_];
    const bool queues = lane.free_at > clock_->now;
    const double begin = queues ? lane.free_at : clock_->now;
    lane.free_at = begin + seconds;
    HostCopy copy{lane.free_at + host_link_.latency};
    if (options_.arrivals != nullptr) {
      const double known = (*options_.arrivals)[current_][place(instruction)];
      if (!std::isnan(known)) copy.done = clock_->now + known;
    }
    clock_->path[to.index()] = clock_->path[from.index()] + kept + seconds;
    longest_path_ = std::max(longest_path_, clock_->path[to.index()]);
    if (recorder_ && copy.done > begin)
      copy.activity = lane.newest = recorder_->beside(current_, instruction, begin, copy.done, queues ? lane.newest : clock_->cause);
    host_copies_.push_back(copy);
    return static_cast<Event>(2 * states_.size() + members_.size() + host_copies_.size() - 1);
  }

  Event start_transfer(std::size_t number, const Instruction& instruction) {
    const End end = instruction.opcode == Opcode::send ? kSender : kReceiver;
    TransferState& transfer = states_[number];
    transfer.started[end] = clock_->now;
    if (recorder_) recorded_[number].before[end] = clock_->cause;
    if (end == kSender) transfer.path = clock_->path[instruction.slot.index()];
    if (transfer.started[1 - end] >= 0) complete(number, end);
    return static_cast<Event>(2 * number + end);
  }

  // Both ends have started; `second` did so just now. On lanes, starts come in the order of time: a pair's in its program order.
  void complete(std::size_t number, End second) {
    TransferState& transfer = states_[number];
    const checks::Transfer& ends = transfers_.all[number];
    const Link& link = *links_[link_of_[number]].link;
    Carrier& lane = lanes_[links_[link_of_[number]].lane];
    const double seconds = bytes_[number] / link.bandwidth;
    const double ready = std::max(transfer.started[kSender], transfer.started[kReceiver]);
    const bool queues = !link.second_end_copies && lane.free_at > ready;
    const double begin = queues ? lane.free_at : ready;
    const std::int32_t other = second == kSender ? ends.to : ends.from;
    const bool wakes = asleep_[at(other)] == static_cast<Event>(2 * number + (1 - second));
    if (wakes) woken_.push_back(other);
    transfer.done[kSender] = transfer.done[kReceiver] = begin + seconds + link.latency;
    if (link.second_end_copies) {
      const double kept = seconds + (wakes ? link.wake_seconds : 0);
      clock_->now += kept;
      clock_->kept += kept;
      transfer.done[second] = clock_->now;
    } else {
      lane.free_at = begin + seconds;
    }
    if (options_.arrivals != nullptr) replay(transfer, ends, ready);
    double& path = clocks_[at(ends.to)].path[program_.devices[at(ends.to)].instructions[at(ends.receiver)].slot.index()];
    path = transfer.path + seconds;
    longest_path_ = std::max(longest_path_, path);
    if (recorder_) {
      const double end = std::max(transfer.done[kSender], transfer.done[kReceiver]);
      RecordedTransfer& recorded = recorded_[number];
      const std::int64_t cause = queues ? lane.newest : recorded.before[transfer.started[kReceiver] > transfer.started[kSender]];
      const Instruction& send = program_.devices[at(ends.from)].instructions[at(ends.sender)];
      recorded.activity = lane.newest = recorder_->transfer(at(ends.from), at(ends.to), send, begin, end, cause);
      if (link.second_end_copies) clock_->cause = recorded.activity;
    }
  }

  void replay(TransferState& transfer, const checks::Transfer& ends, double ready) const {
    const double known[2] = {(*options_.arrivals)[at(ends.from)][at(ends.sender)], (*options_.arrivals)[at(ends.to)][at(ends.receiver)]};
    for (const End end : {kSender, kReceiver})
      if (!std::isnan(known[end])) transfer.done[end] = ready + known[end];
  }

  enum class Turn : std::uint8_t { finished, asleep, ready };

  // Runs a device until it waits for what has not been started, or up to instruction `stop`, or to a wait whose end is known.
  Turn advance_to(std::int32_t number, std::size_t stop) {
    current_ = at(number);
    clock_ = &clocks_[current_];
    asleep_[current_] = kNoEvent;
    const Wait wait = advance(devices_[current_], *this, stop);
    if (wait.finished()) return Turn::finished;
    if (wait.event == kStopped) return Turn::ready;
    const double time = arrival(wait.event);
    if (time == kNever) {
      asleep_[current_] = wait.event;
      return Turn::asleep;
    }
    clock_->now = time;
    if (recorder_) clock_->cause = activity(wait.event);
    return Turn::ready;
  }

  // Where every link has a lane of its own, nothing depends on which device is simulated first.
  std::size_t run_freely() {
    for (std::size_t d = devices_.size(); d-- > 0;) woken_.push_back(static_cast<std::int32_t>(d));
    std::size_t finished = 0;
    while (!woken_.empty()) {
      const std::int32_t device = woken_.back();
      woken_.pop_back();
      Turn turn;
      while ((turn = advance_to(device, std::numeric_limits<std::size_t>::max())) == Turn::ready) continue;
      finished += turn == Turn::finished;
    }
    return finished;
  }

  // Transfers and collectives start in the order of time: a device stops before each of its own, and the one whose is the earliest goes on.
  std::size_t run_in_order() {
    using Entry = std::pair<double, std::int32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    const auto enqueue = [&](std::int32_t device) {
      const DeviceState& state = devices_[at(device)];
      const bool ends = state.next >= state.device->instructions.size();
      queue.emplace(clocks_[at(device)].now + (ends ? 0 : start_seconds(at(device), state.next)), device);
    };
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      if (advance_to(static_cast<std::int32_t>(d), next_transfer(devices_[d], 0)) != Turn::finished) enqueue(static_cast<std::int32_t>(d));
    }
    std::size_t finished = devices_.size() - queue.size();
    while (!queue.empty()) {
      const std::int32_t device = queue.top().second;
      queue.pop();
      const Turn turn = advance_to(device, next_transfer(devices_[at(device)], devices_[at(device)].next + 1));
      finished += turn == Turn::finished;
      if (turn == Turn::ready) enqueue(device);
      for (; !woken_.empty(); woken_.pop_back()) enqueue(woken_.back());
    }
    return finished;
  }

  static std::size_t next_transfer(const DeviceState& state, std::size_t from) {
    const std::vector<Instruction>& all = state.device->instructions;
    const auto meets = [](Opcode opcode) { return opcode == Opcode::send || opcode == Opcode::recv || is_collective(opcode); };
    while (from < all.size() && !meets(all[from].opcode)) ++from;
    return from;
  }

  const Program& program_;
  const Durations& durations_;
  const SimulateOptions& options_;
  const checks::Transfers transfers_;
  std::vector<TransferState> states_;   // by transfer
  std::vector<double> bytes_;           // by transfer: in the order of memory here, scattered where they are needed
  std::vector<std::uint32_t> link_of_;  // by transfer: in links_
  std::vector<LinkLane> links_;
  std::vector<Carrier> lanes_;
  std::vector<DeviceState> devices_;
  std::vector<Clock> clocks_;
  std::vector<Event> asleep_;  // what each device sleeps for
  Link host_link_;
  std::vector<Carrier> host_lanes_;  // by device
  std::vector<HostCopy> host_copies_;
  std::vector<CollectiveState> collectives_;
  std::vector<MemberState> members_;  // of all collectives
  std::vector<Carrier> group_lanes_;  // by group
  std::vector<std::int32_t> woken_;
  bool ordered_ = false;
  double longest_path_ = 0;
  std::size_t current_ = 0;
  Clock* clock_ = nullptr;
  std::optional<Recorder> recorder_;
  std::vector<RecordedTransfer> recorded_;  // by transfer, if recording
};

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
  return VirtualTime(program, durations, network, options).simulate();
}

}  // namespace penstock
