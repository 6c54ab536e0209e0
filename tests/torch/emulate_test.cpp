// SPDX-License-Identifier: Apache-2.0
// The emulator of kernels: what threads of a block see of each other, and what is refused.
#include "standin/emulate.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <thread>

namespace penstock::emulate {
namespace {

constexpr unsigned kThreads = 96;

void launch(unsigned blocks, const std::function<void()>& body) {
  run_grid({blocks, 1, kThreads}, body);
}

std::string refusal(const std::function<void()>& body) {
  try {
    launch(1, body);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(Emulated, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> runs(2 * 3 * kThreads);
  run_grid({3, 2, kThreads}, [&] {
    EXPECT_EQ(gridDim.x, 3u);
    EXPECT_EQ(gridDim.y, 2u);
    EXPECT_EQ(blockDim.x, kThreads);
    ++runs[(blockIdx.y * gridDim.x + blockIdx.x) * kThreads + threadIdx.x];
  });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST(Emulated, BarriersPartWhatIsWrittenFromWhatIsRead) {
  for (int order = 0; order < 2; ++order) {
    std::vector<int> shared(kThreads), found(kThreads);
    launch(1, [&] {
      for (int round = 1; round <= 3; ++round) {
        shared[threadIdx.x] = round * static_cast<int>(threadIdx.x);
        __syncthreads();
        found[threadIdx.x] += shared[kThreads - 1 - threadIdx.x];
        __syncthreads();
      }
    });
    for (unsigned t = 0; t < kThreads; ++t) EXPECT_EQ(found[t], 6 * static_cast<int>(kThreads - 1 - t));
  }
}

// The first thread of a block is by turns the one that runs first and the one that runs last.
TEST(Emulated, AMissingBarrierGoesWrongInOneOfTwoBlocks) {
  int wrong = 0;
  launch(2, [&] {
    static thread_local unsigned shared = 0;
    static thread_local unsigned block = 2;
    if (threadIdx.x == 0) shared = 7, block = blockIdx.x;
    if (threadIdx.x == kThreads - 1) wrong += shared != 7 || block != blockIdx.x;
  });
  EXPECT_EQ(wrong, 1);
}

// A warp that goes on writes anew what its block has read, where no barrier keeps it from that.
TEST(Emulated, AWarpRunsAheadOfTheOthers) {
  int wrong = 0;
  for (const bool with_barrier : {true, false}) {
    wrong = 0;
    launch(2, [&] {
      static thread_local unsigned first[kThreads / 32];
      for (unsigned round = 1; round <= 2; ++round) {
        const unsigned x = __shfl_xor_sync(0xFFFFFFFFu, round, 1);
        if (threadIdx.x % 32 == 0) first[threadIdx.x / 32] = x;
        __syncthreads();
        for (const unsigned other : first) wrong += other != round;
        if (with_barrier) __syncthreads();
      }
    });
    EXPECT_EQ(wrong > 0, !with_barrier);
  }
}

TEST(Emulated, WarpsExchangeByThemselves) {
  std::vector<double> sums(kThreads);
  launch(1, [&] {
    double x = threadIdx.x;
    if (threadIdx.x < 32)
      for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, distance);
    __syncthreads();
    sums[threadIdx.x] = x;
  });
  EXPECT_EQ(sums[0], 31 * 32 / 2);
  EXPECT_EQ(sums[31], 31 * 32 / 2);
  EXPECT_EQ(sums[32], 32);
}

TEST(Emulated, ThreadsThatHaveEndedKeepNobodyAtABarrier) {
  int behind = 0;
  launch(1, [&] {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    ++behind;
  });
  EXPECT_EQ(behind, 40);
}

TEST(Emulated, WaitsForWhatDoesNotComeAreRefused) {
  const auto in_two_lines = [] {
    if (threadIdx.x % 2 == 0)
      __syncthreads();
    else
      __syncthreads();
  };
  EXPECT_NE(refusal(in_two_lines).find("emulated threads wait for each other in lines"), std::string::npos);
  const auto half_a_warp = [] {
    if (threadIdx.x % 32 < 16) __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
  };
  EXPECT_EQ(refusal(half_a_warp), "emulated threads of a warp wait for others that wait elsewhere or have ended");
  EXPECT_EQ(refusal([] { __shfl_xor_sync(0xFFFFu, 1, 1); }), "emulated kernels exchange numbers among whole warps only");
  // Threads that were in their middle are forgotten.
  int after = 0;
  launch(1, [&] {
    __syncthreads();
    ++after;
  });
  EXPECT_EQ(after, static_cast<int>(kThreads));
}

TEST(Emulated, HostThreadsLaunchAtOnce) {
  std::vector<std::thread> hosts;
  std::vector<unsigned> sums(4);
  for (unsigned host = 0; host < sums.size(); ++host)
    hosts.emplace_back([&sums, host] {
      for (int round = 0; round < 50; ++round)
        launch(2, [&] {
          static thread_local unsigned shared[kThreads];
          shared[threadIdx.x] = host * threadIdx.x;
          __syncthreads();
          if (threadIdx.x == 0) sums[host] += std::accumulate(shared, shared + kThreads, 0u);
          __syncthreads();
        });
    });
  for (std::thread& host : hosts) host.join();
  for (unsigned host = 0; host < sums.size(); ++host) EXPECT_EQ(sums[host], host * 100 * (kThreads * (kThreads - 1) / 2));
}

}  // namespace
}  // namespace penstock::emulate
