#include "lower/execution.h"

#include <algorithm>

#include "ops/definition.h"

namespace penstock {
namespace {

constexpr double kFlopsPerByte = 10;  // of the roofline that times runs here; only the order of events matters

// Of each task.
std::vector<double> durations_of(const Draft& draft) {
  std::vector<double> out;
  for (const Task& task : draft.tasks) {
    double& time = out.emplace_back(1);
    for (const Op& op : task.graph.ops) {
      const OpCost c = cost(task.graph, op);
      time += std::max(c.flops / kFlopsPerByte, c.bytes);
    }
  }
  return out;
}

// What the execution knows while it goes on.
struct Progress {
  const Draft& draft;
  const TransfersOf transfers;
  const std::vector<double> durations;
  std::vector<std::vector<std::int32_t>> incoming;  // of each device
  std::vector<std::size_t> next_incoming;           // of each device
  std::vector<double> clock;                        // of each device
  std::vector<std::vector<std::size_t>> waiting;    // of each transfer: devices
  std::vector<std::size_t> ready;                   // devices
  Execution done;
};

void post(Progress& p, std::size_t device, std::int32_t before) {
  const std::vector<std::int32_t>& incoming = p.incoming[device];
  for (std::size_t& next = p.next_incoming[device]; next < incoming.size(); ++next) {
    const auto t = static_cast<std::size_t>(incoming[next]);
    if (p.draft.transfers[t].before > before) return;
    p.done.posted[t] = p.clock[device];
  }
}

void send(Progress& p, std::size_t device, const Run& run, std::int32_t r) {
  for (const Write& write : run.writes)
    for (std::int32_t number : p.transfers[write.instance]) {
      const auto t = static_cast<std::size_t>(number);
      const Transfer& transfer = p.draft.transfers[t];
      if (transfer.after != r || transfer.from.index() != device) continue;
      p.done.sent[t] = p.clock[device];
      p.done.order.push_back(number);
      p.ready.insert(p.ready.end(), p.waiting[t].begin(), p.waiting[t].end());
      p.waiting[t].clear();
    }
}

// When all that the run reads is there, as far as transfers bring it; never: the device waits for one.
double arrival(Progress& p, std::size_t device, const Run& run) {
  double start = p.clock[device];
  for (InstanceId i : run.reads) {
    const Instance& instance = p.draft.at(i);
    if (instance.source != Instance::Source::computed || instance.home.index() == device) continue;
    for (std::int32_t number : p.transfers[i]) {
      const auto t = static_cast<std::size_t>(number);
      if (p.draft.transfers[t].to.index() != device) continue;
      if (p.done.sent[t] == kNever) {
        p.waiting[t].push_back(device);
        return kNever;
      }
      start = std::max({start, p.done.sent[t], p.done.posted[t]});
    }
  }
  return start;
}

// Times runs of the device until one needs a transfer that is not sent yet.
void advance(Progress& p, std::size_t device) {
  const std::vector<Run>& runs = p.draft.actors[device];
  std::vector<double>& end = p.done.end[device];
  while (end.size() < runs.size()) {
    const auto r = static_cast<std::int32_t>(end.size());
    const Run& run = runs[end.size()];
    post(p, device, r);
    const double start = arrival(p, device, run);
    if (start == kNever) return;
    p.clock[device] = start + (run.opcode == Opcode::run ? p.durations[run.task.index()] : 0);
    end.push_back(p.clock[device]);
    send(p, device, run, r);
  }
  post(p, device, std::numeric_limits<std::int32_t>::max());
}

}  // namespace

TransfersOf::TransfersOf(const Draft& draft) : begin_(draft.instances.size() + 1), numbers_(draft.transfers.size()) {
  for (const Transfer& transfer : draft.transfers) ++begin_[transfer.instance.index() + 1];
  for (std::size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
  std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
  for (std::int32_t number = 0; const Transfer& transfer : draft.transfers) numbers_[next[transfer.instance.index()]++] = number++;
}

std::vector<std::vector<std::int32_t>> incoming_of(const Draft& draft) {
  std::vector<std::vector<std::int32_t>> out(draft.actors.size());
  for (std::int32_t number = 0; const Transfer& transfer : draft.transfers) out[transfer.to.index()].push_back(number++);
  const auto before = [&](std::int32_t number) { return draft.transfers[static_cast<std::size_t>(number)].before; };
  for (std::vector<std::int32_t>& list : out) std::ranges::stable_sort(list, {}, before);
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
      std::vector<std::vector<std::size_t>>(transfers),
      {},
      {std::vector<std::vector<double>>(devices), std::vector<double>(transfers, kNever), std::vector<double>(transfers, kNever), {}}};
  for (std::size_t d = devices; d-- > 0;) p.ready.push_back(d);
  while (!p.ready.empty()) {
    const std::size_t device = p.ready.back();
    p.ready.pop_back();
    advance(p, device);
  }
  return std::move(p.done);
}

}  // namespace penstock
