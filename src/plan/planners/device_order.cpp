// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"
#include "planners/spp.h"

namespace penstock {
namespace {

class DeviceOrder {
 public:
  DeviceOrder(const ClusterSpec& cluster, double bytes, TimeLimit& limit)
      : limit_(limit), n_(cluster.devices.size()), weights_(n_ * n_, 0) {
    for (std::size_t a = 0; a < n_; ++a)
      for (std::size_t b = 0; b < n_; ++b) {
        if (a == b) continue;
        const ClusterLink link = cluster.link(static_cast<int>(a), static_cast<int>(b));
        const double seconds = link.latency + bytes / link.bandwidth;
        weights_[a * n_ + b] = 1 / std::max(seconds, 1e-15);  // links that take no time count as equal
      }
  }

  std::vector<int> order(const std::vector<int>& devices) const {
    if (devices.size() < 2 || limit_.is_over(0)) return devices;
    const std::vector<int> side = minimum_cut(devices);
    std::vector<int> parts[2];
    for (std::size_t i = 0; i < devices.size(); ++i) parts[side[i]].push_back(devices[i]);
    std::vector<int> host = order(parts[0]), guest = order(parts[1]);
    if (guest.size() > host.size()) std::swap(host, guest);
    return joined(host, guest);
  }

 private:
  double weight(int a, int b) const { return weights_[at(a) * n_ + at(b)]; }

  // The side of each device in the lightest cut: 1 or 0 (Stoer & Wagner 1997).
  std::vector<int> minimum_cut(const std::vector<int>& devices) const {
    const std::size_t n = devices.size();
    std::vector<double> w(n * n);
    for (std::size_t a = 0; a < n; ++a)
      for (std::size_t b = 0; b < n; ++b) w[a * n + b] = weight(devices[a], devices[b]);
    std::vector<std::vector<std::size_t>> merged(n);
    std::vector<std::size_t> left(n);
    std::iota(left.begin(), left.end(), std::size_t{0});
    for (std::size_t i = 0; i < n; ++i) merged[i] = {i};
    double lightest = kInfinity;
    std::vector<int> side;
    while (left.size() > 1 && (side.empty() || !limit_.is_over(static_cast<std::int64_t>(n * left.size())))) {
      const Phase phase = run_phase(w, n, left);
      if (phase.cut < lightest * (1 - 1e-9)) {
        lightest = phase.cut;
        side.assign(n, 0);
        for (const std::size_t i : merged[phase.last]) side[i] = 1;
      }
      for (const std::size_t i : left) w[i * n + phase.before] = w[phase.before * n + i] += w[phase.last * n + i];
      merged[phase.before].insert(merged[phase.before].end(), merged[phase.last].begin(), merged[phase.last].end());
      std::erase(left, phase.last);
    }
    return side;
  }

  struct Phase {
    std::size_t before = 0, last = 0;
    double cut = 0;  // weight of the cut that separates `last` from all others
  };

  // In each round the vertex with the strongest ties to those taken is taken next.
  static Phase run_phase(const std::vector<double>& w, std::size_t n, std::vector<std::size_t> left) {
    std::vector<double> tied(n, 0);
    Phase phase;
    while (!left.empty()) {
      const auto next = std::max_element(left.begin(), left.end(), [&](std::size_t a, std::size_t b) { return tied[a] < tied[b]; });
      phase = {phase.last, *next, tied[*next]};
      left.erase(next);
      for (const std::size_t i : left) tied[i] += w[phase.last * n + i];
    }
    return phase;
  }

  // Inserts the guest into the gap of the host, or at the end, where the links between neighbours gain most.
  std::vector<int> joined(const std::vector<int>& host, std::vector<int> guest) const {
    const std::size_t end = guest.front() < host.front() ? 0 : host.size();  // the first of equal gaps
    double best = -kInfinity;
    std::vector<int> line;
    for (std::size_t i = 0; i <= host.size(); ++i)
      for (int turn = 0; turn < 2; ++turn, std::reverse(guest.begin(), guest.end())) {
        const std::size_t gap = (end + i) % (host.size() + 1);
        double gain = 0;
        if (gap > 0) gain += weight(host[gap - 1], guest.front());
        if (gap < host.size()) gain += weight(guest.back(), host[gap]);
        if (gap > 0 && gap < host.size()) gain -= weight(host[gap - 1], host[gap]);
        if (!line.empty() && gain <= best + 1e-9 * std::abs(best)) continue;
        best = gain;
        line = host;
        line.insert(line.begin() + static_cast<std::ptrdiff_t>(gap), guest.begin(), guest.end());
      }
    return line;
  }

  TimeLimit& limit_;
  std::size_t n_;
  std::vector<double> weights_;  // by pair
};

}  // namespace

std::vector<int> device_order(const ClusterSpec& cluster, double bytes, TimeLimit& limit) {
  std::vector<int> devices(cluster.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  if (cluster.between.empty() && cluster.levels.size() < 2) return devices;  // all links are equal
  constexpr std::size_t kMost = 512;                                         // the cuts take time cubic in the devices
  if (devices.size() > kMost)
    throw Error(concat("spp orders at most ", kMost, " devices of unequal links; there are ", devices.size()), {},
                "planner best asks the others");
  return DeviceOrder(cluster, bytes, limit).order(devices);
}

}  // namespace penstock
