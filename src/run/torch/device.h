// SPDX-License-Identifier: Apache-2.0
// The device of libtorch that an executor works on, and copies between its memory and the host's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "torch/device_functions.h"

namespace penstock {

// The device of a name as configurations have it (base/device_name.h). Loads first what makes libtorch know it: ahead of all else that
// asks libtorch for CUDA, as it keeps the answer that there is none. "cuda" without a number is the process's own card. Throws Error for
// another name, where the device's library cannot be loaded, and where there is no such card.
c10::Device open_device(const std::string& name);

// The number of the card that is wanted, of `count`. Without one it is the process's own: that of its number among those of this host,
// unless its launcher lets it see one alone. `get` reads the environment. Throws Error where there are not so many.
int chosen_card(std::optional<int> wanted, int count, const std::function<const char*(const char*)>& get);

// Bytes of a device's memory, or of the host's.
struct Memory {
  std::byte* data = nullptr;
  c10::Device device;
};
// Memory as a tensor of bytes.
at::Tensor bytes_at(const Memory& memory, std::size_t bytes);

// These are done on the current stream of whichever end is no host, and complete on return only on the host.
void copy_bytes(const Memory& to, const Memory& from, std::size_t bytes);

void zero_bytes(const Memory& memory, std::size_t bytes);

// The product's name: of the card, or of the host's processor.
std::string processor_of(c10::Device device);

// Returns the functions of the device's library; null for the host, which has none.
const DeviceFunctions* functions_of(c10::Device device);

// Waits until the device's current stream has done all that it was given; nothing on the host.
void synchronise(c10::Device device);

}  // namespace penstock
