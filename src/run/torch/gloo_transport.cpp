// SPDX-License-Identifier: Apache-2.0
#include "torch/gloo_transport.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/text.h"
#include "torch/device.h"
#include "torch/device_sum.h"
#include "torch/gloo_exchange.h"

namespace penstock {

std::string reason(const std::exception& error) {
  const auto* c10 = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10 ? c10->what_without_backtrace() : error.what();
  // Gloo puts the place in its source before and advice after.
  if (const auto end = text.find("] "); text.starts_with('[') && end != text.npos) text.erase(0, end + 2);
  return text.substr(0, text.find(". This is typically"));
}

namespace {

// The threads that begin while it lives never interrupt one that computes (SCHED_BATCH, which threads inherit). Gloo's loop asks for events
// again and again while another thread holds the lock of the pair that has some: where it has interrupted that very thread, both stand
// still until its slice ends, some milliseconds. A step of 0.065 s (GPT of width 64, tensors split over two, 4 micro-batches) took 0.19 to
// 0.34 s.
class InBatches {
 public:
  InBatches() { set(SCHED_BATCH); }
  ~InBatches() { set(policy_); }
  InBatches(const InBatches&) = delete;
  InBatches& operator=(const InBatches&) = delete;

 private:
  // A machine that refuses costs time only.
  void set(int policy) {
    sched_param none{};
    if (policy_ == SCHED_OTHER) pthread_setschedparam(pthread_self(), policy, &none);
  }

  int policy_ = sched_getscheduler(0);  // one that a user chose for the process is left alone
};

c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& address,
                                               std::chrono::milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(timeout);
  const InBatches loop;
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface) {
    options->devices.push_back(Gloo::createDeviceForInterface(interface));
  } else if (address == "localhost" || address == "127.0.0.1" || address == "::1") {
    options->devices.push_back(Gloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(Gloo::createDefaultDevice());
  }
  return c10::make_intrusive<Gloo>(store, rank, size, options);
}

// Connects the members of a group, which all call it; `own`: this device's place among them.
using ConnectGroup = std::function<c10::intrusive_ptr<c10d::Backend>(const std::vector<std::int32_t>& members, int own)>;

class GlooTransport : public Transport {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::Backend> backend, ConnectGroup connect)
      : backend_(std::move(backend)), connect_(std::move(connect)) {}

  void begin_step(const Program& program, int device) override {
    transfers_.clear();
    transfers_.reserve(program.devices[static_cast<std::size_t>(device)].instructions.size());
    if (known_ == program.groups) return;
    known_ = program.groups;
    groups_.clear();
    for (const std::vector<std::int32_t>& members : known_) groups_.push_back(group(members, device));
  }

  Event send(int peer, int tag, std::span<const std::byte> bytes) override {
    return start(const_cast<std::byte*>(bytes.data()), bytes.size(),
                 [&](std::vector<at::Tensor>& tensors) { return backend_->send(tensors, peer, tag); });
  }

  Event receive(int peer, int tag, std::span<std::byte> bytes) override {
    return start(bytes.data(), bytes.size(), [&](std::vector<at::Tensor>& tensors) { return backend_->recv(tensors, peer, tag); });
  }

  Event collective(const CollectiveCall& call) override;

  // Gloo can only be asked by waiting, and every wait for one transfer ends it: done is what was waited for.
  bool done(Event event) override { return !transfers_[static_cast<std::size_t>(event)]; }
  bool wait(Event event, Deadline deadline) override;

 private:
  // The connections of a group that this device is a member of; made once.
  c10d::Backend* group(const std::vector<std::int32_t>& members, int device) {
    const std::optional<std::size_t> own = place_in_group(members, device);
    if (!own) return nullptr;
    const auto [it, added] = connected_.try_emplace(members);
    try {
      if (added) it->second = connect_(members, static_cast<int>(*own));
    } catch (const std::exception& error) {
      throw Error(concat("device ", device, " cannot connect to the others of its group"), {reason(error)});
    }
    return it->second.get();
  }

  template <class Begin>
  Event start(std::byte* data, std::size_t size, Begin&& begin) {
    if (size == 0) return kNoEvent;
    tensors_[0] = bytes_at({data, c10::DeviceType::CPU}, size);
    try {
      transfers_.push_back(begin(tensors_));
    } catch (const std::exception& error) {
      throw PeerLost(reason(error));
    }
    return static_cast<Event>(transfers_.size()) - 1;
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  ConnectGroup connect_;
  std::map<std::vector<std::int32_t>, c10::intrusive_ptr<c10d::Backend>> connected_;
  std::vector<std::vector<std::int32_t>> known_;           // of the last program,
  std::vector<c10d::Backend*> groups_;                     // and their connections
  std::vector<c10::intrusive_ptr<c10d::Work>> transfers_;  // this step's, by event
  std::vector<at::Tensor> tensors_{1};
};

c10::intrusive_ptr<c10d::Work> begin(c10d::Backend& group, std::size_t members, const CollectiveCall& call) {
  if (is_exchange(call.opcode, members)) return begin_exchange(group, members, call);
  std::vector<at::Tensor> tensors;
  if (call.opcode == Opcode::broadcast) {
    const std::span<const std::byte> bytes = call.from.empty() ? std::span<const std::byte>(call.to) : call.from;
    tensors = {bytes_at({const_cast<std::byte*>(bytes.data()), c10::DeviceType::CPU}, bytes.size())};
    c10d::BroadcastOptions options;
    options.rootRank = static_cast<std::int64_t>(call.root);
    return group.broadcast(tensors, options);
  }
  // Gloo moves nothing from an operand to a result: it sums in place.
  if (call.from.data() != call.to.data()) std::memcpy(call.to.data(), call.from.data(), call.from.size());
  tensors = {numbers_at(call.to.data(), call.to.size(), call.dtype, c10::DeviceType::CPU)};
  return group.allreduce(tensors);
}

Event GlooTransport::collective(const CollectiveCall& call) {
  const std::vector<std::int32_t>& members = known_[static_cast<std::size_t>(call.group)];
  if (std::max(call.from.size(), call.to.size()) == 0) return kNoEvent;
  try {
    transfers_.push_back(begin(*groups_[static_cast<std::size_t>(call.group)], members.size(), call));
  } catch (const std::exception& error) {
    throw PeerLost(reason(error));
  }
  return static_cast<Event>(transfers_.size()) - 1;
}

bool GlooTransport::wait(Event event, Deadline deadline) {
  c10::intrusive_ptr<c10d::Work>& transfer = transfers_[static_cast<std::size_t>(event)];
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  try {
    transfer->wait(std::max(left, std::chrono::milliseconds(1)));  // 0 would mean for ever
  } catch (const std::exception& error) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    throw PeerLost(reason(error));
  }
  transfer.reset();
  return true;
}

}  // namespace

std::unique_ptr<Transport> make_gloo_transport(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& address,
                                               std::chrono::milliseconds timeout, std::chrono::milliseconds longest) {
  const auto connect_group = [=](const std::vector<std::int32_t>& members, int own) {
    const std::string name = concat("group-", join_devices(members, "-"));
    auto group = connect_gloo(c10::make_intrusive<c10d::PrefixStore>(name, store), own, static_cast<int>(members.size()), address, timeout);
    group->setTimeout(longest);
    return group;
  };
  return std::make_unique<GlooTransport>(connect_gloo(store, rank, size, address, timeout), connect_group);
}

}  // namespace penstock
