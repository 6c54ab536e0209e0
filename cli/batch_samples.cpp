// SPDX-License-Identifier: Apache-2.0
#include "cli/batch_samples.h"

#include <algorithm>
#include <numeric>

#include "batch/tour_order.h"

namespace penstock {

ReadLengths read_lengths(const JsonNode& instance) {
  ReadLengths out;
  out.decoder = is_given(instance, "pairs");
  if (out.decoder && is_given(instance, "lengths")) instance.fail("has both \"lengths\" and \"pairs\"", "give one of them");
  const JsonNode list = required(instance, out.decoder ? "pairs" : "lengths");
  list.each_element([&](const JsonNode& node) {
    if (!out.decoder) {
      out.samples.push_back({node.whole(1), 0});
      return;
    }
    node.check_list();
    if (node.value().size() != 2) node.fail(concat("is ", shown(node.value()), "; it must be an input's and a target's length"));
    std::vector<std::int64_t> both = wholes(node, 0);
    out.samples.push_back({both[0], both[1]});
  });
  check_samples(out.samples, out.decoder, whole_or(instance, "context", 1, 0));
  return out;
}

std::vector<std::size_t> read_order(const JsonNode& instance, const std::vector<SampleLengths>& samples) {
  if (!is_given(instance, "order")) return longest_first(samples);
  const JsonNode node = instance.at("order");
  if (node.value() == "tour") return tour_order(samples).order;
  std::vector<std::size_t> order;
  node.each_element([&](const JsonNode& place) { order.push_back(static_cast<std::size_t>(place.whole(0))); });
  std::vector<std::size_t> sorted = order, all(samples.size());
  std::sort(sorted.begin(), sorted.end());
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (sorted != all)
    node.fail(concat("must name each of the ", samples.size(), " samples once, from 0"),
              "or be \"tour\", or left out for the longest first");
  return order;
}

CostFormula read_formula(const JsonNode& node) {
  if (!is_given(node, "fixed") && !is_given(node, "linear") && !is_given(node, "quadratic"))
    node.fail("has no costs", "give \"fixed\", \"linear\" and \"quadratic\", or \"grid\"");
  const double stored = figure_or(node, "stored", 1);
  return {.fixed = figure_or(node, "fixed", 0),
          .linear = figure_or(node, "linear", kInfinity),
          .quadratic = figure_or(node, "quadratic", kInfinity),
          .stored = stored,
          .peak = figure_or(node, "peak", stored)};
}

MicroBatches read_micro_batches(const JsonNode& instance) {
  MicroBatches work;
  work.forward = figures(required(instance, "forward"));
  for (const double time : work.forward) work.backward.push_back(2 * time);
  if (is_given(instance, "backward")) work.backward = figures(instance.at("backward"));
  work.size.assign(work.count(), 1);
  if (is_given(instance, "sizes")) work.size = figures(instance.at("sizes"));
  check_micro_batches(work);
  return work;
}

}  // namespace penstock
