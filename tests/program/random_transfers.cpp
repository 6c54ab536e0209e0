// SPDX-License-Identifier: Apache-2.0
#include "program/random_transfers.h"

#include <algorithm>
#include <string>

#include "program/checks.h"
#include "support/errors.h"

namespace penstock::test {
namespace {

int pick(std::mt19937_64& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

// A value's instructions on one device, in the order in which they must stay.
using Chain = std::vector<Instruction>;

class Generator {
 public:
  explicit Generator(std::mt19937_64& random) : random_(random) {
    program_.name = "random";
    program_.data.push_back({"x", {DType::f32, {4}}, false});
    program_.devices.resize(static_cast<std::size_t>(pick(random, 2, 4)));
    chains_.resize(program_.devices.size());
  }

  Program run() {
    const bool meets = pick(random_, 0, 1) == 0;
    const int values = pick(random_, meets ? 0 : 1, meets ? 1 : program_.devices.size() == 2 ? 4 : 3);
    for (int v = 0; v < values; ++v) route(device());
    if (meets) meet();
    for (std::size_t d = 0; d < chains_.size(); ++d) interleave(d);
    set_tags();
    return std::move(program_);
  }

 private:
  int device() { return pick(random_, 0, static_cast<int>(program_.devices.size()) - 1); }
  int other(int device) {
    return (device + pick(random_, 1, static_cast<int>(program_.devices.size()) - 1)) % static_cast<int>(chains_.size());
  }

  // `words`: of 64 bytes, the room that it has at least.
  SlotId slot(int device, SlotClass kind, std::size_t words = 1) {
    std::vector<Slot>& slots = program_.devices[static_cast<std::size_t>(device)].slots;
    const std::string name = "s" + std::to_string(slots.size());
    slots.push_back({name, kind, {{DType::f32, {4}}}, {}, -1, words > 1 ? static_cast<std::int64_t>(words) * kAlignment : 0});
    if (holds_state(kind)) slots.back().names.push_back(name);
    return SlotId(static_cast<std::int64_t>(slots.size()) - 1);
  }

  static Instruction simple(Opcode opcode, SlotId slot, int peer = -1) {
    Instruction i;
    i.opcode = opcode;
    i.slot = slot;
    i.peer = peer;
    if (opcode == Opcode::input) i.port = 0;
    return i;
  }

  Instruction copy(int device, SlotId from, SlotId to, ResultMode mode, Opcode opcode = Opcode::copy) {
    DeviceProgram& on = program_.devices[static_cast<std::size_t>(device)];
    Instruction i;
    i.opcode = opcode;
    i.first_operand = static_cast<std::uint32_t>(on.operands.size());
    i.first_result = static_cast<std::uint32_t>(on.results.size());
    i.operands = i.results = 1;
    on.operands.push_back(from);
    on.results.push_back({to, mode});
    return i;
  }

  void add_chain(int device, Chain chain) { chains_[static_cast<std::size_t>(device)].push_back(std::move(chain)); }

  // A value enters at `from`, goes to one or two others, and sometimes on from there.
  void route(int from) {
    const SlotId value = slot(from, SlotClass::step);
    Chain chain{simple(Opcode::input, value)};
    for (int sends = pick(random_, 1, 3) / 3 + 1; sends > 0; --sends) {
      const int to = other(from);
      chain.push_back(simple(Opcode::send, value, to));
      receive(to, from);
    }
    const bool rewritten = pick(random_, 0, 2) == 0;
    const SlotId kept = maybe_over_the_host(from, value, chain);
    if (rewritten) overwrite(from, kept, chain);
    chain.push_back(simple(Opcode::free, kept));
    add_chain(from, std::move(chain));
  }

  // Writes over `value` what another input brings.
  void overwrite(int device, SlotId value, Chain& chain) {
    const SlotId next = slot(device, SlotClass::step);
    chain.push_back(simple(Opcode::input, next));
    chain.push_back(copy(device, next, value, ResultMode::update));
    chain.push_back(simple(Opcode::free, next));
  }

  // Sometimes moves the value to the host and back, into a slot of its own, which is returned.
  SlotId maybe_over_the_host(int device, SlotId value, Chain& chain) {
    if (pick(random_, 0, 3) > 0) return value;
    const SlotId there = slot(device, SlotClass::host), back = slot(device, SlotClass::step);
    chain.push_back(copy(device, value, there, ResultMode::store, Opcode::offload));
    const bool late = pick(random_, 0, 1) == 0;
    if (!late) chain.push_back(simple(Opcode::free, value));
    chain.push_back(copy(device, there, back, ResultMode::store, Opcode::reload));
    if (late) chain.push_back(simple(Opcode::free, value));
    chain.push_back(simple(Opcode::free, there));
    return back;
  }

  // One or two collectives of one or two groups, those of a group all alike: then any order of them has the right tags. Pairs of devices
  // most often: what holds up one pair can wait for another.
  void meet() {
    for (int groups = pick(random_, 1, 3) / 2 + 1; groups > 0; --groups) {
      const int first = device(), second = other(first);
      std::vector<std::int32_t> members{std::min(first, second), std::max(first, second)};
      for (int d = 0; d < static_cast<int>(chains_.size()); ++d)
        if (d != first && d != second && pick(random_, 0, 3) == 0) members.push_back(d);
      std::sort(members.begin(), members.end());
      if (std::find(program_.groups.begin(), program_.groups.end(), members) != program_.groups.end()) continue;
      const auto opcode = static_cast<Opcode>(pick(random_, static_cast<int>(Opcode::all_reduce), static_cast<int>(Opcode::all_to_all)));
      const std::int32_t giver = members[static_cast<std::size_t>(pick(random_, 0, static_cast<int>(members.size()) - 1))];
      program_.groups.push_back(members);
      for (int times = pick(random_, 1, 4) / 4 + 1; times > 0; --times)
        for (const std::int32_t member : members) take_part(member, opcode, giver);
    }
  }

  void take_part(int device, Opcode opcode, int giver) {
    const std::size_t members = program_.groups.back().size();
    const bool gives = opcode != Opcode::broadcast || device == giver, takes = opcode != Opcode::broadcast || device != giver;
    const bool in_place = opcode == Opcode::all_reduce && pick(random_, 0, 1) == 0;
    const SlotClass kind = in_place && pick(random_, 0, 1) == 0 ? SlotClass::copy : SlotClass::step;
    const bool whole = opcode == Opcode::reduce_scatter || opcode == Opcode::all_to_all;
    const SlotId from = gives ? slot(device, kind, whole ? members : 1) : SlotId{};
    const SlotId to = in_place ? from
                      : takes  ? slot(device, kind, opcode == Opcode::all_gather || opcode == Opcode::all_to_all ? members : 1)
                               : SlotId{};
    Chain chain;
    if (gives && kind == SlotClass::step) chain.push_back(simple(Opcode::input, from));
    if (kind == SlotClass::copy && pick(random_, 0, 1) == 0) read(device, from, chain);
    Instruction i = copy(device, from, to, in_place ? ResultMode::update : ResultMode::store, opcode);
    if (opcode == Opcode::broadcast) i.peer = giver;
    if (!gives) i.operands = 0;
    if (!takes) i.results = 0;
    i.group = static_cast<std::int32_t>(program_.groups.size()) - 1;
    chain.push_back(i);
    if (takes && pick(random_, 0, 2) > 0) read(device, to, chain);
    if (takes && opcode != Opcode::all_gather && opcode != Opcode::all_to_all && pick(random_, 0, 1) == 0) {
      const int next = other(device);
      chain.push_back(simple(Opcode::send, to, next));
      receive(next, device);
    }
    if (gives && kind == SlotClass::step) chain.push_back(simple(Opcode::free, from));
    if (takes && !in_place) chain.push_back(simple(Opcode::free, to));
    add_chain(device, std::move(chain));
  }

  void receive(int device, int from) {
    const bool refreshes = pick(random_, 0, 3) == 0;
    SlotId value = slot(device, refreshes ? SlotClass::copy : SlotClass::step);
    Chain chain;
    if (refreshes && pick(random_, 0, 1) == 0) read(device, value, chain);
    chain.push_back(simple(Opcode::recv, value, from));
    if (!refreshes) value = maybe_over_the_host(device, value, chain);
    if (pick(random_, 0, 3) == 0) {
      const int next = other(device);
      chain.push_back(simple(Opcode::send, value, next));
      receive(next, device);
    }
    if (pick(random_, 0, 3) > 0) read(device, value, chain);
    if (!refreshes) chain.push_back(simple(Opcode::free, value));
    add_chain(device, std::move(chain));
  }

  void read(int device, SlotId value, Chain& chain) {
    const SlotId result = slot(device, SlotClass::step);
    std::vector<Slot>& slots = program_.devices[static_cast<std::size_t>(device)].slots;
    slots[result.index()].room = slots[value.index()].room;
    chain.push_back(copy(device, value, result, ResultMode::store));
    chain.push_back(simple(Opcode::free, result));
  }

  // Merges the device's chains; a chain that begins with what it takes from others starts early half of the time.
  void interleave(std::size_t device) {
    std::vector<Chain>& chains = chains_[device];
    std::vector<std::size_t> next(chains.size(), 0);
    std::vector<Instruction>& out = program_.devices[device].instructions;
    for (std::size_t c = 0; c < chains.size(); ++c)
      if ((chains[c][0].opcode == Opcode::recv || is_collective(chains[c][0].opcode)) && pick(random_, 0, 1) == 0)
        out.push_back(chains[c][next[c]++]);
    while (true) {
      std::vector<std::size_t> open;
      for (std::size_t c = 0; c < chains.size(); ++c)
        if (next[c] < chains[c].size()) open.push_back(c);
      if (open.empty()) return;
      const std::size_t c = open[static_cast<std::size_t>(pick(random_, 0, static_cast<int>(open.size()) - 1))];
      out.push_back(chains[c][next[c]++]);
    }
  }

  void set_tags() {
    for (DeviceProgram& device : program_.devices) {
      std::vector<int> sent(chains_.size(), 0), received(chains_.size(), 0), met(program_.groups.size(), 0);
      for (Instruction& i : device.instructions) {
        if (i.opcode == Opcode::send) i.tag = sent[static_cast<std::size_t>(i.peer)]++;
        if (i.opcode == Opcode::recv) i.tag = received[static_cast<std::size_t>(i.peer)]++;
        if (is_collective(i.opcode)) i.tag = met[static_cast<std::size_t>(i.group)]++;
      }
    }
  }

  std::mt19937_64& random_;
  Program program_;
  std::vector<std::vector<Chain>> chains_;  // of each device
};

}  // namespace

std::string order_verdict(const Program& program, ChannelModel model) {
  return message_of([&] {
    for (int d = 0; d < static_cast<int>(program.devices.size()); ++d) checks::check_definitions(program, d);
    const checks::Transfers transfers = checks::match_transfers(program);
    checks::check_transfer_types(program, transfers);
    checks::check_collectives(program, transfers);
    if (model == ChannelModel::serial) checks::check_serial_order(program, transfers);
    checks::check_progress(program, transfers);
  });
}

Program random_transfers(std::mt19937_64& random) {
  return Generator(random).run();
}

namespace {

// An instruction's use of a slot: a copy reads and writes; what moves a slot elsewhere gives it, what fills it from there takes it.
struct Use {
  bool reads = false, writes = false, gives = false, takes = false;
};

Use use_of(const DeviceProgram& on, const Instruction& i, SlotId slot) {
  const bool computes = i.opcode == Opcode::copy;
  if (!has_operands(i.opcode))
    return {false, false, i.opcode == Opcode::send && i.slot == slot, i.opcode == Opcode::recv && i.slot == slot};
  const auto operands = on.operands_of(i);
  const auto results = on.results_of(i);
  const bool from = !operands.empty() && operands[0] == slot, to = !results.empty() && results[0].slot == slot;
  return {computes && from, computes && to, !computes && from, !computes && to};
}

}  // namespace

bool Rules::may_start(int device, std::size_t at, const Done& done) const {
  const DeviceProgram& on = program_.devices[static_cast<std::size_t>(device)];
  const Instruction& i = on.instructions[at];
  const auto pending = [&](SlotId slot, const Use& which) {
    for (std::size_t before = 0; before < at; ++before) {
      const Use use = use_of(on, on.instructions[before], slot);
      const bool matters =
          (use.reads && which.reads) || (use.writes && which.writes) || (use.gives && which.gives) || (use.takes && which.takes);
      if (matters && !done(device, before)) return true;
    }
    return false;
  };
  const Use content{false, true, false, true}, any{true, true, true, true};
  switch (i.opcode) {
    case Opcode::copy:  // copies follow one another on the compute lane; they wait for transfers only
      return !pending(on.operands_of(i)[0], {false, false, false, true}) && !pending(on.results_of(i)[0].slot, {false, false, true, true});
    case Opcode::reload:  // its lane follows the offload
      return true;
    case Opcode::offload:
      return !pending(on.operands_of(i)[0], content);
    case Opcode::send:
      return !pending(i.slot, content);
    default:
      break;
  }
  if (!is_collective(i.opcode)) return !pending(i.slot, any);
  const auto operands = on.operands_of(i);
  const auto results = on.results_of(i);
  return (operands.empty() || !pending(operands[0], content)) && (results.empty() || !pending(results[0].slot, any));
}

std::vector<std::pair<int, std::size_t>> Rules::other_ends(int device, std::size_t at) const {
  const Instruction& end = program_.devices[static_cast<std::size_t>(device)].instructions[at];
  const bool meets = is_collective(end.opcode);
  const Opcode wanted = meets ? end.opcode : end.opcode == Opcode::send ? Opcode::recv : Opcode::send;
  std::vector<std::pair<int, std::size_t>> out;
  for (int other = 0; other < static_cast<int>(program_.devices.size()); ++other) {
    if (other == device || (!meets && other != end.peer)) continue;
    const std::vector<Instruction>& there = program_.devices[static_cast<std::size_t>(other)].instructions;
    const auto it = std::find_if(there.begin(), there.end(), [&](const Instruction& i) {
      return i.opcode == wanted && i.tag == end.tag && (meets ? i.group == end.group : i.peer == device);
    });
    if (it != there.end()) out.emplace_back(other, static_cast<std::size_t>(it - there.begin()));
  }
  return out;
}

}  // namespace penstock::test
