// SPDX-License-Identifier: Apache-2.0
// Kernels whose text is made as the program runs, compiled for one device.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "torch/device_functions.h"

namespace penstock {

// All devices of a process may share one, and use it at once. What the device's compiler makes of a text is kept, for as long as this
// object and in the folder that PENSTOCK_CACHE names, unless that is "off", in files kernel-KEY. The folder is the user's alone; a file
// that is not what it says is made anew.
class KernelCompiler {
 public:
  // Says in words, once, where the device has no compiler. Throws Error for the host, and for a folder that cannot be made, or that others
  // may write to.
  explicit KernelCompiler(c10::Device device);
  // For launch_kernel, and for as long as the process. Null where the device has no compiler. Throws c10::Error with the compiler's words.
  void* kernel(const std::string& text, const char* name);
  std::vector<std::string> texts() const;  // of which there are kernels

 private:
  std::string image_of(const std::string& text);

  c10::Device device_;
  const DeviceFunctions* functions_;
  std::string compiler_;  // all that an image depends on beside the text; empty: there is none
  std::string folder_;    // empty: none
  mutable std::mutex mutex_;
  std::map<std::string, void*> known_;  // by text
};

}  // namespace penstock
