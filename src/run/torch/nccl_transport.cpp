// SPDX-License-Identifier: Apache-2.0
#include "torch/nccl_transport.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/invariant.h"
#include "base/text.h"
#include "devices/host_transfers.h"
#include "torch/arena.h"
#include "torch/device.h"
#include "torch/device_sum.h"
#include "torch/nccl_communicator.h"
#include "torch/nccl_library.h"
#include "torch/stream_recorder.h"

namespace penstock {
namespace {

// Thread blocks that an operation may take: of a transfer, so that several go on beside kernels, and of a collective, of which one is under
// way.
constexpr int kTransferBlocks = 4, kCollectiveBlocks = 32;
constexpr int kMostBlocks = 108;               // multiprocessors of an A100; later GPUs have more
constexpr std::chrono::milliseconds kLook{1};  // how often NCCL is asked for errors while a host waits
// Up to so many bytes all members of a sum send all they have to all, in one round instead of two.
constexpr std::size_t kOneRound = std::size_t{64} << 10;

using Direction = std::pair<std::int32_t, std::int32_t>;  // from, to

// The bytes that all members give, taken apart into as many pieces as there are members; numbers stay whole.
struct Pieces {
  std::size_t bytes, members, number;  // of one number

  std::size_t begin(std::size_t member) const { return bytes / number * member / members * number; }
  std::size_t size(std::size_t member) const { return begin(member + 1) - begin(member); }
  template <class Byte>
  std::span<Byte> of(std::span<Byte> all, std::size_t member) const {
    return all.subspan(begin(member), size(member));
  }
};

bool in_one_round(std::size_t members, std::size_t bytes) {
  return members == 2 || bytes <= kOneRound;
}

std::span<std::byte> result_of(const CollectiveCall& call, std::size_t member, std::size_t members) {
  return call.to.subspan(member * (call.to.size() / members), call.to.size() / members);
}

// Bytes of memory that a collective takes: room for a part of each member's, all of them equal.
std::size_t scratch_part(const CollectiveCall& call, std::size_t members) {
  if (call.opcode == Opcode::reduce_scatter) return call.to.size();
  if (call.opcode != Opcode::all_reduce) return 0;
  if (in_one_round(members, call.from.size())) return call.from.size();
  return call.from.size() / members + static_cast<std::size_t>(byte_size(call.dtype));
}

class NcclTransport final : public Transport, private StreamWatch {
 public:
  NcclTransport(c10::intrusive_ptr<c10d::Store> store, StreamLanes& lanes, std::chrono::milliseconds longest)
      : library_(nccl_library()), store_(std::move(store)), lanes_(lanes), longest_(longest), group_stream_(lanes.new_stream()) {
    lanes.attach(*this);
  }
  // Ends all communicators at once: those that were recorded together let go together.
  ~NcclTransport() override {
    give_up();
    lanes_.detach();
  }

  void begin_step(const Program& program, int device) override;
  Event send(int peer, int, std::span<const std::byte> bytes) override { return transfer({device_, peer}, bytes); }
  Event receive(int peer, int, std::span<std::byte> bytes) override { return transfer({peer, device_}, bytes); }
  Event collective(const CollectiveCall& call) override;
  bool done(Event event) override { return lanes_.done(event); }
  bool wait(Event event, Deadline deadline) override { return lanes_.wait(event, deadline); }
  std::shared_ptr<StepRecorder> recorder(const Program&) override { return std::make_shared<StreamRecorder>(lanes_.device(), 1); }
  DeviceLanes* lanes() const override { return &lanes_; }

 private:
  struct Channel {
    std::unique_ptr<NcclCommunicator> communicator;
    c10::Stream stream;
  };
  // The data that a group's collective works with.
  struct Group {
    const NcclCommunicator& communicator;
    std::size_t members, own;
  };

  void look() override;
  std::vector<std::int32_t> peers() const override { return peers_; }
  void give_up() override;

  void connect(const std::set<Direction>& directions);
  void connect(const Program& program, const std::set<std::int32_t>& groups);
  template <class Issue>
  void use_once(const NcclCommunicator& communicator, const c10::Stream& stream, const Issue& issue);
  void make_room(const Program& program);
  void grow(std::size_t bytes);
  void* handle_of(const c10::Stream& stream) const { return functions_of(lanes_.device())->stream_handle(stream); }
  Event transfer(const Direction& direction, std::span<const std::byte> bytes);
  void issue(const Direction& direction, std::span<const std::byte> bytes);
  void do_collective(const Group& group, const CollectiveCall& call);
  void all_reduce(const Group& group, const CollectiveCall& call);
  void broadcast(const Group& group, const CollectiveCall& call);
  void copy_to(std::span<std::byte> to, std::span<const std::byte> from) const;
  template <class Out, class In>
  void exchange(const Group& group, const Out& out, const In& in);
  template <class Out>
  void sum(const Group& group, const CollectiveCall& call, std::span<std::byte> to, const Out& out);
  std::span<std::byte> scratch(std::size_t member, std::size_t bytes) const { return {scratch_.back().data() + member * bytes, bytes}; }

  const NcclLibrary& library_;
  c10::intrusive_ptr<c10d::Store> store_;
  StreamLanes& lanes_;
  std::chrono::milliseconds longest_;
  int device_ = -1;
  const std::vector<std::vector<std::int32_t>>* groups_ = nullptr;  // of the program
  std::vector<std::int32_t> peers_;                                 // that the program's device sends to, receives from or has groups with
  std::vector<Arena> scratch_;  // of collectives: the last is the largest, and recordings may have the addresses of those before
  c10::Stream group_stream_;
  std::map<Direction, Channel> channels_;
  std::map<std::vector<std::int32_t>, std::unique_ptr<NcclCommunicator>> communicators_;  // of groups, by members
  std::chrono::steady_clock::time_point next_look_{};
};

void NcclTransport::begin_step(const Program& program, int device) {
  if (!host_transfers(program.devices[static_cast<std::size_t>(device)]).empty())
    throw Error(concat("device ", device, " sends a snapshot or keeps another's"),
                {"snapshots lie in the host's memory, and NCCL sends from device to device"}, "--backend gloo, or no buddies");
  device_ = device;
  groups_ = &program.groups;
  std::set<Direction> directions;
  std::set<std::int32_t> groups, peers;
  for (const Instruction& instruction : program.devices[static_cast<std::size_t>(device)].instructions) {
    if (instruction.opcode == Opcode::send) directions.insert({device, instruction.peer});
    if (instruction.opcode == Opcode::recv) directions.insert({instruction.peer, device});
    if (is_collective(instruction.opcode)) groups.insert(instruction.group);
  }
  for (const auto& [from, to] : directions) peers.insert(from == device ? to : from);
  for (const std::int32_t group : groups)
    peers.insert(program.groups[static_cast<std::size_t>(group)].begin(), program.groups[static_cast<std::size_t>(group)].end());
  peers.erase(device);
  peers_.assign(peers.begin(), peers.end());
  const std::size_t blocks = directions.size() * kTransferBlocks + (groups.empty() ? 0 : kCollectiveBlocks);
  if (blocks > kMostBlocks)
    throw Error(concat("device ", device, " sends to and receives from other devices in ", directions.size(), " directions"),
                {concat("over NCCL these take ", blocks, " thread blocks at once, and a GPU may have as few as ", kMostBlocks)},
                "--backend gloo");
  const c10::StreamGuard on_device(lanes_.stream(DeviceLane::compute));
  make_room(program);
  connect(directions);
  connect(program, groups);
}

// Memory is taken while nothing is under way: on a GPU it may keep the host waiting for all that is.
void NcclTransport::make_room(const Program& program) {
  const DeviceProgram& device = program.devices[static_cast<std::size_t>(device_)];
  std::size_t most = 1;  // a byte of each member is what connections are used with first
  for (const Instruction& instruction : device.instructions) {
    if (!is_collective(instruction.opcode)) continue;
    const std::size_t members = program.groups[static_cast<std::size_t>(instruction.group)].size();
    most = std::max(most, members);
    for (const SlotId operand : device.operands_of(instruction))
      for (const Result& result : device.results_of(instruction)) {
        CollectiveCall call{.opcode = instruction.opcode};
        call.dtype = DType::f64;
        call.from = {static_cast<const std::byte*>(nullptr), static_cast<std::size_t>(slot_bytes(device.slots[operand.index()]))};
        call.to = {static_cast<std::byte*>(nullptr), static_cast<std::size_t>(slot_bytes(device.slots[result.slot.index()]))};
        most = std::max(most, members * scratch_part(call, members));
      }
  }
  grow(most);
}

void NcclTransport::grow(std::size_t bytes) {
  if (scratch_.empty() || static_cast<std::size_t>(scratch_.back().bytes()) < bytes)
    scratch_.emplace_back(static_cast<std::int64_t>(bytes), lanes_.device());
}

void NcclTransport::connect(const std::set<Direction>& directions) {
  for (const Direction& direction : directions) {
    if (channels_.contains(direction)) continue;
    const auto [from, to] = direction;
    auto communicator = std::make_unique<NcclCommunicator>(library_, *store_, concat("from ", from, " to ", to), std::vector{from, to},
                                                           from == device_ ? 0 : 1, kTransferBlocks, longest_);
    const Channel& channel = channels_.try_emplace(direction, Channel{std::move(communicator), lanes_.new_stream()}).first->second;
    use_once(*channel.communicator, channel.stream, [&] { issue(direction, scratch(0, 1)); });
  }
}

template <class Issue>
void NcclTransport::use_once(const NcclCommunicator& communicator, const c10::Stream& stream, const Issue& issue) {
  const Event used = lanes_.enqueue(stream, [&] { return issue(), true; });
  if (!lanes_.wait(used, std::chrono::steady_clock::now() + longest_)) communicator.blame("its first message did not come");
}

void NcclTransport::connect(const Program& program, const std::set<std::int32_t>& groups) {
  std::set<std::vector<std::int32_t>> wanted;
  for (const std::int32_t group : groups) wanted.insert(program.groups[static_cast<std::size_t>(group)]);
  for (const std::vector<std::int32_t>& members : wanted) {
    if (communicators_.contains(members)) continue;
    const std::size_t own = place_in_group(members, device_).value();
    auto made = std::make_unique<NcclCommunicator>(library_, *store_, concat("group ", join_devices(members, "-")), members, own,
                                                   kCollectiveBlocks, longest_);
    const NcclCommunicator& communicator = *communicators_.emplace(members, std::move(made)).first->second;
    use_once(communicator, group_stream_, [&] {
      const auto byte = [&](std::size_t member) { return scratch(member, 1); };
      exchange({communicator, members.size(), own}, [&](std::size_t) { return byte(own); }, byte);
    });
  }
}

Event NcclTransport::transfer(const Direction& direction, std::span<const std::byte> bytes) {
  if (bytes.empty()) return kNoEvent;
  return lanes_.enqueue(channels_.at(direction).stream, [&] { return issue(direction, bytes), true; });
}

void NcclTransport::issue(const Direction& direction, std::span<const std::byte> bytes) {
  const auto& [communicator, lane] = channels_.at(direction);
  NcclComm* const handle = communicator->handle();
  void* const stream = handle_of(lane);
  auto* const data = const_cast<std::byte*>(bytes.data());
  communicator->check(direction.first == device_ ? library_.send(data, bytes.size(), kNcclUint8, 1, handle, stream)
                                                 : library_.receive(data, bytes.size(), kNcclUint8, 0, handle, stream));
}

Event NcclTransport::collective(const CollectiveCall& call) {
  if (std::max(call.from.size(), call.to.size()) == 0) return kNoEvent;
  const std::vector<std::int32_t>& members = (*groups_)[static_cast<std::size_t>(call.group)];
  const Group group{*communicators_.at(members), members.size(), call.member};
  grow(members.size() * scratch_part(call, members.size()));
  return lanes_.enqueue(group_stream_, [&] { return do_collective(group, call), true; });
}

void NcclTransport::do_collective(const Group& group, const CollectiveCall& call) {
  const auto whole = [&](std::size_t) { return call.from; };
  const auto result = [&](std::size_t member) { return result_of(call, member, group.members); };
  switch (call.opcode) {
    case Opcode::all_reduce:
      return all_reduce(group, call);
    case Opcode::reduce_scatter:
      return sum(group, call, call.to, [&](std::size_t member) { return call.from.subspan(member * call.to.size(), call.to.size()); });
    case Opcode::all_to_all: {
      const Pieces pieces{call.from.size(), group.members, 1};
      copy_to(result(group.own), pieces.of(call.from, group.own));
      return exchange(group, [&](std::size_t member) { return pieces.of(call.from, member); }, result);
    }
    case Opcode::all_gather:
      copy_to(result(group.own), call.from);
      return exchange(group, whole, result);
    default:
      return broadcast(group, call);
  }
}

// Sends each other member what out() says of it, and takes in() from it, all at once. Both ends of a message agree in its size.
template <class Out, class In>
void NcclTransport::exchange(const Group& group, const Out& out, const In& in) {
  NcclComm* const handle = group.communicator.handle();
  void* const stream = handle_of(group_stream_);
  int failed = kNcclSuccess;
  const auto note = [&](int result) { failed = result == kNcclSuccess || result == kNcclInProgress ? failed : result; };
  note(library_.group_start());
  for (std::size_t member = 0; member < group.members; ++member) {
    if (member == group.own) continue;
    const std::span<const std::byte> given = out(member);
    const std::span<std::byte> taken = in(member);
    if (!given.empty()) note(library_.send(given.data(), given.size(), kNcclUint8, static_cast<int>(member), handle, stream));
    if (!taken.empty()) note(library_.receive(taken.data(), taken.size(), kNcclUint8, static_cast<int>(member), handle, stream));
  }
  const int ended = library_.group_end();  // whatever failed: the next group of this thread begins anew
  group.communicator.check(failed == kNcclSuccess ? ended : failed);
}

// The sum of what each member has for this one: out() says what this has for each.
template <class Out>
void NcclTransport::sum(const Group& group, const CollectiveCall& call, std::span<std::byte> to, const Out& out) {
  const auto in = [&](std::size_t member) { return scratch(member, to.size()); };
  exchange(group, out, in);
  if (to.empty()) return;
  std::vector<const std::byte*> terms;
  for (std::size_t member = 0; member < group.members; ++member)
    terms.push_back(member == group.own ? out(member).data() : in(member).data());
  const c10::Device device = lanes_.device();
  numbers_at(to.data(), to.size(), call.dtype, device).copy_(sum_of_terms(terms, to.size(), call.dtype, device));
}

void NcclTransport::all_reduce(const Group& group, const CollectiveCall& call) {
  if (in_one_round(group.members, call.from.size())) return sum(group, call, call.to, [&](std::size_t) { return call.from; });
  const Pieces pieces{call.from.size(), group.members, static_cast<std::size_t>(byte_size(call.dtype))};
  const std::span<std::byte> own = pieces.of(call.to, group.own);
  sum(group, call, own, [&](std::size_t member) { return pieces.of(call.from, member); });
  exchange(group, [&](std::size_t) { return own; }, [&](std::size_t member) { return pieces.of(call.to, member); });
}

// In pieces the root sends each of them once, and then all members send all others theirs.
void NcclTransport::broadcast(const Group& group, const CollectiveCall& call) {
  const bool gives = group.own == call.root;
  const std::span<const std::byte> nothing, from = gives ? call.from : std::span<const std::byte>(call.to);
  if (in_one_round(group.members, from.size()))
    return exchange(
        group, [&](std::size_t) { return gives ? from : nothing; },
        [&](std::size_t member) { return member == call.root ? call.to : std::span<std::byte>(); });
  const Pieces pieces{from.size(), group.members, 1};
  exchange(
      group, [&](std::size_t member) { return gives ? pieces.of(from, member) : nothing; },
      [&](std::size_t member) { return member == call.root ? pieces.of(call.to, group.own) : std::span<std::byte>(); });
  exchange(
      group, [&](std::size_t member) { return member == call.root ? nothing : pieces.of(from, group.own); },
      [&](std::size_t member) { return gives ? std::span<std::byte>() : pieces.of(call.to, member); });
}

void NcclTransport::copy_to(std::span<std::byte> to, std::span<const std::byte> from) const {
  copy_bytes({to.data(), lanes_.device()}, {const_cast<std::byte*>(from.data()), lanes_.device()}, from.size());
}

void NcclTransport::look() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLook;
  for (const auto& [direction, channel] : channels_) channel.communicator->look();
  for (const auto& [members, communicator] : communicators_) communicator->look();
}

void NcclTransport::give_up() {
  for (const auto& [direction, channel] : channels_) channel.communicator->give_up();
  for (const auto& [members, communicator] : communicators_) communicator->give_up();
}

}  // namespace

std::unique_ptr<Transport> make_nccl_transport(c10::intrusive_ptr<c10d::Store> store, StreamLanes& lanes,
                                               std::chrono::milliseconds longest) {
  return std::make_unique<NcclTransport>(std::move(store), lanes, longest);
}

}  // namespace penstock
