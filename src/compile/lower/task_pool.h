// SPDX-License-Identifier: Apache-2.0
// Tasks that programs made one after the other have in common, though lowering makes each program's anew: what stands before and after the
// loop is alike wherever the table has the stages on the same actors.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "lower/draft.h"

namespace penstock {

class TaskPool {
 public:
  // Gives the draft's tasks the graphs that earlier drafts had for them, where all that a graph's text says is equal.
  void share(Draft& draft);

 private:
  struct Kept {
    TaskGraph graph;
    std::int64_t used = 0;  // the draft that had it last
  };
  std::unordered_multimap<std::uint64_t, Kept> kept_;  // by structural hash
  std::int64_t drafts_ = 0;
};

}  // namespace penstock
