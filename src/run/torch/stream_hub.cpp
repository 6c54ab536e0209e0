// SPDX-License-Identifier: Apache-2.0
#include "torch/stream_hub.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "base/invariant.h"
#include "base/text.h"
#include "devices/host_transfers.h"
#include "torch/device.h"
#include "torch/device_sum.h"
#include "torch/stream_lanes.h"
#include "torch/stream_recorder.h"

namespace penstock {
namespace {

// One use of a transfer or collective: what each member gives, until the last has come.
struct Meeting {
  std::vector<CollectiveCall> calls;            // by place in the group; a transfer's are those of its two ends
  std::vector<StreamLanes::Recorded> arrivals;  // of each member: what its streams had been given before
  std::size_t arrived = 0;
  StreamLanes::Recorded done;  // by the last member
};

using Key =
    std::tuple<std::vector<std::int32_t>, std::int32_t, bool>;  // members, tag, whether it is a transfer from the first to the second

class StreamHub final : public Hub {
 public:
  explicit StreamHub(c10::Device device) : device_(device) {}

  std::unique_ptr<Transport> endpoint(int device, Executor& executor) override;
  void abort() override {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
    for_recorders([](StreamRecorder& recorder) { recorder.abort(); });
  }
  void reset() override {
    const std::lock_guard lock(mutex_);
    open_.clear();
    aborted_ = false;
    for_recorders([](StreamRecorder& recorder) { recorder.reset(); });
  }
  std::optional<MemoryRoom> room() const override {
    const DeviceMemory memory = functions_of(device_)->memory(device_);
    return MemoryRoom{memory.free, concat("what is free of ", device_.str(), "'s ", bytes_text(static_cast<double>(memory.total))),
                      memory.total};
  }
  bool was_not_recorded() override {
    const std::lock_guard lock(mutex_);
    bool found = false;
    for_recorders([&](StreamRecorder& recorder) { found = recorder.was_not_recorded() || found; });
    return found;
  }

 private:
  friend class StreamTransport;

  template <class F>
  void for_recorders(F f) {
    std::erase_if(recorders_, [](const auto& entry) { return entry.second.expired(); });
    for (const auto& [program, recorder] : recorders_)
      if (const std::shared_ptr<StreamRecorder> held = recorder.lock()) f(*held);
  }
  std::shared_ptr<StepRecorder> recorder(const Program& program);

  const c10::Device device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::shared_ptr<Meeting>> open_;                       // those that members are still to come to
  std::map<const Program*, std::weak_ptr<StreamRecorder>> recorders_;  // of the programs that devices have bound
  bool aborted_ = false;
};

std::shared_ptr<StepRecorder> StreamHub::recorder(const Program& program) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<StreamRecorder>& known = recorders_[&program];
  std::shared_ptr<StreamRecorder> recorder = known.lock();
  if (!recorder) known = recorder = std::make_shared<StreamRecorder>(device_, program.devices.size());
  return recorder;
}

// The sum of `bytes` of what each member gives, from `begin` on.
at::Tensor sum_of(const Meeting& meeting, std::size_t begin, std::size_t bytes, c10::Device device) {
  std::vector<const std::byte*> terms;
  for (const CollectiveCall& call : meeting.calls) terms.push_back(call.from.data() + begin);
  return sum_of_terms(terms, bytes, meeting.calls[0].dtype, device);
}

// Copies what the root gives to one that takes it. From host to host it goes over the device's memory, as work on the stream.
void copy_from_root(const CollectiveCall& root, const CollectiveCall& to, c10::Device device) {
  const auto memory_of = [&](const CollectiveCall& call, const std::byte* data) {
    return Memory{const_cast<std::byte*>(data), call.on_host ? c10::Device(c10::DeviceType::CPU) : device};
  };
  Memory from = memory_of(root, root.from.data());
  at::Tensor between;
  if (root.on_host && to.on_host) {
    between = at::empty({std::ssize(to.to)}, at::TensorOptions(device).dtype(at::kByte));
    const Memory there{static_cast<std::byte*>(between.data_ptr()), device};
    copy_bytes(there, from, to.to.size());
    from = there;
  }
  copy_bytes(memory_of(to, to.to.data()), from, to.to.size());
}

// Gives the current stream all the copies and sums of a meeting to which everybody has come.
void do_all(const Meeting& meeting, c10::Device device) {
  const std::vector<CollectiveCall>& calls = meeting.calls;
  const auto copy = [&](std::byte* to, const std::byte* from, std::size_t bytes) {
    copy_bytes({to, device}, {const_cast<std::byte*>(from), device}, bytes);
  };
  switch (calls[0].opcode) {
    case Opcode::all_reduce: {
      const std::size_t bytes = calls[0].from.size();
      const at::Tensor sum = sum_of(meeting, 0, bytes, device);
      for (const CollectiveCall& call : calls) numbers_at(call.to.data(), bytes, call.dtype, device).copy_(sum);
      return;
    }
    case Opcode::reduce_scatter:
      for (std::size_t i = 0; i < calls.size(); ++i) {
        const std::size_t bytes = calls[i].to.size();
        numbers_at(calls[i].to.data(), bytes, calls[i].dtype, device).copy_(sum_of(meeting, i * bytes, bytes, device));
      }
      return;
    case Opcode::all_gather:
      for (const CollectiveCall& to : calls)
        for (std::size_t j = 0; j < calls.size(); ++j)
          copy(to.to.data() + j * calls[j].from.size(), calls[j].from.data(), calls[j].from.size());
      return;
    case Opcode::all_to_all:
      for (std::size_t i = 0; i < calls.size(); ++i)
        for (std::size_t j = 0; j < calls.size(); ++j) {
          const std::size_t piece = calls[j].from.size() / calls.size();
          copy(calls[i].to.data() + j * piece, calls[j].from.data() + i * piece, piece);
        }
      return;
    default:  // broadcast, and a transfer, which is one
      for (const CollectiveCall& call : calls)
        if (call.to.data()) copy_from_root(calls[call.root], call, device);
  }
}

class StreamTransport final : public Transport {
 public:
  StreamTransport(StreamHub& hub, int device, StreamLanes& lanes) : hub_(hub), device_(device), lanes_(lanes) {}

  void begin_step(const Program& program, int device) override {
    groups_ = &program.groups;
    of_host_ = host_transfers(program.devices[static_cast<std::size_t>(device)]);
  }
  Event send(int peer, int tag, std::span<const std::byte> bytes) override {
    const bool on_host = of_host_.contains({Opcode::send, peer, tag});
    return meet({{device_, peer}, tag, true}, {.opcode = Opcode::broadcast, .tag = tag, .member = 0, .on_host = on_host, .from = bytes});
  }
  Event receive(int peer, int tag, std::span<std::byte> bytes) override {
    const bool on_host = of_host_.contains({Opcode::recv, peer, tag});
    return meet({{peer, device_}, tag, true}, {.opcode = Opcode::broadcast, .tag = tag, .member = 1, .on_host = on_host, .to = bytes});
  }
  Event collective(const CollectiveCall& call) override {
    return meet({(*groups_)[static_cast<std::size_t>(call.group)], call.tag, false}, call);
  }
  bool done(Event event) override { return lanes_.done(event); }
  bool wait(Event event, Deadline deadline) override { return lanes_.wait(event, deadline); }
  std::shared_ptr<StepRecorder> recorder(const Program& program) override { return hub_.recorder(program); }
  DeviceLanes* lanes() const override { return &lanes_; }

 private:
  Event meet(const Key& key, const CollectiveCall& call);

  StreamHub& hub_;
  int device_;
  StreamLanes& lanes_;
  const std::vector<std::vector<std::int32_t>>* groups_ = nullptr;
  HostTransfers of_host_{};
};

Event StreamTransport::meet(const Key& key, const CollectiveCall& call) {
  const std::lock_guard lock(hub_.mutex_);
  std::shared_ptr<Meeting>& open = hub_.open_[key];
  if (!open) open = std::make_shared<Meeting>();
  const std::shared_ptr<Meeting> meeting = open;
  const std::size_t members = std::get<0>(key).size();
  meeting->calls.resize(members);
  meeting->calls[call.member] = call;
  if (++meeting->arrived < members) {
    meeting->arrivals.push_back(lanes_.recorded(DeviceLane::transfer));
    return lanes_.promise([this, meeting](Deadline deadline) {
      std::unique_lock wait(hub_.mutex_);
      hub_.changed_.wait_until(wait, deadline, [&] { return meeting->done || hub_.aborted_; });
      if (!meeting->done && hub_.aborted_) throw Aborted();
      return meeting->done;
    });
  }
  hub_.open_.erase(key);
  for (const auto& arrival : meeting->arrivals) lanes_.block(DeviceLane::transfer, *arrival);
  lanes_.enqueue(DeviceLane::transfer, [meeting, device = lanes_.device()] { return do_all(*meeting, device), true; });
  meeting->done = lanes_.recorded(DeviceLane::transfer);
  hub_.changed_.notify_all();
  return lanes_.promise([meeting](Deadline) { return meeting->done; });
}

std::unique_ptr<Transport> StreamHub::endpoint(int device, Executor& executor) {
  auto* const lanes = dynamic_cast<StreamLanes*>(executor.lanes());
  invariant(lanes != nullptr, "a stream hub connects executors whose lanes are streams");
  return std::make_unique<StreamTransport>(*this, device, *lanes);
}

}  // namespace

std::unique_ptr<Hub> make_stream_hub(c10::Device device) {
  return std::make_unique<StreamHub>(device);
}

}  // namespace penstock
