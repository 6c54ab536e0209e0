// SPDX-License-Identifier: Apache-2.0
#include "torch/elastic_cluster.h"

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/build_id.h"
#include "base/process.h"
#include "base/text.h"
#include "driver/controller.h"
#include "penstock/error.h"
#include "torch/gloo_transport.h"
#include "torch/mail.h"
#include "torch/rank_device.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A process says so often that it is there, and is held to be gone when it has said nothing for so long.
constexpr milliseconds kBeat{500}, kSilent{3000};
constexpr milliseconds kGlance{50};           // how often it is looked whether a process has ended
constexpr const char* kComers = "comers";     // the counter that gives who comes a number
constexpr const char* kLeftOut = "left out";  // text of the command that ends a membership, and not the run

std::string to_member(std::int64_t id) {
  return concat("member/", id, "/to");
}
std::string from_member(std::int64_t id) {
  return concat("member/", id, "/from");
}
std::string beats_of(std::int64_t id) {
  return concat("member/", id);
}

std::span<const std::byte> text_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string text_in(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Hello elastic_hello(const GlooOptions& options) {
  return {build_id(), TORCH_VERSION, /*size=*/0, options.run, this_process()};
}

// A process that has come, by its number among all that ever came, from 1.
struct Member {
  std::int64_t id = 0;
  std::string process;
  std::int64_t beats = 0;
  Clock::time_point heard = Clock::now();  // when `beats` last rose
  bool gone = false;
};

class ElasticCarrier : public Carrier {
 public:
  ElasticCarrier(const Ranks& ranks, int devices, const GlooOptions& options)
      : options_(options), mail_(ranks, of_seconds(options.rendezvous), of_seconds(options.deadline)) {
    const Clock::time_point end = Clock::now() + of_seconds(options.rendezvous);
    while (waiting() < devices) {
      if (Clock::now() >= end)
        throw Error(concat(waiting_.size(), " of ", devices, " processes came within ", options.rendezvous, " s"), {},
                    "see what the others say");
      std::this_thread::sleep_for(kGlance);
    }
    regroup();
  }
  ~ElasticCarrier() override;

  int devices() const override { return static_cast<int>(members_.size()); }
  // They may be on any machine.
  int devices_here() const override { return 0; }
  bool is_elastic() const override { return true; }
  int waiting() override;
  std::vector<std::int32_t> regroup() override;
  std::vector<Reply> exchange(const std::vector<const Command*>& commands) override;
  void tell(const Command& command) override;

 private:
  void hear_comer(std::int64_t id);
  void send(const Member& member, const Command& command);
  void leave_out(const Member& member);
  bool is_silent(Member& member);
  Reply answer(Member& member, std::int32_t device);

  GlooOptions options_;
  Mail mail_;
  SentTasks sent_;
  const int exceptions_ = std::uncaught_exceptions();
  std::vector<Member> members_;  // by device
  std::vector<Member> waiting_;
  std::int64_t known_ = 0;  // of all that ever came
  int groups_ = 0;          // that there have been
};

ElasticCarrier::~ElasticCarrier() {
  Command stop{.kind = Command::Kind::stop};
  if (std::uncaught_exceptions() > exceptions_) stop.error = "the run has failed\n  hint: see what rank 0 says";
  try {
    members_.insert(members_.end(), waiting_.begin(), waiting_.end());
    exchange(std::vector<const Command*>(members_.size(), &stop));
  } catch (const std::exception&) {
    // They find that the store has gone.
  }
}

void ElasticCarrier::tell(const Command& command) {
  for (const Member& member : members_)
    if (!member.gone) send(member, command);
}

void ElasticCarrier::send(const Member& member, const Command& command) {
  mail_.put(to_member(member.id), encode(command, sent_));
}

// A process that was only held to be gone finds this when it goes on, and comes anew.
void ElasticCarrier::leave_out(const Member& member) {
  send(member, {.kind = Command::Kind::stop, .text = kLeftOut});
}

int ElasticCarrier::waiting() {
  for (const std::int64_t come = mail_.count(kComers, 0); known_ < come;) hear_comer(++known_);
  std::erase_if(waiting_, [&](Member& member) { return is_silent(member); });
  return static_cast<int>(waiting_.size());
}

void ElasticCarrier::hear_comer(std::int64_t id) {
  std::string refusal;
  Member member{.id = id};
  try {
    const auto heard = mail_.take(from_member(id), kSilent);
    if (!heard) return;
    const Hello hello = parse_hello(text_in(*heard));
    check_hello(elastic_hello(options_), hello, static_cast<int>(id));
    member.process = hello.process;
  } catch (const Error& error) {
    refusal = error.what();
  }
  mail_.put(to_member(id), text_bytes(refusal));
  if (refusal.empty()) waiting_.push_back(std::move(member));
}

// Whether the process has ended, or has said nothing for too long.
bool ElasticCarrier::is_silent(Member& member) {
  if (has_ended(member.process)) return true;
  if (const std::int64_t beats = mail_.count(beats_of(member.id), 0); beats != member.beats) {
    member.beats = beats;
    member.heard = Clock::now();
  }
  return Clock::now() - member.heard > kSilent;
}

std::vector<std::int32_t> ElasticCarrier::regroup() {
  std::vector<std::int32_t> from;
  for (std::int32_t d = 0; d < devices(); ++d) from.push_back(d);
  for (;;) {
    const int come = waiting();
    std::set<std::size_t> gone;
    for (std::size_t d = 0; d < members_.size(); ++d)
      if (members_[d].gone || is_silent(members_[d])) gone.insert(d);
    std::vector<Member> group;
    std::vector<std::int32_t> came_from;
    std::size_t next = waiting_.size();
    for (const std::int32_t d : numbered_anew(members_.size(), gone, static_cast<std::size_t>(come))) {
      group.push_back(d >= 0 ? members_[d] : waiting_[--next]);
      came_from.push_back(d >= 0 ? from[d] : -1);
    }
    if (group.empty()) throw Error("no device is left", {}, "the run goes on from its last checkpoint when it is started again");
    for (const std::size_t d : gone) leave_out(members_[d]);
    members_ = std::move(group);
    from = std::move(came_from);
    waiting_.clear();
    sent_ = {};
    std::vector<Command> commands;
    for (std::int32_t d = 0; d < devices(); ++d)
      commands.push_back({.kind = Command::Kind::reconnect, .text = concat("group ", groups_), .device = d, .devices = devices()});
    ++groups_;
    std::vector<const Command*> each;
    for (const Command& command : commands) each.push_back(&command);
    const std::vector<Reply> replies = exchange(each);
    if (std::ranges::all_of(replies, [](const Reply& reply) { return reply.error.empty(); })) return from;
  }
}

Reply ElasticCarrier::answer(Member& member, std::int32_t device) {
  Reply reply;
  try {
    const Clock::time_point end = Clock::now() + 2 * of_seconds(options_.deadline) + kSilent;
    for (;;) {
      const bool silent = is_silent(member);  // before the look: it may have said something
      if (const auto bytes = mail_.take(from_member(member.id), kGlance)) return decode_reply(*bytes);
      if (silent || Clock::now() >= end) break;
    }
    reply.error =
        concat("device ", device, " was lost: ",
               has_ended(member.process) ? "its process has ended" : concat("its process said nothing for ", kSilent.count() / 1000, " s"));
  } catch (const std::exception& error) {
    reply.error = concat("device ", device, " was lost: ", reason(error));
  }
  member.gone = true;
  reply.lost = {device};
  reply.aborted = true;  // any other error tells more
  return reply;
}

std::vector<Reply> ElasticCarrier::exchange(const std::vector<const Command*>& commands) {
  std::vector<Reply> replies(commands.size());
  const Command* encoded = nullptr;
  std::vector<std::byte> message;
  for (std::size_t d = 0; d < commands.size(); ++d) {
    if (!commands[d] || members_[d].gone) continue;
    if (commands[d] != encoded) message = encode(*(encoded = commands[d]), sent_);  // once for all: what it sends they have then
    mail_.put(to_member(members_[d].id), message);
  }
  mail_.tidy();
  for (std::size_t d = 0; d < commands.size(); ++d)
    if (commands[d] && !members_[d].gone) replies[d] = answer(members_[d], static_cast<std::int32_t>(d));
  return replies;
}

// One membership of this process.
class ElasticMember {
 public:
  ElasticMember(Mail& mail, const Ranks& ranks, const ExecutorFactory& executor, const std::shared_ptr<const DataSource>& data,
                const GlooOptions& options)
      : options_(options), mail_(mail) {
    start_device(own_, mail_, ranks, executor, data, options);
    id_ = mail_.count(kComers, 1);
    mail_.put(from_member(id_), text_bytes(print(elastic_hello(options))));
    if (const std::string refusal = text_in(next()); !refusal.empty()) throw Error(refusal);
  }

  // Obeys until rank 0 says stop. False: the others went on without this process. Throws Error where the run failed.
  bool serve();

 private:
  std::vector<std::byte> next();
  Reply obey(const Command& command);

  GlooOptions options_;
  Mail& mail_;
  SentTasks sent_;
  std::int64_t id_ = 0;
  RankDevice own_;
};

std::vector<std::byte> ElasticMember::next() {
  for (;;) {
    mail_.count(beats_of(id_), 1);
    mail_.tidy();
    if (auto bytes = mail_.take(to_member(id_), kBeat)) return std::move(*bytes);
  }
}

Reply ElasticMember::obey(const Command& command) {
  if (std::string wrong = folder_error(command, options_.folder); !wrong.empty()) return {.error = std::move(wrong)};
  own_.post(command);
  std::optional<Reply> reply;
  while (!(reply = own_.wait_for(kBeat))) mail_.count(beats_of(id_), 1);
  return std::move(*reply);
}

bool ElasticMember::serve() {
  for (;;) {
    const std::vector<std::byte> bytes = next();
    const Command command = decode_command(bytes, sent_);
    if (command.kind == Command::Kind::reconnect) sent_ = {};
    if (command.kind == Command::Kind::stop && command.text == kLeftOut) return false;
    const Reply reply = obey(command);
    mail_.put(from_member(id_), encode(reply));
    if (command.kind == Command::Kind::step && !reply.error.empty()) own_.disconnect();  // so that the others hear of it
    if (command.kind != Command::Kind::stop) continue;
    if (!command.error.empty()) throw Error(command.error);
    return true;
  }
}

}  // namespace

std::unique_ptr<Cluster> make_elastic_cluster(const Ranks& ranks, int devices, const GlooOptions& options) {
  return make_cluster(std::make_unique<ElasticCarrier>(ranks, devices, checked_backend(options)));
}

int serve_elastic(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data, const GlooOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // a connection that the other end has closed is an error like others
  try {
    Mail mail(ranks, of_seconds(options.rendezvous), of_seconds(options.deadline));
    while (!ElasticMember(mail, ranks, executor, data, checked_backend(options)).serve()) {
    }
  } catch (const c10::Error&) {
    throw Error("rank 0 was lost: this device has no controller any more", {concat("it was at ", ranks.address, ":", ranks.port)},
                "start the run again: it goes on from its last checkpoint");
  }
  return 0;
}

}  // namespace penstock
