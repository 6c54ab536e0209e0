// SPDX-License-Identifier: Apache-2.0
// The prediction of a program by costs and a network, whatever they come from; penstock/predict.h has the usual ones.
#pragma once

#include "penstock/network.h"
#include "penstock/predict.h"
#include "simulate/durations.h"

namespace penstock {

// `speeds`: by device, its times are divided by it; none: 1 each. Throws Error as durations_of() does.
Prediction prediction_of(const Program& program, const Costs& costs, const CostContext& context, const Network& network,
                         const std::vector<double>& speeds = {});

}  // namespace penstock
