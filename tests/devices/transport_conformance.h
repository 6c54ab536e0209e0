// SPDX-License-Identifier: Apache-2.0
// The tests that every Transport must pass. One file of a test program includes it; all that have cases (transport_cases.h) instantiate it
// with their own links.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/bf16.h"
#include "devices/executor.h"
#include "devices/transport_cases.h"
#include "support/collective_result.h"

namespace penstock::test {

// Device 0 sends `count` transfers to device 1 and receives as many, tags 0.. in each direction; all other fields are empty.
inline Program exchange_program(int count) {
  Program program;
  program.devices.resize(2);
  for (int device = 0; device < 2; ++device)
    for (int tag = 0; tag < count; ++tag)
      for (const Opcode opcode : {Opcode::send, Opcode::recv}) {
        Instruction instruction;
        instruction.opcode = opcode;
        instruction.peer = 1 - device;
        instruction.tag = tag;
        program.devices[static_cast<std::size_t>(device)].instructions.push_back(instruction);
      }
  return program;
}

inline Deadline in(double seconds) {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

inline std::vector<std::byte> pattern(int device, int step, int tag, std::size_t size) {
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(31 * device + 7 * step + 3 * tag + static_cast<int>(i) + 1);
  return out;
}

// Both devices start all sends and receives in an order of their own, wait in another, for several steps that nothing else separates.
TEST_P(TransportConformance, MatchesByTagInAnyOrder) {
  constexpr int kTransfers = 12, kSteps = 5;
  const Program program = exchange_program(kTransfers);
  auto ends = GetParam().make(2);
  const auto size = [](int tag) { return static_cast<std::size_t>(64 + 5000 * tag); };
  std::vector<int> failures(2);
  const auto act = [&](int device) {
    std::mt19937_64 random(static_cast<std::uint64_t>(device));
    Transport& end = *ends[static_cast<std::size_t>(device)];
    for (int step = 0; step < kSteps; ++step) {
      std::vector<std::vector<std::byte>> out, got;
      std::vector<int> order;
      for (int tag = 0; tag < kTransfers; ++tag) {
        out.push_back(pattern(device, step, tag, size(tag)));
        got.emplace_back(size(tag));
        order.push_back(tag);
        order.push_back(tag + kTransfers);
      }
      std::shuffle(order.begin(), order.end(), random);
      if (GetParam().in_order)
        for (int next[] = {0, kTransfers}; int& item : order) item = next[item / kTransfers]++;
      end.begin_step(program, device);
      std::vector<Event> events;
      for (int item : order) {
        const int tag = item % kTransfers;
        const auto at = static_cast<std::size_t>(tag);
        events.push_back(item < kTransfers ? end.send(1 - device, tag, out[at]) : end.receive(1 - device, tag, got[at]));
      }
      std::shuffle(events.begin(), events.end(), random);
      for (Event event : events)
        if (event != kNoEvent && (!end.wait(event, in(20)) || !end.done(event))) ++failures[static_cast<std::size_t>(device)];
      for (int tag = 0; tag < kTransfers; ++tag)
        if (got[static_cast<std::size_t>(tag)] != pattern(1 - device, step, tag, size(tag))) ++failures[static_cast<std::size_t>(device)];
    }
  };
  std::thread other(act, 1);
  act(0);
  other.join();
  EXPECT_EQ(failures, std::vector<int>(2));
}

// Both ends send at once and receive after: nothing is buffered, nothing deadlocks.
TEST_P(TransportConformance, SendsStartWithoutAReceiver) {
  const Program program = exchange_program(1);
  auto ends = GetParam().make(2);
  bool good[2] = {};
  const auto act = [&](int device) {
    Transport& end = *ends[static_cast<std::size_t>(device)];
    const auto out = pattern(device, 0, 0, 1 << 20);
    std::vector<std::byte> got(out.size());
    end.begin_step(program, device);
    const Event sent = end.send(1 - device, 0, out);
    const Event received = end.receive(1 - device, 0, got);
    good[device] = (received == kNoEvent || end.wait(received, in(20))) && (sent == kNoEvent || end.wait(sent, in(20))) &&
                   got == pattern(1 - device, 0, 0, got.size());
  };
  std::thread other(act, 1);
  act(0);
  other.join();
  EXPECT_TRUE(good[0] && good[1]);
}

TEST_P(TransportConformance, AWaitEndsAtItsDeadline) {
  auto ends = GetParam().make(2);
  const Program program = exchange_program(1);
  std::thread other([&] { ends[1]->begin_step(program, 1); });
  ends[0]->begin_step(program, 0);
  other.join();
  std::vector<std::byte> got(64);
  const Event received = ends[0]->receive(1, 0, got);
  ASSERT_NE(received, kNoEvent);
  EXPECT_FALSE(ends[0]->done(received));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(ends[0]->wait(received, in(0.1)));
  const auto time = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(time, std::chrono::milliseconds(99));
  EXPECT_LT(time, std::chrono::seconds(10));
}

// A collective as all members see it.
struct Meeting {
  CollectiveCall call;    // without its member and memory
  std::size_t piece = 0;  // bytes that a member gives or takes at least
  bool in_place = false;
};

// Every device's collectives, and nothing else.
inline Program collective_program(int devices, std::vector<std::vector<std::int32_t>> groups, const std::vector<Meeting>& meetings) {
  Program program;
  program.devices.resize(static_cast<std::size_t>(devices));
  program.groups = std::move(groups);
  for (const Meeting& meeting : meetings)
    for (const std::int32_t member : program.groups[static_cast<std::size_t>(meeting.call.group)]) {
      Instruction& instruction = program.devices[static_cast<std::size_t>(member)].instructions.emplace_back();
      instruction.opcode = meeting.call.opcode;
      instruction.group = meeting.call.group;
      instruction.tag = meeting.call.tag;
    }
  return program;
}

// All five, of all sizes from nothing to blocks that many can work at, in random order, over the groups in turn.
inline std::vector<Meeting> random_meetings(const std::vector<std::vector<std::int32_t>>& groups, std::mt19937_64& random) {
  std::vector<Meeting> out;
  int next = 0;
  for (const std::size_t piece : {0, 64, 64 * 65, 64 * 4801})
    for (const Opcode opcode :
         {Opcode::all_reduce, Opcode::all_reduce, Opcode::all_gather, Opcode::reduce_scatter, Opcode::broadcast, Opcode::all_to_all}) {
      constexpr DType kSummed[] = {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64};
      Meeting meeting{{opcode}, piece, opcode == Opcode::all_reduce && random() % 2 == 0};
      meeting.call.dtype = kSummed[random() % std::size(kSummed)];
      meeting.call.group = static_cast<std::int32_t>(static_cast<std::size_t>(next++) % groups.size());
      meeting.call.root = random() % groups[static_cast<std::size_t>(meeting.call.group)].size();
      out.push_back(meeting);
    }
  std::shuffle(out.begin(), out.end(), random);
  std::vector<std::int32_t> tags(groups.size(), 0);
  for (Meeting& meeting : out) meeting.call.tag = tags[static_cast<std::size_t>(meeting.call.group)]++;
  return out;
}

// Small whole numbers, whose sums are exact in any order; or fractions, whose sums are not.
inline std::vector<std::byte> numbers(DType dtype, std::size_t bytes, std::uint64_t seed, bool fractions = false) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(bytes);
  const auto fill = [&]<class T>(T) {
    for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
      T value = static_cast<T>(random() % 1000);
      if (fractions) value /= static_cast<T>(7);
      std::memcpy(out.data() + at, &value, sizeof(T));
    }
  };
  // In eight bits, so that sums of small whole numbers are exact too.
  const auto fill_bf16 = [&] {
    for (std::size_t at = 0; at < bytes; at += 2) {
      const std::uint16_t value = bf16_of_f32(static_cast<float>(random() % 32) / (fractions ? 7 : 1));
      std::memcpy(out.data() + at, &value, 2);
    }
  };
  dtype == DType::bf16  ? fill_bf16()
  : dtype == DType::f32 ? fill(float{})
  : dtype == DType::f64 ? fill(double{})
  : dtype == DType::i32 ? fill(std::int32_t{})
                        : fill(std::int64_t{});
  return out;
}

// `act` on a thread of each device.
template <class Act>
void on_all(int devices, const Act& act) {
  std::vector<std::thread> threads;
  for (int device = 0; device < devices; ++device) threads.emplace_back(act, device);
  for (std::thread& thread : threads) thread.join();
}

inline std::size_t place_in(const std::vector<std::int32_t>& members, int device) {
  return static_cast<std::size_t>(std::find(members.begin(), members.end(), device) - members.begin());
}

// One device's memory for a meeting, and how it calls.
struct Part {
  std::vector<std::byte> from, to;
  Part(const Meeting& meeting, std::size_t member, std::size_t members, std::vector<std::byte> given) : from(std::move(given)) {
    const Opcode opcode = meeting.call.opcode;
    const bool gives = opcode != Opcode::broadcast || member == meeting.call.root;
    if (!gives) from.clear();
    if (opcode == Opcode::broadcast ? !gives : !meeting.in_place)
      to.resize(opcode == Opcode::all_gather || opcode == Opcode::all_to_all ? meeting.piece * members : meeting.piece);
  }
  CollectiveCall call(const Meeting& meeting, std::size_t member) {
    CollectiveCall out = meeting.call;
    out.member = member;
    out.from = from;
    out.to = meeting.in_place ? from : to;
    return out;
  }
  const std::vector<std::byte>& result(const Meeting& meeting) const { return meeting.in_place ? from : to; }
};

inline std::size_t given_bytes(const Meeting& meeting, std::size_t members) {
  const bool whole = meeting.call.opcode == Opcode::reduce_scatter || meeting.call.opcode == Opcode::all_to_all;
  return meeting.piece * (whole ? members : 1);
}

// Each device starts all its collectives, of two groups in turn, and waits in an order of its own; several steps that nothing else
// separates.
TEST_P(TransportConformance, CollectivesGiveTheirResultsInAnyOrderOfWaits) {
  for (int devices : {2, 3, 4}) {
    SCOPED_TRACE(devices);
    std::mt19937_64 random(static_cast<std::uint64_t>(devices));
    std::vector<std::vector<std::int32_t>> groups(2);
    for (std::int32_t d = 0; d < devices; ++d) groups[0].push_back(d);
    groups[1].assign(groups[0].begin() + 1, groups[0].end());
    if (groups[1].size() < 2) groups.pop_back();
    const std::vector<Meeting> meetings = random_meetings(groups, random);
    const Program program = collective_program(devices, groups, meetings);
    auto ends = GetParam().make(devices);
    std::vector<int> failures(static_cast<std::size_t>(devices));
    const auto given = [&](int device, int step, std::size_t m) {
      const std::size_t members = groups[static_cast<std::size_t>(meetings[m].call.group)].size();
      return numbers(meetings[m].call.dtype, given_bytes(meetings[m], members),
                     static_cast<std::uint64_t>(device) + 10 * static_cast<std::uint64_t>(step) + 100 * m);
    };
    const auto expected = [&](int device, int step, std::size_t m) {
      const std::vector<std::int32_t>& members = groups[static_cast<std::size_t>(meetings[m].call.group)];
      std::vector<std::vector<std::byte>> all;
      for (const std::int32_t member : members) all.push_back(given(member, step, m));
      return collective_result(meetings[m].call.opcode, meetings[m].call.dtype, meetings[m].call.root, place_in(members, device), all);
    };
    on_all(devices, [&](int device) {
      Transport& end = *ends[static_cast<std::size_t>(device)];
      std::mt19937_64 own(static_cast<std::uint64_t>(device));
      for (int step = 0; step < 3; ++step) {
        end.begin_step(program, device);
        std::map<std::size_t, Part> parts;  // by meeting
        std::vector<Event> events;
        for (std::size_t m = 0; m < meetings.size(); ++m) {
          const std::vector<std::int32_t>& members = groups[static_cast<std::size_t>(meetings[m].call.group)];
          const std::size_t member = place_in(members, device);
          if (member == members.size()) continue;
          Part& part = parts.try_emplace(m, meetings[m], member, members.size(), given(device, step, m)).first->second;
          events.push_back(end.collective(part.call(meetings[m], member)));
        }
        std::shuffle(events.begin(), events.end(), own);
        int& failed = failures[static_cast<std::size_t>(device)];
        for (Event event : events) failed += event != kNoEvent && (!end.wait(event, in(20)) || !end.done(event));
        for (const auto& [m, part] : parts) failed += part.result(meetings[m]) != expected(device, step, m);
      }
    });
    EXPECT_EQ(failures, std::vector<int>(static_cast<std::size_t>(devices)));
  }
}

TEST_P(TransportConformance, AllMembersGetTheSameBitsOfASum) {
  constexpr int kDevices = 4;
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    Meeting meeting{{Opcode::all_reduce}, 64 * 1001};
    meeting.call.dtype = dtype;
    meeting.call.group = meeting.call.tag = 0;
    const Program program = collective_program(kDevices, {{0, 1, 2, 3}}, {meeting});
    auto ends = GetParam().make(kDevices);
    std::vector<std::vector<std::byte>> got(kDevices);
    on_all(kDevices, [&](int device) {
      Transport& end = *ends[static_cast<std::size_t>(device)];
      const auto member = static_cast<std::size_t>(device);
      Part part(meeting, member, kDevices, numbers(dtype, meeting.piece, member, true));
      end.begin_step(program, device);
      if (const Event event = end.collective(part.call(meeting, member)); event == kNoEvent || end.wait(event, in(20)))
        got[member] = part.to;
    });
    for (const std::vector<std::byte>& other : got) EXPECT_EQ(other, got[0]);
    EXPECT_FALSE(got[0].empty());
  }
}

// Sums of several sizes, each in both of two groups: meeting 2 i is the first group's, and 2 i + 1 the second's.
inline std::vector<Meeting> sums_of_two_groups() {
  std::vector<Meeting> out;
  for (const std::size_t piece : {64, 64 * 5, 64 * 333, 64 * 4801})
    for (const Opcode opcode : {Opcode::all_reduce, Opcode::reduce_scatter})
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
        for (const std::int32_t group : {0, 1}) {
          Meeting& meeting = out.emplace_back(Meeting{{opcode, group, static_cast<std::int32_t>(out.size() / 2)}, piece});
          meeting.call.dtype = dtype;
        }
  return out;
}

// Devices are of two groups in turn. In both groups member i has the same terms, at each repetition; who comes first is left to chance.
TEST_P(TransportConformance, GroupsGetTheSameBitsOfEqualTerms) {
  constexpr int kSteps = 3;
  const std::vector<Meeting> meetings = sums_of_two_groups();
  for (const std::size_t members : {2, 3, 4}) {
    SCOPED_TRACE(members);
    const int devices = 2 * static_cast<int>(members);
    std::vector<std::vector<std::int32_t>> groups(2);
    for (std::int32_t d = 0; d < devices; ++d) groups[static_cast<std::size_t>(d % 2)].push_back(d);
    const Program program = collective_program(devices, groups, meetings);
    auto ends = GetParam().make(devices);
    std::vector<std::vector<std::vector<std::byte>>> got(static_cast<std::size_t>(devices));  // of each device, in order
    on_all(devices, [&](int device) {
      const auto own = static_cast<std::size_t>(device), member = own / 2;
      std::mt19937_64 random(own);
      for (int step = 0; step < kSteps; ++step) {
        ends[own]->begin_step(program, device);
        for (std::size_t m = own % 2; m < meetings.size(); m += 2) {
          const std::uint64_t seed = 100 * (m / 2) + member;
          Part part(meetings[m], member, members, numbers(meetings[m].call.dtype, given_bytes(meetings[m], members), seed, true));
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
          const Event event = ends[own]->collective(part.call(meetings[m], member));
          if (event == kNoEvent || ends[own]->wait(event, in(20))) got[own].push_back(part.to);
        }
      }
    });
    const std::size_t sums = meetings.size() / 2;  // of a group, in a step
    for (std::size_t d = 0; d < got.size(); ++d) {
      ASSERT_EQ(got[d].size(), kSteps * sums);
      for (std::size_t at = 0; at < got[d].size(); ++at)
        EXPECT_TRUE(got[d][at] == got[d - d % 2][at % sums]) << "device " << d << ", sum " << at;
    }
  }
}

// Device 2 never comes.
TEST_P(TransportConformance, AWaitForAMemberEndsAtItsDeadline) {
  Meeting meeting{{Opcode::all_reduce}, 64};
  meeting.call.group = meeting.call.tag = 0;
  const Program program = collective_program(3, {{0, 1, 2}}, {meeting});
  std::vector<Part> parts;  // outlive what may still write to them
  for (std::size_t member = 0; member < 3; ++member) parts.emplace_back(meeting, member, 3, numbers(DType::f32, 64, member));
  auto ends = GetParam().make(3);
  std::vector<int> late(3);
  on_all(3, [&](int device) {
    Transport& end = *ends[static_cast<std::size_t>(device)];
    const auto member = static_cast<std::size_t>(device);
    end.begin_step(program, device);
    if (device == 2) return;
    const Event event = end.collective(parts[member].call(meeting, member));
    const auto begin = std::chrono::steady_clock::now();
    late[member] = event != kNoEvent && !end.done(event) && !end.wait(event, in(0.1)) &&
                   std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(99);
  });
  EXPECT_EQ(late, (std::vector<int>{1, 1, 0}));
  ends[2].reset();  // where the others' ends wait for the collective, they find this one lost
}

}  // namespace penstock::test
