// SPDX-License-Identifier: Apache-2.0
// Random programs for the runtime's tests, the values that they must give, and the data that they read.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "devices/cluster.h"
#include "penstock/program.h"

namespace penstock::test {

// A valid program (planned and verified) of random runs, accumulators, state updates, copies of states, transfers between
// random devices, collectives of random groups and copies to the host and back, for the fake executor. Every device outputs "out<device>",
// a hash of all that it still holds, and owns state "state<device>". Data port "data" is split, "whole" is not. `keeps`: states also go to
// the host's memory and to that of other devices, as snapshots, and come back.
Program random_program(std::uint64_t seed, int devices, int events, bool keeps = false);

// Data in which every byte depends on port, row, step and seed.
class HashData : public DataSource {
 public:
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override;
};

// Computes what a step must give, by running the devices one instruction at a time, with each slot in memory of its own.
class Reference {
 public:
  explicit Reference(const Program& program);
  std::map<std::string, std::vector<std::byte>> step(const StepInput& input);  // the outputs
  std::vector<std::byte> state(int device) const;                              // "state<device>"

 private:
  struct Meeting {
    std::set<int> came;                         // devices that have come
    std::vector<std::vector<std::byte>> given;  // by member
    std::size_t left = 0;                       // members that have their result
  };

  bool run_one(int device);  // false: the device must wait
  bool take_part(int device, const Instruction& collective);

  const Program& program_;
  std::vector<std::vector<std::vector<std::byte>>> memory_;  // [device][slot]
  std::vector<std::size_t> next_;
  std::map<std::vector<int>, std::vector<std::byte>> sent_;  // by {from, to, tag}
  std::map<std::pair<int, int>, Meeting> meetings_;          // by {group, tag}
  const StepInput* input_ = nullptr;
  std::map<std::string, std::vector<std::byte>> outputs_;
};

}  // namespace penstock::test
