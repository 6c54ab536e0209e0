// SPDX-License-Identifier: Apache-2.0
// Runs what kernels for a GPU are written with (emulated.h) on the host: a grid of blocks runs on the thread that launches
// it. A block's threads are fibers, which take turns where they wait for each other: at barriers and where they exchange numbers. Threads
// that wait for nothing run one after the other on one fiber. Blocks begin from the first thread and from the last by turns, so that what
// misses a barrier goes wrong in one of two. Any number of host threads may launch at once.
#pragma once

#include <c10/util/Exception.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "standin/emulated.h"
#include "torch/kernel_argument.h"

namespace penstock::emulate {

// The fibers of a host thread, and the block that runs on them.
class Block {
 public:
  // Throws what a thread throws, and c10::Error where threads wait for what does not come.
  void run(unsigned threads, const std::function<void()>& body);

  // The state of the running thread: it is at a barrier until all threads of the block that have not ended are there, or until all 32 of
  // its warp exchange.
  enum class State : std::uint8_t { is_new, runs, at_barrier, exchanges, has_ended };
  void wait(State state, unsigned line);
  // Gives the others of the warp `value`, and gets that of `lane`.
  std::uint64_t exchange(std::uint64_t value, unsigned lane, unsigned line);
  unsigned lane() const { return running_ % kWarp; }

 private:
  static constexpr unsigned kWarp = 32;
  static constexpr std::size_t kStack = std::size_t{1} << 16;
  struct Thread {
    State state = State::is_new;
    std::size_t fiber = 0;  // on which it waits
    unsigned line = 0;      // of the text, where it waits
    unsigned exchanges = 0;
    std::uint64_t given[2] = {};  // by turns, as others may read the last one when it gives the next
  };
  struct Fiber {
    jmp_buf at;
    ucontext_t start;
    std::unique_ptr<std::byte[]> stack;
  };

  void run_all();
  void run_warp(std::size_t warp);
  std::size_t in_turn(std::size_t i) const { return first_ + (backwards_ ? count_ - 1 - i : i); }  // of the warp that runs
  void enter(std::size_t fiber);
  static void serve();  // what a fiber does
  void begin_threads();
  void go_on(std::size_t first, std::size_t count);
  bool pass_exchange();
  bool pass_barrier();

  std::vector<Thread> threads_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::size_t> idle_;  // fibers that wait for a block's threads
  jmp_buf home_;
  const std::function<void()>* body_ = nullptr;
  std::size_t first_ = 0, count_ = 0, begun_ = 0;  // threads of the warp that runs, and how many of them have begun
  std::size_t fiber_ = 0;                          // that runs
  unsigned running_ = 0;                           // the thread that does
  bool backwards_ = false;
  std::exception_ptr failure_;
};

Block& block();  // of this host thread

void run_grid(const KernelGrid& grid, const std::function<void()>& body);

// The same, of a kernel with a pointer to each of its arguments.
void run_kernel(const Kernel& kernel, const KernelGrid& grid, const void* const* arguments);

}  // namespace penstock::emulate
