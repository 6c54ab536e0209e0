// SPDX-License-Identifier: Apache-2.0
// Small random programs, and the rules of waiting written down once more, as directly as the documentation says them, for tests that
// compare the verifier and the interpreter with them.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "penstock/program.h"
#include "program/verify.h"

namespace penstock::test {

// 2 to 4 devices that only move values: inputs, sends, receives, copies, frees, forwarded values, values sent twice, copies of
// states that are read, refreshed and sent, and collectives of up to two groups. Definitions, tags and types are always right; the orders
// are random, so that some finish and some do not. No memory plan.
Program random_transfers(std::mt19937_64& random);

// The verdict of verify() on such a program but for its states ("no error"): it writes into copies whatever comes.
std::string order_verdict(const Program& program, ChannelModel model);

// Program positions of one device: what has to be done before instruction `at` may start, by looking back at all those before it.
class Rules {
 public:
  using Done = std::function<bool(int device, std::size_t instruction)>;  // an end of a transfer or collective, or a copy, is complete

  explicit Rules(const Program& program) : program_(program) {}
  bool may_start(int device, std::size_t at, const Done& done) const;
  // The other ends of a send, recv or collective: its instruction on the peer, or on each other member.
  std::vector<std::pair<int, std::size_t>> other_ends(int device, std::size_t at) const;

 private:
  const Program& program_;
};

}  // namespace penstock::test
