#include "torch/gloo_transport.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace penstock {

std::string reason(const std::exception& error) {
  const auto* c10 = dynamic_cast<const c10::Error*>(&error);
  std::string text = c10 ? c10->what_without_backtrace() : error.what();
  // Gloo puts the place in its source before and advice after.
  if (const auto end = text.find("] "); text.starts_with('[') && end != text.npos) text.erase(0, end + 2);
  return text.substr(0, text.find(". This is typically"));
}

namespace {

class GlooTransport : public Transport {
 public:
  explicit GlooTransport(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  void begin_step(const Program& program, int device) override {
    transfers_.clear();
    transfers_.reserve(program.devices[static_cast<std::size_t>(device)].instructions.size());
  }

  Event send(int peer, int tag, std::span<const std::byte> bytes) override {
    return start(peer, const_cast<std::byte*>(bytes.data()), bytes.size(),
                 [&](std::vector<at::Tensor>& tensors) { return backend_->send(tensors, peer, tag); });
  }

  Event receive(int peer, int tag, std::span<std::byte> bytes) override {
    return start(peer, bytes.data(), bytes.size(), [&](std::vector<at::Tensor>& tensors) { return backend_->recv(tensors, peer, tag); });
  }

  // Gloo can only be asked by waiting, and every wait for one transfer ends it: done is what was waited for.
  bool done(Event event) override { return !transfers_[static_cast<std::size_t>(event)].work; }
  bool wait(Event event, Deadline deadline) override;

 private:
  struct Transfer {
    int peer;
    c10::intrusive_ptr<c10d::Work> work;
  };

  template <class Begin>
  Event start(int peer, std::byte* data, std::size_t size, Begin&& begin) {
    if (size == 0) return kNoEvent;
    tensors_[0] = at::from_blob(data, {static_cast<std::int64_t>(size)}, at::TensorOptions().dtype(at::kByte));
    try {
      transfers_.push_back({peer, begin(tensors_)});
    } catch (const std::exception& error) {
      throw PeerLost(peer, reason(error));
    }
    return static_cast<Event>(transfers_.size()) - 1;
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<Transfer> transfers_;  // this step's, by event
  std::vector<at::Tensor> tensors_{1};
};

bool GlooTransport::wait(Event event, Deadline deadline) {
  Transfer& transfer = transfers_[static_cast<std::size_t>(event)];
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  try {
    transfer.work->wait(std::max(left, std::chrono::milliseconds(1)));  // 0 would mean for ever
  } catch (const std::exception& error) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    throw PeerLost(transfer.peer, reason(error));
  }
  transfer.work.reset();
  return true;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& address,
                                               std::chrono::milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(timeout);
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

std::unique_ptr<Transport> make_gloo_transport(c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_unique<GlooTransport>(std::move(backend));
}

}  // namespace penstock
