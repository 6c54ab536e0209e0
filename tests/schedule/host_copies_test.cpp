// SPDX-License-Identifier: Apache-2.0
#include "schedule/host_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"
#include "schedule/validate.h"

namespace penstock {
namespace {

TEST(HostCopies, GoBesideTheActionAheadOfTheBackward) {
  const Schedule table = graphpipe(chain(3), 5);
  EXPECT_EQ(
      split(print(with_host_copies(table, {true, false, false})), '\n')[0],
      "0F0,0OFFLOAD0,0F1,0OFFLOAD1,0F2,0OFFLOAD2,0RELOAD0,0B0,0RELOAD1,0F3,0OFFLOAD3,0B1,0RELOAD2,0F4,0OFFLOAD4,0B2,0RELOAD3,0RELOAD4,"
      "0B3,0B4");
  EXPECT_EQ(print(with_host_copies(table, {false, false, false})), print(table));
}

// The micro-batches whose residuals are on the device while an action of the row runs: what an OFFLOAD moves stays there for one action
// more.
std::size_t most_there(const std::vector<Action>& row) {
  std::size_t most = 0;
  std::set<std::int32_t> there, leaving;
  for (const Action& action : row) {
    if (action.kind == Kind::OFFLOAD) {
      leaving.insert(action.microbatch);
    } else if (action.kind == Kind::RELOAD) {
      there.insert(action.microbatch);
    } else {
      if (action.kind == Kind::F) there.insert(action.microbatch);
      most = std::max(most, there.size());
      if (action.kind == Kind::B) there.erase(action.microbatch);
      for (const std::int32_t gone : std::exchange(leaving, {})) there.erase(gone);
    }
  }
  return most;
}

TEST(HostCopies, LeaveTwoMicrobatchesThere) {
  for (int stages = 1; stages <= 6; ++stages)
    for (int microbatches = 1; microbatches <= 12; ++microbatches) {
      SCOPED_TRACE(concat(stages, " stages, ", microbatches, " micro-batches"));
      const StageShape shape = chain(stages);
      const Schedule table = with_host_copies(graphpipe(shape, microbatches), std::vector<bool>(static_cast<std::size_t>(stages), true));
      EXPECT_NO_THROW(validate(table, shape, microbatches));
      for (const std::vector<Action>& row : table.actors) EXPECT_LE(most_there(row), 2u) << print(table);
    }
}

}  // namespace
}  // namespace penstock
