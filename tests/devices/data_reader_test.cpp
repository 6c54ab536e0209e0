// SPDX-License-Identifier: Apache-2.0
#include "devices/data_reader.h"

#include <gtest/gtest.h>

#include <atomic>

#include "penstock/error.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

// Gives the first row's number, once it may; row 7 cannot be read.
class SlowData : public DataSource {
 public:
  void fill(const Port&, const StepInput&, std::int64_t first_row, std::int64_t, std::span<std::byte> out) const override {
    while (!open) std::this_thread::yield();
    if (first_row == 7) throw Error("row 7 is torn");
    out[0] = static_cast<std::byte>(first_row);
  }
  mutable std::atomic<bool> open = false;
};

Deadline in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

struct Reading {
  SlowData data;
  DataReader reader{data};
  Port port;
  StepInput input;
  std::vector<std::byte> out = std::vector<std::byte>(3);

  Event read(std::int64_t row, std::size_t place) { return reader.read({&port, &input, row, 1, std::span(out).subspan(place, 1)}); }
};

TEST(DataReader, ReadsInOrderBesideItsCaller) {
  Reading r;
  const Event first = r.read(5, 0), second = r.read(6, 1);
  EXPECT_FALSE(r.reader.done(first));
  EXPECT_FALSE(r.reader.wait(second, in(std::chrono::milliseconds(5))));
  r.data.open = true;
  EXPECT_TRUE(r.reader.wait(second, in(std::chrono::minutes(1))));
  EXPECT_TRUE(r.reader.done(first));
  EXPECT_EQ(r.out, (std::vector<std::byte>{std::byte{5}, std::byte{6}, std::byte{0}}));
}

TEST(DataReader, WhatCannotBeReadIsThrownWhereItIsWaitedFor) {
  Reading r;
  r.data.open = true;
  const Event torn = r.read(7, 0);
  EXPECT_EQ(message_of([&] { r.reader.wait(torn, in(std::chrono::minutes(1))); }), "row 7 is torn");
}

// After that nobody writes to what it was given.
TEST(DataReader, StopsWithoutReadingTheRest) {
  Reading r;
  for (std::size_t i = 0; i < 3; ++i) r.read(static_cast<std::int64_t>(i) + 1, i);
  r.data.open = true;
  r.reader.stop();
  const std::vector<std::byte> stopped = r.out;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(r.out, stopped);
}

}  // namespace
}  // namespace penstock
