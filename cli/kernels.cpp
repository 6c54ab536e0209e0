// SPDX-License-Identifier: Apache-2.0
#include "cli/kernels.h"

#include <algorithm>
#include <thread>

#include "base/device_name.h"
#include "cli/backend.h"

namespace penstock {

void choose_kernels(const Config& config, Program& program) {
  if (config.run.kernels != "own" && is_host(config.run.device)) backend().choose_kernels(program, config.run.kernels);
}

double peak_of(const Config& config, int devices) {
  DType dtype = DType::f32;
  parse_dtype(config.train.dtype, dtype);
  const int processors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return backend().product_rate(dtype) * std::min(devices, processors);
}

}  // namespace penstock
