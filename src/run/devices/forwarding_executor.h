// SPDX-License-Identifier: Apache-2.0
// An executor that leaves everything to another one: the base of those that change one thing.
#pragma once

#include <memory>
#include <utility>

#include "devices/executor.h"

namespace penstock {

class ForwardingExecutor : public Executor {
 public:
  explicit ForwardingExecutor(std::unique_ptr<Executor> inner) : inner_(std::move(inner)) {}

  void load(std::shared_ptr<const Program> program, int device) override { inner_->load(std::move(program), device); }
  std::span<std::byte> address(SlotId slot) override { return inner_->address(slot); }
  SharedTensor state(const std::string& name) const override { return inner_->state(name); }
  void forget(const std::vector<std::string>& names) override { inner_->forget(names); }
  std::shared_ptr<std::byte[]> host_memory(std::size_t bytes) override { return inner_->host_memory(bytes); }
  Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) override { return inner_->write(slot, offset, bytes); }
  Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) override { return inner_->read(slot, offset, bytes); }
  Event issue(const Instruction& instruction) override { return inner_->issue(instruction); }
  DeviceLanes* lanes() const override { return inner_->lanes(); }
  bool asynchronous() const override { return inner_->asynchronous(); }
  bool replays() const override { return inner_->replays(); }
  std::uint64_t placement() const override { return inner_->placement(); }
  void end_step() override { inner_->end_step(); }
  void check_step() const override { inner_->check_step(); }
  bool done(Event event) override { return inner_->done(event); }
  bool wait(Event event, Deadline deadline) override { return inner_->wait(event, deadline); }
  std::int64_t extra_bytes() const override { return inner_->extra_bytes(); }
  std::int64_t last_run_bytes() const override { return inner_->last_run_bytes(); }

 private:
  std::unique_ptr<Executor> inner_;
};

}  // namespace penstock
