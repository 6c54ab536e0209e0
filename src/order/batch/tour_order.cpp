// SPDX-License-Identifier: Apache-2.0
#include "batch/tour_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/numbers.h"

namespace penstock {
namespace {

struct Point {
  double input = 0, target = 0;
};

double distance_of(const Point& a, const Point& b) {
  return std::abs(a.input - b.input) + std::abs(a.target - b.target);
}

using Cluster = std::vector<std::size_t>;

// Complete linkage: the two nearest clusters are joined while all members of both are nearer than `most`. The chain goes from a cluster to
// its nearest, and on to that one's, until two are each other's nearest (Murtagh 1983): for complete linkage that gives the same tree.
std::vector<Cluster> clusters_of(const std::vector<Point>& points, double most) {
  const std::size_t n = points.size();
  std::vector<std::vector<double>> apart(n, std::vector<double>(n));
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = 0; b < n; ++b) apart[a][b] = distance_of(points[a], points[b]);
  std::vector<Cluster> clusters(n);
  for (std::size_t i = 0; i < n; ++i) clusters[i] = {i};
  std::vector<bool> open(n, true);  // may still be joined
  std::vector<std::size_t> chain;
  for (std::size_t first = 0; first < n;) {
    if (chain.empty() && !open[first]) {
      ++first;
      continue;
    }
    if (chain.empty()) chain.push_back(first);
    const std::size_t end = chain.back();
    const std::size_t before = chain.size() > 1 ? chain[chain.size() - 2] : n;
    std::size_t nearest = before;
    for (std::size_t other = 0; other < n; ++other)
      if (other != end && open[other] && (nearest == n || apart[end][other] < apart[end][nearest])) nearest = other;
    if (nearest == n || apart[end][nearest] >= most) {
      // Nothing is near enough to this one, and those before it in the chain are no nearer to theirs.
      for (const std::size_t i : chain) open[i] = false;
      chain.clear();
    } else if (nearest == before) {
      chain.resize(chain.size() - 2);
      const auto [into, from] = std::minmax(end, nearest);
      clusters[into].insert(clusters[into].end(), clusters[from].begin(), clusters[from].end());
      clusters[from].clear();
      open[from] = false;
      for (std::size_t i = 0; i < n; ++i) apart[into][i] = apart[i][into] = std::max(apart[into][i], apart[from][i]);
    } else {
      chain.push_back(nearest);
    }
  }
  std::erase_if(clusters, [](const Cluster& cluster) { return cluster.empty(); });
  for (Cluster& cluster : clusters) std::sort(cluster.begin(), cluster.end());
  return clusters;
}

using Tour = std::vector<std::size_t>;

double tour_length(const std::vector<Point>& points, const Tour& tour) {
  double sum = 0;
  for (std::size_t i = 1; i < tour.size(); ++i) sum += distance_of(points[tour[i - 1]], points[tour[i]]);
  return sum;
}

Tour nearest_neighbours(const std::vector<Point>& points, std::size_t begin) {
  Tour tour(points.size());
  std::iota(tour.begin(), tour.end(), std::size_t{0});
  std::swap(tour[0], tour[begin]);
  for (std::size_t i = 1; i < tour.size(); ++i) {
    const auto nearer = [&](std::size_t a, std::size_t b) {
      return distance_of(points[tour[i - 1]], points[a]) < distance_of(points[tour[i - 1]], points[b]);
    };
    std::iter_swap(tour.begin() + static_cast<std::ptrdiff_t>(i),
                   std::min_element(tour.begin() + static_cast<std::ptrdiff_t>(i), tour.end(), nearer));
  }
  return tour;
}

// Reverses one stretch of the tour, or exchanges two neighbouring stretches of which one has at most three points, where that makes it
// shorter. Either is a rotation of tour[i, j) around k, which only changes what joins at i, at k and at j.
class Improvement {
 public:
  Improvement(const std::vector<Point>& points, Tour& tour) : points_(points), tour_(tour) {}

  bool once() {
    constexpr std::size_t kRun = 3;
    const std::size_t n = tour_.size();
    bool better = false;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = i + 2; j <= n; ++j) {
        better |= reverse(i, j);
        for (std::size_t run = 1; run <= kRun && run < j - i; ++run) {
          better |= exchange(i, i + run, j);
          better |= exchange(i, j - run, j);
        }
      }
    }
    return better;
  }

 private:
  // Between the points at two places; the tour is open, so nothing joins before its first and behind its last.
  double joint(std::size_t a, std::size_t b) const {
    return a >= tour_.size() || b >= tour_.size() ? 0 : distance_of(points_[tour_[a]], points_[tour_[b]]);
  }
  static bool less(double after, double before) { return after < before - 1e-9; }
  auto place(std::size_t i) { return tour_.begin() + static_cast<std::ptrdiff_t>(i); }

  // With i = 0, i - 1 is beyond every place.
  bool reverse(std::size_t i, std::size_t j) {
    if (!less(joint(i - 1, j - 1) + joint(i, j), joint(i - 1, i) + joint(j - 1, j))) return false;
    std::reverse(place(i), place(j));
    return true;
  }
  bool exchange(std::size_t i, std::size_t k, std::size_t j) {
    if (!less(joint(i - 1, k) + joint(j - 1, i) + joint(k - 1, j), joint(i - 1, i) + joint(k - 1, k) + joint(j - 1, j))) return false;
    std::rotate(place(i), place(k), place(j));
    return true;
  }

  const std::vector<Point>& points_;
  Tour& tour_;
};

Tour short_tour(const std::vector<Point>& points) {
  constexpr std::size_t kStarts = 8, kPoints = 512;  // fewer starts where there are many points
  const std::size_t starts = std::min(points.size(), std::clamp(kPoints / points.size(), std::size_t{1}, kStarts));
  Tour best;
  for (std::size_t start = 0; start < starts; ++start) {
    Tour tour = nearest_neighbours(points, start * points.size() / starts);
    Improvement improvement(points, tour);
    while (improvement.once()) {
    }
    if (best.empty() || tour_length(points, tour) < tour_length(points, best)) best = std::move(tour);
  }
  return best;
}

}  // namespace

TourOrder tour_order(const std::vector<SampleLengths>& samples, double distance) {
  std::vector<Point> points;
  for (const SampleLengths& sample : samples) points.push_back({static_cast<double>(sample.input), static_cast<double>(sample.target)});
  const std::vector<Cluster> clusters = clusters_of(points, distance);
  std::vector<Point> centres;
  for (const Cluster& cluster : clusters) {
    Point sum;
    for (const std::size_t i : cluster) sum = {sum.input + points[i].input, sum.target + points[i].target};
    const auto size = static_cast<double>(cluster.size());
    centres.push_back({sum.input / size, sum.target / size});
  }
  TourOrder out;
  for (const std::size_t cluster : short_tour(centres))
    out.order.insert(out.order.end(), clusters[cluster].begin(), clusters[cluster].end());
  out.length = tour_length(points, out.order);
  return out;
}

}  // namespace penstock
