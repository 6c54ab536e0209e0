// SPDX-License-Identifier: Apache-2.0
// Finds how many GPUs and parameter servers a training is worth: Distributed Training Large-Scale Deep Architectures (1709.06622,
// lemmas 3.1 and 3.2), and the same figures by simulating what the lemmas describe.
#pragma once

#include "penstock/timeline.h"

namespace penstock {

// The figures that a measured or simulated timeline gives for each of so many steps: the mean of the time that devices compute, and the
// overhead with which these G devices take as long as they do, (1 + G R) times that. Throws Error where nothing is computed.
struct StepFigures {
  double compute = 0, overhead = 0;
};
StepFigures figures_of(const Timeline& timeline, int steps);

// Overhead is per GPU over its time of computing a mini-batch: what one GPU spends on sending and waiting, which the others wait for too.
// So a mini-batch takes (1 + R) on one GPU and (1 + G R) where G compute one each: the share of G times one GPU's speed that G have.
double gpu_efficiency(double overhead, int gpus);
// The most GPUs whose efficiency is at least `efficiency`: G <= (1 + R - e) / (e R). One is never too many; without overhead, the largest
// int.
int most_gpus(double overhead, double efficiency);
// gpu_efficiency of a table in which each GPU computes and then has a medium that all share for its overhead.
double simulated_efficiency(double overhead, int gpus);

// Workers that compute for `compute` seconds, and meanwhile give gradients to parameter servers and get parameters from them. Any one unit
// of bytes.
struct ParameterTraffic {
  double parameters = 0;  // bytes
  int workers = 1;
  double bandwidth = 0;  // of a server, bytes per second
  double compute = 0;
};
// The fewest servers, each with an equal part of the parameters, behind which computing hides the traffic: 2 S N / (B T), rounded up.
int parameter_servers(const ParameterTraffic& traffic);
// Seconds by which a step is longer than its computing with so many servers, by a simulated table of steps.
double exposed_traffic(const ParameterTraffic& traffic, int servers);

}  // namespace penstock
