// SPDX-License-Identifier: Apache-2.0
#include "batch/balanced_rows.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace penstock {
namespace {

struct Row {
  std::vector<std::size_t> samples;
  double work = 0;
};

// A sample of the longest row goes to another, from where one comes back unless `back` is behind the last.
struct Exchange {
  std::size_t gone = 0, row = 0, back = 0;
};

std::optional<Exchange> best_exchange(const std::vector<double>& work, const std::vector<Row>& rows, std::size_t longest) {
  constexpr double kRounding = 1e-9;
  const Row& from = rows[longest];
  double least = from.work * (1 - kRounding);
  std::optional<Exchange> best;
  for (std::size_t gone = 0; from.samples.size() > 1 && gone < from.samples.size(); ++gone) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t back = 0; r != longest && back <= rows[r].samples.size(); ++back) {
        const double returned = back < rows[r].samples.size() ? work[rows[r].samples[back]] : 0;
        const double moved = work[from.samples[gone]] - returned, longer = std::max(from.work - moved, rows[r].work + moved);
        if (longer >= least) continue;
        least = longer;
        best = {gone, r, back};
      }
    }
  }
  return best;
}

void apply(const Exchange& exchange, const std::vector<double>& work, Row& from, Row& to) {
  const std::size_t gone = from.samples[exchange.gone];
  from.work -= work[gone];
  to.work += work[gone];
  if (exchange.back < to.samples.size()) {
    const std::size_t back = to.samples[exchange.back];
    from.work += work[back];
    to.work -= work[back];
    from.samples[exchange.gone] = back;
    to.samples[exchange.back] = gone;
  } else {
    from.samples.erase(from.samples.begin() + static_cast<std::ptrdiff_t>(exchange.gone));
    to.samples.push_back(gone);
  }
}

}  // namespace

std::vector<std::vector<std::size_t>> balanced_rows(const std::vector<double>& work, std::size_t rows) {
  std::vector<std::size_t> order(work.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return work[a] > work[b]; });
  const auto shorter = [](const Row& a, const Row& b) { return a.work != b.work ? a.work < b.work : a.samples.size() < b.samples.size(); };
  std::vector<Row> all(rows);
  for (const std::size_t i : order) {
    Row& least = *std::ranges::min_element(all, shorter);
    least.samples.push_back(i);
    least.work += work[i];
  }
  for (;;) {
    const auto longest = static_cast<std::size_t>(std::ranges::max_element(all, shorter) - all.begin());
    const std::optional<Exchange> exchange = best_exchange(work, all, longest);
    if (!exchange) break;
    apply(*exchange, work, all[longest], all[exchange->row]);
  }
  std::vector<std::vector<std::size_t>> out;
  for (Row& row : all) out.push_back(std::move(row.samples));
  return out;
}

}  // namespace penstock
