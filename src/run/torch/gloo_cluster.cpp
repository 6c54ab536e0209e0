// SPDX-License-Identifier: Apache-2.0
#include "torch/gloo_cluster.h"

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include "base/build_id.h"
#include "base/device_name.h"
#include "base/process.h"
#include "base/stop.h"
#include "base/text.h"
#include "driver/controller.h"
#include "penstock/error.h"
#include "state/checkpoint.h"
#include "torch/gloo_transport.h"
#include "torch/mail.h"
#include "torch/rank_device.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

milliseconds left_until(Clock::time_point end) {
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(end - Clock::now()));
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
  return {build_id(), TORCH_VERSION, ranks.size, options.run, this_process()};
}

// Rank 0 hears every other rank, then tells all of them whether they fit (an empty text) or why not. Gives the ranks' processes.
std::vector<std::string> meet_all(Mail& mail, const Ranks& ranks, const GlooOptions& options) {
  std::vector<std::string> processes(1);
  const Clock::time_point end = Clock::now() + of_seconds(options.rendezvous);
  std::string refusal;
  for (int rank = 1; rank < ranks.size && refusal.empty(); ++rank) {
    try {
      const auto heard = mail.take(from(rank), left_until(end));
      if (!heard)
        throw Error(concat("rank ", rank, " did not come within ", options.rendezvous, " s"),
                    {concat("the world has ", ranks.size, " ranks")}, "see what that process says");
      const Hello other = parse_hello(text_of(*heard));
      check_hello(hello(ranks, options), other, rank);
      processes.push_back(other.process);
    } catch (const Error& error) {
      refusal = error.what();
    }
  }
  for (int rank = 1; rank < ranks.size; ++rank) mail.put(to(rank), bytes_of(refusal));
  if (refusal.empty()) return processes;
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

class GlooCarrier : public Carrier {
 public:
  GlooCarrier(const Ranks& ranks, const ExecutorFactory& executor, const std::shared_ptr<const DataSource>& data,
              const GlooOptions& options)
      : ranks_(ranks), options_(checked_backend(options)), mail_(ranks, of_seconds(options.rendezvous), of_seconds(options.deadline)) {
    processes_ = meet_all(mail_, ranks, options);
    start_device(own_, mail_, ranks, executor, data, options);
  }
  ~GlooCarrier() override;

  int devices() const override { return ranks_.size; }
  int devices_here() const override { return std::max(ranks_.local_size, 1); }
  std::optional<MemoryRoom> device_room() const override { return is_host(options_.device) ? std::optional<MemoryRoom>() : MemoryRoom(); }
  std::vector<Reply> exchange(const std::vector<const Command*>& commands) override;
  bool recover() override;
  void tell(const Command& command) override;

 private:
  // After a failed step the others' own words are worth a moment, no more. `penstock launch` waits for it, and longer.
  static constexpr milliseconds kLastWords{1000};

  static constexpr milliseconds kLook{500};  // how often it is looked whether a silent rank's process has ended

  void send(const std::vector<const Command*>& commands);
  std::optional<std::vector<std::byte>> take(int rank, milliseconds timeout);
  Reply answer(int rank, milliseconds timeout);

  Ranks ranks_;
  GlooOptions options_;
  Mail mail_;
  SentTasks sent_;
  bool failed_ = false;                                // what was asked for last of the devices failed, and they have not recovered
  const int exceptions_ = std::uncaught_exceptions();  // that were on their way when this began
  std::vector<std::string> processes_;                 // by rank
  std::set<int> gone_;                                 // ranks that were lost
  int reconnections_ = 0;
  RankDevice own_;
};

// The store may live here: the others must have heard before it goes. They hear too where the run fails here, be it behind the last step.
GlooCarrier::~GlooCarrier() {
  try {
    Command stop{.kind = Command::Kind::stop};
    if (failed_ || std::uncaught_exceptions() > exceptions_) stop.error = "the run has failed\n  hint: see what rank 0 says";
    tell(stop);
    const Clock::time_point end = Clock::now() + of_seconds(options_.deadline);
    for (int rank = 1; rank < ranks_.size && gone_.empty(); ++rank) take(rank, left_until(end));
  } catch (const std::exception&) {
    // They are gone already.
  }
}

void GlooCarrier::tell(const Command& command) {
  try {
    send(std::vector<const Command*>(static_cast<std::size_t>(ranks_.size), &command));
  } catch (const c10::Error&) {
    // Nobody is there to be told.
  }
}

void GlooCarrier::send(const std::vector<const Command*>& commands) {
  const Command* encoded = nullptr;
  std::vector<std::byte> message;
  for (std::size_t rank = 1; rank < commands.size(); ++rank) {
    if (!commands[rank] || gone_.contains(static_cast<int>(rank))) continue;
    if (commands[rank] != encoded) message = encode(*(encoded = commands[rank]), sent_);
    mail_.put(to(static_cast<int>(rank)), message);
  }
}

// None where the rank was silent for so long, or its process has ended.
std::optional<std::vector<std::byte>> GlooCarrier::take(int rank, milliseconds timeout) {
  for (const Clock::time_point end = Clock::now() + timeout;;) {
    const bool ended = has_ended(processes_[static_cast<std::size_t>(rank)]);  // before the look: it may have said something
    if (auto bytes = mail_.take(from(rank), std::min(kLook, left_until(end)))) return bytes;
    if (ended || Clock::now() >= end) return std::nullopt;
  }
}

Reply GlooCarrier::answer(int rank, milliseconds timeout) {
  Reply reply;
  try {
    if (const auto bytes = take(rank, timeout)) {
      reply = decode_reply(*bytes);
      for (const std::int32_t peer : reply.lost)
        if (peer < 0 || peer >= ranks_.size) throw Error(concat("it blames device ", peer, " of ", ranks_.size));
      return reply;
    }
    reply.error = has_ended(processes_[static_cast<std::size_t>(rank)]) ? concat("device ", rank, " was lost: its process has ended")
                                                                        : concat("device ", rank, " was lost: it did not answer within ",
                                                                                 std::chrono::duration<double>(timeout).count(), " s");
  } catch (const std::exception& error) {
    reply = {};
    reply.error = concat("device ", rank, " was lost: ", reason(error));
  }
  reply.lost = {rank};
  reply.aborted = true;  // any other error tells more
  return reply;
}

std::vector<Reply> GlooCarrier::exchange(const std::vector<const Command*>& commands) {
  std::vector<Reply> replies(commands.size());
  try {
    send(commands);
  } catch (const c10::Error& error) {
    replies[0].error = concat("the rendezvous store is gone: ", reason(error));
    replies[0].lost = {0};
    return replies;
  }
  if (commands[0]) own_.post(*commands[0]);
  mail_.tidy();
  if (commands[0]) replies[0] = own_.wait();
  const bool step = commands[0] && commands[0]->kind == Command::Kind::step;
  bool failed = step && !replies[0].error.empty();
  Clock::time_point last_words = Clock::now() + kLastWords;
  for (int rank = 1; rank < ranks_.size; ++rank) {
    if (!commands[static_cast<std::size_t>(rank)] || gone_.contains(rank)) continue;
    Reply& reply = replies[static_cast<std::size_t>(rank)];
    const milliseconds deadline = of_seconds(options_.deadline);
    // Asking takes some time too, so that a rank that has answered already is heard.
    const milliseconds moment = std::max(left_until(last_words), milliseconds(100));
    reply = answer(rank, failed ? std::min(moment, deadline) : deadline);
    if (std::ranges::find(reply.lost, rank) != reply.lost.end()) gone_.insert(rank);
    if (failed) continue;
    failed = !reply.lost.empty() || (step && !reply.error.empty());
    last_words = Clock::now() + kLastWords;
  }
  if (failed) own_.disconnect();
  failed_ = failed_ || failed;
  return replies;
}

// All connections are made anew: what is left of the step in the old ones, nobody reads.
bool GlooCarrier::recover() {
  const Command command{.kind = Command::Kind::reconnect, .text = concat("again ", ++reconnections_)};
  const std::vector<Reply> replies = exchange(std::vector<const Command*>(static_cast<std::size_t>(ranks_.size), &command));
  const bool recovered = std::ranges::all_of(replies, [](const Reply& reply) { return reply.error.empty(); });
  failed_ = failed_ && !recovered;
  return recovered;
}

class GlooFollower : public Follower {
 public:
  GlooFollower(const Ranks& ranks, const ExecutorFactory& executor, const std::shared_ptr<const DataSource>& data,
               const GlooOptions& options);
  ~GlooFollower() override;

  Shared obey(const std::string& call) override;
  const std::vector<std::shared_ptr<const Program>>& programs() const override { return programs_; }
  // Obeys until rank 0 says stop. Throws Error where the run failed, here or elsewhere.
  void serve();

 private:
  static constexpr milliseconds kRound{250};
  static constexpr std::chrono::hours kSilence{1};  // rank 0 may compile or sample for long

  // None where none came within that time.
  std::optional<Command> next(milliseconds patience);
  // Does it and answers; gives the error of a step, after which this device can do no more.
  std::string answer(const Command& command);
  void answer(const Reply& reply) { mail_.put(from(ranks_.rank), encode(reply)); }
  void say_goodbye(const std::string& error);
  Shared obey_until_end(const std::string& call);
  void note_program(const Command& command);

  Ranks ranks_;
  GlooOptions options_;
  Mail mail_;
  SentTasks sent_;
  std::vector<std::shared_ptr<const Program>> programs_;  // of calls,
  std::vector<std::uint64_t> hashes_;                     // and their hashes
  bool ended_ = false;                                    // rank 0 has said stop, or is gone, or has been told that this rank ends
  RankDevice own_;
};

GlooFollower::GlooFollower(const Ranks& ranks, const ExecutorFactory& executor, const std::shared_ptr<const DataSource>& data,
                           const GlooOptions& options)
    : ranks_(ranks), options_(checked_backend(options)), mail_(ranks, of_seconds(options.rendezvous), of_seconds(options.deadline)) {
  meet_first(mail_, ranks, options);
  try {
    start_device(own_, mail_, ranks, executor, data, options);
  } catch (const Error& error) {
    say_goodbye(error.what());
    throw;
  }
}

GlooFollower::~GlooFollower() {
  try {
    if (!ended_) say_goodbye(concat("rank ", ranks_.rank, " has ended\n  hint: see what that process says"));
  } catch (const std::exception&) {
    // There is no rank 0.
  }
}

// It is the answer to whatever rank 0 says next.
void GlooFollower::say_goodbye(const std::string& error) {
  ended_ = true;
  answer(Reply{.error = error, .lost = {ranks_.rank}});
}

std::optional<Command> GlooFollower::next(milliseconds patience) {
  mail_.tidy();
  const auto bytes = mail_.take(to(ranks_.rank), patience);
  if (!bytes) return std::nullopt;
  return decode_command(*bytes, sent_);
}

std::string GlooFollower::answer(const Command& command) {
  Reply reply{.error = folder_error(command, options_.folder)};
  if (reply.error.empty()) {
    own_.post(command);
    reply = own_.wait();
  }
  reply.stopping = stop_requested();
  answer(reply);
  if (command.kind != Command::Kind::step || reply.error.empty()) return {};
  own_.disconnect();
  return reply.error;
}

void GlooFollower::serve() {
  std::optional<StopLater> later;  // in training: rank 0 writes a checkpoint first
  for (Clock::time_point heard = Clock::now();;) {
    const std::optional<Command> command = next(kRound);
    if (!command) {
      if (stop_requested() && Clock::now() - heard > of_seconds(options_.deadline)) return;
      if (Clock::now() - heard > kSilence) throw Error("rank 0 has said nothing for an hour", {}, "see what that process was doing");
      continue;
    }
    if (command->kind == Command::Kind::step && !later) later.emplace();
    ended_ = command->kind == Command::Kind::stop;
    const std::string failure = answer(*command);
    ended_ = ended_ || !failure.empty();
    if (!failure.empty()) throw Error(failure);
    if (ended_ && !command->error.empty()) throw Error(command->error);
    if (ended_) return;
    heard = Clock::now();
  }
}

Shared GlooFollower::obey(const std::string& call) {
  if (ended_) throw Error("the devices stopped after an earlier failure");
  try {
    return obey_until_end(call);
  } catch (const c10::Error& error) {
    ended_ = true;
    throw Error(concat("rank 0 was lost in ", split(call, '\n').front()), {reason(error)}, "see what that process says");
  }
}

void GlooFollower::note_program(const Command& command) {
  if (command.kind == Command::Kind::load) {
    programs_.push_back(command.body);
    hashes_.push_back(command.program);
  }
  if (command.kind != Command::Kind::unload) return;
  const auto place = std::ranges::find(hashes_, command.program) - hashes_.begin();
  if (place == std::ssize(hashes_)) return;
  programs_.erase(programs_.begin() + place);
  hashes_.erase(hashes_.begin() + place);
}

Shared GlooFollower::obey_until_end(const std::string& call) {
  std::string failure;  // of a step here: rank 0 knows more
  bool begun = false;
  for (Clock::time_point heard = Clock::now();;) {
    const milliseconds patience = begun && failure.empty() ? milliseconds(kSilence) : of_seconds(options_.deadline);
    const std::optional<Command> command = next(std::min(kRound, left_until(heard + patience)));
    if (!command && Clock::now() - heard < patience) continue;
    heard = Clock::now();
    if (command && command->kind == Command::Kind::end_call) {
      if (!command->error.empty()) throw Error(command->error);
      return command->results;
    }
    const bool stop = command && command->kind == Command::Kind::stop;
    if (!command || stop) {
      say_goodbye(concat("rank ", ranks_.rank, " did not hear of rank 0 in time"));
      if (!failure.empty()) throw Error(failure);
      const std::string name = split(call, '\n').front();
      if (stop) throw Error(concat("rank 0 has ended, rank ", ranks_.rank, " was at ", name), {}, "all ranks make the same calls");
      throw Error(
          concat("rank 0 was silent for ", std::chrono::duration<double>(patience).count(), " s, rank ", ranks_.rank, " was at ", name), {},
          "see what that process is doing; raise the deadline if it may take that long");
    }
    note_program(*command);
    if (command->kind != Command::Kind::begin_call) {
      failure = answer(*command);
      continue;
    }
    begun = true;
    Reply reply;
    try {
      check_call(command->text, call, ranks_.rank);
    } catch (const Error& error) {
      reply.error = error.what();
    }
    answer(reply);
  }
}

}  // namespace

std::unique_ptr<Cluster> make_gloo_cluster(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                           const GlooOptions& options) {
  return make_cluster(std::make_unique<GlooCarrier>(ranks, executor, data, options));
}

std::unique_ptr<Follower> make_gloo_follower(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                             const GlooOptions& options) {
  return std::make_unique<GlooFollower>(ranks, executor, data, options);
}

int serve_gloo(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data, const GlooOptions& options) {
  try {
    GlooFollower(ranks, executor, data, options).serve();
  } catch (const c10::Error&) {
    if (stop_requested()) return 0;  // it had nothing to finish
    throw Error(concat("rank 0 was lost: device ", ranks.rank, " has no controller any more"),
                {concat("it was at ", ranks.address, ":", ranks.port)});
  }
  return 0;
}

}  // namespace penstock
