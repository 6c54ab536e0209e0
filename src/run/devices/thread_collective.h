// SPDX-License-Identifier: Apache-2.0
// Collectives between the threads of one process: the last member to arrive does the work, block by block, and those that wait for it help.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "devices/executor.h"

namespace penstock {

// The meeting place of one collective of a group, used again in every step. All members count alike: its n-th use may be worked at when
// ready >= n, and is done when done >= n. Nobody arrives for a use before it has seen the one before done.
class Gathering {
 public:
  explicit Gathering(std::vector<std::int32_t> members) : members_(std::move(members)), froms_(members_.size()), tos_(members_.size()) {}

  const std::vector<std::int32_t>& members() const { return members_; }
  struct Arrival {
    std::uint64_t use;  // from 1
    bool last;          // all others are here: the caller works
  };
  // `call` as the member sees it; its memory stays until the use is done.
  Arrival arrive(const CollectiveCall& call);
  std::size_t blocks() const { return shape_.pieces * shape_.blocks_of_piece; }  // of the use that is ready
  bool is_ready(std::uint64_t use) const { return ready_.load(std::memory_order_seq_cst) >= use; }
  bool is_done(std::uint64_t use) const { return done_.load(std::memory_order_seq_cst) >= use; }
  // Takes blocks of a use that is ready until there are none left; true where it did the last: the others may be woken.
  bool work(std::uint64_t use);

 private:
  // The bytes that a collective handles are `pieces` runs of `piece_bytes`, each cut into blocks.
  struct Shape {
    Opcode opcode = Opcode::all_reduce;
    DType dtype = DType::f32;
    std::size_t root = 0;
    std::size_t pieces = 1, piece_bytes = 0, blocks_of_piece = 0;
  };

  void plan(const CollectiveCall& call);
  void do_block(std::size_t block);

  std::vector<std::int32_t> members_;
  std::vector<const std::byte*> froms_;  // of each member
  std::vector<std::byte*> tos_;
  Shape shape_;  // written by the last to arrive
  std::atomic<std::uint64_t> arrivals_{0}, ready_{0}, done_{0};
  std::atomic<std::size_t> next_{0}, finished_{0};  // blocks of the present use
};

}  // namespace penstock
