// SPDX-License-Identifier: Apache-2.0
// An optimiser's update of a training step's state.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "penstock/step.h"
#include "penstock/trace.h"

namespace penstock {

// The training state before or after an update.
struct TrainingState {
  Parameters parameters;
  Parameters kept;  // what the optimiser keeps of those that are trained, as "first:<name>"
  Tensor step;      // how many steps are done
};

// The tensors that the optimiser keeps of the trained parameters, in the order of a step's inputs. Throws Error for an optimiser that there
// is not, for options that it does not take, for numbers that give no finite update (betas of 1), and where a parameter has no update or
// one of another type.
std::vector<std::pair<std::string, TensorType>> kept_states(const OptimiserOptions& options, const std::vector<ParameterSpec>& trained);

// The values that an update reads beside the state.
struct Gradients {
  Parameters gradients;
  std::vector<Tensor> rates;  // the learning rate of each group
  Tensor step;                // counts the step being done
};

// The state after one update, but for parameters that are not trained.
TrainingState update(const TrainingState& state, const Gradients& from, const std::vector<ParameterSpec>& trained,
                     const OptimiserOptions& options);
// The factor that gradients are multiplied by, a scalar: as is assumed before their norm is known, and as it then is.
struct Factors {
  Tensor assumed, known;
};
// Gives the bits of update() with gradients*known, but most of the work needs only what is assumed.
TrainingState validated_update(const TrainingState& state, const Gradients& from, const Factors& factors,
                               const std::vector<ParameterSpec>& trained, const OptimiserOptions& options);

}  // namespace penstock
