// One execution of a draft with transfers, under virtual time: transfers take none, runs what a roofline says.
#pragma once

#include <limits>
#include <vector>

#include "lower/draft.h"

namespace penstock {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Execution {
  std::vector<std::vector<double>> end;  // [device][run]
  std::vector<double> sent, posted;      // of each transfer; sent never: a refresh, when all is done
  std::vector<std::int32_t> order;       // transfers of runs, as they are sent
};
Execution execute(const Draft& draft);

// Transfers by instance, those of one instance in the draft's order.
class TransfersOf {
 public:
  explicit TransfersOf(const Draft& draft);
  // Positions in Draft::transfers.
  std::span<const std::int32_t> operator[](InstanceId instance) const {
    const std::size_t begin = begin_[instance.index()];
    return {numbers_.data() + begin, begin_[instance.index() + 1] - begin};
  }

 private:
  std::vector<std::size_t> begin_;  // of each instance, in `numbers_`
  std::vector<std::int32_t> numbers_;
};

// Of each device: the transfers that it receives, as it posts them.
std::vector<std::vector<std::int32_t>> incoming_of(const Draft& draft);

}  // namespace penstock
