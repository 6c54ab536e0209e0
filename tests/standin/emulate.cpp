// SPDX-License-Identifier: Apache-2.0
#include "standin/emulate.h"

#include <c10/util/Half.h>

#include <algorithm>

namespace penstock::emulate {

constinit thread_local Dim this_thread, this_block, block_size, grid_size;

Block& block() {
  thread_local Block own;
  return own;
}

void Block::run(unsigned threads, const std::function<void()>& body) {
  threads_.assign(threads, {});
  body_ = &body;
  backwards_ = !backwards_;
  try {
    run_all();
  } catch (...) {
    fibers_.clear();  // some stand in the middle of a thread
    idle_.clear();
    throw;
  }
}

void Block::run_all() {
  const std::size_t warps = (threads_.size() + kWarp - 1) / kWarp;
  do {
    for (std::size_t w = 0; w < warps; ++w) run_warp(backwards_ ? warps - 1 - w : w);
  } while (pass_barrier());
}

void Block::run_warp(std::size_t warp) {
  first_ = warp * kWarp;
  count_ = std::min<std::size_t>(kWarp, threads_.size() - first_);
  begun_ = threads_[first_].state == State::is_new ? 0 : count_;
  while (begun_ < count_) {
    if (idle_.empty()) {
      idle_.push_back(fibers_.size());
      fibers_.push_back(std::make_unique<Fiber>());
    }
    const std::size_t fiber = idle_.back();
    idle_.pop_back();
    enter(fiber);
  }
  do {
    for (std::size_t i = 0; i < count_; ++i) {
      const std::size_t thread = in_turn(i);
      if (threads_[thread].state != State::runs) continue;
      running_ = static_cast<unsigned>(thread);
      this_thread.x = running_;
      enter(threads_[thread].fiber);
    }
  } while (pass_exchange());
}

// _setjmp keeps no signals, so that a switch takes no call of the system. A context is made for a fiber's first step only.
void Block::enter(std::size_t fiber) {
  fiber_ = fiber;
  Fiber& to = *fibers_[fiber];
  if (_setjmp(home_) != 0) {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return;
  }
  if (to.stack) _longjmp(to.at, 1);
  to.stack.reset(new std::byte[kStack]);
  getcontext(&to.start);
  to.start.uc_stack.ss_sp = to.stack.get();
  to.start.uc_stack.ss_size = kStack;
  to.start.uc_link = nullptr;
  makecontext(&to.start, &Block::serve, 0);
  setcontext(&to.start);
}

void Block::serve() {
  Block& own = block();
  while (true) {
    own.begin_threads();
    own.idle_.push_back(own.fiber_);
    if (_setjmp(own.fibers_[own.fiber_]->at) == 0) _longjmp(own.home_, 1);
  }
}

void Block::begin_threads() {
  while (begun_ < count_) {
    running_ = static_cast<unsigned>(in_turn(begun_++));
    this_thread.x = running_;
    try {
      (*body_)();
    } catch (...) {
      failure_ = std::current_exception();
      return;
    }
    threads_[running_].state = State::has_ended;
  }
}

void Block::wait(State state, unsigned line) {
  Thread& own = threads_[running_];
  own.state = state;
  own.fiber = fiber_;
  own.line = line;
  if (_setjmp(fibers_[fiber_]->at) == 0) _longjmp(home_, 1);
}

std::uint64_t Block::exchange(std::uint64_t value, unsigned lane, unsigned line) {
  Thread& own = threads_[running_];
  const unsigned turn = own.exchanges++ % 2;
  own.given[turn] = value;
  const std::size_t other = running_ / kWarp * kWarp + lane;
  wait(State::exchanges, line);
  return threads_[other].given[turn];
}

// Lets those threads go on that have not ended.
void Block::go_on(std::size_t first, std::size_t count) {
  unsigned line = 0;
  for (std::size_t t = first; t < first + count; ++t) {
    Thread& thread = threads_[t];
    if (thread.state == State::has_ended) continue;
    TORCH_CHECK(line == 0 || line == thread.line, "emulated threads wait for each other in lines ", line, " and ", thread.line);
    line = thread.line;
    thread.state = State::runs;
  }
}

bool Block::pass_exchange() {
  const auto warp = threads_.begin() + static_cast<std::ptrdiff_t>(first_);
  const auto exchanges = [](const Thread& thread) { return thread.state == State::exchanges; };
  if (count_ < kWarp || !std::all_of(warp, warp + kWarp, exchanges)) return false;
  go_on(first_, count_);
  return true;
}

// False: all threads have ended.
bool Block::pass_barrier() {
  const auto in = [](State state) { return [state](const Thread& thread) { return thread.state == state; }; };
  if (std::ranges::all_of(threads_, in(State::has_ended))) return false;
  TORCH_CHECK(std::ranges::none_of(threads_, in(State::exchanges)),
              "emulated threads of a warp wait for others that wait elsewhere or have ended");
  go_on(0, threads_.size());
  return true;
}

void run_grid(const KernelGrid& grid, const std::function<void()>& body) {
  grid_size = {grid.x, grid.y};
  block_size = {grid.threads, 1};
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      this_block = {x, y};
      block().run(grid.threads, body);
    }
}

void run_kernel(const Kernel& kernel, const KernelGrid& grid, const void* const* arguments) {
  run_grid(grid, [&] { kernel.body(arguments); });
}

std::uint16_t half_of(float x) {
  return c10::Half(x).x;
}

float of_half(std::uint16_t bits) {
  return c10::Half(bits, c10::Half::from_bits());
}

void wait_for_block(unsigned line) {
  block().wait(Block::State::at_barrier, line);
}

std::uint64_t exchange_in_warp(unsigned all, std::uint64_t value, int distance, unsigned line) {
  TORCH_CHECK(all == 0xFFFFFFFFu, "emulated kernels exchange numbers among whole warps only");
  return block().exchange(value, block().lane() ^ static_cast<unsigned>(distance), line);
}

}  // namespace penstock::emulate
