// SPDX-License-Identifier: Apache-2.0
// A transport that hands everything on: what tests change one part of.
#pragma once

#include <memory>
#include <utility>

#include "devices/executor.h"

namespace penstock::test {

class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  void begin_step(const Program& program, int device) override { inner_->begin_step(program, device); }
  Event send(int peer, int tag, std::span<const std::byte> bytes) override { return inner_->send(peer, tag, bytes); }
  Event receive(int peer, int tag, std::span<std::byte> bytes) override { return inner_->receive(peer, tag, bytes); }
  Event collective(const CollectiveCall& call) override { return inner_->collective(call); }
  bool done(Event event) override { return inner_->done(event); }
  bool wait(Event event, Deadline deadline) override { return inner_->wait(event, deadline); }

 private:
  std::unique_ptr<Transport> inner_;
};

}  // namespace penstock::test
