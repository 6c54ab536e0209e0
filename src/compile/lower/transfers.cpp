// Pass: one transfer per instance and destination, behind the run that writes it last; its receive is posted up to `receive_ahead` runs
// before its reader. Copies of states are refreshed when all else is done, so that no receive overwrites what a task still reads.
#include <map>

#include "lower/passes.h"
#include "lower/touches.h"

namespace penstock {
namespace {

struct Receiver {
  ActorId device;
  std::int32_t before = 0;  // the run ahead of which it should post
};

// The run `ahead` before `r`: what takes the device no time does not count. 0 where there is none.
std::int32_t run_ahead_of(const std::vector<Run>& runs, std::int32_t r, int ahead) {
  for (int left = ahead; r > 0 && left > 0;) left -= !is_beside(runs[--r]);
  return r;
}

// For each instance that can be sent, the devices that are not its home and read it or, where it is a state, have a copy.
IdVector<InstanceId, std::vector<Receiver>> readers_of(const LowerInput& input, const Draft& draft) {
  IdVector<InstanceId, std::vector<Receiver>> out(draft.instances.size());
  Touches touches(draft);
  for (const ActorId device : draft.actors.ids()) {
    for (const Touch& touch : touches.of(draft, device)) {
      const Instance& instance = draft.instances[touch.instance];
      if (instance.home == device || instance.source == Instance::Source::data) continue;
      const bool reads = touch.first_read >= 0;
      if (!reads && instance.source == Instance::Source::computed) continue;
      out[touch.instance].push_back(
          {device, reads ? run_ahead_of(draft.actors[device], touch.first_read, input.options.receive_ahead) : 0});
    }
  }
  return out;
}

}  // namespace

void make_transfers(const LowerInput& input, Draft& draft) {
  const IdVector<InstanceId, std::vector<Receiver>> readers = readers_of(input, draft);
  std::map<std::pair<ActorId, ActorId>, std::int32_t> tags;
  const auto add = [&](InstanceId instance, ActorId from, ActorId to, std::int32_t after, std::int32_t before) {
    draft.transfers.push_back({instance, from, to, tags[{from, to}]++, after, before});
  };
  IdVector<InstanceId, std::int32_t> last_write(draft.instances.size(), -1);
  for (const ActorId device : draft.actors.ids()) {
    const std::vector<Run>& runs = draft.actors[device];
    for (std::size_t r = 0; r < runs.size(); ++r)
      for (const Write& write : runs[r].writes) last_write[write.instance] = static_cast<std::int32_t>(r);
    for (std::int32_t r = 0; const Run& run : runs) {
      for (const Write& write : run.writes) {
        if (draft.instances[write.instance].source == Instance::Source::state || last_write[write.instance] != r) continue;
        for (const Receiver& reader : readers[write.instance]) add(write.instance, device, reader.device, r, reader.before);
      }
      ++r;
    }
  }
  for (InstanceId state : draft.refreshed)
    for (const Receiver& reader : readers[state]) {
      const ActorId home = draft.instances[state].home;
      add(state, home, reader.device, static_cast<std::int32_t>(draft.actors[home].size()),
          static_cast<std::int32_t>(draft.actors[reader.device].size()));
    }
}

}  // namespace penstock
