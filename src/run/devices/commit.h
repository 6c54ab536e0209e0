// SPDX-License-Identifier: Apache-2.0
// Whether a step may still be given up.
#pragma once

#include <atomic>
#include <cstdint>

namespace penstock {

// The devices of one process share one. Until the first of them begins to write state, all state is as it was before the step, which may be
// given up; once one has begun, none may stop, or the state would be of no step. Whichever comes first decides. From any thread.
class Commit {
 public:
  // At a step's begin, while no device is in it.
  void reset() { state_.store(State::open); }
  // A device is about to write state; false: the step was given up.
  bool begin() { return decide(State::begun) == State::begun; }
  // False: a device has begun to write state.
  bool give_up() { return decide(State::given_up) == State::given_up; }
  bool begun() const { return state_.load() == State::begun; }

 private:
  enum class State : std::uint8_t { open, begun, given_up };
  State decide(State wanted) {
    State found = State::open;
    return state_.compare_exchange_strong(found, wanted) ? wanted : found;
  }

  std::atomic<State> state_ = State::open;
};

}  // namespace penstock
