// SPDX-License-Identifier: Apache-2.0
// This library makes the stand-in a device of libtorch (PrivateUse1, called "standin"): loading it registers the device.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "standin/compiler.h"
#include "standin/graphs.h"
#include "standin/kernels.h"
#include "standin/memory.h"
#include "standin/streams.h"
#include "torch/device_functions.h"

namespace penstock::standin {
namespace {

int id_of(const c10::Stream& stream) {
  return static_cast<int>(stream.id());
}

// An event, as libtorch holds it: the point that it was last recorded at.
using EventState = std::shared_ptr<Point>;
const EventState& state_of(void* event) {
  return *static_cast<EventState*>(event);
}

// The same, for a host that asks for it, which CUDA refuses of events of captures.
const EventState& asked_for(void* event) {
  TORCH_CHECK(state_of(event)->capture == 0, "stand-in: the host asks for an event of a capture");
  return state_of(event);
}

c10::Device the_device() {
  return {kType, 0};
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kType;
  static c10::Stream stream(int id) { return c10::Stream(c10::Stream::UNSAFE, the_device(), id); }

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return the_device(); }
  c10::Device getDevice() const override { return the_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return stream(current_stream()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(new_stream()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream to) const override { return stream(exchange_stream(id_of(to))); }
  bool queryStream(const c10::Stream& of) const override { return is_idle(id_of(of)); }
  void synchronizeStream(const c10::Stream& of) const override { synchronise(id_of(of)); }
  void synchronizeDevice(c10::DeviceIndex) const override { synchronise_all(); }

  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new EventState;
    *static_cast<EventState*>(*event) = standin::record(id_of(on));
  }
  void block(void* event, const c10::Stream& on) const override {
    if (event) standin::block(id_of(on), state_of(event));
  }
  bool queryEvent(void* event) const override { return !event || asked_for(event)->is_reached(); }
  void synchronizeEvent(void* event) const override {
    if (event) asked_for(event)->wait();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<EventState*>(event); }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(asked_for(to)->when() - asked_for(from)->when()).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool isPinnedPtr(const void* at) const override { return memory().is_pinned(at); }
  at::Device getDeviceFromPtr(void* at) const override { return memory().is_here(at) ? the_device() : at::Device(at::kCPU); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::DeviceType::CPU); }
};

const bool is_registered = [] {
  static Hooks hooks;
  c10::register_privateuse1_backend("standin");
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kType, &memory(), 1);
  return true;
}();

// For tests of waits: the graph that was launched last, and what launches of it leave out.
struct Launched {
  std::mutex mutex;
  const Graph* graph = nullptr;
  std::vector<NeededWait> waits;
  std::optional<LeftOut> left_out;
};
Launched& last_launched() {
  static auto* const last = new Launched;
  return *last;
}

void note_launched(const Graph* graph) {
  last_launched().graph = graph;
  last_launched().waits.clear();
  last_launched().left_out.reset();
}

void launch_graph(Graph& graph, int stream) {
  const std::lock_guard lock(last_launched().mutex);
  if (last_launched().graph != &graph) note_launched(&graph);
  launch(graph, stream, last_launched().left_out);
}

void destroy_graph(Graph* graph) {
  {
    const std::lock_guard lock(last_launched().mutex);
    if (last_launched().graph == graph) note_launched(nullptr);
  }
  destroy(std::unique_ptr<Graph>(graph));
}

constexpr DeviceFunctions kFunctions = {
    [](c10::Stream root) { begin_capture(id_of(root)); },
    [](c10::Stream root) -> void* { return end_capture(id_of(root)).release(); },
    [](c10::Stream root) { cancel_capture(id_of(root)); },
    [](void* graph, c10::Stream stream) { launch_graph(*static_cast<Graph*>(graph), id_of(stream)); },
    [](void* graph) { destroy_graph(static_cast<Graph*>(graph)); },
    [](c10::Stream stream) { return handle_of(id_of(stream)); },
    [] { return 1; },
    []() -> std::string { return {}; },
    [](c10::Device) -> std::string { return "stand-in"; },
    [](c10::Device) { return DeviceMemory{memory().free(), memory().total()}; },
    [](std::size_t bytes, c10::Device) { return memory().arena(bytes); },
    [](std::size_t bytes, c10::Device) { return memory().pinned(bytes); },
    [](c10::Device) { return memory().peak(); },
    [](c10::Device) { memory().reset_peak(); },
    [](c10::Device) { return true; },
    [](const char* name, c10::Device) { return find_kernel(name); },
    [](void* kernel, const KernelGrid& grid, std::span<const KernelArgument> arguments, c10::Stream stream) {
      launch_kernel(kernel, grid, arguments, id_of(stream));
    },
    [](c10::Device) { return compiler(); },
    [](const std::string& text, c10::Device) { return compile(text); },
    load_kernel,
};

}  // namespace
}  // namespace penstock::standin

extern "C" {

const penstock::DeviceFunctions* penstock_device_functions() {
  return &penstock::standin::kFunctions;
}
// For whoever has no operator of libtorch for what a stream is to do: the work, and where it finds the bytes of an address.
void penstock_standin_enqueue(void* stream, const std::function<void()>& work) {
  penstock::standin::enqueue(penstock::standin::stream_of(stream), work);
}
void* penstock_standin_bytes(const void* address) {
  return penstock::standin::memory().bytes_of(address);
}

// For tests of waits, between steps: how many waits the graph that was launched last needs (standin/graphs.h), and which of them its next
// launches leave out, none where it has not so many. Each `attempt`, from 0 on, is for another collision, as far as there are others.
std::size_t penstock_standin_leave_out(std::size_t wait, std::size_t attempt) {
  auto& [mutex, graph, waits, left_out] = penstock::standin::last_launched();
  const std::lock_guard lock(mutex);
  if (graph && waits.empty()) waits = penstock::standin::needed_waits(*graph);
  left_out.reset();
  if (wait < waits.size()) left_out = {waits[wait].wait, waits[wait].without[attempt * 7919 % waits[wait].without.size()]};
  return waits.size();
}
}
