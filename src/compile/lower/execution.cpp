// SPDX-License-Identifier: Apache-2.0
#include "lower/execution.h"

#include <algorithm>
#include <map>

#include "base/invariant.h"
#include "base/text.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "program/graph_facts.h"

namespace penstock {
namespace {

constexpr double kFlopsPerByte = 10;  // of the roofline that times runs here; only the order of events matters

double duration_of(const Graph& graph) {
  double time = 1;
  for (const Op& op : graph.ops) {
    const OpCost c = cost(graph, op);
    time += std::max(c.flops / kFlopsPerByte, c.bytes);
  }
  return time;
}

IdVector<TaskId, double> durations_of(const Draft& draft) {
  IdVector<TaskId, double> out;
  for (const Task& task : draft.tasks) out.push_back(task.graph.facts().work.get([&] { return duration_of(*task.graph); }));
  return out;
}

struct Collective {
  std::size_t left = 0;  // devices of its group that have not begun it
  double time = 0;       // when the last so far began it
  std::vector<ActorId> waiting;
};

// The state of the execution while it goes on.
struct Progress {
  const Draft& draft;
  const TransfersOf transfers;
  const IdVector<TaskId, double> durations;
  IdVector<ActorId, std::vector<TransferId>> incoming;
  IdVector<ActorId, std::size_t> next_incoming;
  IdVector<ActorId, double> clock;
  IdVector<TransferId, std::vector<ActorId>> waiting;
  std::vector<ActorId> ready;
  // The n-th collective of a group is the same on all its devices. By group, and for each device how many it has begun.
  std::vector<std::vector<Collective>> collectives;
  std::vector<std::map<ActorId, std::size_t>> begun;
  IdVector<ActorId, std::unordered_map<InstanceId, Collective*>> last;  // that reads or writes the instance
  Execution done;
};

// Returns the collectives of each group, none of them begun.
std::vector<std::vector<Collective>> collectives_of(const Draft& draft) {
  std::vector<std::vector<Collective>> out;
  for (std::int32_t group = 0; const std::vector<std::int32_t>& devices : draft.groups) {
    const std::vector<Run>& runs = draft.actors[static_cast<std::size_t>(devices.front())];
    const auto count = std::ranges::count(runs, group++, &Run::group);
    out.emplace_back(static_cast<std::size_t>(count), Collective{devices.size(), 0, {}});
  }
  return out;
}

void post(Progress& p, ActorId device, std::int32_t before) {
  const std::vector<TransferId>& incoming = p.incoming[device];
  for (std::size_t& next = p.next_incoming[device]; next < incoming.size(); ++next) {
    const TransferId t = incoming[next];
    if (p.draft.transfers[t].before > before) return;
    p.done.posted[t] = p.clock[device];
  }
}

void send(Progress& p, ActorId device, const Run& run, std::int32_t r) {
  const auto send_instance = [&](InstanceId i) {
    for (TransferId t : p.transfers[i]) {
      const Transfer& transfer = p.draft.transfers[t];
      if (transfer.after != r || transfer.from != device) continue;
      p.done.sent[t] = p.clock[device];
      p.done.order.push_back(t);
      p.ready.insert(p.ready.end(), p.waiting[t].begin(), p.waiting[t].end());
      p.waiting[t].clear();
    }
  };
  for (const Write& write : run.writes) send_instance(write.instance);
  if (run.opcode == Opcode::send) std::ranges::for_each(run.reads, send_instance);
}

void begin_collective(Progress& p, ActorId device, const Run& run) {
  const auto group = static_cast<std::size_t>(run.group);
  const std::size_t number = p.begun[group][device]++;
  invariant(number < p.collectives[group].size(), "the devices of a group have as many collectives each");
  Collective& collective = p.collectives[group][number];
  --collective.left;
  collective.time = std::max(collective.time, p.clock[device]);
  for (InstanceId i : run.reads) p.last[device][i] = &collective;
  for (const Write& write : run.writes) p.last[device][write.instance] = &collective;
  if (collective.left > 0) return;
  p.ready.insert(p.ready.end(), collective.waiting.begin(), collective.waiting.end());
  collective.waiting.clear();
}

// When all that the run reads is there, as far as others bring it; never: the device waits for a transfer or a collective.
double arrival(Progress& p, ActorId device, const Run& run) {
  double start = p.clock[device];
  for (InstanceId i : run.reads) {
    if (const auto last = p.last[device].find(i); last != p.last[device].end()) {
      if (last->second->left > 0) {
        last->second->waiting.push_back(device);
        return kNever;
      }
      start = std::max(start, last->second->time);
    }
    const Instance& instance = p.draft.instances[i];
    if (instance.source != Instance::Source::computed || instance.home == device) continue;
    for (TransferId t : p.transfers[i]) {
      if (p.draft.transfers[t].to != device) continue;
      if (p.done.sent[t] == kNever) {
        p.waiting[t].push_back(device);
        return kNever;
      }
      start = std::max({start, p.done.sent[t], p.done.posted[t]});
    }
  }
  return start;
}

// Times runs of the device until one needs a transfer that is not sent yet, or a collective that is not complete.
void advance(Progress& p, ActorId device) {
  const std::vector<Run>& runs = p.draft.actors[device];
  std::vector<double>& end = p.done.end[device];
  while (end.size() < runs.size()) {
    const auto r = static_cast<std::int32_t>(end.size());
    const Run& run = runs[end.size()];
    post(p, device, r);
    const double start = arrival(p, device, run);
    if (start == kNever) return;
    p.clock[device] = start + (run.opcode == Opcode::run ? p.durations[run.task] : 0);
    end.push_back(p.clock[device]);
    if (run.group >= 0) begin_collective(p, device, run);
    send(p, device, run, r);
  }
  post(p, device, std::numeric_limits<std::int32_t>::max());
}

// Whoever reads an execution counts on every run's end.
void check_finished(const Progress& p) {
  for (const ActorId device : p.draft.actors.ids())
    if (const std::size_t done = p.done.end[device].size(); done < p.draft.actors[device].size())
      throw Error(concat("the step waits for itself: device ", device.value, " never begins its run ", done),
                  {concat("it reads what is sent, or a collective that others begin, only after they have read what device ", device.value,
                          " does later")},
                  "change the order of the table's actions");
}

}  // namespace

TransfersOf::TransfersOf(const Draft& draft) : begin_(draft.instances.size() + 1), numbers_(draft.transfers.size()) {
  for (const Transfer& transfer : draft.transfers) ++begin_[transfer.instance.index() + 1];
  for (std::size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
  std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
  for (const TransferId t : draft.transfers.ids()) numbers_[next[draft.transfers[t].instance.index()]++] = t;
}

IdVector<ActorId, std::vector<TransferId>> incoming_of(const Draft& draft) {
  IdVector<ActorId, std::vector<TransferId>> out(draft.actors.size());
  for (const TransferId t : draft.transfers.ids()) out[draft.transfers[t].to].push_back(t);
  const auto before = [&](TransferId t) { return draft.transfers[t].before; };
  for (std::vector<TransferId>& list : out) std::ranges::stable_sort(list, {}, before);
  return out;
}

Execution execute(const Draft& draft) {
  const std::size_t devices = draft.actors.size(), transfers = draft.transfers.size();
  Progress p{
      draft,
      TransfersOf(draft),
      durations_of(draft),
      incoming_of(draft),
      std::vector<std::size_t>(devices),
      std::vector<double>(devices),
      std::vector<std::vector<ActorId>>(transfers),
      {},
      collectives_of(draft),
      std::vector<std::map<ActorId, std::size_t>>(draft.groups.size()),
      std::vector<std::unordered_map<InstanceId, Collective*>>(devices),
      {std::vector<std::vector<double>>(devices), std::vector<double>(transfers, kNever), std::vector<double>(transfers, kNever), {}, {}}};
  for (std::size_t d = devices; d-- > 0;) p.ready.emplace_back(d);
  while (!p.ready.empty()) {
    const ActorId device = p.ready.back();
    p.ready.pop_back();
    advance(p, device);
  }
  check_finished(p);
  p.done.collected.resize(devices);
  for (const ActorId device : draft.actors.ids())
    for (const auto& [instance, collective] : p.last[device])
      p.done.collected[device][instance] = collective->left > 0 ? kNever : collective->time;
  return std::move(p.done);
}

}  // namespace penstock
