// SPDX-License-Identifier: Apache-2.0
// For each instance that a device's runs touch: the runs that do so first and last.
#pragma once

#include <vector>

#include "lower/draft.h"

namespace penstock {

struct Touch {  // runs are counted in the device's row
  InstanceId instance;
  std::int32_t first_read = -1, last_touch = -1, last_write = -1;
};

// In the order in which they are first touched. One object serves device after device, so that finding an instance needs no search.
class Touches {
 public:
  explicit Touches(const Draft& draft) : place_(draft.instances.size(), -1) {}

  // Forgets the device before.
  const std::vector<Touch>& of(const Draft& draft, ActorId device);
  Touch& touch(InstanceId instance);  // adds it where it is new
  // Position in what of() gave; -1: the device does not touch it.
  std::int32_t place(InstanceId instance) const { return place_[instance]; }
  const std::vector<Touch>& all() const { return touches_; }

 private:
  std::vector<Touch> touches_;
  IdVector<InstanceId, std::int32_t> place_;
};

}  // namespace penstock
