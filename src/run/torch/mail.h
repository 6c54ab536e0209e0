// SPDX-License-Identifier: Apache-2.0
// Messages between the processes of a run, over the rendezvous store.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/sip_hash.h"
#include "base/text.h"
#include "penstock/ranks.h"

namespace penstock {

// Queues of messages by name, kept by the store's server: each piece of a message under a key of its own, which the reader deletes. The
// store takes anything from anybody, so keys are names that only who knows the secret can predict, and a piece carries a signature of its
// key and content: what others put there is not found, and what they write over is refused.
class Mail {
 public:
  // `deadline`: of what the store itself must answer. Throws Error: the port is in use (rank 0), or rank 0 cannot be reached.
  Mail(const Ranks& ranks, std::chrono::milliseconds timeout, std::chrono::milliseconds deadline);

  void put(const std::string& queue, std::span<const std::byte> message);
  // None when none has begun to come in that time. Throws c10::DistNetworkError when the store is gone, Error for what is no message.
  std::optional<std::vector<std::byte>> take(const std::string& queue, std::chrono::milliseconds timeout);
  // Counters by name, kept there too: adds to one and gives its value. Whoever does not know the secret cannot find them.
  std::int64_t count(const std::string& counter, std::int64_t more) { return store_->add(name("count/" + counter), more); }
  // Deletes what was taken: a round trip per key, for when there is time.
  void tidy();
  // For another user of the store.
  c10::intrusive_ptr<c10d::Store> store(const std::string& prefix) const {
    return c10::make_intrusive<c10d::PrefixStore>(name(prefix), store_);
  }

 private:
  // The store's server closes a connection that brings more at once.
  static constexpr std::size_t kPiece = std::size_t{4} << 20;

  std::string name(const std::string& what) const { return concat("penstock/", hex(sip_hash(key_, attempt_ + "/" + what))); }
  std::string next_name(const std::string& queue) { return name(concat(queue, "/", count_[queue]++)); }
  std::uint64_t signature(const std::string& name, std::span<const std::uint8_t> content) const {
    return sip_hash({key_.low, sip_hash(key_, name)}, std::as_bytes(content));
  }

  std::vector<std::uint8_t> get(const std::string& key, std::chrono::milliseconds timeout);

  SipKey key_;
  std::string attempt_;
  std::chrono::milliseconds timeout_;  // of other users, and of what must come
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::map<std::string, std::uint64_t> count_;  // pieces put or taken, by queue: each has one writer and one reader
  std::vector<std::string> taken_;              // keys to be deleted
};

}  // namespace penstock
