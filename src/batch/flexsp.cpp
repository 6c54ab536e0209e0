#include "batch/flexsp.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "batch/divide.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Of ascending lengths: 16, or more while the padded tokens are more than the mean of the real ones and the capacity.
Buckets few_buckets(const std::vector<std::int64_t>& ascending, double capacity) {
  constexpr std::size_t kBuckets = 16;
  const auto real = static_cast<double>(std::accumulate(ascending.begin(), ascending.end(), std::int64_t{0}));
  for (std::size_t count = kBuckets;; ++count) {
    Buckets buckets = bucket_lengths(ascending, count);
    if (count >= ascending.size() || real + static_cast<double>(buckets.error) <= (real + capacity) / 2) return buckets;
  }
}

// Groups the lengths, which are descending, by the bounds of their buckets, and gives the result at real lengths.
Grouping group_by_buckets(const std::vector<std::int64_t>& lengths, const GroupCosts& costs, const GroupOptions& options) {
  const std::vector<std::int64_t> ascending(lengths.rbegin(), lengths.rend());
  const Buckets buckets = few_buckets(ascending, costs.capacity * options.devices);
  std::map<std::int64_t, std::vector<std::int64_t>> real;  // by bound, ascending
  std::vector<std::int64_t> bounds;
  for (const std::int64_t length : ascending) {
    bounds.push_back(*std::lower_bound(buckets.bounds.begin(), buckets.bounds.end(), length));
    real[bounds.back()].push_back(length);
  }
  Grouping out = group_batch(bounds, costs, options);
  out.milliseconds = 0;
  for (SequenceGroup& group : out.groups) {
    double time = costs.beta;
    for (std::int64_t& length : group.lengths) {
      std::vector<std::int64_t>& left = real.at(length);
      length = left.back();
      left.pop_back();
      time += costs.time(length, group.degree);
    }
    out.milliseconds = std::max(out.milliseconds, time);
  }
  return out;
}

}  // namespace

GroupedBatch group_in_micro_batches(std::vector<std::int64_t> lengths, const GroupCosts& costs, const GroupOptions& options) {
  constexpr int kMore = 4;
  if (lengths.empty()) throw Error("there are no sequences to group");
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  const auto tokens = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
  const double capacity = costs.capacity * options.devices;
  std::optional<GroupedBatch> best;
  std::string reason;  // why there is none
  int more = 0;        // numbers tried since all micro-batches were below the capacity
  for (auto count = static_cast<std::size_t>(std::max(std::ceil(tokens / capacity), 1.0)); count <= lengths.size() && more <= kMore;
       ++count) {
    std::vector<std::size_t> begins = divide_by_sum(lengths, count);
    begins.push_back(lengths.size());
    GroupedBatch batch;
    bool below = true;
    for (std::size_t i = 0; i < count && below; ++i) {
      const std::vector<std::int64_t> part(lengths.begin() + static_cast<std::ptrdiff_t>(begins[i]),
                                           lengths.begin() + static_cast<std::ptrdiff_t>(begins[i + 1]));
      below = static_cast<double>(std::accumulate(part.begin(), part.end(), std::int64_t{0})) < capacity;
      if (!below) break;
      try {
        batch.micro_batches.push_back(group_by_buckets(part, costs, options));
        batch.milliseconds += batch.micro_batches.back().milliseconds;
      } catch (const Error& error) {
        reason = error.what();
        batch.milliseconds = kInfinity;
        break;
      }
    }
    more += below ? 1 : 0;
    if (below && batch.milliseconds < kInfinity && (!best || batch.milliseconds < best->milliseconds)) best = std::move(batch);
  }
  if (!best) throw Error(reason.empty() ? "the sequences do not fit into the devices' memory" : split(reason, '\n')[0]);
  return *std::move(best);
}

}  // namespace penstock
