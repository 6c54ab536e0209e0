#include "torch/gloo_cluster.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/version.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/text.h"
#include "penstock/error.h"
#include "runtime/controller.h"
#include "runtime/device_thread.h"
#include "torch/gloo_transport.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

milliseconds of_seconds(double seconds) {
  return std::chrono::ceil<milliseconds>(std::chrono::duration<double>(seconds));
}

// Queues of messages by name, kept by the store's server: each piece of a message under a key of its own, which the reader deletes.
class Mail {
 public:
  // Throws Error: the port is in use (rank 0), or rank 0 cannot be reached.
  Mail(const Ranks& ranks, milliseconds timeout);

  void put(const std::string& queue, std::span<const std::byte> message);
  // None when the time is over. Throws c10::DistNetworkError when the store is gone.
  std::optional<std::vector<std::byte>> take(const std::string& queue, milliseconds timeout);
  // Deletes what was taken: a round trip per key, for when there is time.
  void tidy();
  // For another user of the store.
  c10::intrusive_ptr<c10d::Store> store(const std::string& prefix) const {
    return c10::make_intrusive<c10d::PrefixStore>(prefix_ + prefix, store_);
  }

 private:
  // The store's server closes a connection that brings more at once.
  static constexpr std::size_t kPiece = std::size_t{4} << 20;

  std::string key(const std::string& queue) { return concat(prefix_, queue, "/", count_[queue]++); }

  std::string prefix_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::map<std::string, std::uint64_t> count_;  // pieces put or taken, by queue: each has one writer and one reader
  std::vector<std::string> taken_;              // keys to be deleted
};

Mail::Mail(const Ranks& ranks, milliseconds timeout) : prefix_(concat("penstock/", ranks.attempt, "/")) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(ranks.port);
  options.isServer = ranks.rank == 0 && !ranks.store_runs;
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string place = concat(ranks.address, ":", ranks.port);
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);  // what c10d would log, the errors below say
  c10::initLogging();
  try {
    store_ = c10::make_intrusive<c10d::TCPStore>(ranks.address, options);
  } catch (const c10::Error& error) {
    const std::string why = reason(error);
    if (why.find("EADDRINUSE") != why.npos)
      throw Error(concat("port ", ranks.port, " is in use"), {}, "set MASTER_PORT to a free one; another run may still be there");
    throw Error(concat(options.isServer ? "cannot serve the rendezvous at " : "cannot reach rank 0 at ", place),
                {concat("tried for ", std::chrono::duration<double>(timeout).count(), " s: ", why)},
                "see whether rank 0 runs, and MASTER_ADDR and MASTER_PORT");
  }
}

// The first piece has the whole length before it.
void Mail::put(const std::string& queue, std::span<const std::byte> message) {
  std::vector<std::uint8_t> piece(sizeof(std::uint64_t));
  const std::uint64_t size = message.size();
  std::memcpy(piece.data(), &size, sizeof size);
  do {
    const auto next = message.first(std::min(message.size(), kPiece));
    const auto* data = reinterpret_cast<const std::uint8_t*>(next.data());
    piece.insert(piece.end(), data, data + next.size());
    store_->set(key(queue), piece);
    piece.clear();
    message = message.subspan(next.size());
  } while (!message.empty());
}

std::optional<std::vector<std::byte>> Mail::take(const std::string& queue, milliseconds timeout) {
  std::vector<std::byte> message;
  std::uint64_t size = 0;
  std::size_t skip = sizeof size;
  store_->setTimeout(timeout);
  do {
    const std::string next = key(queue);
    std::vector<std::uint8_t> piece;
    try {
      piece = store_->get(next);
    } catch (const c10::DistNetworkError&) {
      throw;
    } catch (const c10::DistStoreError&) {
      --count_[queue];
      return std::nullopt;
    }
    taken_.push_back(next);
    if (skip > piece.size()) throw Error("a message between processes is not readable", {"it is cut short"});
    if (skip > 0) std::memcpy(&size, piece.data(), sizeof size);
    const auto* data = reinterpret_cast<const std::byte*>(piece.data());
    message.insert(message.end(), data + skip, data + piece.size());
    skip = 0;
  } while (message.size() < size);
  return message;
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

Hello hello(const Ranks& ranks) {
  return {build_id(), TORCH_VERSION, ranks.size};
}

// Rank 0 hears every other rank, then tells all of them whether they fit (an empty text) or why not.
void meet_all(Mail& mail, const Ranks& ranks, milliseconds timeout) {
  std::string refusal;
  for (int rank = 1; rank < ranks.size && refusal.empty(); ++rank) {
    try {
      const auto heard = mail.take(from(rank), timeout);
      if (!heard)
        throw Error(concat("rank ", rank, " did not come within ", std::chrono::duration<double>(timeout).count(), " s"),
                    {concat("the world has ", ranks.size, " ranks")}, "see what that process says");
      check_hello(hello(ranks), parse_hello(text_of(*heard)), rank);
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

void meet_first(Mail& mail, const Ranks& ranks, milliseconds timeout) {
  mail.put(from(ranks.rank), bytes_of(print(hello(ranks))));
  const auto answer = mail.take(to(ranks.rank), timeout);
  if (!answer) throw Error(concat("rank 0 did not answer within ", std::chrono::duration<double>(timeout).count(), " s"));
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
      : ranks_(ranks), options_(options), mail_(ranks, of_seconds(options.rendezvous)) {
    meet_all(mail_, ranks, of_seconds(options.rendezvous));
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
  std::vector<Reply> exchange(const Command& command) override;

 private:
  // After a failed step the others' own words are worth a moment, no more.
  static constexpr milliseconds kLastWords{2000};

  Reply answer(int rank, milliseconds timeout);

  Ranks ranks_;
  GlooOptions options_;
  Mail mail_;
  bool failed_ = false;  // a step failed or a device was lost: no more commands will come
  std::unique_ptr<DeviceThread> own_;
};

// The store lives here: the others must have heard before it goes.
GlooCarrier::~GlooCarrier() {
  try {
    const std::vector<std::byte> stop = encode(Command{});
    for (int rank = 1; rank < ranks_.size; ++rank) mail_.put(to(rank), stop);
    for (int rank = 1; rank < ranks_.size && !failed_; ++rank) mail_.take(from(rank), of_seconds(options_.deadline));
  } catch (const std::exception&) {
    // They are gone already.
  }
}

Reply GlooCarrier::answer(int rank, milliseconds timeout) {
  Reply reply;
  try {
    if (const auto bytes = mail_.take(from(rank), timeout)) return decode_reply(*bytes);
    reply.error = concat("device ", rank, " was lost: it did not answer within ", std::chrono::duration<double>(timeout).count(), " s");
  } catch (const std::exception& error) {
    reply.error = concat("device ", rank, " was lost: ", reason(error));
  }
  reply.lost = {rank};
  reply.aborted = true;  // any other error tells more
  return reply;
}

std::vector<Reply> GlooCarrier::exchange(const Command& command) {
  std::vector<Reply> replies(static_cast<std::size_t>(ranks_.size));
  try {
    const std::vector<std::byte> message = encode(command);
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
  for (int rank = 1; rank < ranks_.size; ++rank) {
    Reply& reply = replies[static_cast<std::size_t>(rank)];
    reply = answer(rank, failed_ ? std::min(kLastWords, of_seconds(options_.deadline)) : of_seconds(options_.deadline));
    failed_ = failed_ || !reply.lost.empty() || (step && !reply.error.empty());
  }
  return replies;
}

// The signals that rank 0 answers, ignored while this lives.
class SignalsIgnored {
 public:
  SignalsIgnored() { ignore(&term_, &interrupt_); }
  ~SignalsIgnored() {
    ignore(nullptr, nullptr);  // drops what came meanwhile: a blocked signal waits, ignored or not
    sigaction(SIGTERM, &term_, nullptr);
    sigaction(SIGINT, &interrupt_, nullptr);
  }
  SignalsIgnored(const SignalsIgnored&) = delete;

 private:
  static void ignore(struct sigaction* term, struct sigaction* interrupt) {
    struct sigaction ignored = {};
    ignored.sa_handler = SIG_IGN;
    sigaction(SIGTERM, &ignored, term);
    sigaction(SIGINT, &ignored, interrupt);
  }

  struct sigaction term_, interrupt_;
};

void serve(Mail& mail, Worker& worker, int rank) {
  constexpr milliseconds kRound{60000};  // between commands there is no limit: rank 0 may compile or sample for long
  while (true) {
    mail.tidy();
    const auto bytes = mail.take(to(rank), kRound);
    if (!bytes) continue;
    const Command command = decode_command(*bytes);
    const Reply reply = worker.obey(command);
    mail.put(from(rank), encode(reply));
    if (command.kind == Command::Kind::stop) return;
    if (command.kind == Command::Kind::step && !reply.error.empty()) throw Error(reply.error);
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
    Mail mail(ranks, of_seconds(options.rendezvous));
    meet_first(mail, ranks, of_seconds(options.rendezvous));
    const SignalsIgnored ignored;
    std::unique_ptr<Transport> transport = connect(mail, ranks, options);
    std::unique_ptr<Executor> device = make_device(mail, ranks.rank, executor);
    Worker worker(ranks.rank, std::move(device), std::move(transport), std::move(data), of_seconds(options.deadline));
    serve(mail, worker, ranks.rank);
  } catch (const c10::DistNetworkError&) {
    throw Error(concat("rank 0 was lost: device ", ranks.rank, " has no controller any more"),
                {concat("it was at ", ranks.address, ":", ranks.port)});
  }
  return 0;
}

}  // namespace penstock
