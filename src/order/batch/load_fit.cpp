// SPDX-License-Identifier: Apache-2.0
#include "batch/load_fit.h"

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

constexpr std::size_t kAmounts = std::tuple_size_v<LoadAmounts>;

// The normal equations of points whose amounts are divided by their value and by `scale`: value 1 everywhere.
struct Equations {
  std::array<LoadAmounts, kAmounts> matrix{};
  LoadAmounts right{}, scale{};
};

Equations equations_of(const std::vector<LoadPoint>& points) {
  Equations out;
  std::vector<LoadAmounts> rows;
  for (const LoadPoint& point : points) {
    if (!(point.value > 0)) continue;
    LoadAmounts& row = rows.emplace_back(amounts_of(point.load));
    for (std::size_t i = 0; i < kAmounts; ++i) {
      row[i] /= point.value;
      out.scale[i] = std::max(out.scale[i], row[i]);
    }
  }
  for (const LoadAmounts& row : rows) {
    const auto scaled = [&](std::size_t i) { return out.scale[i] > 0 ? row[i] / out.scale[i] : 0; };
    for (std::size_t i = 0; i < kAmounts; ++i) {
      out.right[i] += scaled(i);
      for (std::size_t j = 0; j < kAmounts; ++j) out.matrix[i][j] += scaled(i) * scaled(j);
    }
  }
  return out;
}

}  // namespace

LoadAmounts amounts_of(const BatchLoad& load) {
  const double rows = static_cast<double>(std::max<std::int64_t>(load.shape.samples, 1));
  return {1, rows, load.input, load.input_squares, load.target, load.target_squares, load.products};
}

double LoadFit::operator()(const BatchLoad& load) const {
  const LoadAmounts amounts = amounts_of(load);
  double sum = 0;
  for (std::size_t i = 0; i < kAmounts; ++i) sum += per_amount[i] * amounts[i];
  return sum;
}

// Coordinate descent: each amount in turn takes what is best for it, but never less than 0 (Franc, Hlavac, Navara 2005).
LoadFit fit_loads(const std::vector<LoadPoint>& points) {
  constexpr int kMostRounds = 20000;
  constexpr double kSmall = 1e-12;
  const Equations equations = equations_of(points);
  LoadAmounts x{};
  for (int round = 0; round < kMostRounds; ++round) {
    double change = 0;
    for (std::size_t i = 0; i < kAmounts; ++i) {
      if (equations.matrix[i][i] <= 0) continue;
      double rest = equations.right[i];
      for (std::size_t j = 0; j < kAmounts; ++j) rest -= j == i ? 0 : equations.matrix[i][j] * x[j];
      const double next = std::max(0.0, rest / equations.matrix[i][i]);
      change = std::max(change, std::abs(next - x[i]));
      x[i] = next;
    }
    if (change < kSmall) break;
  }
  LoadFit fit;
  for (std::size_t i = 0; i < kAmounts; ++i) fit.per_amount[i] = equations.scale[i] > 0 ? x[i] / equations.scale[i] : 0;
  return fit;
}

}  // namespace penstock
