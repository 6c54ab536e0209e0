// SPDX-License-Identifier: Apache-2.0
// The verifier's verdict is that of an exhaustive exploration of all interleavings, and the interpreter obeys the rules under any
// order of completion.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "program/interpreter.h"
#include "program/random_transfers.h"
#include "program/verify.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::order_verdict;
using test::random_transfers;
using test::Rules;

// Visits every state that the devices can reach: how far each has come, and which transfers and collectives are complete. In either model
// a device does one collective after the other.
class Explorer {
 public:
  Explorer(const Program& program, ChannelModel model) : program_(program), rules_(program), model_(model) {
    std::map<std::tuple<int, int, int>, int> numbers;  // from, to, tag
    transfer_.resize(program.devices.size());
    for (int d = 0; d < devices(); ++d)
      for (const Instruction& i : instructions(d)) {
        int number = -1;
        if (i.opcode == Opcode::send) number = numbers.try_emplace({d, i.peer, i.tag}, static_cast<int>(numbers.size())).first->second;
        if (i.opcode == Opcode::recv) number = numbers.try_emplace({i.peer, d, i.tag}, static_cast<int>(numbers.size())).first->second;
        if (is_collective(i.opcode))
          number = numbers.try_emplace({kTogether, i.group, i.tag}, static_cast<int>(numbers.size())).first->second;
        transfer_[static_cast<std::size_t>(d)].push_back(number);
        ends_.resize(numbers.size(), 0);
        if (number >= 0) ++ends_[static_cast<std::size_t>(number)];
      }
    transfers_ = static_cast<int>(numbers.size());
  }

  // Whether no reachable state is stuck.
  bool always_finishes() {
    std::vector<State> open{State{}};
    std::unordered_set<State> seen{State{}};
    while (!open.empty()) {
      const State state = open.back();
      open.pop_back();
      const std::vector<State> next = successors(state);
      if (next.empty() && !is_final(state)) return false;
      for (State s : next)
        if (seen.insert(s).second) open.push_back(s);
    }
    return true;
  }

 private:
  // 8 bits of position per device from bit 0, one bit per complete transfer from bit 32.
  using State = std::uint64_t;
  static constexpr int kTogether = -1;  // in place of a peer
  int devices() const { return static_cast<int>(program_.devices.size()); }
  const std::vector<Instruction>& instructions(int d) const { return program_.devices[static_cast<std::size_t>(d)].instructions; }
  static std::size_t position(State state, int device) { return state >> (8 * device) & 0xff; }
  static bool complete(State state, int transfer) { return (state >> (32 + transfer) & 1) != 0; }
  int transfer(int device, std::size_t at) const { return transfer_[static_cast<std::size_t>(device)][at]; }

  bool is_final(State state) const {
    for (int d = 0; d < devices(); ++d)
      if (position(state, d) < instructions(d).size()) return false;
    return state >> 32 == (State{1} << transfers_) - 1;
  }

  std::vector<State> successors(State state) const {
    std::vector<State> next;
    std::vector<int> started(static_cast<std::size_t>(transfers_), 0);
    for (int d = 0; d < devices(); ++d) {
      std::set<int> busy;  // peers with an earlier transfer, or kTogether with an earlier collective, that is not complete
      for (std::size_t at = 0; at < position(state, d); ++at) {
        const int t = transfer(d, at);
        if (t < 0 || complete(state, t)) continue;
        const int lane = is_collective(instructions(d)[at].opcode) ? kTogether : instructions(d)[at].peer;
        const bool first = busy.insert(lane).second;
        if (first || (model_ == ChannelModel::tagged && lane != kTogether)) ++started[static_cast<std::size_t>(t)];
      }
      const auto done = [&](int device, std::size_t at) { return transfer(device, at) < 0 || complete(state, transfer(device, at)); };
      if (position(state, d) < instructions(d).size() && rules_.may_start(d, position(state, d), done))
        next.push_back(state + (State{1} << (8 * d)));
    }
    for (int t = 0; t < transfers_; ++t)
      if (started[static_cast<std::size_t>(t)] == ends_[static_cast<std::size_t>(t)]) next.push_back(state | State{1} << (32 + t));
    return next;
  }

  const Program& program_;
  Rules rules_;
  ChannelModel model_;
  std::vector<std::vector<int>> transfer_;  // [device][instruction]; -1: none
  std::vector<int> ends_;                   // of each transfer
  int transfers_ = 0;
};

TEST(Interleavings, VerdictEqualsExhaustiveExploration) {
  const int programs = test::rounds(5000);
  for (const ChannelModel model : {ChannelModel::tagged, ChannelModel::serial}) {
    int accepted = 0;
    for (int seed = 0; seed < programs; ++seed) {
      std::mt19937_64 random(seed);
      const Program program = random_transfers(random);
      const std::string message = order_verdict(program, model);
      if (message != "no error") {
        const bool about_order =
            message.find("can never finish") != std::string::npos || message.find("would never finish") != std::string::npos;
        ASSERT_TRUE(about_order) << "seed " << seed << "\n" << message << "\n" << print(program);
      }
      accepted += message == "no error";
      ASSERT_EQ(Explorer(program, model).always_finishes(), message == "no error") << "seed " << seed << "\n"
                                                                                   << message << "\n"
                                                                                   << print(program);
    }
    EXPECT_GT(accepted, programs / 10);
    EXPECT_LT(accepted, programs * 9 / 10);
  }
}

// Completes transfers, collectives and copies in random order, copies of one device in turn, those over the host and its collectives also,
// and checks every start against the rules.
class RandomMachine {
 public:
  RandomMachine(const Program& program, std::uint64_t seed) : program_(program), rules_(program), random_(seed) {
    for (const DeviceProgram& device : program.devices) {
      states_.emplace_back(device);
      done_.emplace_back(device.instructions.size(), false);
      released_.emplace_back(device.slots.size(), false);
    }
  }

  // Whether every device finished.
  bool run() {
    std::size_t finished = 0;
    while (finished < states_.size()) {
      finished = 0;
      for (device_ = 0; device_ < static_cast<int>(states_.size()); ++device_) finished += advance(state(), *this).finished();
      if (finished < states_.size() && !complete_one()) return false;
    }
    return std::all_of(done_.begin(), done_.end(),
                       [](const std::vector<bool>& d) { return std::all_of(d.begin(), d.end(), std::identity()); });
  }

  Event run(const Instruction&) { return begin(); }
  Event start(const Instruction& i) { return i.opcode == Opcode::input ? finish_at_once() : begin(); }
  bool done(Event event) const { return done_[static_cast<std::size_t>(device_)][static_cast<std::size_t>(event)]; }
  void release(SlotId slot) {
    std::vector<bool>& released = released_[static_cast<std::size_t>(device_)];
    EXPECT_FALSE(released[slot.index()]);
    released[slot.index()] = true;
    check_rules();
    finish_at_once();
  }

 private:
  DeviceState& state() { return states_[static_cast<std::size_t>(device_)]; }

  void check_rules() {
    const auto done = [&](int device, std::size_t at) { return bool{done_[static_cast<std::size_t>(device)][at]}; };
    EXPECT_TRUE(rules_.may_start(device_, state().next, done)) << describe(program_, device_, state().next);
  }

  // An instruction's event is its number, for interpreters ask only about their own device's.
  Event begin() {
    check_rules();
    open_.emplace_back(device_, state().next);
    return static_cast<Event>(state().next);
  }
  Event finish_at_once() {
    done_[static_cast<std::size_t>(device_)][state().next] = true;
    return kNoEvent;
  }

  using End = std::pair<int, std::size_t>;  // device, instruction
  const Instruction& instruction(const End& end) const {
    return program_.devices[static_cast<std::size_t>(end.first)].instructions[end.second];
  }
  // No older one of its device's is open on the lane: compute, host copies, collectives; transfers have none.
  bool is_first(const End& end) const {
    enum class Lane : std::uint8_t { compute, host, collectives, none };
    const auto lane = [&](const End& e) {
      const Opcode opcode = instruction(e).opcode;
      if (opcode == Opcode::send || opcode == Opcode::recv) return Lane::none;
      return is_collective(opcode) ? Lane::collectives : is_host_copy(opcode) ? Lane::host : Lane::compute;
    };
    const auto same = [&](const End& e) { return e == end || (e.first == end.first && lane(e) == lane(end) && lane(e) != Lane::none); };
    return *std::find_if(open_.begin(), open_.end(), same) == end;
  }

  // A random one of those that can complete: all ends have been started, and each is the first of its lane.
  bool complete_one() {
    std::vector<End> ready;
    for (const End& end : open_) {
      const auto others = rules_.other_ends(end.first, end.second);
      if (is_first(end) && std::all_of(others.begin(), others.end(), [&](const End& other) {
            return std::count(open_.begin(), open_.end(), other) > 0 && is_first(other);
          }))
        ready.push_back(end);
    }
    if (ready.empty()) return false;
    const End chosen = ready[random_() % ready.size()];
    for (const End& other : rules_.other_ends(chosen.first, chosen.second)) complete(other.first, other.second);
    complete(chosen.first, chosen.second);
    return true;
  }
  void complete(int device, std::size_t at) {
    done_[static_cast<std::size_t>(device)][at] = true;
    std::erase(open_, std::pair<int, std::size_t>(device, at));
  }

  const Program& program_;
  Rules rules_;
  std::mt19937_64 random_;
  std::vector<DeviceState> states_;
  std::vector<std::vector<bool>> done_, released_;  // [device][instruction], [device][slot]
  std::vector<std::pair<int, std::size_t>> open_;   // started, not complete
  int device_ = 0;
};

TEST(Interleavings, InterpreterObeysTheRulesUnderAnyCompletionOrder) {
  for (std::uint64_t seed = 0; seed < test::rounds(10000u); ++seed) {
    std::mt19937_64 random(seed);
    const Program program = random_transfers(random);
    const bool verified = order_verdict(program, ChannelModel::tagged) == "no error";
    SCOPED_TRACE(testing::Message() << "seed " << seed << "\n" << print(program));
    ASSERT_EQ(RandomMachine(program, seed).run(), verified);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace penstock
