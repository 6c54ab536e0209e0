// The device of libtorch that an executor works on, and copies between its memory and the host's.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

#include "torch/graph_functions.h"

namespace penstock {

// The device of a name as configurations have it: "cpu", or "standin", a device on host threads that behaves as a GPU does. Loads first
// what makes libtorch know it. Throws Error for another name, or where that cannot be loaded.
c10::Device open_device(const std::string& name);

// Bytes of a device's memory, or of the host's.
struct Memory {
  std::byte* data = nullptr;
  c10::Device device;
};
// On the current stream of whichever end is no host; complete on return only between two places of the host.
void copy_bytes(const Memory& to, const Memory& from, std::size_t bytes);

// Null: it records nothing.
const GraphFunctions* graphs_of(c10::Device device);

// Waits until the device's current stream has done all that it was given; nothing on the host.
void synchronise(c10::Device device);

}  // namespace penstock
