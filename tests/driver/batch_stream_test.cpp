// SPDX-License-Identifier: Apache-2.0
// Batches' programs made ahead: the same ones in the same order whatever the timing, errors at their step, and a stop at any moment.
#include "driver/batch_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "base/text.h"
#include "penstock/error.h"
#include "support/errors.h"
#include "support/rounds.h"
#include "support/seed.h"

namespace penstock {
namespace {

BatchStep numbered(std::int64_t batch) {
  BatchStep out;
  out.samples = {batch};
  return out;
}

void sleep_up_to(std::mt19937_64& random, int microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(std::uniform_int_distribution<int>(0, microseconds)(random)));
}

TEST(BatchStream, GivesAllBatchesInOrderAndIsNotFurtherAheadThanAsked) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  for (const std::int64_t ahead : {0, 1, 2, 7}) {
    std::mt19937_64 slow(seed), slow_too(seed + 1);
    std::atomic<std::int64_t> taken = 0, furthest = 0;
    BatchStream stream(
        [&](std::int64_t batch) {
          furthest = std::max<std::int64_t>(furthest, batch - taken);
          sleep_up_to(slow, 200);
          return numbered(batch);
        },
        50, ahead);
    for (std::int64_t batch = 0; batch < 50; ++batch) {
      sleep_up_to(slow_too, 200);
      const StreamedBatch next = stream.next();
      ++taken;
      EXPECT_EQ(next.batch.samples, std::vector<std::int64_t>{batch});
      EXPECT_GE(next.seconds, 0);
    }
    EXPECT_LE(furthest, ahead);  // a batch that is taken counts when next() has returned
  }
}

TEST(BatchStream, AnErrorComesAtItsStep) {
  for (const std::int64_t ahead : {0, 2}) {
    std::atomic<std::int64_t> made = 0;
    const auto make = [&](std::int64_t batch) {
      ++made;
      if (batch == 3) throw Error("sample 17 fits into no micro-batch");
      return numbered(batch);
    };
    BatchStream stream(make, 10, ahead);
    for (std::int64_t batch = 0; batch < 3; ++batch) EXPECT_EQ(stream.next().batch.samples[0], batch);
    EXPECT_EQ(test::message_of([&] { stream.next(); }), "sample 17 fits into no micro-batch");
    EXPECT_EQ(made, 4);  // nothing is made behind it
  }
}

TEST(BatchStream, StopsWhileItMakesOrWaits) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < test::rounds(50); ++round) {
    std::atomic<bool> is_making = false;
    const auto make = [&](std::int64_t batch) {
      is_making = true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      is_making = false;
      return numbered(batch);
    };
    {
      BatchStream stream(make, 1000, 3);
      if (round % 2 == 0) stream.next();
      sleep_up_to(random, 500);
    }
    EXPECT_FALSE(is_making);
  }
}

TEST(BatchStream, OfNoBatchesEndsByItself) {
  BatchStream([](std::int64_t) -> BatchStep { throw Error("none is asked for"); }, 0, 2);
}

}  // namespace
}  // namespace penstock
