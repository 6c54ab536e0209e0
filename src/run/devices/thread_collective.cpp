// SPDX-License-Identifier: Apache-2.0
#include "devices/thread_collective.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "devices/sum_terms.h"

namespace penstock {
namespace {

constexpr std::size_t kBlock = 16 << 10;  // bytes: of all members together they stay in a core's cache

}  // namespace

Gathering::Arrival Gathering::arrive(const CollectiveCall& call) {
  const std::size_t count = members_.size();
  froms_[call.member] = call.from.data();
  tos_[call.member] = call.to.data();
  const std::uint64_t before = arrivals_.fetch_add(1, std::memory_order_acq_rel);
  const Arrival arrival{before / count + 1, before % count == count - 1};
  if (arrival.last) {
    plan(call);
    next_.store(0, std::memory_order_relaxed);
    finished_.store(0, std::memory_order_relaxed);
    ready_.store(arrival.use, std::memory_order_seq_cst);
  }
  return arrival;
}

void Gathering::plan(const CollectiveCall& call) {
  const std::size_t count = members_.size(), most = std::max(call.from.size(), call.to.size());
  shape_ = {call.opcode, call.dtype, call.root};
  switch (call.opcode) {
    case Opcode::all_gather:
    case Opcode::reduce_scatter:
      shape_.pieces = count;
      break;
    case Opcode::all_to_all:
      shape_.pieces = count * count;
      break;
    default:
      break;
  }
  shape_.piece_bytes = most / (shape_.pieces == 1 ? 1 : count);
  shape_.blocks_of_piece = (shape_.piece_bytes + kBlock - 1) / kBlock;
}

bool Gathering::work(std::uint64_t use) {
  const std::size_t all = blocks();
  bool finishes = all == 0;
  for (std::size_t block; (block = next_.fetch_add(1, std::memory_order_relaxed)) < all;) {
    do_block(block);
    finishes = finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == all;
  }
  if (finishes) done_.store(use, std::memory_order_seq_cst);
  return finishes;
}

void Gathering::do_block(std::size_t block) {
  const std::size_t piece = block / shape_.blocks_of_piece, offset = block % shape_.blocks_of_piece * kBlock;
  const std::size_t bytes = std::min(kBlock, shape_.piece_bytes - offset), count = members_.size();
  const std::size_t at = piece * shape_.piece_bytes + offset;  // in what all pieces together are
  alignas(kAlignment) std::array<std::byte, kBlock> total;
  switch (shape_.opcode) {
    case Opcode::all_reduce:
      sum_terms(shape_.dtype, froms_, at, bytes, total.data());  // what is read may be written by another: `total` lies apart
      for (std::byte* to : tos_) std::memcpy(to + at, total.data(), bytes);
      return;
    case Opcode::reduce_scatter:
      sum_terms(shape_.dtype, froms_, at, bytes, total.data());
      std::memcpy(tos_[piece] + offset, total.data(), bytes);
      return;
    case Opcode::all_gather:
      for (std::byte* to : tos_) std::memcpy(to + at, froms_[piece] + offset, bytes);
      return;
    case Opcode::broadcast:
      for (std::byte* to : tos_)
        if (to != nullptr) std::memcpy(to + at, froms_[shape_.root] + at, bytes);
      return;
    default: {  // all_to_all
      const std::size_t from = piece / count, to = piece % count;
      std::memcpy(tos_[to] + from * shape_.piece_bytes + offset, froms_[from] + to * shape_.piece_bytes + offset, bytes);
    }
  }
}

}  // namespace penstock
