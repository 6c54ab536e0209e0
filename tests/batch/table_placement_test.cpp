// SPDX-License-Identifier: Apache-2.0
// Placements of tables beside all that there are.
#include "batch/table_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/text.h"
#include "support/errors.h"
#include "support/rounds.h"
#include "support/seed.h"

namespace penstock {
namespace {

using test::message_of;

// The period of a placement by the sets of devices; infinite: it does not fit.
double period_of(const PlacementProblem& p, const std::vector<std::uint32_t>& sets) {
  std::vector<double> moved(p.devices.size()), again(p.devices.size()), sent(p.devices.size()), bytes(p.devices.size());
  for (std::size_t t = 0; t < sets.size(); ++t) {
    const int k = __builtin_popcount(sets[t]);
    const double rows = p.batch * p.tables[t].lookups * p.tables[t].width * p.element;
    if (k > 1 && p.link == 0) return INFINITY;
    for (std::size_t d = 0; d < p.devices.size(); ++d) {
      if (!(sets[t] >> d & 1U)) continue;
      moved[d] += p.passes * rows / k / p.devices[d].bandwidth;
      again[d] += p.overlap * rows / k / p.devices[d].bandwidth;  // looked up once more; the update has them once
      if (k > 1) sent[d] += 2. * (k - 1) / k * rows / p.link;
      bytes[d] += std::ceil(p.tables[t].rows / k) * p.tables[t].width * p.element * p.copies;
    }
  }
  double period = 0;
  for (std::size_t d = 0; d < p.devices.size(); ++d) {
    if (bytes[d] > p.devices[d].memory) return INFINITY;
    period = std::max({period, moved[d] + sent[d], p.devices[d].dense + again[d]});
  }
  return period;
}

double by_brute_force(const PlacementProblem& p, std::vector<std::uint32_t>& sets) {
  if (sets.size() == p.tables.size()) return period_of(p, sets);
  double best = INFINITY;
  for (std::uint32_t set = 1; set < 1U << p.devices.size(); ++set) {
    sets.push_back(set);
    best = std::min(best, by_brute_force(p, sets));
    sets.pop_back();
  }
  return best;
}

PlacementProblem drawn(std::mt19937& random) {
  const auto upto = [&](int most) { return static_cast<double>(random() % (static_cast<unsigned>(most) + 1)); };
  PlacementProblem p{.batch = 1 + upto(7), .passes = 1 + upto(2), .copies = 1 + upto(1), .link = upto(3) * 64, .overlap = upto(4) / 4};
  const double memory = 40 + upto(100);
  for (int t = 1 + static_cast<int>(upto(3)); t > 0; --t) p.tables.push_back({1 + upto(12), 1 + upto(3), upto(4)});
  const bool alike = random() % 2;
  for (int d = 1 + static_cast<int>(upto(2)); d > 0; --d)
    p.devices.push_back(alike ? TableDevice{memory, 64, 1} : TableDevice{40 + upto(200), 16 * (1 + upto(7)), upto(4)});
  return p;
}

TEST(TablePlacement, IsTheBestOfAll) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937 random(seed);
  int placed = 0, split = 0;
  for (int trial = 0; trial < test::rounds(300); ++trial) {
    const PlacementProblem p = drawn(random);
    std::vector<std::uint32_t> sets;
    const double expected = by_brute_force(p, sets);
    if (std::isinf(expected)) {
      EXPECT_FALSE(message_of([&] { place_tables(p); }).empty()) << "trial " << trial;
      continue;
    }
    const TablePlacement found = place_tables(p);
    for (const std::vector<std::int32_t>& devices : found.devices) {
      std::uint32_t& set = sets.emplace_back();
      for (const std::int32_t d : devices) set |= 1U << d;
      split += devices.size() > 1;
    }
    EXPECT_NEAR(found.period, expected, 1e-9) << "trial " << trial;
    EXPECT_NEAR(period_of(p, sets), found.period, 1e-9) << "trial " << trial;
    EXPECT_TRUE(found.proven) << "trial " << trial;
    ++placed;
    if (HasFailure()) return;
  }
  EXPECT_GT(placed, test::rounds(100));
  EXPECT_GT(split, test::rounds(10));
}

// 26 tables on 16 devices: more than can be tried. The busiest device is not much busier than the mean.
TEST(TablePlacement, OfManyTablesIsBalanced) {
  PlacementProblem p{.batch = 1024, .link = 5e10};
  for (int t = 0; t < 26; ++t) p.tables.push_back({t % 5 == 0 ? 4e7 : 1e5, 64, 1. + t % 7 * 4});
  p.devices.assign(16, {8e9, 1e11, 0});
  const TablePlacement found = place_tables(p);
  double mean = 0;
  for (std::size_t d = 0; d < 16; ++d) {
    mean += found.reads[d] / 16;
    EXPECT_LE(found.bytes[d], 8e9);
  }
  EXPECT_LT(found.period, 1.5 * mean);
  EXPECT_GT(found.devices[0].size(), 1U) << "10.24 GB";
}

TEST(TablePlacement, RefusesWhatIsNoProblem) {
  const PlacementProblem good{.tables = {{100, 4, 2}}, .devices = {{1000, 10, 1}, {1000, 10, 1}}};
  const auto refusal = [&](const auto& change) {
    PlacementProblem p = good;
    change(p);
    return message_of([&] { place_tables(p); });
  };
  EXPECT_EQ(refusal([](PlacementProblem& p) { p.devices[1].bandwidth = 0; }),
            "the bandwidth of device 1 is 0.0\n  hint: give a finite number above 0");
  EXPECT_EQ(refusal([](PlacementProblem& p) { p.devices[1].dense = -1; }),
            "the dense time of device 1 is -1.0\n  hint: give a finite number, 0 or more");
  EXPECT_EQ(refusal([](PlacementProblem& p) { p.devices[0].memory = -1; }),
            "the memory of device 0 is -1.0\n  hint: give bytes, 0 or more");
  EXPECT_EQ(refusal([](PlacementProblem& p) { p.tables[0].rows = 0; }), "table 0: rows is 0.0\n  hint: give a finite number above 0");
  EXPECT_EQ(refusal([](PlacementProblem& p) { p.tables[0].lookups = -2; }),
            "table 0: lookups is -2.0\n  hint: give a finite number, 0 or more");
  EXPECT_EQ(refusal([](PlacementProblem& p) { p.devices.clear(); }), "there are 0 devices for tables\n  hint: give 1 to 64");
  EXPECT_EQ(refusal([](PlacementProblem&) {}),
            "table 0 has 1600.0 bytes, more than any device\n  they have room for 1000.0\n"
            "  hint: give the bandwidth of a \"link\", so that tables can be split");
  EXPECT_EQ(refusal([](PlacementProblem& p) { p.link = 1, p.tables[0].rows = 1000; }),
            "table 0 has 16000.0 bytes, more than all devices together\n  they have room for 2000.0\n"
            "  hint: give more devices, or more memory");
  EXPECT_EQ(refusal([](PlacementProblem& p) { p.link = 1, p.tables.assign(2, {100, 4, 2}); }),
            "the tables do not fit on 2 devices\n  they have 3200.0 bytes\n  hint: give more devices, or more memory");
}

}  // namespace
}  // namespace penstock
