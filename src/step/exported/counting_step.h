// SPDX-License-Identifier: Apache-2.0
// The divisors of the losses of a step whose micro-batches have sizes of their own.
#pragma once

#include <vector>

#include "exported/exported_model.h"

namespace penstock {

// A step of one micro-batch and no state that gives the ports "count.0", ... of ExportedModelOptions::in_classes. `microbatches`: the model
// of each micro-batch of the training step, of its sizes. Of what is cut, NAME, it reads "NAME.0", "NAME.1", ..., one for each of them; of
// what is not, NAME. Throws Error where none of the losses divides by what the data says.
Graph counting_step(const std::vector<const ExportedModel*>& microbatches);

}  // namespace penstock
