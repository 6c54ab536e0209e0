// SPDX-License-Identifier: Apache-2.0
#include "torch/staged_transport.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "devices/host_transfers.h"
#include "torch/arena.h"
#include "torch/device.h"

namespace penstock {
namespace {

class StagedTransport final : public Transport {
 public:
  StagedTransport(std::unique_ptr<Transport> host, c10::Device device) : host_(std::move(host)), device_(device) {}

  void begin_step(const Program& program, int device) override {
    of_host_ = host_transfers(program.devices[static_cast<std::size_t>(device)]);
    host_->begin_step(program, device);
  }
  Event send(int peer, int tag, std::span<const std::byte> bytes) override {
    if (of_host_.contains({Opcode::send, peer, tag})) return host_->send(peer, tag, bytes);
    Staged staged = stage(bytes, {});
    const Event event = host_->send(peer, tag, staged.from());
    return started(event, std::move(staged));
  }
  Event receive(int peer, int tag, std::span<std::byte> bytes) override {
    if (of_host_.contains({Opcode::recv, peer, tag})) return host_->receive(peer, tag, bytes);
    Staged staged = stage({}, bytes);
    const Event event = host_->receive(peer, tag, staged.to());
    return started(event, std::move(staged));
  }
  Event collective(const CollectiveCall& call) override {
    Staged staged = stage(call.from, call.to);
    CollectiveCall on_host = call;
    on_host.from = staged.from();
    on_host.to = staged.to();
    const Event event = host_->collective(on_host);
    return started(event, std::move(staged));
  }
  bool done(Event event) override { return host_->done(event) && complete(event); }
  bool wait(Event event, Deadline deadline) override { return host_->wait(event, deadline) && complete(event); }

 private:
  // A transfer under way: memory of the host, first for what is given, then for what comes, and where that goes.
  struct Staged {
    std::vector<std::byte> memory;
    std::size_t given = 0;
    std::span<std::byte> target;

    std::span<const std::byte> from() const { return std::span(memory).first(given); }
    std::span<std::byte> to() { return std::span(memory).subspan(given); }
  };

  Staged stage(std::span<const std::byte> from, std::span<std::byte> to) {
    Staged staged{std::vector<std::byte>(from.size() + to.size()), from.size(), to};
    if (from.empty()) return staged;
    copy_bytes({staged.memory.data(), c10::DeviceType::CPU}, {const_cast<std::byte*>(from.data()), device_}, from.size());
    synchronise(device_);
    return staged;
  }

  Event started(Event event, Staged staged) {
    const bool is_done = event == kNoEvent;
    under_way_[event] = std::move(staged);
    if (is_done) complete(event);
    return event;
  }

  bool complete(Event event) {
    const auto found = under_way_.find(event);
    if (found == under_way_.end()) return true;
    Staged& staged = found->second;
    if (!staged.target.empty()) {
      copy_bytes({staged.target.data(), device_}, {staged.to().data(), c10::DeviceType::CPU}, staged.target.size());
      synchronise(device_);
    }
    under_way_.erase(found);
    return true;
  }

  std::unique_ptr<Transport> host_;
  c10::Device device_;
  HostTransfers of_host_{};  // of the step: nothing is to be copied
  std::unordered_map<Event, Staged> under_way_;
};

}  // namespace

std::unique_ptr<Transport> make_staged_transport(std::unique_ptr<Transport> host, c10::Device device) {
  return std::make_unique<StagedTransport>(std::move(host), device);
}

}  // namespace penstock
