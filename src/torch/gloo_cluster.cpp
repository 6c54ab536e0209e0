#include "torch/gloo_cluster.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/sip_hash.h"
#include "base/stop.h"
#include "base/text.h"
#include "driver/controller.h"
#include "driver/device_thread.h"
#include "penstock/error.h"
#include "torch/gloo_transport.h"
#include "torch/store_sockets.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

milliseconds of_seconds(double seconds) {
  return std::chrono::ceil<milliseconds>(std::chrono::duration<double>(seconds));
}

milliseconds left_until(Clock::time_point end) {
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(end - Clock::now()));
}

// Queues of messages by name, kept by the store's server: each piece of a message under a key of its own, which the reader deletes. The
// store takes anything from anybody, so keys are names that only who knows the secret can predict, and a piece carries a signature of its
// key and content: what others put there is not found, and what they write over is refused.
class Mail {
 public:
  // `deadline`: of what the store itself must answer. Throws Error: the port is in use (rank 0), or rank 0 cannot be reached.
  Mail(const Ranks& ranks, milliseconds timeout, milliseconds deadline);

  void put(const std::string& queue, std::span<const std::byte> message);
  // None when none has begun to come in that time. Throws c10::DistNetworkError when the store is gone, Error for what is no message.
  std::optional<std::vector<std::byte>> take(const std::string& queue, milliseconds timeout);
  // Deletes what was taken: a round trip per key, for when there is time.
  void tidy();
  // For another user of the store.
  c10::intrusive_ptr<c10d::Store> store(const std::string& prefix) const {
    return c10::make_intrusive<c10d::PrefixStore>(name(prefix), store_);
  }

 private:
  // The store's server closes a connection that brings more at once.
  static constexpr std::size_t kPiece = std::size_t{4} << 20;

  std::string name(const std::string& what) const { return concat("penstock/", std::hex, sip_hash(key_, attempt_ + "/" + what)); }
  std::string next_name(const std::string& queue) { return name(concat(queue, "/", count_[queue]++)); }
  std::uint64_t signature(const std::string& name, std::span<const std::uint8_t> content) const {
    return sip_hash({key_.low, sip_hash(key_, name)}, std::as_bytes(content));
  }

  std::vector<std::uint8_t> get(const std::string& key, milliseconds timeout);

  SipKey key_;
  std::string attempt_;
  milliseconds timeout_;  // of other users, and of what must come
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::map<std::string, std::uint64_t> count_;  // pieces put or taken, by queue: each has one writer and one reader
  std::vector<std::string> taken_;              // keys to be deleted
};

// c10d waits without a limit for the first word of whoever listens there.
c10::intrusive_ptr<c10d::TCPStore> connect_store(const std::string& address, const c10d::TCPStoreOptions& options) {
  auto store = std::async(std::launch::async, [&] { return c10::make_intrusive<c10d::TCPStore>(address, options); });
  for (milliseconds patience = options.timeout + milliseconds(500); store.wait_for(patience) != std::future_status::ready;
       patience = milliseconds(100))
    close_sockets_to(options.port);
  return store.get();
}

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
  try {
    store_ = connect_store(ranks.address, options);
    limit_sockets_to(options.port, deadline + std::chrono::seconds(5));  // it answers at once, where its process runs
  } catch (const c10::Error& error) {
    const std::string why = reason(error);
    throw Error(concat(options.isServer ? "cannot serve the rendezvous at " : "cannot reach rank 0 at ", place),
                {concat("tried for ", std::chrono::duration<double>(timeout).count(), " s: ", why)},
                "see whether rank 0 runs, and MASTER_ADDR and MASTER_PORT");
  }
}

void append(std::vector<std::uint8_t>& bytes, const void* data, std::size_t size) {
  const auto* begin = static_cast<const std::uint8_t*>(data);
  bytes.insert(bytes.end(), begin, begin + size);
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

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string to(int rank) {
  return concat("to/", rank);
}
std::string from(int rank) {
  return concat("from/", rank);
}

Hello hello(const Ranks& ranks, const GlooOptions& options) {
  return {build_id(), TORCH_VERSION, ranks.size, options.run};
}

// Rank 0 hears every other rank, then tells all of them whether they fit (an empty text) or why not.
void meet_all(Mail& mail, const Ranks& ranks, const GlooOptions& options) {
  const Clock::time_point end = Clock::now() + of_seconds(options.rendezvous);
  std::string refusal;
  for (int rank = 1; rank < ranks.size && refusal.empty(); ++rank) {
    try {
      const auto heard = mail.take(from(rank), left_until(end));
      if (!heard)
        throw Error(concat("rank ", rank, " did not come within ", options.rendezvous, " s"),
                    {concat("the world has ", ranks.size, " ranks")}, "see what that process says");
      check_hello(hello(ranks, options), parse_hello(text_of(*heard)), rank);
    } catch (const Error& error) {
      refusal = error.what();
    }
  }
  for (int rank = 1; rank < ranks.size; ++rank) mail.put(to(rank), bytes_of(refusal));
  if (refusal.empty()) return;
  // The store may end with this process: those that are there say that they have read it.
  for (int rank = 1; rank < ranks.size; ++rank) mail.take(from(rank), milliseconds(500));
  throw Error(refusal);
}

void meet_first(Mail& mail, const Ranks& ranks, const GlooOptions& options) {
  mail.put(from(ranks.rank), bytes_of(print(hello(ranks, options))));
  const auto answer = mail.take(to(ranks.rank), of_seconds(options.rendezvous));
  if (!answer)
    throw Error(concat("rank 0 did not answer within ", options.rendezvous, " s"), {},
                "see what that process says; all processes need the same PENSTOCK_SECRET, or none");
  if (answer->empty()) return;
  mail.put(from(ranks.rank), {});
  throw Error(text_of(*answer));
}

std::unique_ptr<Transport> connect(const Mail& mail, const Ranks& ranks, const GlooOptions& options) {
  try {
    // A wait for a collective that starts with it reaches its own deadline first.
    return make_gloo_transport(mail.store("gloo"), ranks.rank, ranks.size, ranks.address, of_seconds(options.rendezvous),
                               of_seconds(options.deadline) + milliseconds(1000));
  } catch (const std::exception& error) {
    throw Error(concat("rank ", ranks.rank, " cannot connect to the others"), {reason(error)});
  }
}

class GlooCarrier : public Carrier {
 public:
  GlooCarrier(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data, const GlooOptions& options)
      : ranks_(ranks), options_(options), mail_(ranks, of_seconds(options.rendezvous), of_seconds(options.deadline)) {
    meet_all(mail_, ranks, options);
    auto transport = std::make_shared<std::unique_ptr<Transport>>(connect(mail_, ranks, options));
    own_ = std::make_unique<DeviceThread>(
        [=] {
          return std::make_unique<Worker>(0, executor(0), std::move(*transport), data,
                                          std::chrono::duration_cast<std::chrono::nanoseconds>(of_seconds(options.deadline)));
        },
        [] {});
    if (const Reply made = own_->wait(); !made.error.empty()) throw Error(made.error);
  }
  ~GlooCarrier() override;

  int devices() const override { return ranks_.size; }
  int devices_here() const override { return std::max(ranks_.local_size, 1); }
  std::vector<Reply> exchange(const Command& command) override;

 private:
  // After a failed step the others' own words are worth a moment, no more. `penstock launch` waits for it, and longer.
  static constexpr milliseconds kLastWords{1000};

  Reply answer(int rank, milliseconds timeout);

  Ranks ranks_;
  GlooOptions options_;
  Mail mail_;
  SentTasks sent_;
  bool failed_ = false;  // a step failed or a device was lost: no more commands will come
  std::unique_ptr<DeviceThread> own_;
};

// The store lives here: the others must have heard before it goes.
GlooCarrier::~GlooCarrier() {
  try {
    const std::vector<std::byte> stop = encode(Command{}, sent_);
    for (int rank = 1; rank < ranks_.size; ++rank) mail_.put(to(rank), stop);
    const Clock::time_point end = Clock::now() + of_seconds(options_.deadline);
    for (int rank = 1; rank < ranks_.size && !failed_; ++rank) mail_.take(from(rank), left_until(end));
  } catch (const std::exception&) {
    // They are gone already.
  }
}

Reply GlooCarrier::answer(int rank, milliseconds timeout) {
  Reply reply;
  try {
    if (const auto bytes = mail_.take(from(rank), timeout)) {
      reply = decode_reply(*bytes);
      for (const std::int32_t peer : reply.lost)
        if (peer < 0 || peer >= ranks_.size) throw Error(concat("it blames device ", peer, " of ", ranks_.size));
      return reply;
    }
    reply.error = concat("device ", rank, " was lost: it did not answer within ", std::chrono::duration<double>(timeout).count(), " s");
  } catch (const std::exception& error) {
    reply = {};
    reply.error = concat("device ", rank, " was lost: ", reason(error));
  }
  reply.lost = {rank};
  reply.aborted = true;  // any other error tells more
  return reply;
}

std::vector<Reply> GlooCarrier::exchange(const Command& command) {
  std::vector<Reply> replies(static_cast<std::size_t>(ranks_.size));
  try {
    const std::vector<std::byte> message = encode(command, sent_);
    for (int rank = 1; rank < ranks_.size; ++rank) mail_.put(to(rank), message);
  } catch (const c10::Error& error) {
    replies[0].error = concat("the rendezvous store is gone: ", reason(error));
    replies[0].lost = {0};
    return replies;
  }
  own_->post(command);
  mail_.tidy();
  replies[0] = own_->wait();
  const bool step = command.kind == Command::Kind::step;
  failed_ = failed_ || (step && !replies[0].error.empty());
  Clock::time_point last_words = Clock::now() + kLastWords;
  for (int rank = 1; rank < ranks_.size; ++rank) {
    Reply& reply = replies[static_cast<std::size_t>(rank)];
    const milliseconds deadline = of_seconds(options_.deadline);
    // Asking takes some time too, so that a rank that has answered already is heard.
    const milliseconds moment = std::max(left_until(last_words), milliseconds(100));
    reply = answer(rank, failed_ ? std::min(moment, deadline) : deadline);
    if (failed_) continue;
    failed_ = !reply.lost.empty() || (step && !reply.error.empty());
    last_words = Clock::now() + kLastWords;
  }
  return replies;
}

// State is saved where this rank's own configuration says that the run writes, wherever a message wants it.
std::string folder_error(const std::string& folder, const std::string& run) {
  const std::filesystem::path wanted(folder);
  if (wanted == std::filesystem::path(run) / wanted.filename() && wanted.filename().string().starts_with("checkpoint-")) return {};
  return concat("state is not saved in ", folder, "\n  the run's folder is ", run);
}

void serve(Mail& mail, Worker& worker, int rank, const GlooOptions& options) {
  constexpr milliseconds kRound{250};
  constexpr std::chrono::hours kSilence{1};  // rank 0 may compile or sample for long
  SentTasks sent;
  std::optional<StopLater> later;  // in training: rank 0 writes a checkpoint first
  for (Clock::time_point heard = Clock::now();;) {
    mail.tidy();
    const auto bytes = mail.take(to(rank), kRound);
    if (!bytes) {
      if (stop_requested() && Clock::now() - heard > of_seconds(options.deadline)) return;
      if (Clock::now() - heard > kSilence) throw Error("rank 0 has said nothing for an hour", {}, "see what that process was doing");
      continue;
    }
    const Command command = decode_command(*bytes, sent);
    if (command.kind == Command::Kind::step && !later) later.emplace();
    Reply reply;
    if (command.kind == Command::Kind::save_state) reply.error = folder_error(command.text, options.folder);
    if (reply.error.empty()) reply = worker.obey(command);
    reply.stopping = stop_requested();
    mail.put(from(rank), encode(reply));
    if (command.kind == Command::Kind::stop) return;
    if (command.kind == Command::Kind::step && !reply.error.empty()) throw Error(reply.error);
    heard = Clock::now();
  }
}

// A device that cannot be made answers the first command with the reason.
std::unique_ptr<Executor> make_device(Mail& mail, int rank, const ExecutorFactory& executor) {
  try {
    return executor(rank);
  } catch (const std::exception& error) {
    Reply reply;
    reply.error = error.what();
    reply.lost = {rank};
    mail.put(from(rank), encode(reply));
    throw;
  }
}

}  // namespace

std::unique_ptr<Cluster> make_gloo_cluster(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                           const GlooOptions& options) {
  return make_cluster(std::make_unique<GlooCarrier>(ranks, executor, std::move(data), options));
}

int serve_gloo(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data, const GlooOptions& options) {
  try {
    Mail mail(ranks, of_seconds(options.rendezvous), of_seconds(options.deadline));
    meet_first(mail, ranks, options);
    std::unique_ptr<Transport> transport = connect(mail, ranks, options);
    std::unique_ptr<Executor> device = make_device(mail, ranks.rank, executor);
    Worker worker(ranks.rank, std::move(device), std::move(transport), std::move(data), of_seconds(options.deadline));
    serve(mail, worker, ranks.rank, options);
  } catch (const c10::Error&) {
    if (stop_requested()) return 0;  // it had nothing to finish
    throw Error(concat("rank 0 was lost: device ", ranks.rank, " has no controller any more"),
                {concat("it was at ", ranks.address, ":", ranks.port)});
  }
  return 0;
}

}  // namespace penstock
