// SPDX-License-Identifier: Apache-2.0
// The one data port that no data source gives.
#pragma once

namespace penstock {

// i64 [micro-batches]: the number of each in its step. Devices fill it themselves. A training step of a model that carries decaying
// averages from micro-batch to micro-batch reads it (Model::carried).
inline constexpr const char* kMicrobatchPort = "microbatch";

}  // namespace penstock
