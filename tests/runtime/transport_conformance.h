// What every Transport must do; a test file instantiates it with its own links.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/executor.h"

namespace penstock::test {

// Makes one connected endpoint per device.
struct TransportCase {
  std::string name;
  std::function<std::vector<std::unique_ptr<Transport>>(int devices)> make;
};

class TransportConformance : public testing::TestWithParam<TransportCase> {};

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
  ends[0]->begin_step(exchange_program(1), 0);
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

inline std::string case_name(const testing::TestParamInfo<TransportCase>& info) {
  return info.param.name;
}

}  // namespace penstock::test
