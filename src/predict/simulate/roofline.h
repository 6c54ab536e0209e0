// SPDX-License-Identifier: Apache-2.0
// Predicts the seconds of a task on a device that nobody has measured here, by the roofline of published figures (Williams et al.,
// Roofline, CACM 2009).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/graph.h"
#include "penstock/network.h"

namespace penstock {

struct DeviceModel {
  std::string name, title, source;
  double f64 = 0, f32 = 0, f16 = 0, bf16 = 0;  // peak floating-point operations per second, dense; 0: not published, counts as f32
  double bandwidth = 0;                        // bytes per second of its memory, as kernels reach it
  std::int64_t memory_bytes = 0;               // 0: it is the buyer's choice
  std::optional<Link> host{};                  // to the host's memory; none: its memory is the host's
  double launch_seconds = 0;                   // per op
  double elementwise_launch_seconds = 0;       // the same of an op that goes element by element
  std::map<std::string, double> bandwidths{};  // by op: that of the memory as its kernels reach it, where it is another one
  double efficiency = 1;                       // share of the peak that products reach
  double attention_efficiency = 1;             // the same of attention that keeps its scores on chip
  double processors = 0;                       // that work at once, each on a tile of attention; 0: nothing counts tiles
  bool scores_in_memory = false;               // whether attention's scores are, all of them, whatever its mask

  double peak(DType dtype) const;  // integers count as f32
};

struct DeviceTable {
  std::string file;
  std::map<std::string, DeviceModel> devices;
  std::map<std::string, Link> links;

  // Throw Error with the nearest name and all that there are.
  const DeviceModel& device(const std::string& name) const;
  const Link& link(const std::string& name) const;
};

// Throws Error with file:line:column: bad TOML, an unknown or missing key, a number that is not positive and finite.
DeviceTable parse_devices(std::string_view toml, const std::string& file);
// src/predict/simulate/devices.toml, as it was when Penstock was built.
const DeviceTable& published_devices();

// Sum over the ops that are no views of launch + max(flops / (peak * efficiency), bytes / bandwidth), each as the op reaches it. Attention
// whose scores are in memory is products and passes over the scores, one after the other, each at its own limit; where the device's
// processors are known, attention that keeps them on chip takes whole tiles.
double roofline_seconds(const Graph& graph, const DeviceModel& device);

}  // namespace penstock
