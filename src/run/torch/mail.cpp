// SPDX-License-Identifier: Apache-2.0
#include "torch/mail.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>

#include "driver/store_sockets.h"
#include "penstock/error.h"
#include "torch/gloo_transport.h"

namespace penstock {

using std::chrono::milliseconds;

namespace {

// c10d waits without a limit for the first word of whoever listens there.
c10::intrusive_ptr<c10d::TCPStore> connect_store(const std::string& address, const c10d::TCPStoreOptions& options,
                                                 const std::vector<int>& others) {
  auto store = std::async(std::launch::async, [&] { return c10::make_intrusive<c10d::TCPStore>(address, options); });
  for (milliseconds patience = options.timeout + milliseconds(500); store.wait_for(patience) != std::future_status::ready;
       patience = milliseconds(100))
    close_sockets_to(options.port, others);
  return store.get();
}

void append(std::vector<std::uint8_t>& bytes, const void* data, std::size_t size) {
  const auto* begin = static_cast<const std::uint8_t*>(data);
  bytes.insert(bytes.end(), begin, begin + size);
}

}  // namespace

Mail::Mail(const Ranks& ranks, milliseconds timeout, milliseconds deadline)
    : key_(sip_key(ranks.secret)), attempt_(ranks.attempt), timeout_(timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(ranks.port);
  options.isServer = ranks.rank == 0 && !ranks.store_runs;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer) options.masterListenFd = listen_at(ranks.address, ranks.port);
  const std::string place = concat(ranks.address, ":", ranks.port);
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);  // what c10d would log, the errors below say
  c10::initLogging();
  const std::vector<int> others = sockets_to(options.port);  // torch.distributed may have its own
  if (!options.isServer) {
    const auto begin = std::chrono::steady_clock::now();
    await_listener(ranks.address, ranks.port, timeout);
    const auto waited = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
    options.timeout = std::max(timeout - waited, milliseconds(100));
  }
  try {
    store_ = connect_store(ranks.address, options, others);
    limit_sockets_to(options.port, deadline + std::chrono::seconds(5), others);  // it answers at once, where its process runs
  } catch (const c10::Error& error) {
    const std::string why = reason(error);
    throw Error(concat(options.isServer ? "cannot serve the rendezvous at " : "cannot reach rank 0 at ", place),
                {concat("tried for ", std::chrono::duration<double>(timeout).count(), " s: ", why)},
                "see whether rank 0 runs, and MASTER_ADDR and MASTER_PORT");
  }
}

// The first piece has the whole length before it, every one its signature behind.
void Mail::put(const std::string& queue, std::span<const std::byte> message) {
  std::vector<std::uint8_t> piece;
  const std::uint64_t size = message.size();
  append(piece, &size, sizeof size);
  do {
    const auto next = message.first(std::min(message.size(), kPiece));
    append(piece, next.data(), next.size());
    const std::string key = next_name(queue);
    const std::uint64_t signed_by_us = signature(key, piece);
    append(piece, &signed_by_us, sizeof signed_by_us);
    store_->set(key, piece);
    piece.clear();
    message = message.subspan(next.size());
  } while (!message.empty());
}

std::vector<std::uint8_t> Mail::get(const std::string& key, milliseconds timeout) {
  store_->setTimeout(timeout);
  std::vector<std::uint8_t> piece = store_->get(key);
  store_->setTimeout(timeout_);
  taken_.push_back(key);
  std::uint64_t signed_by = 0;
  if (piece.size() < sizeof signed_by) throw Error("a message between processes is not readable", {"it is cut short"});
  std::memcpy(&signed_by, piece.data() + piece.size() - sizeof signed_by, sizeof signed_by);
  piece.resize(piece.size() - sizeof signed_by);
  if (signed_by != signature(key, piece))
    throw Error("a message between processes is not from one of them", {"its signature is wrong"},
                "keep others from the store's port; all processes need the same PENSTOCK_SECRET");
  return piece;
}

std::optional<std::vector<std::byte>> Mail::take(const std::string& queue, milliseconds timeout) {
  std::vector<std::uint8_t> piece;
  try {
    piece = get(next_name(queue), timeout);
  } catch (const c10::DistNetworkError&) {
    throw;
  } catch (const c10::DistStoreError&) {
    store_->setTimeout(timeout_);
    --count_[queue];
    return std::nullopt;
  }
  std::uint64_t size = 0;
  if (piece.size() < sizeof size) throw Error("a message between processes is not readable", {"it is cut short"});
  std::memcpy(&size, piece.data(), sizeof size);
  piece.erase(piece.begin(), piece.begin() + sizeof size);
  std::vector<std::byte> message;
  while (true) {
    const auto* data = reinterpret_cast<const std::byte*>(piece.data());
    message.insert(message.end(), data, data + piece.size());
    if (message.size() >= size) return message;
    piece = get(next_name(queue), timeout_);
  }
}

void Mail::tidy() {
  try {
    for (const std::string& key : taken_) store_->deleteKey(key);
  } catch (const c10::DistNetworkError&) {
    // The next message says so.
  }
  taken_.clear();
}

}  // namespace penstock
