#include "program/random_transfers.h"

#include <algorithm>
#include <string>

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
    const int values = pick(random_, 1, program_.devices.size() == 2 ? 4 : 3);
    for (int v = 0; v < values; ++v) route(device());
    for (std::size_t d = 0; d < chains_.size(); ++d) interleave(d);
    set_tags();
    return std::move(program_);
  }

 private:
  int device() { return pick(random_, 0, static_cast<int>(program_.devices.size()) - 1); }
  int other(int device) {
    return (device + pick(random_, 1, static_cast<int>(program_.devices.size()) - 1)) % static_cast<int>(chains_.size());
  }

  SlotId slot(int device, SlotClass kind) {
    std::vector<Slot>& slots = program_.devices[static_cast<std::size_t>(device)].slots;
    const std::string name = "s" + std::to_string(slots.size());
    slots.push_back({name, kind, {{DType::f32, {4}}}, {}, -1});
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
    chain.push_back(copy(device, value, result, ResultMode::store));
    chain.push_back(simple(Opcode::free, result));
  }

  // Merges the device's chains; a chain that begins with a recv starts early half of the time.
  void interleave(std::size_t device) {
    std::vector<Chain>& chains = chains_[device];
    std::vector<std::size_t> next(chains.size(), 0);
    std::vector<Instruction>& out = program_.devices[device].instructions;
    for (std::size_t c = 0; c < chains.size(); ++c)
      if (chains[c][0].opcode == Opcode::recv && pick(random_, 0, 1) == 0) out.push_back(chains[c][next[c]++]);
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
      std::vector<int> sent(chains_.size(), 0), received(chains_.size(), 0);
      for (Instruction& i : device.instructions) {
        if (i.opcode == Opcode::send) i.tag = sent[static_cast<std::size_t>(i.peer)]++;
        if (i.opcode == Opcode::recv) i.tag = received[static_cast<std::size_t>(i.peer)]++;
      }
    }
  }

  std::mt19937_64& random_;
  Program program_;
  std::vector<std::vector<Chain>> chains_;  // of each device
};

}  // namespace

Program random_transfers(std::mt19937_64& random) {
  return Generator(random).run();
}

bool Rules::may_start(int device, std::size_t at, const Done& done) const {
  const DeviceProgram& on = program_.devices[static_cast<std::size_t>(device)];
  const Instruction& i = on.instructions[at];
  const bool copies = i.opcode == Opcode::copy;
  for (std::size_t before = 0; before < at; ++before) {
    const Instruction& b = on.instructions[before];
    const auto touches = [&](SlotId slot, bool reads, bool writes, bool sends) {
      switch (b.opcode) {
        case Opcode::copy:
          return (reads && on.operands_of(b)[0] == slot) || (writes && on.results_of(b)[0].slot == slot);
        case Opcode::send:
          return sends && b.slot == slot;
        case Opcode::recv:
          return b.slot == slot;
        case Opcode::offload:
        case Opcode::reload:
          return (sends && on.operands_of(b)[0] == slot) || on.results_of(b)[0].slot == slot;
        default:
          return false;
      }
    };
    // Copies follow one another on the compute lane; they wait for transfers only.
    const bool needed = copies                        ? b.opcode != Opcode::copy && (touches(on.operands_of(i)[0], false, false, false) ||
                                                              touches(on.results_of(i)[0].slot, false, false, true))
                        : i.opcode == Opcode::offload ? touches(on.operands_of(i)[0], false, true, false)
                        : i.opcode == Opcode::reload  ? false  // its lane follows the offload
                        : i.opcode == Opcode::send    ? touches(i.slot, false, true, false)
                                                      : touches(i.slot, true, true, true);
    if (needed && !done(device, before)) return false;
  }
  return true;
}

std::size_t Rules::other_end(int device, std::size_t at) const {
  const Instruction& end = program_.devices[static_cast<std::size_t>(device)].instructions[at];
  const std::vector<Instruction>& there = program_.devices[static_cast<std::size_t>(end.peer)].instructions;
  const Opcode wanted = end.opcode == Opcode::send ? Opcode::recv : Opcode::send;
  const auto it = std::find_if(there.begin(), there.end(),
                               [&](const Instruction& i) { return i.opcode == wanted && i.peer == device && i.tag == end.tag; });
  return static_cast<std::size_t>(it - there.begin());
}

}  // namespace penstock::test
