// SPDX-License-Identifier: Apache-2.0
// DAPPLE's formula for the latency of a step (2007.01045).
#pragma once

#include <span>

namespace penstock {

// A stage, or the link after it. Both take time for every micro-batch.
struct DapplePart {
  double forward = 0, backward = 0;  // seconds of one micro-batch
  double busy = 0;                   // seconds for each micro-batch in which it can do nothing else; a link carries both directions at once
  double all_reduce = 0;             // seconds, once a step
};

// Micro-batches that stage i of p has in flight: p - i, or 2(p - i) - 1.
enum class DappleWarmup { short_way, long_way };

// L = T_w + T_s + T_e: all forwards up to the pivot, the pivot's micro-batches, and the backwards after its last one with the sums of
// gradients. The pivot is the part for which that is longest. Unlike the paper's, T_s includes the pivot's wait for its first backward
// where its warm-up is shorter than that wait. Parts are stage, link, stage, ...
double dapple_latency(std::span<const DapplePart> parts, int microbatches, DappleWarmup warmup = DappleWarmup::long_way);

}  // namespace penstock
