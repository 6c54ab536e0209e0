// SPDX-License-Identifier: Apache-2.0
// The numbers of an op of AdamW's family, as its attributes say them.
#pragma once

#include "ops/infer.h"

namespace penstock {

struct Adamw {
  double beta1, beta2, eps, weight_decay;
};

inline Adamw adamw_of(const Op& op) {
  return {number_attribute(op, "beta1"), number_attribute(op, "beta2"), number_attribute(op, "eps"), number_attribute(op, "weight_decay")};
}

}  // namespace penstock
