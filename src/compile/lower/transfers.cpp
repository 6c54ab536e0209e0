// SPDX-License-Identifier: Apache-2.0
// Pass: one transfer per instance and destination, behind the run that writes it last; its receive is posted up to `receive_ahead` runs
// before its reader. Where the table says where the outputs of an action start to be sent, and to be received for another, they start
// there. Copies of states are refreshed when all else is done, so that no receive overwrites what a task still reads.
#include <algorithm>
#include <map>
#include <span>
#include <tuple>

#include "lower/passes.h"
#include "lower/touches.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

// The run `ahead` before `r`: what takes the device no time does not count. 0 where there is none.
std::int32_t run_ahead_of(const std::vector<Run>& runs, std::int32_t r, int ahead) {
  for (int left = ahead; r > 0 && left > 0;) left -= !is_beside(runs[--r]);
  return r;
}

// The sends, or the receives, of a device by the stage, the unit and the direction of what they are for.
class GivenPlaces {
 public:
  GivenPlaces(const std::vector<Run>& runs, Opcode opcode) {
    for (std::int32_t r = 0; const Run& run : runs) {
      if (run.opcode == opcode) places_[{run.stage, run.unit, run.kind == Kind::SEND_F || run.kind == Kind::RECV_F}] = r;
      ++r;
    }
  }
  bool empty() const { return places_.empty(); }
  // The place of the run's action; -1: the table says nothing.
  std::int32_t of(const Run& run) const {
    if (!reads_parameters(run.kind)) return -1;
    const auto found = places_.find({run.stage, run.unit, run.kind == Kind::F || run.kind == Kind::R});
    return found == places_.end() ? -1 : found->second;
  }

 private:
  std::map<std::tuple<StageId, Unit, bool>, std::int32_t> places_;
};

struct Receiver {
  ActorId device;
  std::int32_t before = 0;  // the run ahead of which it should post
  std::int32_t given = -1;  // the table's receive for who reads it, the first of several; -1: none
};

// For each instance that can be sent, the devices that are not its home and read it or, where it is a state, have a copy.
IdVector<InstanceId, std::vector<Receiver>> readers_of(const LowerInput& input, const Draft& draft) {
  IdVector<InstanceId, std::vector<Receiver>> out(draft.instances.size());
  Touches touches(draft);
  for (const ActorId device : draft.actors.ids()) {
    const std::vector<Run>& runs = draft.actors[device];
    for (const Touch& touch : touches.of(draft, device)) {
      const Instance& instance = draft.instances[touch.instance];
      if (instance.home == device || instance.source == Instance::Source::data) continue;
      const bool reads = touch.first_read >= 0;
      if (!reads && instance.source == Instance::Source::computed) continue;
      out[touch.instance].push_back({device, reads ? run_ahead_of(runs, touch.first_read, input.options.receive_ahead) : 0});
    }
    const GivenPlaces receives(runs, Opcode::recv);
    for (std::size_t r = 0; !receives.empty() && r < runs.size(); ++r) {
      const std::int32_t given = receives.of(runs[r]);
      for (const InstanceId read : runs[r].reads)
        if (given >= 0 && !out[read].empty() && out[read].back().device == device) {
          std::int32_t& first = out[read].back().given;
          first = first < 0 ? given : std::min(first, given);
        }
    }
  }
  return out;
}

// All that one send of the table takes to one device is received where the first of it is.
void receive_together(std::span<Transfer> transfers, const std::vector<std::int32_t>& given) {
  std::map<std::pair<std::int32_t, ActorId>, std::int32_t> first;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    if (given[i] < 0) continue;
    std::int32_t& before = first.try_emplace({transfers[i].after, transfers[i].to}, given[i]).first->second;
    before = std::min(before, given[i]);
  }
  for (Transfer& transfer : transfers)
    if (const auto found = first.find({transfer.after, transfer.to}); found != first.end()) transfer.before = found->second;
}

// The run behind which each instance is written last.
IdVector<InstanceId, std::int32_t> last_writes(const Draft& draft) {
  IdVector<InstanceId, std::int32_t> out(draft.instances.size(), -1);
  for (const std::vector<Run>& runs : draft.actors)
    for (std::int32_t r = 0; const Run& run : runs) {
      for (const Write& write : run.writes) out[write.instance] = r;
      ++r;
    }
  return out;
}

// The transfers of what one device makes, in the order in which it sends them. What sends name is of a micro-batch: no sum.
std::vector<Transfer> transfers_of(Draft& draft, ActorId device, const IdVector<InstanceId, std::vector<Receiver>>& readers,
                                   const IdVector<InstanceId, std::int32_t>& last_write) {
  std::vector<Run>& runs = draft.actors[device];
  const GivenPlaces sends(runs, Opcode::send);
  std::vector<Transfer> out;
  std::vector<std::int32_t> given;  // beside each: the table's receive, where its send is the table's
  for (std::int32_t r = 0; r < std::ssize(runs); ++r) {
    for (const Write& write : runs[r].writes) {
      const Instance& made = draft.instances[write.instance];
      if (made.source == Instance::Source::state || last_write[write.instance] != r || readers[write.instance].empty()) continue;
      const std::int32_t send = made.unit ? sends.of(runs[r]) : -1;
      if (send > r) runs[send].reads.push_back(write.instance);
      for (const Receiver& reader : readers[write.instance]) {
        out.push_back({write.instance, device, reader.device, 0, std::max(send, r), reader.before});
        given.push_back(send > r ? reader.given : -1);
      }
    }
  }
  receive_together(out, given);
  std::ranges::stable_sort(out, {}, &Transfer::after);
  return out;
}

}  // namespace

void make_transfers(const LowerInput& input, Draft& draft) {
  const IdVector<InstanceId, std::vector<Receiver>> readers = readers_of(input, draft);
  const IdVector<InstanceId, std::int32_t> last_write = last_writes(draft);
  std::map<std::pair<ActorId, ActorId>, std::int32_t> tags;
  const auto add = [&](Transfer transfer) {
    transfer.tag = tags[{transfer.from, transfer.to}]++;
    draft.transfers.push_back(transfer);
  };
  for (const ActorId device : draft.actors.ids()) std::ranges::for_each(transfers_of(draft, device, readers, last_write), add);
  for (InstanceId state : draft.refreshed)
    for (const Receiver& reader : readers[state]) {
      const ActorId home = draft.instances[state].home;
      add({state, home, reader.device, 0, static_cast<std::int32_t>(draft.actors[home].size()),
           static_cast<std::int32_t>(draft.actors[reader.device].size())});
    }
}

}  // namespace penstock
