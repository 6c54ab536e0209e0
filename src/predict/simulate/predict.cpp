// SPDX-License-Identifier: Apache-2.0
#include "penstock/predict.h"

#include "simulate/prediction.h"
#include "simulate/roofline.h"
#include "simulate/simulate.h"

namespace penstock {

Prediction prediction_of(const Program& program, const Costs& costs, const CostContext& context, const Network& network,
                         const std::vector<double>& speeds) {
  Durations durations = durations_of(program, costs, context);
  for (std::size_t d = 0; d < speeds.size(); ++d)
    for (double& seconds : durations[d]) seconds /= speeds[d];
  Simulation simulation = simulate(program, durations, network, {.record = true});
  Prediction out{simulation.makespan, simulation.bubble(), simulation.lower_bound(), kernel_bytes(program, costs), {}};
  if (const auto overhead = costs.step_overhead.find(context.backend); overhead != costs.step_overhead.end())
    out.seconds += overhead->second;
  for (std::size_t d = 0; d < out.memory.size(); ++d) out.memory[d] += program.devices[d].device_bytes();
  out.timeline = std::move(simulation.timeline);
  out.timeline.title = program.name + ", predicted";
  return out;
}

Prediction predict(const Program& program, const std::string& device, const std::string& link) {
  CostContext context;
  context.roofline = published_devices().device(device);
  Network network;
  network.link = published_devices().link(link);
  network.host = host_link({}, context);
  return prediction_of(program, {}, context, network);
}

Prediction predict(const Program& program, const Costs& costs, const std::string& backend, const std::string& file) {
  const CostContext context{.file = file, .backend = backend};
  Network network;
  if (program.devices.size() > 1) network = network_of(costs, context);
  network.host = host_link(costs, context);
  return prediction_of(program, costs, context, network);
}

}  // namespace penstock
