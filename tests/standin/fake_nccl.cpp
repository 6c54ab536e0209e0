// SPDX-License-Identifier: Apache-2.0
// A libnccl.so.2 for the stand-in: the functions that Penstock takes of NCCL, between processes and threads of one machine, over sockets.
// It keeps NCCL's rules, and is as strict as they allow:
//   - an operation is work on a stream. It begins when what the stream had before is done, and is done when all its members have come:
//   nothing is
//     buffered, so that a wrong order never ends;
//   - an operation on a communicator has the stream of those before it;
//   - the first operation with a member is in progress, and on no stream, until that one has come: NCCL connects then;
//   - members that differ in sizes, or give memory that is not the device's, get an error, and what is under way hangs until it is aborted;
//   - a lost member is ncclRemoteError from ncclCommGetAsyncError;
//   - ncclCommAbort ends what is under way, and returns when no recorded graph has operations of the communicator any more.
// PENSTOCK_FAKE_NCCL says what goes wrong: "version:20800" is what ncclGetVersion says; at the n-th operation of this process "exit:n" ends
// it, "error:n" is an error that NCCL finds by itself, and "silent:n" never comes.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "standin/memory.h"
#include "standin/streams.h"
#include "torch/nccl_library.h"

namespace penstock::standin {
namespace {

constexpr int kInternalError = 3;

// The number behind `what` in PENSTOCK_FAKE_NCCL; 0: it says something else.
int injected(const std::string& what) {
  const char* const given = std::getenv("PENSTOCK_FAKE_NCCL");
  const std::string text = given ? given : "";
  return text.starts_with(what + ":") ? std::atoi(text.c_str() + what.size() + 1) : 0;
}

struct Bytes {
  std::byte* data;
  std::size_t size;
};
// The bytes that one member gives another and takes of it in an operation.
struct Part {
  std::vector<Bytes> out, in;
};
using Operation = std::map<int, Part>;  // by the other member

std::uint64_t total(const std::vector<Bytes>& all) {
  std::uint64_t out = 0;
  for (const Bytes& one : all) out += one.size;
  return out;
}

// The address of member `rank`, a name that ends with its process.
sockaddr_un address_of(const NcclId& id, int rank, socklen_t& size) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  const std::string name = "penstock-fake-nccl-" + std::string(id.bytes) + "-" + std::to_string(rank);
  std::memcpy(out.sun_path + 1, name.data(), name.size());
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return out;
}

class Communicator {
 public:
  Communicator(const NcclId& id, int ranks, int rank) : sockets_(static_cast<std::size_t>(ranks), -1), is_connected_(sockets_.size()) {
    meeting_ = std::thread([this, id, rank] { meet(id, rank); });
  }
  ~Communicator() {
    give_up();
    meeting_.join();
    for (const int socket : sockets_)
      if (socket >= 0) close(socket);
  }

  int state() const { return state_; }
  // Whether operations with all these members can be enqueued; if not, `then` is called when they can be, and calls are in progress until
  // then.
  bool is_connected(const Operation& operation, std::function<void()> then);
  // On a stream.
  void run(const Operation& operation);
  bool takes(int stream) {
    const int known = stream_.exchange(stream);
    return known < 0 || known == stream;
  }
  void give_up() {
    given_up_ = true;
    for (const int socket : sockets_)
      if (socket >= 0) shutdown(socket, SHUT_RDWR);
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  // What connects holds the communicator, so that this does not end in it.
  void stop_connecting() {
    if (connecting_.joinable()) connecting_.join();
  }
  // Held by each captured operation.
  std::shared_ptr<int> graphs = std::make_shared<int>();
  void wait_for_graphs() const {
    while (graphs.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  struct Header {
    std::uint64_t out, in;
  };
  // One other member's part of an operation that is under way.
  struct Flow {
    int socket;
    const Part* part;
    Header own, others{};
    std::size_t own_sent = 0, others_read = 0;
    std::size_t out_at = 0, out_done = 0, in_at = 0, in_done = 0;  // the span, and bytes of it

    bool matched() const { return others_read == sizeof others; }
    bool sends() const { return own_sent < sizeof own || (matched() && out_at < part->out.size()); }
    bool reads() const { return !matched() || in_at < part->in.size(); }
    bool move();
  };

  void meet(const NcclId& id, int rank);
  bool has_failed() const { return state_ != kNcclSuccess && state_ != kNcclInProgress; }
  void fail(int code) {
    if (!has_failed()) state_ = code;
  }
  void hang() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return given_up_.load(); });
  }
  bool whole(int socket, void* data, std::size_t size, bool sends) const;

  std::vector<int> sockets_;  // by member; -1: its own
  std::vector<char> is_connected_;
  std::atomic<int> state_ = kNcclInProgress, stream_ = -1;
  std::atomic<bool> given_up_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread meeting_, connecting_;
};

// Each member listens, connects to those before it and takes those behind it.
void Communicator::meet(const NcclId& id, int rank) {
  socklen_t size = 0;
  const auto rest = std::chrono::milliseconds(1);
  const sockaddr_un own = address_of(id, rank, size);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&own), size) != 0 || listen(listener, 64) != 0) state_ = kInternalError;
  for (int other = 0; other < rank && !given_up_; ++other) {
    const sockaddr_un address = address_of(id, other, size);
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (!given_up_ && ::connect(made, reinterpret_cast<const sockaddr*>(&address), size) != 0) std::this_thread::sleep_for(rest);
    send(made, &rank, sizeof rank, MSG_NOSIGNAL);
    sockets_[static_cast<std::size_t>(other)] = made;
  }
  for (int missing = static_cast<int>(sockets_.size()) - 1 - rank; missing > 0 && !given_up_;) {
    const int made = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int other = -1;
    if (made < 0) {
      std::this_thread::sleep_for(rest);
    } else if (whole(made, &other, sizeof other, false)) {
      sockets_[static_cast<std::size_t>(other)] = made;
      --missing;
    } else {
      close(made);
    }
  }
  close(listener);
  int waiting = kNcclInProgress;
  state_.compare_exchange_strong(waiting, kNcclSuccess);
}

bool Communicator::whole(int socket, void* data, std::size_t size, bool sends) const {
  for (auto* at = static_cast<std::byte*>(data); size > 0;) {
    const ssize_t moved = sends ? send(socket, at, size, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(socket, at, size, MSG_DONTWAIT);
    if (moved > 0) {
      at += moved;
      size -= static_cast<std::size_t>(moved);
    } else if (given_up_ || moved == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else {
      pollfd wait{socket, static_cast<short>(sends ? POLLOUT : POLLIN), 0};
      poll(&wait, 1, 20);
    }
  }
  return true;
}

bool Communicator::is_connected(const Operation& operation, std::function<void()> then) {
  std::vector<int> fresh;
  for (const auto& [other, part] : operation)
    if (!std::exchange(is_connected_[static_cast<std::size_t>(other)], 1)) fresh.push_back(sockets_[static_cast<std::size_t>(other)]);
  if (fresh.empty()) return true;
  stop_connecting();
  state_ = kNcclInProgress;
  connecting_ = std::thread([this, fresh, then = std::move(then)] {
    char here = 1;
    const auto all = [&](bool sends) { return std::ranges::all_of(fresh, [&](int socket) { return whole(socket, &here, 1, sends); }); };
    const bool good = all(true) && all(false);
    if (good) then();
    if (!has_failed()) state_ = good ? kNcclSuccess : kNcclRemoteError;
  });
  return false;
}

// False: the other member is gone.
bool Communicator::Flow::move() {
  const auto step = [](ssize_t moved, auto& done) {
    if (moved > 0) done += static_cast<std::size_t>(moved);
    return moved > 0 || (moved < 0 && (errno == EAGAIN || errno == EINTR));
  };
  const auto spans = [&](const std::vector<Bytes>& all, std::size_t& at, std::size_t& done, const auto& call) {
    if (at == all.size()) return true;
    const bool good = step(call(all[at].data + done, all[at].size - done), done);
    if (done == all[at].size) ++at, done = 0;
    return good;
  };
  if (own_sent < sizeof own) {
    if (!step(send(socket, reinterpret_cast<char*>(&own) + own_sent, sizeof own - own_sent, MSG_NOSIGNAL | MSG_DONTWAIT), own_sent))
      return false;
  } else if (matched() && !spans(part->out, out_at, out_done, [&](std::byte* data, std::size_t size) {
               return send(socket, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
             })) {
    return false;
  }
  if (!matched())
    return step(recv(socket, reinterpret_cast<char*>(&others) + others_read, sizeof others - others_read, MSG_DONTWAIT), others_read);
  return spans(part->in, in_at, in_done, [&](std::byte* data, std::size_t size) { return recv(socket, data, size, MSG_DONTWAIT); });
}

void Communicator::run(const Operation& operation) {
  static std::atomic<int> operations = 0;
  const int number = ++operations;
  if (number == injected("exit")) _exit(9);
  if (number == injected("silent")) return hang();
  if (number == injected("error")) fail(kInternalError);
  std::vector<Flow> flows;
  for (const auto& [other, part] : operation)
    flows.push_back({sockets_[static_cast<std::size_t>(other)], &part, {total(part.out), total(part.in)}});
  while (!has_failed() && !given_up_) {
    std::vector<pollfd> polled;
    for (const Flow& flow : flows)
      polled.push_back({flow.sends() || flow.reads() ? flow.socket : -1,
                        static_cast<short>((flow.sends() ? POLLOUT : 0) | (flow.reads() ? POLLIN : 0)), 0});
    if (std::ranges::all_of(polled, [](const pollfd& one) { return one.fd < 0; })) return;
    poll(polled.data(), polled.size(), 20);
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (polled[i].revents == 0) continue;
      const bool was_matched = flows[i].matched();
      if (!flows[i].move()) fail(kNcclRemoteError);
      if (!was_matched && flows[i].matched() && (flows[i].others.in != flows[i].own.out || flows[i].others.out != flows[i].own.in))
        fail(kNcclInvalidUsage);
    }
  }
  hang();
}

}  // namespace
}  // namespace penstock::standin

namespace penstock {

struct NcclComm {
  std::shared_ptr<standin::Communicator> communicator;
};

}  // namespace penstock

namespace penstock::standin {
namespace {

struct Call {
  std::shared_ptr<Communicator> communicator;
  int stream;
  Operation operation;
};
thread_local int depth = 0;
thread_local std::vector<Call> grouped;

void launch(const std::shared_ptr<Communicator>& communicator, int stream, const Operation& operation) {
  if (!is_captured(stream)) return enqueue(stream, [communicator, operation] { communicator->run(operation); });
  // A graph must not keep its communicator, which is to outlive it.
  enqueue(stream, [known = communicator.get(), graph = communicator->graphs, operation] { known->run(operation); });
}

int launch_grouped() {
  int result = kNcclSuccess;
  for (const Call& call : std::exchange(grouped, {})) {
    if (call.communicator->state() != kNcclSuccess) return call.communicator->state();
    if (!call.communicator->takes(call.stream)) return kNcclInvalidUsage;
    const auto later = [call] { launch(call.communicator, call.stream, call.operation); };
    if (call.communicator->is_connected(call.operation, later))
      launch(call.communicator, call.stream, call.operation);
    else
      result = kNcclInProgress;
  }
  return result;
}

int add(const void* memory, std::size_t count, int type, int peer, NcclComm* handle, void* stream, bool sends) {
  if (type != kNcclUint8 || !standin::memory().is_here(memory)) return kNcclInvalidArgument;
  const auto same = std::ranges::find_if(grouped, [&](const Call& call) { return call.communicator == handle->communicator; });
  Call& call = same != grouped.end() ? *same : grouped.emplace_back(Call{handle->communicator, stream_of(stream), {}});
  Part& part = call.operation[peer];
  (sends ? part.out : part.in).push_back({static_cast<std::byte*>(standin::memory().bytes_of(memory)), count});
  return depth > 0 ? kNcclSuccess : launch_grouped();
}

}  // namespace
}  // namespace penstock::standin

using penstock::NcclComm;

extern "C" {

int ncclGetVersion(int* version) {
  const int other = penstock::standin::injected("version");
  *version = other ? other : 22703;
  return penstock::kNcclSuccess;
}
const char* ncclGetErrorString(int result) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  return kTexts[std::clamp(result, 0, 7)];
}
const char* ncclGetLastError(NcclComm*) {
  return "of the stand-in";
}
int ncclGetUniqueId(penstock::NcclId* id) {
  std::random_device random;  // a name that no other group of processes here has, not an input of a test
  const std::string drawn = std::to_string(random()) + "-" + std::to_string(random());
  std::memcpy(id->bytes, drawn.c_str(), drawn.size() + 1);
  return penstock::kNcclSuccess;
}
int ncclCommInitRankConfig(NcclComm** communicator, int ranks, penstock::NcclId id, int rank, penstock::NcclConfig* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0) return penstock::kNcclInvalidArgument;
  *communicator = new NcclComm{std::make_shared<penstock::standin::Communicator>(id, ranks, rank)};
  return penstock::kNcclInProgress;
}
int ncclCommAbort(NcclComm* communicator) {
  communicator->communicator->give_up();
  communicator->communicator->stop_connecting();
  communicator->communicator->wait_for_graphs();
  delete communicator;
  return penstock::kNcclSuccess;
}
int ncclCommGetAsyncError(NcclComm* communicator, int* result) {
  *result = communicator->communicator->state();
  return penstock::kNcclSuccess;
}
int ncclGroupStart() {
  ++penstock::standin::depth;
  return penstock::kNcclSuccess;
}
int ncclGroupEnd() {
  return --penstock::standin::depth > 0 ? penstock::kNcclSuccess : penstock::standin::launch_grouped();
}
int ncclSend(const void* from, std::size_t count, int type, int peer, NcclComm* communicator, void* stream) {
  return penstock::standin::add(from, count, type, peer, communicator, stream, true);
}
int ncclRecv(void* to, std::size_t count, int type, int peer, NcclComm* communicator, void* stream) {
  return penstock::standin::add(to, count, type, peer, communicator, stream, false);
}
}
