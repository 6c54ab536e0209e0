// SPDX-License-Identifier: Apache-2.0
#include "program/offsets.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace penstock {
namespace {

// A growing arena with a best-fit free list. Free blocks are kept by offset, to join neighbours, and by size, to find the smallest that
// fits.
class Arena {
 public:
  std::int64_t take(std::int64_t bytes) {
    const auto it = by_size_.lower_bound({bytes, 0});
    if (it == by_size_.end()) return grow(bytes);
    const auto [size, offset] = *it;
    remove(offset, size);
    if (size > bytes) add(offset + bytes, size - bytes);
    return offset;
  }

  void give(std::int64_t offset, std::int64_t bytes) {
    if (bytes == 0) return;
    auto after = by_offset_.lower_bound(offset);
    if (after != by_offset_.begin()) {
      const auto [begin, size] = *std::prev(after);
      if (begin + size == offset) {
        remove(begin, size);
        offset = begin;
        bytes += size;
      }
    }
    after = by_offset_.lower_bound(offset);
    if (after != by_offset_.end() && after->first == offset + bytes) {
      const std::int64_t size = after->second;
      remove(offset + bytes, size);
      bytes += size;
    }
    add(offset, bytes);
  }

  std::int64_t bytes() const { return end_; }

 private:
  // Where no free block fits: extends the free block at the end, if there is one, or the arena.
  std::int64_t grow(std::int64_t bytes) {
    std::int64_t offset = end_;
    if (!by_offset_.empty()) {
      const auto [begin, size] = *by_offset_.rbegin();
      if (begin + size == end_) {
        remove(begin, size);
        offset = begin;
      }
    }
    end_ = offset + bytes;
    return offset;
  }
  void add(std::int64_t offset, std::int64_t bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  void remove(std::int64_t offset, std::int64_t bytes) {
    by_offset_.erase(offset);
    by_size_.erase({bytes, offset});
  }

  std::map<std::int64_t, std::int64_t> by_offset_;
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;
  std::int64_t end_ = 0;
};

std::vector<std::size_t> sorted_by(std::size_t size, auto&& key) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return order;
}

ArenaLayout best_fit(const std::vector<Lifetime>& lifetimes) {
  ArenaLayout out{std::vector<std::int64_t>(lifetimes.size(), 0), 0};
  Arena arena;
  const std::vector<std::size_t> by_end = sorted_by(lifetimes.size(), [&](std::size_t i) { return lifetimes[i].end; });
  std::size_t ended = 0;
  for (const std::size_t i : sorted_by(lifetimes.size(), [&](std::size_t l) { return lifetimes[l].begin; })) {
    for (; lifetimes[by_end[ended]].end <= lifetimes[i].begin; ++ended)
      arena.give(out.offsets[by_end[ended]], lifetimes[by_end[ended]].bytes);
    out.offsets[i] = arena.take(lifetimes[i].bytes);
  }
  out.bytes = arena.bytes();
  return out;
}

// Puts each piece, the largest first, in the tightest gap between those put before it that live at the same time. Quadratic.
ArenaLayout largest_first(const std::vector<Lifetime>& lifetimes) {
  ArenaLayout out{std::vector<std::int64_t>(lifetimes.size(), 0), 0};
  std::vector<std::size_t> put;  // by offset
  const auto key = [&](std::size_t i) { return std::pair(-lifetimes[i].bytes, lifetimes[i].begin - lifetimes[i].end); };
  for (const std::size_t i : sorted_by(lifetimes.size(), key)) {
    const Lifetime& piece = lifetimes[i];
    std::int64_t free_from = 0, best = -1, best_gap = std::numeric_limits<std::int64_t>::max();
    for (const std::size_t p : put) {
      if (lifetimes[p].end <= piece.begin || piece.end <= lifetimes[p].begin) continue;
      const std::int64_t gap = out.offsets[p] - free_from;
      if (gap >= piece.bytes && gap < best_gap) {
        best = free_from;
        best_gap = gap;
      }
      free_from = std::max(free_from, out.offsets[p] + lifetimes[p].bytes);
    }
    out.offsets[i] = best < 0 ? free_from : best;
    out.bytes = std::max(out.bytes, out.offsets[i] + piece.bytes);
    put.insert(std::upper_bound(put.begin(), put.end(), i, [&](std::size_t a, std::size_t b) { return out.offsets[a] < out.offsets[b]; }),
               i);
  }
  return out;
}

}  // namespace

ArenaLayout find_offsets(const std::vector<Lifetime>& lifetimes) {
  constexpr std::size_t kFew = 2000;
  ArenaLayout best = best_fit(lifetimes);
  const auto try_other = [&](ArenaLayout other) {
    if (other.bytes < best.bytes) best = std::move(other);
  };
  std::vector<Lifetime> backward = lifetimes;
  for (Lifetime& lifetime : backward) lifetime = {-lifetime.end, -lifetime.begin, lifetime.bytes};
  try_other(best_fit(backward));
  if (lifetimes.size() <= kFew) try_other(largest_first(lifetimes));
  return best;
}

}  // namespace penstock
