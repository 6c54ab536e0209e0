// SPDX-License-Identifier: Apache-2.0
#include "torch/gloo_exchange.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "devices/sum_terms.h"
#include "torch/device.h"

namespace penstock {
namespace {

// Messages are sent before any is expected: steps at width 64 take a third longer the other way round, as Gloo then sends none at once.
class Exchange : public c10d::Work {
 public:
  Exchange(c10d::Backend& group, std::size_t members, const CollectiveCall& call)
      : group_(group), members_(members), own_(call.member), dtype_(call.dtype), from_(call.from), to_(call.to) {}

  // Each sends what all need, or a piece to each.
  void gather() {
    place(from_, own_);
    for_others([&](std::size_t other) { send(other, from_); });
    for_others([&](std::size_t other) { receive(other, piece(to_, other).data(), from_.size()); });
  }

  void transpose() {
    place(piece(from_, own_), own_);
    for_others([&](std::size_t other) { send(other, piece(from_, other)); });
    for_others([&](std::size_t other) { receive(other, piece(to_, other).data(), piece(to_, other).size()); });
  }

  // A sum of what each has for this member: all of `from`, or its piece.
  void sum(bool scattered) {
    const auto part = [&](std::size_t member) { return scattered ? piece(from_, member) : from_; };
    const bool in_place = to_.data() < from_.data() + from_.size() && from_.data() < to_.data() + to_.size();
    const std::size_t apart = members_ - (in_place ? 1 : 2);  // the last of what comes may lie where the sum will
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(apart * to_.size());
    terms_.assign(members_, part(own_).data());
    for_others([&](std::size_t other) { send(other, part(other)); });
    std::size_t coming = 0;
    for_others([&](std::size_t other) {
      std::byte* address = coming < apart ? scratch_.get() + coming * to_.size() : to_.data();
      receive(other, address, to_.size());
      terms_[other] = address;
      ++coming;
    });
  }

  bool wait(std::chrono::milliseconds timeout) override {
    const auto end = std::chrono::steady_clock::now() + timeout;
    for (const c10::intrusive_ptr<c10d::Work>& message : messages_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      message->wait(std::max(left, std::chrono::milliseconds(1)));  // 0 would mean for ever
    }
    if (!terms_.empty()) sum_terms(dtype_, terms_, 0, to_.size(), to_.data());
    return true;
  }

 private:
  template <class Do>
  void for_others(Do&& act) const {
    for (std::size_t other = 0; other < members_; ++other)
      if (other != own_) act(other);
  }
  template <class Bytes>
  Bytes piece(Bytes all, std::size_t member) const {
    return all.subspan(member * (all.size() / members_), all.size() / members_);
  }
  void place(std::span<const std::byte> bytes, std::size_t member) const {
    const std::span<std::byte> at = piece(to_, member);
    if (at.data() != bytes.data()) std::memcpy(at.data(), bytes.data(), bytes.size());
  }
  void receive(std::size_t other, std::byte* data, std::size_t size) {
    std::vector<at::Tensor> tensors = {bytes_at({data, c10::DeviceType::CPU}, size)};
    messages_.push_back(group_.recv(tensors, static_cast<int>(other), 0));
  }
  void send(std::size_t other, std::span<const std::byte> bytes) {
    std::vector<at::Tensor> tensors = {bytes_at({const_cast<std::byte*>(bytes.data()), c10::DeviceType::CPU}, bytes.size())};
    messages_.push_back(group_.send(tensors, static_cast<int>(other), 0));
  }

  c10d::Backend& group_;
  std::size_t members_, own_;
  DType dtype_;
  std::span<const std::byte> from_;
  std::span<std::byte> to_;
  std::vector<const std::byte*> terms_;  // by member; none where nothing is added up
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<c10::intrusive_ptr<c10d::Work>> messages_;  // end first, so that nothing comes to memory that is gone
};

}  // namespace

bool is_exchange(Opcode opcode, std::size_t members) {
  return opcode == Opcode::all_reduce ? members == 2 : opcode != Opcode::broadcast;
}

c10::intrusive_ptr<c10d::Work> begin_exchange(c10d::Backend& group, std::size_t members, const CollectiveCall& call) {
  auto exchange = c10::make_intrusive<Exchange>(group, members, call);
  switch (call.opcode) {
    case Opcode::all_gather:
      exchange->gather();
      break;
    case Opcode::all_to_all:
      exchange->transpose();
      break;
    default:
      exchange->sum(call.opcode == Opcode::reduce_scatter);
  }
  return exchange;
}

}  // namespace penstock
