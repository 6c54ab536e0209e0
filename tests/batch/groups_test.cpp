// SPDX-License-Identifier: Apache-2.0
// FlexSP: groups of devices, micro-batches and buckets; published values and brute force.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "batch/divide.h"
#include "batch/flexsp.h"
#include "batch/group_batch.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;
using test::Random;
using Tokens = std::vector<std::int64_t>;

const GroupCosts kCosts = {
    .a1 = 5e-6, .a2 = 0.18, .a3 = 2, .beta = 100, .bandwidth = {{2, 20}, {4, 10}, {8, 5}, {16, 2.5}}, .capacity = 10000};

Tokens and_more(Tokens lengths, int count, std::int64_t length) {
  lengths.insert(lengths.end(), at(count), length);
  return lengths;
}

GroupCosts on(int devices) {
  GroupCosts costs = kCosts;
  std::erase_if(costs.bandwidth, [&](const auto& entry) { return entry.first > devices; });
  return costs;
}

Grouping grouped(const Tokens& lengths, int devices) {
  return group_batch(lengths, on(devices), {.devices = devices});
}

double single_degree(const Tokens& lengths, int devices) {
  double best = kInfinity;
  for (int degree = 1; degree <= devices; degree *= 2) {
    try {
      best = std::min(best,
                      group_batch(lengths, on(devices), {.devices = devices, .least_degree = degree, .most_degree = degree}).milliseconds);
    } catch (const Error&) {
      continue;  // the longest does not fit
    }
  }
  return best;
}

std::vector<int> degrees_of(const Grouping& grouping) {
  std::vector<int> degrees;
  for (const SequenceGroup& group : grouping.groups) degrees.push_back(group.degree);
  return degrees;
}

TEST(Groups, EightDevices) {
  const Tokens lengths = and_more({20000}, 4, 9900);
  const Grouping best = grouped(lengths, 8);
  EXPECT_NEAR(best.milliseconds, 2500, 1e-9);
  EXPECT_TRUE(best.proven);
  EXPECT_EQ(degrees_of(best), (std::vector<int>{4, 1, 1, 1, 1}));
  EXPECT_EQ(best.groups[0].lengths, Tokens{20000});
  EXPECT_NEAR(single_degree(lengths, 8), 3563, 0.5);
  EXPECT_NEAR(grouped(and_more({35000}, 4, 8000), 8).milliseconds, 4956.25, 1e-9);
  EXPECT_NEAR(grouped(and_more({18000}, 6, 9000), 8).milliseconds, 3430, 1e-9);
}

TEST(Groups, SixteenDevices) {
  const Tokens lengths = and_more({40000}, 8, 9900);
  const Grouping best = grouped(lengths, 16);
  EXPECT_NEAR(best.milliseconds, 4000, 1e-9);
  EXPECT_TRUE(best.proven);
  EXPECT_EQ(best.groups[0], (SequenceGroup{8, {40000}}));
  EXPECT_NEAR(single_degree(lengths, 16), 5553, 0.5);
  EXPECT_NEAR(grouped(and_more({38000, 18000}, 6, 9000), 16).milliseconds, 3757.5, 1e-9);
  EXPECT_NEAR(grouped(and_more({70000}, 8, 8000), 16).milliseconds, 8237.5, 1e-9);
}

// Every way to put sequences into groups, each of every degree.
struct BruteGroups {
  const Tokens& lengths;
  const GroupCosts& costs;
  const GroupOptions& options;
  std::vector<Tokens> groups{};
  double best = kInfinity;

  void place(std::size_t i) {
    if (i == lengths.size()) return choose(0, options.devices, 0);
    for (std::size_t g = 0; g <= groups.size() && g < at(options.devices); ++g) {
      if (g == groups.size()) groups.emplace_back();
      groups[g].push_back(lengths[i]);
      place(i + 1);
      groups[g].pop_back();
      if (groups[g].empty()) {
        groups.pop_back();
        break;
      }
    }
  }

  void choose(std::size_t g, int free, double slowest) {
    if (g == groups.size()) {
      if (free == 0 || !options.all_devices) best = std::min(best, slowest);
      return;
    }
    const std::int64_t tokens = std::accumulate(groups[g].begin(), groups[g].end(), std::int64_t{0});
    for (int degree = options.least_degree; degree <= free; degree *= 2) {
      if (static_cast<double>(tokens) > costs.capacity * degree) continue;
      double time = costs.beta;
      for (const std::int64_t length : groups[g]) time += costs.time(length, degree);
      choose(g + 1, free - degree, std::max(slowest, time));
    }
  }
};

TEST(Groups, AreBestOfAll) {
  constexpr unsigned kSeed = 46;
  Random random(kSeed);
  int none = 0;
  for (int round = 0; round < test::rounds(300); ++round) {
    const int devices = 1 << test::draw(random, 0, 3);
    Tokens lengths;
    for (int n = test::draw(random, 1, 8); n > 0; --n)
      lengths.push_back(test::coin(random, 0.3) && !lengths.empty() ? lengths.back() : test::draw(random, 100, 20000));
    const GroupOptions options{
        .devices = devices, .least_degree = test::coin(random, 0.3) && devices > 1 ? 2 : 1, .all_devices = test::coin(random, 0.3)};
    const GroupCosts costs = on(devices);
    BruteGroups brute{lengths, costs, options};
    brute.place(0);
    if (brute.best == kInfinity) {
      ++none;
      EXPECT_NE(message_of([&] { group_batch(lengths, costs, options); }), "no error") << "seed " << kSeed << ", round " << round;
      continue;
    }
    const Grouping found = group_batch(lengths, costs, options);
    EXPECT_TRUE(found.proven);
    ASSERT_NEAR(found.milliseconds, brute.best, 1e-9 * brute.best) << "seed " << kSeed << ", round " << round;
  }
  EXPECT_GT(none, test::rounds(10));
  EXPECT_LT(none, test::rounds(200));
}

TEST(Groups, BadDegrees) {
  const auto group = [](const GroupOptions& options, GroupCosts costs) {
    return message_of([&] { group_batch({100, 200}, costs, options); });
  };
  EXPECT_EQ(group({.devices = 8, .least_degree = 3}, on(8)), "the least degree 3 is no power of two from 1 to the number of devices, 8");
  EXPECT_EQ(group({.devices = 4, .most_degree = 8}, on(4)), "the most degree 8 is no power of two from 1 to the number of devices, 4");
  EXPECT_EQ(group({.devices = 4}, on(8)), "the degree of a bandwidth, 8 is no power of two from 1 to the number of devices, 4");
  GroupCosts costs = on(8);
  costs.bandwidth.erase(4);
  EXPECT_EQ(group({.devices = 8}, costs), "there is no bandwidth of degree 4");
}

TEST(Groups, TooLong) {
  EXPECT_EQ(message_of([] { grouped({20001, 5}, 2); }),
            "a sequence of 20001 tokens fits into no group of 2 devices\n"
            "  a device holds 10000.0 tokens\n"
            "  hint: use more devices, or cut the sequence shorter");
  EXPECT_EQ(message_of([] { grouped({9000, 9000, 9000}, 2); }),
            "27000 tokens in 3 sequences do not fit into groups of 2 devices\n"
            "  a device holds 10000.0 tokens\n"
            "  hint: divide the batch into more micro-batches");
  EXPECT_EQ(message_of([] { grouped({}, 2); }), "there are no sequences to group");
}

TEST(Divide, PublishedParts) {
  EXPECT_EQ(divide_by_sum({9, 8, 7, 6, 5, 4, 3, 2, 1}, 3), (std::vector<std::size_t>{0, 2, 4}));
  EXPECT_EQ(divide_by_sum({5, 1, 1}, 3), (std::vector<std::size_t>{0, 1, 2}));
}

TEST(Buckets, PublishedError) {
  const Buckets buckets = bucket_lengths({5, 5, 6, 20, 21, 40, 80, 81}, 4);
  EXPECT_EQ(buckets.error, 4);
  EXPECT_EQ(buckets.bounds, (Tokens{6, 21, 40, 81}));
  EXPECT_EQ(bucket_lengths({3, 7}, 5).error, 0);
}

// Every way to cut a list into so many parts; `cost` takes a part's begin and end.
template <class Cost, class Join>
double best_division(std::size_t n, std::size_t parts, const Cost& cost, const Join& join) {
  double best = kInfinity;
  for (unsigned cuts = 0; cuts < 1U << (n - 1); ++cuts) {
    if (static_cast<std::size_t>(__builtin_popcount(cuts)) + 1 != parts) continue;
    double value = 0;
    for (std::size_t begin = 0, end = 1; end <= n; ++end) {
      if (end < n && (cuts >> (end - 1) & 1) == 0) continue;
      value = join(value, cost(begin, end));
      begin = end;
    }
    best = std::min(best, value);
  }
  return best;
}

TEST(Divide, PartsAndBucketsAreBestOfAll) {
  constexpr unsigned kSeed = 47;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(300); ++round) {
    Tokens lengths;
    for (int n = test::draw(random, 1, 9); n > 0; --n) lengths.push_back(test::draw(random, 1, 60));
    std::sort(lengths.begin(), lengths.end());
    const std::size_t n = lengths.size(), parts = at(test::draw(random, 1, static_cast<int>(n)));
    const auto sum = [&](std::size_t begin, std::size_t end) {
      double tokens = 0;
      for (std::size_t i = begin; i < end; ++i) tokens += static_cast<double>(lengths[i]);
      return tokens;
    };
    std::vector<std::size_t> begins = divide_by_sum(lengths, parts);
    ASSERT_EQ(begins.size(), parts) << "seed " << kSeed << ", round " << round;
    begins.push_back(n);
    double largest = 0;
    for (std::size_t i = 0; i < parts; ++i) largest = std::max(largest, sum(begins[i], begins[i + 1]));
    EXPECT_EQ(largest, best_division(n, parts, sum, [](double a, double b) { return std::max(a, b); }))
        << "seed " << kSeed << ", round " << round;
    const auto padding = [&](std::size_t begin, std::size_t end) {
      return static_cast<double>(lengths[end - 1]) * static_cast<double>(end - begin) - sum(begin, end);
    };
    EXPECT_EQ(static_cast<double>(bucket_lengths(lengths, parts).error), best_division(n, parts, padding, std::plus<>()))
        << "seed " << kSeed << ", round " << round;
  }
}

// Two devices hold 20000 tokens: three sequences of 9000 need two micro-batches, whose times add up.
TEST(FlexSp, MicroBatches) {
  const GroupedBatch batch = group_in_micro_batches({9000, 9000, 9000}, on(2), {.devices = 2});
  ASSERT_EQ(batch.micro_batches.size(), 2U);
  double sum = 0;
  for (const Grouping& grouping : batch.micro_batches) sum += grouping.milliseconds;
  EXPECT_EQ(batch.milliseconds, sum);
  EXPECT_THROW(group_in_micro_batches({30000}, on(2), {.devices = 2}), Error);
}

// Groups found with bounds of buckets have every real length once, and the times of these.
TEST(FlexSp, RealLengths) {
  constexpr unsigned kSeed = 48;
  Random random(kSeed);
  Tokens lengths;
  for (int n = 0; n < 40; ++n) lengths.push_back(test::draw(random, 100, 3000));
  const GroupCosts costs = on(8);
  const GroupedBatch batch = group_in_micro_batches(lengths, costs, {.devices = 8, .nodes = 20'000});
  Tokens found;
  double sum = 0;
  for (const Grouping& grouping : batch.micro_batches) {
    double slowest = 0;
    for (const SequenceGroup& group : grouping.groups) {
      double time = costs.beta;
      for (const std::int64_t length : group.lengths) time += costs.time(length, group.degree);
      slowest = std::max(slowest, time);
      found.insert(found.end(), group.lengths.begin(), group.lengths.end());
    }
    EXPECT_NEAR(grouping.milliseconds, slowest, 1e-9);
    sum += slowest;
  }
  EXPECT_NEAR(batch.milliseconds, sum, 1e-9);
  std::sort(found.begin(), found.end());
  std::sort(lengths.begin(), lengths.end());
  EXPECT_EQ(found, lengths);
}

}  // namespace
}  // namespace penstock
