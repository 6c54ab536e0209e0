// SPDX-License-Identifier: Apache-2.0
#include "driver/check_window.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "driver/outputs.h"
#include "state/initialise.h"

namespace penstock {

bool has_trained_copies(const Program& program, const Prepared& prepared) {
  std::set<std::string> trained;
  for (const ParameterSpec& spec : prepared.parameters)
    if (spec.trained) trained.insert(spec.name);
  return std::ranges::any_of(program.devices, [&](const DeviceProgram& device) {
    return std::ranges::any_of(device.slots, [&](const Slot& slot) { return slot.kind == SlotClass::copy && trained.contains(slot.name); });
  });
}

WindowEnd run_window(const Program& program, Cluster& cluster, const Prepared& prepared, const StepInput& input) {
  const StepResult result = cluster.step(cluster.load(program), input);
  WindowEnd out;
  for (std::int32_t step = 0; step < prepared.schedule.steps; ++step)
    out.losses.push_back(scalar_output(program, result, concat("loss.", step)));
  for (const ParameterSpec& spec : prepared.parameters) {
    const std::vector<std::byte> bytes = cluster.state(spec.name);
    std::vector<double>& values = out.parameters.emplace_back(spec.name, std::vector<double>()).second;
    for (std::int64_t i = 0; i < spec.type.elements(); ++i)
      values.push_back(load_element(spec.type.dtype, bytes, static_cast<std::size_t>(i)));
  }
  return out;
}

Comparison compare(const WindowEnd& pipelined, const WindowEnd& in_one_row) {
  Comparison out = compare(StepGradients{0, pipelined.parameters}, StepGradients{0, in_one_row.parameters});
  for (std::size_t step = 0; step < in_one_row.losses.size(); ++step)
    out.loss_difference = std::max(out.loss_difference, relative_difference(pipelined.losses[step], in_one_row.losses[step]));
  return out;
}

}  // namespace penstock
