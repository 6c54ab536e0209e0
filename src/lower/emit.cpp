// Pass: runs on instances become instruction lists. One transfer per instance and destination; receives posted early; every step slot
// freed as soon as nothing can need it.
//
// Where to free what was sent is the one choice that could deadlock: `free` waits until the peer has posted its receive. So one execution
// is timed here (transfers take no time, runs what a roofline says), and a sent slot is freed at the first run boundary at which that
// execution has finished its sends. Programs are deterministic (what a device waits for never depends on timing), so an order that one
// execution passes without waiting at its frees lets every execution finish.
//
// Both devices of a pair start all its transfers, in both directions, in the order in which that execution sends them. So a program also
// finishes where a pair has one queue (NCCL): what is first in it was sent first, and never waits for what comes after it.
#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>

#include "base/invariant.h"
#include "base/text.h"
#include "lower/draft.h"
#include "ops/definition.h"

namespace penstock {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kFlopsPerByte = 10;  // of the roofline that times runs here; only the order of events matters

struct Use {  // of one instance on one actor
  std::int32_t instance = -1;
  std::int32_t first_read = -1;  // run indices
  std::int32_t last_touch = -1;
  std::int32_t last_write = -1;
  std::int32_t receive = -1;  // transfer that brings it
  std::vector<std::int32_t> sends;
  SlotId slot;
};

struct Transfer {
  std::int32_t instance, from, to, tag;
  std::int32_t after_run;   // on `from`; the number of runs: at the end
  std::int32_t before_run;  // on `to`: where the receive is posted
  double sent = kNever, posted = kNever;
  double done() const { return std::max(sent, posted); }
};

class Emitter {
 public:
  Emitter(Lowering& lowering, int receive_ahead) : l_(lowering), ahead_(receive_ahead), actors_(lowering.draft.actors.size()) {}

  void run() {
    for (std::size_t a = 0; a < actors_.size(); ++a) note_uses(a);
    for (std::size_t a = 0; a < actors_.size(); ++a) make_transfers(a);
    make_refreshes();
    post_receives();
    measure();
    if (!sent_.empty()) {
      order_pairs();
      post_receives();
      measure();
    }
    keep_untouched_state();
    l_.program.devices.resize(actors_.size());
    for (std::size_t a = 0; a < actors_.size(); ++a) emit(a);
  }

 private:
  struct Actor {
    std::vector<Use> uses;
    std::unordered_map<std::int32_t, std::int32_t> use_of;  // instance: index in uses
    std::vector<std::int32_t> outgoing, incoming;           // transfers, in order of sending and, from post_receives on, of posting
    std::vector<double> end;                                // of each run
    double clock = 0;
    std::size_t next_incoming = 0;  // by before_run
  };

  const std::vector<Run>& runs(std::size_t a) const { return l_.draft.actors[a]; }
  const Instance& instance(std::int32_t i) const { return l_.draft.instances[static_cast<std::size_t>(i)]; }

  Use& use(std::size_t a, std::int32_t instance_number) {
    Actor& actor = actors_[a];
    const auto [it, added] = actor.use_of.try_emplace(instance_number, static_cast<std::int32_t>(actor.uses.size()));
    if (added) {
      actor.uses.emplace_back();
      actor.uses.back().instance = instance_number;
    }
    return actor.uses[static_cast<std::size_t>(it->second)];
  }

  void note_uses(std::size_t a) {
    for (std::size_t r = 0; r < runs(a).size(); ++r) {
      const auto index = static_cast<std::int32_t>(r);
      for (std::int32_t i : runs(a)[r].reads) {
        Use& u = use(a, i);
        if (u.first_read < 0) u.first_read = index;
        u.last_touch = index;
        const Instance& read = instance(i);
        if (read.source == Instance::Source::computed && read.home != static_cast<std::int32_t>(a) && u.first_read == index)
          readers_[i].push_back(static_cast<std::int32_t>(a));
      }
      for (const Write& write : runs(a)[r].writes) {
        Use& u = use(a, write.instance);
        u.last_write = u.last_touch = index;
      }
    }
    for (auto& [i, list] : readers_) list.erase(std::unique(list.begin(), list.end()), list.end());
  }

  void add_transfer(std::int32_t i, std::size_t from, std::size_t to, std::int32_t after_run, std::int32_t before_run) {
    const auto number = static_cast<std::int32_t>(transfers_.size());
    std::int32_t& tags = tags_[{from, to}];
    transfers_.push_back({i, static_cast<std::int32_t>(from), static_cast<std::int32_t>(to), tags++, after_run, before_run});
    use(from, i).sends.push_back(number);
    use(to, i).receive = number;
    actors_[from].outgoing.push_back(number);
    actors_[to].incoming.push_back(number);
  }

  void make_transfers(std::size_t a) {
    for (std::size_t r = 0; r < runs(a).size(); ++r)
      for (const Write& write : runs(a)[r].writes) {
        const auto index = static_cast<std::int32_t>(r);
        const auto found = readers_.find(write.instance);
        if (found == readers_.end() || use(a, write.instance).last_write != index) continue;
        for (std::int32_t reader : found->second) {
          const auto to = static_cast<std::size_t>(reader);
          add_transfer(write.instance, a, to, index, run_ahead_of(to, use(to, write.instance).first_read));
        }
      }
  }

  // Copies of state are refreshed when everything else is done, so that no receive overwrites what a task still reads.
  void make_refreshes() {
    for (std::int32_t state : l_.draft.refreshed) {
      const auto from = static_cast<std::size_t>(instance(state).home);
      for (std::size_t to = 0; to < actors_.size(); ++to)
        if (to != from && actors_[to].use_of.count(state))
          add_transfer(state, from, to, static_cast<std::int32_t>(runs(from).size()), static_cast<std::int32_t>(runs(to).size()));
    }
  }

  Transfer& transfer(std::int32_t number) { return transfers_[static_cast<std::size_t>(number)]; }

  void post_receives() {
    for (Actor& to : actors_)
      std::stable_sort(to.incoming.begin(), to.incoming.end(),
                       [&](std::int32_t x, std::int32_t y) { return transfer(x).before_run < transfer(y).before_run; });
  }

  // Posts each receive ahead of what its pair sends or reads after it, and behind what its device sends before it. In the execution
  // measured it is sent after the latter and before its reader begins, so there is such a place.
  void order_pairs() {
    std::stable_sort(sent_.begin(), sent_.end(), [&](std::int32_t x, std::int32_t y) { return transfer(x).sent < transfer(y).sent; });
    std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> latest, earliest;  // (device, peer): a run
    for (auto number = sent_.rbegin(); number != sent_.rend(); ++number) {
      Transfer& t = transfer(*number);
      latest[{t.from, t.to}] = t.after_run;
      std::int32_t& bound = latest.try_emplace({t.to, t.from}, t.before_run).first->second;
      t.before_run = bound = std::min(bound, t.before_run);
    }
    for (const std::int32_t number : sent_) {
      Transfer& t = transfer(number);
      earliest[{t.from, t.to}] = t.after_run + 1;
      t.before_run = std::max(t.before_run, earliest[{t.to, t.from}]);
    }
    for (Actor& actor : actors_) actor.incoming.clear();
    for (const std::int32_t number : sent_) actors_[static_cast<std::size_t>(transfer(number).to)].incoming.push_back(number);
    for (std::size_t t = 0; t < transfers_.size(); ++t)  // refreshes
      if (transfers_[t].sent == kNever)
        actors_[static_cast<std::size_t>(transfers_[t].to)].incoming.push_back(static_cast<std::int32_t>(t));
  }

  double duration(const Run& run) {
    if (run.opcode != Opcode::run) return 0;
    if (durations_.size() < l_.program.tasks.size()) durations_.resize(l_.program.tasks.size(), -1);
    double& time = durations_[run.task.index()];
    if (time < 0) {
      time = 1;
      const Graph& graph = l_.program.tasks[run.task.index()].graph;
      for (const Op& op : graph.ops) {
        const OpCost c = cost(graph, op);
        time += std::max(c.flops / kFlopsPerByte, c.bytes);
      }
    }
    return time;
  }

  void measure() {
    sent_.clear();
    for (Transfer& t : transfers_) t.sent = t.posted = kNever;
    for (Actor& actor : actors_) {
      actor.end.clear();
      actor.clock = 0;
      actor.next_incoming = 0;
    }
    std::vector<std::size_t> ready;
    std::vector<std::vector<std::size_t>> waiting(transfers_.size());
    for (std::size_t a = actors_.size(); a-- > 0;) ready.push_back(a);
    while (!ready.empty()) {
      const std::size_t a = ready.back();
      ready.pop_back();
      const std::int32_t blocked = advance(a, ready, waiting);
      if (blocked >= 0) waiting[static_cast<std::size_t>(blocked)].push_back(a);
    }
  }

  // Times runs of `a` until one needs a transfer that is not sent yet; returns that, or -1 at the end.
  std::int32_t advance(std::size_t a, std::vector<std::size_t>& ready, std::vector<std::vector<std::size_t>>& waiting) {
    Actor& actor = actors_[a];
    const auto post = [&](std::int32_t before_run) {
      while (actor.next_incoming < actor.incoming.size() &&
             transfers_[static_cast<std::size_t>(actor.incoming[actor.next_incoming])].before_run <= before_run)
        transfers_[static_cast<std::size_t>(actor.incoming[actor.next_incoming++])].posted = actor.clock;
    };
    for (std::size_t r = actor.end.size(); r < runs(a).size(); ++r) {
      const Run& run = runs(a)[r];
      post(static_cast<std::int32_t>(r));
      double start = actor.clock;
      for (std::int32_t i : run.reads) {
        const Use& u = use(a, i);
        if (u.receive < 0 || instance(i).source == Instance::Source::state) continue;
        const Transfer& t = transfers_[static_cast<std::size_t>(u.receive)];
        if (t.sent == kNever) return u.receive;
        start = std::max(start, t.done());
      }
      actor.clock = start + duration(run);
      actor.end.push_back(actor.clock);
      send(a, run, static_cast<std::int32_t>(r), ready, waiting);
    }
    post(std::numeric_limits<std::int32_t>::max());
    return -1;
  }

  void send(std::size_t a, const Run& run, std::int32_t r, std::vector<std::size_t>& ready,
            std::vector<std::vector<std::size_t>>& waiting) {
    for (const Write& write : run.writes)
      for (std::int32_t number : use(a, write.instance).sends) {
        const auto t = static_cast<std::size_t>(number);
        if (transfers_[t].after_run != r) continue;
        transfers_[t].sent = actors_[a].clock;
        sent_.push_back(number);
        for (std::size_t woken : waiting[t]) ready.push_back(woken);
        waiting[t].clear();
      }
  }

  // The run after which `u` is freed; the number of runs: at the end. It ends later than its receives are posted, not at the same time: a
  // device posts after it has freed, and two whose runs end together could each wait for what the other posts next.
  std::int32_t free_after(std::size_t a, const Use& u) const {
    const Actor& actor = actors_[a];
    double posted = -1;
    for (std::int32_t number : u.sends) posted = std::max(posted, transfers_[static_cast<std::size_t>(number)].posted);
    // What is being sent or copied to the host stays for one more run, so that the device computes while that takes its time.
    const bool leaves = !u.sends.empty() || (u.last_touch >= 0 && is_beside(runs(a)[static_cast<std::size_t>(u.last_touch)]));
    const std::ptrdiff_t earliest = leaves ? run_after(a, u.last_touch) : u.last_touch;
    const auto from = actor.end.begin() + std::min<std::ptrdiff_t>(earliest, static_cast<std::ptrdiff_t>(actor.end.size()));
    return static_cast<std::int32_t>(std::upper_bound(from, actor.end.end(), posted) - actor.end.begin());
  }

  // The first run after `r`, and the one `ahead_` before it: what takes the device no time does not count. The number of runs, or 0, where
  // there is none.
  std::ptrdiff_t run_after(std::size_t a, std::int32_t r) const {
    const auto computes = [](const Run& run) { return !is_beside(run); };
    return std::find_if(runs(a).begin() + r + 1, runs(a).end(), computes) - runs(a).begin();
  }
  std::int32_t run_ahead_of(std::size_t a, std::int32_t r) const {
    for (std::int32_t left = ahead_; r > 0 && left > 0;) left -= !is_beside(runs(a)[static_cast<std::size_t>(--r)]);
    return r;
  }

  void make_slots(std::size_t a) {
    DeviceProgram& device = l_.program.devices[a];
    for (Use& u : actors_[a].uses) {
      const Instance& i = instance(u.instance);
      Slot slot;
      slot.name = i.name;
      slot.parts = i.types;
      slot.room = i.room;
      if (i.host) slot.kind = SlotClass::host;
      if (i.source == Instance::Source::state) {
        slot.kind = i.owned && i.home == static_cast<std::int32_t>(a) ? SlotClass::state : SlotClass::copy;
        slot.names = {i.name};
      }
      u.slot = SlotId(device.slots.size());
      device.slots.push_back(std::move(slot));
    }
  }

  // State that no run of its home reads or writes still lives there.
  void keep_untouched_state() {
    for (std::size_t i = 0; i < l_.draft.instances.size(); ++i) {
      const Instance& state = l_.draft.instances[i];
      if (state.source == Instance::Source::state && !state.types.empty())
        use(static_cast<std::size_t>(state.home), static_cast<std::int32_t>(i));
    }
  }

  void emit(std::size_t a) {
    make_slots(a);
    Actor& actor = actors_[a];
    const std::size_t count = runs(a).size();
    // What stands before and after each run.
    std::vector<std::vector<std::int32_t>> inputs(count), frees(count + 1);
    for (std::size_t i = 0; i < actor.uses.size(); ++i) {
      const Use& u = actor.uses[i];
      const Instance::Source source = instance(u.instance).source;
      if (source == Instance::Source::data) inputs[static_cast<std::size_t>(u.first_read)].push_back(static_cast<std::int32_t>(i));
      if (source != Instance::Source::state) frees[static_cast<std::size_t>(free_after(a, u))].push_back(static_cast<std::int32_t>(i));
    }
    std::size_t in = 0, out = 0;
    const auto free = [&](const std::vector<std::int32_t>& list) {
      for (std::int32_t i : list) push(a, {.opcode = Opcode::free, .slot = actor.uses[static_cast<std::size_t>(i)].slot});
    };
    for (std::size_t r = 0; r < count; ++r) {
      const auto index = static_cast<std::int32_t>(r);
      for (; in < actor.incoming.size() && transfer(actor.incoming[in]).before_run <= index; ++in) emit_receive(a, actor.incoming[in]);
      for (std::int32_t i : inputs[r]) emit_input(a, actor.uses[static_cast<std::size_t>(i)]);
      emit_run(a, runs(a)[r]);
      for (; out < actor.outgoing.size() && transfer(actor.outgoing[out]).after_run <= index; ++out) emit_send(a, actor.outgoing[out]);
      free(frees[r]);
    }
    // The refreshes, in one order everywhere.
    while (in < actor.incoming.size() || out < actor.outgoing.size()) {
      const bool sends = in == actor.incoming.size() || (out < actor.outgoing.size() && actor.outgoing[out] < actor.incoming[in]);
      sends ? emit_send(a, actor.outgoing[out++]) : emit_receive(a, actor.incoming[in++]);
    }
    free(frees[count]);
  }

  void push(std::size_t a, Instruction instruction) { l_.program.devices[a].instructions.push_back(instruction); }

  void emit_send(std::size_t a, std::int32_t number) {
    const Transfer& t = transfers_[static_cast<std::size_t>(number)];
    push(a, {.opcode = Opcode::send, .slot = use(a, t.instance).slot, .peer = t.to, .tag = t.tag});
  }
  void emit_receive(std::size_t a, std::int32_t number) {
    const Transfer& t = transfers_[static_cast<std::size_t>(number)];
    push(a, {.opcode = Opcode::recv, .slot = use(a, t.instance).slot, .peer = t.from, .tag = t.tag});
  }
  void emit_input(std::size_t a, const Use& u) {
    const Instance& i = instance(u.instance);
    push(a, {.opcode = Opcode::input, .microbatch = i.microbatch, .slot = u.slot, .port = i.port});
  }

  void emit_host_copies(std::size_t a, const Run& run) {
    DeviceProgram& device = l_.program.devices[a];
    for (std::size_t i = 0; i < run.reads.size(); ++i) {
      Instruction copy{.opcode = run.opcode, .kind = run.kind, .action = true, .stage = run.stage, .microbatch = run.microbatch};
      copy.first_operand = static_cast<std::uint32_t>(device.operands.size());
      copy.first_result = static_cast<std::uint32_t>(device.results.size());
      copy.operands = copy.results = 1;
      device.operands.push_back(use(a, run.reads[i]).slot);
      device.results.push_back({use(a, run.writes[i].instance).slot, ResultMode::store});
      push(a, copy);
    }
  }

  void emit_run(std::size_t a, const Run& run) {
    if (is_host_copy(run.opcode)) return emit_host_copies(a, run);
    DeviceProgram& device = l_.program.devices[a];
    if (run.opcode == Opcode::output) {
      push(a, {.opcode = Opcode::output, .slot = use(a, run.reads[0]).slot, .port = run.port});
      return;
    }
    Instruction out{
        .opcode = run.opcode, .kind = run.kind, .action = run.action, .stage = run.stage, .microbatch = run.microbatch, .task = run.task};
    if (is_collective(run.opcode)) {
      out.group = run.group;
      out.tag = group_tags_[{a, run.group}]++;
    }
    out.first_operand = static_cast<std::uint32_t>(device.operands.size());
    out.operands = static_cast<std::uint32_t>(run.reads.size());
    out.first_result = static_cast<std::uint32_t>(device.results.size());
    out.results = static_cast<std::uint32_t>(run.writes.size());
    for (std::int32_t i : run.reads) device.operands.push_back(use(a, i).slot);
    for (const Write& write : run.writes) device.results.push_back({use(a, write.instance).slot, write.mode});
    push(a, out);
  }

  Lowering& l_;
  std::int32_t ahead_;
  std::vector<Actor> actors_;
  std::vector<Transfer> transfers_;
  std::vector<std::int32_t> sent_;  // transfers of runs, in the order in which the execution measured sends them
  std::map<std::pair<std::size_t, std::size_t>, std::int32_t> tags_;
  std::map<std::pair<std::size_t, std::int32_t>, std::int32_t> group_tags_;  // of collectives, by device and group
  std::unordered_map<std::int32_t, std::vector<std::int32_t>> readers_;      // of computed instances: actors that are not their home
  std::vector<double> durations_;                                            // of tasks
};

}  // namespace

void emit_program(Lowering& lowering, int receive_ahead) {
  Emitter(lowering, receive_ahead).run();
}

}  // namespace penstock
