// SPDX-License-Identifier: Apache-2.0
// penstock batch groups, divide, buckets: FlexSP's algorithms.
#include <algorithm>
#include <functional>
#include <numeric>

#include "batch/divide.h"
#include "batch/flexsp.h"
#include "cli/batch.h"

namespace penstock {
namespace {

GroupCosts group_costs_of(const JsonNode& instance) {
  GroupCosts costs{.a1 = figure_or(instance, "a1", 0),
                   .a2 = figure_or(instance, "a2", 0),
                   .a3 = figure_or(instance, "a3", 0),
                   .beta = figure_or(instance, "beta", 0),
                   .start = figure_or(instance, "start", 0),
                   .bandwidth = {},
                   .capacity = figure_or(instance, "capacity", kInfinity)};
  if (!is_given(instance, "a1") && !is_given(instance, "a2")) instance.fail("has no costs", "give \"a1\" and \"a2\"");
  if (!is_given(instance, "bandwidth")) return costs;
  instance.at("bandwidth").each_member([&](const std::string& degree, const JsonNode& value) {
    if (degree.empty() || degree.size() > 6 || degree.find_first_not_of("0123456789") != std::string::npos)
      value.fail("belongs to no degree", "the keys are degrees: \"2\", \"4\"");
    costs.bandwidth[std::stoi(degree)] = figure(value);
    if (figure(value) == 0) value.fail("is 0; it must be more");
  });
  return costs;
}

nlohmann::ordered_json json_of(const Grouping& grouping) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const SequenceGroup& group : grouping.groups) groups.push_back({group.degree, group.lengths});
  return groups;
}

BatchAnswer solve_groups(const JsonNode& instance) {
  const std::vector<std::int64_t> lengths = wholes(required(instance, "lengths"), 1);
  const GroupOptions options{.devices = small_whole(instance, "devices"),
                             .least_degree = static_cast<int>(std::min<std::int64_t>(whole_or(instance, "least_degree", 1, 1), 1 << 20)),
                             .most_degree = static_cast<int>(std::min<std::int64_t>(whole_or(instance, "most_degree", 1, 0), 1 << 20)),
                             .all_devices = flag(instance, "all_devices")};
  const GroupCosts costs = group_costs_of(instance);
  if (flag(instance, "micro_batches")) {
    const GroupedBatch batch = group_in_micro_batches(lengths, costs, options);
    nlohmann::ordered_json micro_batches = nlohmann::ordered_json::array();
    for (const Grouping& grouping : batch.micro_batches) micro_batches.push_back(json_of(grouping));
    return {{{"milliseconds", exact(batch.milliseconds)}, {"micro_batches", micro_batches}}};
  }
  const Grouping best = group_batch(lengths, costs, options);
  return {{{"milliseconds", exact(best.milliseconds)}, {"groups", json_of(best)}, {"proven", best.proven}}};
}

BatchAnswer solve_divide(const JsonNode& instance) {
  std::vector<std::int64_t> lengths = wholes(required(instance, "lengths"), 1);
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  const auto parts = static_cast<std::size_t>(required(instance, "parts").whole(1, static_cast<std::int64_t>(lengths.size())));
  std::vector<std::size_t> begins = divide_by_sum(lengths, parts);
  begins.push_back(lengths.size());
  nlohmann::ordered_json out = nlohmann::ordered_json::array(), sums = out;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    const std::vector<std::int64_t> part(lengths.begin() + static_cast<std::ptrdiff_t>(begins[i]),
                                         lengths.begin() + static_cast<std::ptrdiff_t>(begins[i + 1]));
    out.push_back(part);
    sums.push_back(std::accumulate(part.begin(), part.end(), std::int64_t{0}));
  }
  return {{{"parts", out}, {"sums", sums}}};
}

BatchAnswer solve_buckets(const JsonNode& instance) {
  std::vector<std::int64_t> lengths = wholes(required(instance, "lengths"), 1);
  std::sort(lengths.begin(), lengths.end());
  const Buckets buckets = bucket_lengths(lengths, static_cast<std::size_t>(small_whole(instance, "buckets")));
  return {{{"bounds", buckets.bounds}, {"error", buckets.error}}};
}

}  // namespace

std::vector<BatchKind> flexsp_kinds() {
  return {{"groups",
           "sequences into groups of devices that split them (FlexSP)",
           {"lengths", "devices", "capacity", "least_degree", "most_degree", "all_devices", "a1", "a2", "a3", "beta", "start", "bandwidth",
            "micro_batches"},
           solve_groups},
          {"divide", "sorted lengths into micro-batches of least largest token sum (FlexSP)", {"lengths", "parts"}, solve_divide},
          {"buckets", "lengths into buckets of least padding (FlexSP)", {"lengths", "buckets"}, solve_buckets}};
}

}  // namespace penstock
