// SPDX-License-Identifier: Apache-2.0
#include "batch/group_batch.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

struct OpenGroup {
  int degree = 1;
  double time = 0;
  std::int64_t tokens = 0;
  std::vector<std::size_t> members;

  bool same(const OpenGroup& other) const { return degree == other.degree && time == other.time && tokens == other.tokens; }
};

double slowest(const std::vector<OpenGroup>& groups) {
  double most = 0;
  for (const OpenGroup& group : groups) most = std::max(most, group.time);
  return most;
}

class GroupSearch {
 public:
  GroupSearch(const std::vector<std::int64_t>& lengths, const GroupCosts& costs, const GroupOptions& options)
      : lengths_(lengths), costs_(costs), options_(options), work_(lengths.size() + 1), alone_(lengths.size() + 1) {
    const int most =
        options.most_degree > 0 ? options.most_degree : static_cast<int>(std::bit_floor(static_cast<unsigned>(options.devices)));
    for (int degree = options.least_degree; degree <= most; degree *= 2) degrees_.push_back(degree);
    for (std::size_t i = lengths.size(); i-- > 0;) {
      double work = kInfinity, alone = kInfinity;
      for (const int degree : degrees_) {
        if (!fits(degree, lengths[i])) continue;
        work = std::min(work, costs.time(lengths[i], degree) * degree);
        alone = std::min(alone, costs.time(lengths[i], degree) + costs.besides(degree));
      }
      work_[i] = work_[i + 1] + work;
      alone_[i] = std::max(alone_[i + 1], alone);
    }
  }

  // The first of the sequences that no group holds; lengths.size() where there is none.
  std::size_t too_long() const {
    const int most = degrees_.empty() ? 0 : degrees_.back();
    return static_cast<std::size_t>(std::find_if(lengths_.begin(), lengths_.end(), [&](std::int64_t n) { return !fits(most, n); }) -
                                    lengths_.begin());
  }

  Grouping run() {
    start_with_fixed_degrees();
    place(0, options_.devices);
    Grouping out{.milliseconds = best_time_, .groups = {}, .proven = nodes_ <= options_.nodes};
    for (const OpenGroup& group : best_) {
      SequenceGroup& made = out.groups.emplace_back(SequenceGroup{group.degree, {}});
      for (const std::size_t i : group.members) made.lengths.push_back(lengths_[i]);
    }
    std::sort(out.groups.begin(), out.groups.end(), std::greater<>());
    return out;
  }

 private:
  bool fits(int degree, std::int64_t tokens) const { return static_cast<double>(tokens) <= costs_.capacity * degree; }

  void keep(const std::vector<OpenGroup>& groups, int free) {
    if (options_.all_devices && free > 0) return;
    const double time = slowest(groups);
    if (time >= best_time_) return;
    best_time_ = time;
    best_ = groups;
  }

  // A good end to begin with: for each choice of degrees, each sequence goes where it ends earliest.
  void start_with_fixed_degrees() {
    constexpr int kChoices = 4096;
    int choices = 0;
    std::vector<OpenGroup> empty;
    const std::function<void(std::size_t, int)> choose = [&](std::size_t degree, int free) {
      if (++choices > kChoices) return;
      list_into(empty, free);
      for (std::size_t d = degree; d < degrees_.size(); ++d) {
        if (degrees_[d] > free) break;
        empty.push_back({.degree = degrees_[d], .time = costs_.besides(degrees_[d]), .members = {}});
        choose(d, free - degrees_[d]);
        empty.pop_back();
      }
    };
    choose(0, options_.devices);
  }

  void list_into(std::vector<OpenGroup> groups, int free) {
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      OpenGroup* best = nullptr;
      const auto end = [&](const OpenGroup& group) { return group.time + costs_.time(lengths_[i], group.degree); };
      for (OpenGroup& group : groups)
        if (fits(group.degree, group.tokens + lengths_[i]) && (best == nullptr || end(group) < end(*best))) best = &group;
      if (best == nullptr) return;
      add(*best, i);
    }
    for (const OpenGroup& group : groups) free += group.members.empty() ? group.degree : 0;
    std::erase_if(groups, [](const OpenGroup& group) { return group.members.empty(); });
    keep(groups, free);
  }

  void add(OpenGroup& group, std::size_t i) const {
    group.time += costs_.time(lengths_[i], group.degree);
    group.tokens += lengths_[i];
    group.members.push_back(i);
  }

  // No end of this is faster: devices x time is at least all work, and the sequences that are left take their time at any degree.
  double bound(std::size_t next) const {
    double work = work_[next], most = alone_[next];
    for (const OpenGroup& group : groups_) {
      work += group.time * group.degree;
      most = std::max(most, group.time);
    }
    return std::max(most, work / options_.devices);
  }

  // Places sequence i and those behind it, with `free` devices without a group.
  void place(std::size_t i, int free) {
    if (nodes_ > options_.nodes || bound(i) >= best_time_) return;
    if (i == lengths_.size()) return keep(groups_, free);
    ++nodes_;
    // Equal sequences go to groups in one order only.
    std::size_t first = 0;
    if (i > 0 && lengths_[i] == lengths_[i - 1])
      while (groups_[first].members.empty() || groups_[first].members.back() != i - 1) ++first;
    for (std::size_t g = first; g < groups_.size(); ++g) {
      if (!fits(groups_[g].degree, groups_[g].tokens + lengths_[i])) continue;
      const auto begin = groups_.begin() + static_cast<std::ptrdiff_t>(first), here = groups_.begin() + static_cast<std::ptrdiff_t>(g);
      if (std::any_of(begin, here, [&](const OpenGroup& other) { return other.same(*here); })) continue;
      const OpenGroup before = groups_[g];
      add(groups_[g], i);
      place(i + 1, free);
      groups_[g] = before;
    }
    for (const int degree : degrees_) {
      if (degree > free || !fits(degree, lengths_[i])) continue;
      groups_.push_back({.degree = degree, .time = costs_.besides(degree), .members = {}});
      add(groups_.back(), i);
      place(i + 1, free - degree);
      groups_.pop_back();
    }
  }

  const std::vector<std::int64_t>& lengths_;
  const GroupCosts& costs_;
  const GroupOptions& options_;
  std::vector<int> degrees_;
  std::vector<double> work_, alone_;  // of the sequences from each on: least device time; the longest's least time in a group
  std::vector<OpenGroup> groups_, best_;
  double best_time_ = kInfinity;
  std::int64_t nodes_ = 0;
};

void check_group_options(const GroupCosts& costs, const GroupOptions& options) {
  const auto check_degree = [&](int degree, const char* what) {
    if (degree < 1 || !std::has_single_bit(static_cast<unsigned>(degree)) || degree > options.devices)
      throw Error(concat(what, " ", degree, " is no power of two from 1 to the number of devices, ", options.devices));
  };
  check_degree(options.least_degree, "the least degree");
  if (options.most_degree > 0) check_degree(options.most_degree, "the most degree");
  const int most = options.most_degree > 0 ? options.most_degree : options.devices;
  for (const auto& [degree, bandwidth] : costs.bandwidth) check_degree(degree, "the degree of a bandwidth,");
  for (int degree = std::max(options.least_degree, 2); costs.a3 > 0 && degree <= most; degree *= 2)
    if (!costs.bandwidth.contains(degree)) throw Error(concat("there is no bandwidth of degree ", degree));
}

}  // namespace

double GroupCosts::time(std::int64_t tokens, int degree) const {
  const auto s = static_cast<double>(tokens);
  const double sent = degree > 1 && a3 > 0 ? a3 * s / (degree * bandwidth.at(degree)) : 0;
  return (a1 * s * s + a2 * s) / degree + sent;
}

double GroupCosts::time(const SequenceGroup& group) const {
  double sum = besides(group.degree);
  for (const std::int64_t length : group.lengths) sum += time(length, group.degree);
  return sum;
}

Grouping group_batch(std::vector<std::int64_t> lengths, const GroupCosts& costs, const GroupOptions& options) {
  check_group_options(costs, options);
  if (lengths.empty()) throw Error("there are no sequences to group");
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  GroupSearch search(lengths, costs, options);
  if (const std::size_t i = search.too_long(); i < lengths.size())
    throw Error(concat("a sequence of ", lengths[i], " tokens fits into no group of ", options.devices, " devices"),
                {concat("a device holds ", number(costs.capacity), " tokens")}, "use more devices, or cut the sequence shorter");
  Grouping out = search.run();
  if (out.groups.empty())
    throw Error(concat(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), " tokens in ", lengths.size(),
                       " sequences do not fit into groups of ", options.devices, " devices"),
                {concat("a device holds ", number(costs.capacity), " tokens")}, "divide the batch into more micro-batches");
  return out;
}

}  // namespace penstock
