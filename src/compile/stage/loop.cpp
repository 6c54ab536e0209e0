// SPDX-License-Identifier: Apache-2.0
#include "stage/loop.h"

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

std::size_t loop_of(const Graph& step) {
  std::size_t found = step.ops.size(), count = 0;
  for (std::size_t i = 0; i < step.ops.size(); ++i)
    if (step.ops[i].name == "accumulate") {
      found = i;
      ++count;
    }
  if (count != 1)
    throw Error(concat("graph @", step.name, " has ", count, " loops"), {"a step has one `accumulate`: the loop over its micro-batches"},
                "call accumulate(...) once in the traced step; other work stands before or after it");
  return found;
}

}  // namespace penstock
