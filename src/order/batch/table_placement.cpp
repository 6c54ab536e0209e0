// SPDX-License-Identifier: Apache-2.0
#include "batch/table_placement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Devices = std::vector<std::int32_t>;

constexpr std::size_t kMostDevices = 64, kAllSets = 8;
constexpr std::int64_t kMostSteps = 1 << 18;

void require_number(const std::string& what, double value, bool positive) {
  if (std::isfinite(value) && (positive ? value > 0 : value >= 0)) return;
  throw Error(concat(what, " is ", number(value)), {}, positive ? "give a finite number above 0" : "give a finite number, 0 or more");
}

double bytes_of(const PlacementProblem& p, const EmbeddingTable& table) {
  return table.rows * table.width * p.element * p.copies;
}
// For the rows that a step looks up.
double looked_up(const PlacementProblem& p, const EmbeddingTable& table) {
  return p.batch * table.lookups * table.width * p.element;
}
// On each of k devices.
double part_bytes(const PlacementProblem& p, const EmbeddingTable& table, std::size_t k) {
  return std::ceil(table.rows / static_cast<double>(k)) * table.width * p.element * p.copies;
}

void check(const PlacementProblem& p) {
  if (p.devices.empty() || p.devices.size() > kMostDevices)
    throw Error(concat("there are ", p.devices.size(), " devices for tables"), {}, concat("give 1 to ", kMostDevices));
  require_number("the batch", p.batch, true);
  require_number("an element's size", p.element, true);
  require_number("passes", p.passes, true);
  require_number("copies", p.copies, true);
  require_number("the link", p.link, false);
  require_number("the overlap", p.overlap, false);
  double room = 0;
  for (std::size_t d = 0; d < p.devices.size(); ++d) {
    require_number(concat("the bandwidth of device ", d), p.devices[d].bandwidth, true);
    require_number(concat("the dense time of device ", d), p.devices[d].dense, false);
    if (std::isnan(p.devices[d].memory) || p.devices[d].memory < 0)
      throw Error(concat("the memory of device ", d, " is ", number(p.devices[d].memory)), {}, "give bytes, 0 or more");
    room = p.link > 0 ? room + p.devices[d].memory : std::max(room, p.devices[d].memory);
  }
  for (std::size_t t = 0; t < p.tables.size(); ++t) {
    require_number(concat("table ", t, ": rows"), p.tables[t].rows, true);
    require_number(concat("table ", t, ": width"), p.tables[t].width, true);
    require_number(concat("table ", t, ": lookups"), p.tables[t].lookups, false);
    if (bytes_of(p, p.tables[t]) > room)
      throw Error(concat("table ", t, " has ", number(bytes_of(p, p.tables[t])), " bytes, more than ",
                         p.link > 0 ? "all devices together" : "any device"),
                  {concat("they have room for ", number(room))},
                  p.link > 0 ? "give more devices, or more memory" : "give the bandwidth of a \"link\", so that tables can be split");
  }
}

struct Search {
  const PlacementProblem& p;
  std::vector<std::size_t> order;  // of tables: the largest part of time or memory first
  std::vector<double> behind;      // by place in it: bytes of memory of the tables from there on
  double bound = 0;                // that no placement is better than
  TablePlacement now{}, best{};
  std::int64_t steps = 0;

  // Rows that are read again are looked up once more, and updated no more often.
  double period(std::size_t d) const {
    return std::max(now.reads[d] + now.exchange[d], p.devices[d].dense + p.overlap * now.reads[d] / p.passes);
  }
  double period() const {
    double out = 0;
    for (std::size_t d = 0; d < p.devices.size(); ++d) out = std::max(out, period(d));
    return out;
  }
};

// Puts the table on these devices, or with sign -1 takes it off.
void put(Search& s, const EmbeddingTable& table, const Devices& on, double sign) {
  const auto k = static_cast<double>(on.size());
  for (const std::int32_t d : on) {
    s.now.reads[d] += sign * s.p.passes * looked_up(s.p, table) / k / s.p.devices[d].bandwidth;
    if (on.size() > 1) s.now.exchange[d] += sign * 2 * (k - 1) / k * looked_up(s.p, table) / s.p.link;
    s.now.bytes[d] += sign * part_bytes(s.p, table, on.size());
  }
}

bool fits(const Search& s, const EmbeddingTable& table, const Devices& on) {
  const double bytes = part_bytes(s.p, table, on.size());
  return std::ranges::all_of(on, [&](std::int32_t d) { return s.now.bytes[d] + bytes <= s.p.devices[d].memory; });
}

bool alike(const Search& s, std::size_t a, std::size_t b) {
  const TableDevice &x = s.p.devices[a], &y = s.p.devices[b];
  return x.memory == y.memory && x.bandwidth == y.bandwidth && x.dense == y.dense && s.now.reads[a] == s.now.reads[b] &&
         s.now.exchange[a] == s.now.exchange[b] && s.now.bytes[a] == s.now.bytes[b];
}

// Every set of devices; of those that differ in devices that are alike so far, one.
std::vector<Devices> all_sets(const Search& s) {
  std::vector<Devices> out;
  const std::size_t n = s.p.devices.size();
  for (std::uint32_t set = 1; set < 1U << n; ++set) {
    const auto is_twin = [&](std::size_t d) {
      for (std::size_t before = 0; before < d; ++before)
        if (!(set >> before & 1U) && alike(s, before, d)) return true;
      return false;
    };
    Devices& on = out.emplace_back();
    bool is_new = true;
    for (std::size_t d = 0; d < n; ++d)
      if (set >> d & 1U) {
        on.push_back(static_cast<std::int32_t>(d));
        is_new = is_new && !is_twin(d);
      }
    if (!is_new) out.pop_back();
  }
  return out;
}

// For each size, the devices that the table's part keeps busy least long.
std::vector<Devices> best_sets(Search& s, const EmbeddingTable& table) {
  std::vector<Devices> out;
  for (std::size_t k = 1; k <= s.p.devices.size(); ++k) {
    std::vector<std::pair<double, std::int32_t>> devices;
    for (std::size_t d = 0; d < s.p.devices.size(); ++d) {
      const Devices on = {static_cast<std::int32_t>(d)};
      if (s.now.bytes[d] + part_bytes(s.p, table, k) > s.p.devices[d].memory) continue;
      put(s, table, on, 1);
      devices.emplace_back(s.period(d), on[0]);
      put(s, table, on, -1);
    }
    if (devices.size() < k) continue;
    std::ranges::sort(devices);
    Devices& on = out.emplace_back();
    for (std::size_t i = 0; i < k; ++i) on.push_back(devices[i].second);
    std::ranges::sort(on);
  }
  return out;
}

// The sets that can have the table, by the period that they lead to.
std::vector<std::pair<double, Devices>> choices(Search& s, const EmbeddingTable& table) {
  std::vector<std::pair<double, Devices>> out;
  for (Devices& on : s.p.devices.size() <= kAllSets ? all_sets(s) : best_sets(s, table)) {
    if ((on.size() > 1 && s.p.link == 0) || !fits(s, table, on)) continue;
    const TablePlacement before = s.now;
    put(s, table, on, 1);
    out.emplace_back(s.period(), std::move(on));
    s.now = before;
  }
  std::ranges::stable_sort(out, {}, [](const auto& choice) { return std::pair(choice.first, choice.second.size()); });
  return out;
}

void search(Search& s, std::size_t place) {
  if (++s.steps > kMostSteps || s.best.period <= s.bound) return;
  if (place == s.order.size()) {
    s.best = s.now;
    s.best.period = s.period();
    return;
  }
  double room = 0;
  for (std::size_t d = 0; d < s.p.devices.size(); ++d) room += s.p.devices[d].memory - s.now.bytes[d];
  if (s.behind[place] > room) return;
  const std::size_t t = s.order[place];
  for (const auto& [period, on] : choices(s, s.p.tables[t])) {
    if (period >= s.best.period) return;
    const TablePlacement before = s.now;  // sums are taken back exactly
    put(s, s.p.tables[t], on, 1);
    s.now.devices[t] = on;
    search(s, place + 1);
    s.now = before;
  }
}

Search begin(const PlacementProblem& p) {
  Search s{p, std::vector<std::size_t>(p.tables.size()), std::vector<double>(p.tables.size() + 1)};
  double bytes = 0, time = 0, bandwidth = 0;
  for (const EmbeddingTable& table : p.tables) {
    bytes += bytes_of(p, table);
    time += looked_up(p, table);
  }
  for (const TableDevice& device : p.devices) {
    bandwidth += device.bandwidth;
    s.bound = std::max(s.bound, device.dense);
  }
  s.bound = std::max(s.bound, p.passes * time / bandwidth);
  std::iota(s.order.begin(), s.order.end(), 0);
  const auto weight = [&](std::size_t t) {
    return std::max(bytes_of(p, p.tables[t]) / bytes, time > 0 ? looked_up(p, p.tables[t]) / time : 0);
  };
  std::ranges::stable_sort(s.order, std::greater<>(), weight);
  for (std::size_t i = p.tables.size(); i-- > 0;) s.behind[i] = s.behind[i + 1] + bytes_of(p, p.tables[s.order[i]]);
  s.now.devices.resize(p.tables.size());
  s.now.reads.resize(p.devices.size());
  s.now.exchange = s.now.bytes = s.now.reads;
  s.best.period = std::numeric_limits<double>::infinity();
  return s;
}

}  // namespace

TablePlacement place_tables(const PlacementProblem& problem) {
  check(problem);
  Search s = begin(problem);
  search(s, 0);
  if (std::isinf(s.best.period))
    throw Error(concat("the tables do not fit on ", counted(std::ssize(problem.devices), "device")),
                {concat("they have ", number(s.behind[0]), " bytes", s.steps > kMostSteps ? "; not every placement was tried" : "")},
                problem.link > 0 ? "give more devices, or more memory" : "give the bandwidth of a \"link\", so that tables can be split");
  s.best.proven = s.best.period <= s.bound || (s.steps <= kMostSteps && problem.devices.size() <= kAllSets);
  return s.best;
}

}  // namespace penstock
