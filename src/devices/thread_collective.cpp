#include "devices/thread_collective.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bf16.h"
#include "base/invariant.h"

namespace penstock {
namespace {

constexpr std::size_t kBlock = 16 << 10;  // bytes: of all members together they stay in a core's cache

template <class T>
void add(std::byte* sum, const std::byte* term, std::size_t bytes) {
  constexpr std::size_t kStride = kAlignment / sizeof(T);  // blocks are multiples of kAlignment
  for (std::size_t at = 0; at < bytes; at += kAlignment) {
    std::array<T, kStride> a, b;
    std::memcpy(a.data(), sum + at, kAlignment);
    std::memcpy(b.data(), term + at, kAlignment);
    for (std::size_t i = 0; i < kStride; ++i) a[i] = a[i] + b[i];
    std::memcpy(sum + at, a.data(), kAlignment);
  }
}

void add(DType dtype, std::byte* sum, const std::byte* term, std::size_t bytes) {
  switch (dtype) {
    case DType::f32:
      return add<float>(sum, term, bytes);
    case DType::f64:
      return add<double>(sum, term, bytes);
    case DType::i32:
      return add<std::uint32_t>(sum, term, bytes);
    case DType::i64:
      return add<std::uint64_t>(sum, term, bytes);
    default:
      invariant(false, "the verifier lets only sums of f32, f64, bf16, i32 and i64 pass");
  }
}

}  // namespace

Gathering::Arrival Gathering::arrive(const CollectiveCall& call) {
  const std::size_t count = members_.size();
  ends_[call.member] = {call.from.data(), call.to.data()};
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
      sum(at, bytes, total.data());
      for (const End& end : ends_) std::memcpy(end.to + at, total.data(), bytes);
      return;
    case Opcode::reduce_scatter:
      sum(at, bytes, total.data());
      std::memcpy(ends_[piece].to + offset, total.data(), bytes);
      return;
    case Opcode::all_gather:
      for (const End& end : ends_) std::memcpy(end.to + at, ends_[piece].from + offset, bytes);
      return;
    case Opcode::broadcast:
      for (const End& end : ends_)
        if (end.to != nullptr) std::memcpy(end.to + at, ends_[shape_.root].from + at, bytes);
      return;
    default: {  // all_to_all
      const std::size_t from = piece / count, to = piece % count;
      std::memcpy(ends_[to].to + from * shape_.piece_bytes + offset, ends_[from].from + to * shape_.piece_bytes + offset, bytes);
    }
  }
}

// Sums of bf16 are made in f32 and rounded once.
void Gathering::sum_bf16(std::size_t begin, std::size_t bytes, std::byte* total) const {
  std::array<std::uint16_t, kAlignment / sizeof(std::uint16_t)> terms;
  std::array<float, terms.size()> sums;
  for (std::size_t at = 0; at < bytes; at += kAlignment) {
    sums.fill(0);
    for (const End& end : ends_) {
      std::memcpy(terms.data(), end.from + begin + at, kAlignment);
      for (std::size_t i = 0; i < terms.size(); ++i) sums[i] += f32_of_bf16(terms[i]);
    }
    for (std::size_t i = 0; i < terms.size(); ++i) terms[i] = bf16_of_f32(sums[i]);
    std::memcpy(total + at, terms.data(), kAlignment);
  }
}

// In the members' order, so that the result does not depend on who works. What is read may be written later: `total` lies apart.
void Gathering::sum(std::size_t begin, std::size_t bytes, std::byte* total) const {
  if (shape_.dtype == DType::bf16) return sum_bf16(begin, bytes, total);
  std::memcpy(total, ends_[0].from + begin, bytes);
  for (std::size_t m = 1; m < ends_.size(); ++m) add(shape_.dtype, total, ends_[m].from + begin, bytes);
}

}  // namespace penstock
