// SPDX-License-Identifier: Apache-2.0
// One execution of a draft with transfers, under virtual time: transfers take none, runs what a roofline says. A collective takes none
// either, but is complete only when the last of its devices has begun it: who reads its result waits until then.
#pragma once

#include <limits>
#include <unordered_map>
#include <vector>

#include "lower/draft.h"

namespace penstock {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Execution {
  IdVector<ActorId, std::vector<double>> end;  // [run]
  IdVector<TransferId, double> sent, posted;   // sent never: a refresh, when all is done
  std::vector<TransferId> order;               // transfers of runs, as they are sent
  // By device: when the last collective that reads or writes an instance is complete. None has begun on all its devices: never.
  IdVector<ActorId, std::unordered_map<InstanceId, double>> collected;
};
// Throws Error for a draft of which a device waits for ever.
Execution execute(const Draft& draft);

// Transfers by instance, those of one instance in the draft's order.
class TransfersOf {
 public:
  explicit TransfersOf(const Draft& draft);
  std::span<const TransferId> operator[](InstanceId instance) const {
    const std::size_t begin = begin_[instance.index()];
    return {numbers_.data() + begin, begin_[instance.index() + 1] - begin};
  }

 private:
  std::vector<std::size_t> begin_;  // of each instance, in `numbers_`
  std::vector<TransferId> numbers_;
};

// By device: the transfers that it receives, as it posts them.
IdVector<ActorId, std::vector<TransferId>> incoming_of(const Draft& draft);

}  // namespace penstock
