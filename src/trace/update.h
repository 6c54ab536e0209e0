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

// The state after one update, but for parameters that are not trained. `rates` has the learning rate of each group, `step` counts the step
// being done.
TrainingState update(const TrainingState& state, const Parameters& gradients, const std::vector<Tensor>& rates, Tensor step,
                     const std::vector<ParameterSpec>& trained, const OptimiserOptions& options);
// Gives the bits of update() with gradients*factor, but most of the work needs only `assumed`, which is known before the norm is.
TrainingState validated_update(const TrainingState& state, const Parameters& gradients, Tensor assumed, Tensor factor,
                               const std::vector<Tensor>& rates, Tensor step, const std::vector<ParameterSpec>& trained,
                               const OptimiserOptions& options);

}  // namespace penstock
