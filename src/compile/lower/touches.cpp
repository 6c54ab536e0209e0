// SPDX-License-Identifier: Apache-2.0
#include "lower/touches.h"

namespace penstock {

Touch& Touches::touch(InstanceId instance) {
  std::int32_t& place = place_[instance];
  if (place < 0) {
    place = static_cast<std::int32_t>(touches_.size());
    touches_.emplace_back().instance = instance;
  }
  return touches_[place];
}

const std::vector<Touch>& Touches::of(const Draft& draft, ActorId device) {
  for (const Touch& touch : touches_) place_[touch.instance] = -1;
  touches_.clear();
  for (std::int32_t r = 0; const Run& run : draft.actors[device]) {
    for (InstanceId read : run.reads) {
      Touch& t = touch(read);
      if (t.first_read < 0) t.first_read = r;
      t.last_touch = r;
    }
    for (const Write& write : run.writes) {
      Touch& t = touch(write.instance);
      t.last_write = t.last_touch = r;
    }
    ++r;
  }
  return touches_;
}

}  // namespace penstock
