// SPDX-License-Identifier: Apache-2.0
#include "batch/balance.h"

#include <algorithm>
#include <numeric>
#include <queue>

namespace penstock {
namespace {

struct Bin {
  double sum = 0;
  std::vector<std::size_t> values;
};

// Bins that some of the values have been divided into, by ascending sums. The difference of the largest and the smallest is what the rest
// has to make good, so the one with the largest difference comes first; at ties the older.
struct Division {
  std::size_t age = 0;
  std::vector<Bin> bins;

  double difference() const { return bins.back().sum - bins.front().sum; }
  bool operator<(const Division& other) const {
    return difference() != other.difference() ? difference() < other.difference() : age > other.age;
  }
};

Division joined(const Division& a, const Division& b, std::size_t age) {
  Division out{age, a.bins};
  for (std::size_t i = 0; i < out.bins.size(); ++i) {
    const Bin& other = b.bins[out.bins.size() - 1 - i];
    out.bins[i].sum += other.sum;
    out.bins[i].values.insert(out.bins[i].values.end(), other.values.begin(), other.values.end());
  }
  std::stable_sort(out.bins.begin(), out.bins.end(), [](const Bin& x, const Bin& y) { return x.sum < y.sum; });
  return out;
}

}  // namespace

std::vector<std::vector<std::size_t>> balance(const std::vector<double>& values, std::size_t bins) {
  if (values.empty()) return std::vector<std::vector<std::size_t>>(bins);
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  std::priority_queue<Division> divisions;
  std::size_t age = 0;
  for (const std::size_t i : order) {
    Division alone{age++, std::vector<Bin>(bins)};
    alone.bins.back() = {values[i], {i}};
    divisions.push(std::move(alone));
  }
  while (divisions.size() > 1) {
    const Division first = divisions.top();
    divisions.pop();
    const Division second = divisions.top();
    divisions.pop();
    divisions.push(joined(first, second, age++));
  }
  std::vector<std::vector<std::size_t>> out;
  for (const Bin& bin : divisions.top().bins) out.push_back(bin.values);
  return out;
}

}  // namespace penstock
