// SPDX-License-Identifier: Apache-2.0
// The functions that libpenstock_backend.so gives (cli/backend.h).
#include "torch/backend.h"

extern "C" const penstock::Backend* penstock_backend() {
  return &penstock::torch_backend();
}
