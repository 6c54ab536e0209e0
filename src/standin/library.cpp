// What makes the stand-in a device of libtorch (PrivateUse1, called "standin"): loading this library registers it.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <memory>

#include "standin/memory.h"
#include "standin/streams.h"
#include "torch/graph_functions.h"

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
  bool queryEvent(void* event) const override { return !event || state_of(event)->is_reached(); }
  void synchronizeEvent(void* event) const override {
    if (event) state_of(event)->wait();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<EventState*>(event); }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(state_of(to)->when() - state_of(from)->when()).count();
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
  bool isPinnedPtr(const void*) const override { return false; }
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

constexpr GraphFunctions kGraphs = {
    [](c10::Stream root) { begin_capture(id_of(root)); },
    [](c10::Stream root) -> void* { return end_capture(id_of(root)); },
    [](c10::Stream root) { cancel_capture(id_of(root)); },
    [](void* graph, c10::Stream stream) { launch(static_cast<Graph*>(graph), id_of(stream)); },
    [](void* graph) { destroy(static_cast<Graph*>(graph)); },
};

}  // namespace
}  // namespace penstock::standin

extern "C" const penstock::GraphFunctions* penstock_graph_functions() {
  return &penstock::standin::kGraphs;
}
