// SPDX-License-Identifier: Apache-2.0
// Graphs of CUDA: the work of streams, recorded once and launched any number of times.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>

namespace penstock::cuda {

// A recorded graph. Memory that its kernels use beside what is there when it is recorded is a pool of the allocator's, which is the
// graph's as long as it lives.
struct Graph;

// These are DeviceFunctions' of the same names. One capture at a time on a card.
void begin(c10::Stream root);
Graph* end(c10::Stream root);
void cancel(c10::Stream root);
void launch(Graph* graph, c10::Stream stream);
void destroy(Graph* graph);

// Bytes of the card in pools of graphs.
std::int64_t bytes_of_graphs(c10::Device device);

}  // namespace penstock::cuda
