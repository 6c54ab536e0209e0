// SPDX-License-Identifier: Apache-2.0
// Captures are made by CUDA's own calls and not by at::cuda::CUDAGraph. That one also captures the state of random generators, which no
// kernel of ours reads: an operator that does is refused, and its step is issued. And where a capture fails, which is no error here, some
// of its versions leave the allocator as if it went on.
//
// The mode is "relaxed". All devices of a process issue into one capture, each on its own thread, and whichever comes first begins it and
// whichever comes last ends it. In the other modes only the thread that began a capture may end it; and what they forbid beyond this one
// they forbid to that thread alone. What a recording relies on holds in every mode: whoever waits for a captured stream or event, or asks
// for it, is refused, and so is what is not joined.
#include "cuda/graphs.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace penstock::cuda {

namespace allocator = c10::cuda::CUDACachingAllocator;

struct Graph {
  c10::Device device;
  c10::MempoolId_t pool;
  cudaGraphExec_t executable = nullptr;
  std::int64_t bytes = 0;  // of the pool
};

namespace {

struct Capture {
  c10::MempoolId_t pool;
  std::int64_t reserved_before = 0;  // bytes of the card that the allocator had
};

// By card.
struct Cards {
  std::mutex mutex;
  std::map<c10::DeviceIndex, Capture> captures;
  std::map<c10::DeviceIndex, std::int64_t> bytes;
};
Cards& cards() {
  static auto* const all = new Cards;  // graphs may outlive what is static
  return *all;
}

cudaStream_t handle(c10::Stream stream) {
  return c10::cuda::CUDAStream(stream).stream();
}

std::int64_t reserved(c10::DeviceIndex card) {
  return allocator::getDeviceStats(card).reserved_bytes[0].current;
}

// Later versions of libtorch tell captures from other uses of a pool.
template <class Allocator>
void mark(Allocator* all, c10::DeviceIndex card, bool begins) {
  if constexpr (requires { all->markCaptureBegin(card); }) begins ? all->markCaptureBegin(card) : all->markCaptureEnd(card);
}

// The number of the capture that the stream is in; 0: in none.
unsigned long long capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long number = 0;
  C10_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &number));
  return status == cudaStreamCaptureStatusActive ? number : 0;
}

// Ends the capture, and what the allocator does for it. What was captured; null and an error where there is nothing to use.
std::pair<cudaGraph_t, cudaError_t> finish(c10::Stream root) {
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(handle(root), &graph);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());  // it is no error of whoever calls next
  mark(allocator::get(), root.device_index(), false);
  return {graph, error};
}

void discard(c10::Stream root) {
  if (const cudaGraph_t captured = finish(root).first) C10_CUDA_CHECK_WARN(cudaGraphDestroy(captured));
}

// The pool's memory goes back to the allocator when the card has done what it was used for.
void release(c10::Device device, c10::MempoolId_t pool) {
  allocator::releasePool(device.index(), pool);
}

Capture taken(c10::Stream root) {
  const std::lock_guard lock(cards().mutex);
  auto node = cards().captures.extract(root.device_index());
  TORCH_CHECK(!node.empty(), "the card captures nothing");
  return node.mapped();
}

}  // namespace

void begin(c10::Stream root) {
  const c10::DeviceGuard guard(root.device());
  const c10::DeviceIndex card = root.device_index();
  const c10::MempoolId_t pool = at::cuda::graph_pool_handle();
  {
    const std::lock_guard lock(cards().mutex);
    TORCH_CHECK(cards().captures.emplace(card, Capture{pool, reserved(card)}).second, "two captures at once on a card");
  }
  const cudaError_t error = cudaStreamBeginCapture(handle(root), cudaStreamCaptureModeRelaxed);
  if (error != cudaSuccess) taken(root);
  C10_CUDA_CHECK(error);
  mark(allocator::get(), card, true);
  try {
    // Whichever thread issues: what is allocated on a stream of the capture is the graph's.
    allocator::beginAllocateToPool(card, pool, [own = capture_of(handle(root))](cudaStream_t stream) { return capture_of(stream) == own; });
  } catch (...) {
    taken(root);
    discard(root);
    throw;
  }
}

Graph* end(c10::Stream root) {
  const c10::DeviceGuard guard(root.device());
  const Capture capture = taken(root);
  const auto [captured, error] = finish(root);
  allocator::endAllocateToPool(root.device_index(), capture.pool);
  auto graph = std::make_unique<Graph>(Graph{root.device(), capture.pool});
  cudaError_t made = error;
  if (captured) {
    made = cudaGraphInstantiateWithFlags(&graph->executable, captured, cudaGraphInstantiateFlagAutoFreeOnLaunch);
    C10_CUDA_CHECK_WARN(cudaGraphDestroy(captured));
  }
  if (!graph->executable) release(graph->device, graph->pool);
  C10_CUDA_CHECK(made);
  TORCH_CHECK(graph->executable, "the capture was broken");
  graph->bytes = std::max<std::int64_t>(reserved(root.device_index()) - capture.reserved_before, 0);
  const std::lock_guard lock(cards().mutex);
  cards().bytes[root.device_index()] += graph->bytes;
  return graph.release();
}

void cancel(c10::Stream root) {
  const c10::DeviceGuard guard(root.device());
  const Capture capture = taken(root);
  discard(root);
  allocator::endAllocateToPool(root.device_index(), capture.pool);
  release(root.device(), capture.pool);
}

void launch(Graph* graph, c10::Stream stream) {
  const c10::DeviceGuard guard(graph->device);
  C10_CUDA_CHECK(cudaGraphLaunch(graph->executable, handle(stream)));
}

// A launch that is under way ends before its executable does, but its memory is to be others' only then.
void destroy(Graph* graph) {
  const std::unique_ptr<Graph> owned(graph);
  const c10::DeviceGuard guard(owned->device);
  C10_CUDA_CHECK_WARN(cudaDeviceSynchronize());
  C10_CUDA_CHECK_WARN(cudaGraphExecDestroy(owned->executable));
  release(owned->device, owned->pool);
  const std::lock_guard lock(cards().mutex);
  cards().bytes[owned->device.index()] -= owned->bytes;
}

std::int64_t bytes_of_graphs(c10::Device device) {
  const std::lock_guard lock(cards().mutex);
  const auto found = cards().bytes.find(device.index());
  return found == cards().bytes.end() ? 0 : found->second;
}

}  // namespace penstock::cuda
