// SPDX-License-Identifier: Apache-2.0
// Whole step graphs, built from a model by the same public functions that users have.
//
// Inputs of every step graph: first the state, which is the parameters under their own names and, in a training step, what the optimiser
// keeps of those that are trained ("first:<name>", "second:<name>": OptimiserInfo::kept) and "step", the number of steps done. Then the
// data: the model's ports (DataPort; for text "tokens" and "targets" i64[batch,context]), "rows" i64[batch] (the samples' numbers in the
// step), "seed" i64[]. Where a row holds several samples, or samples are pairs (TextRows), further ports say where samples stand:
// "positions", "ranges", "inputs", "input_ranges" and "memory_ranges", as in Model::Batch; `context` is then the length of a row of
// targets. The loss is divided by the model's count of the batch. `context` is 0 where the model reads no text. Each function throws Error
// if the batch is not divisible by the micro-batches, or the model does not read such rows.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/graph.h"
#include "penstock/optimiser.h"
#include "penstock/trace.h"

namespace penstock {

// The optimiser of a training step, and how its rate changes over the steps.
struct OptimiserOptions {
  std::string name = "adamw";                         // of a row of optimisers(), where there are no `updates`
  double learning_rate = 1e-3, final_fraction = 0.1;  // the highest rate; the share of it that is left at the end
  int warmup = 20, steps = 400;                       // steps in which the rate rises; steps of the whole training
  // The way in which the rate falls, until it is final_fraction of itself at step `steps`: cosine, linear, wsd (linear, and late) or
  // constant. given: the step reads the rate of each group as data, "learning_rates" f64[groups], which stands behind "seed" and "count".
  std::string decay = "cosine";
  int decay_steps = 0;                      // steps that the fall takes; 0: all after the warm-up, but for wsd the last tenth of `steps`
  ParameterGroup numbers = {};              // Error for one that the row does not take and that is not as it is here
  std::vector<ParameterGroup> groups = {};  // what replaces them in each group; none: all parameters are of one
  // The update of each trained parameter, by name, where it is not a row's but was exported. Its inputs are "parameter" and "gradient", of
  // the parameter's type, "learning_rate" f64[], "step" i64[] (the one being done, from 1), and tensors that the optimiser keeps of the
  // parameter, zero at first: state "<input>:<parameter>". Its outputs are the next parameter, and the next value of each that is kept.
  std::map<std::string, Graph> updates = {};
  double clip = 1.0;  // limit of the global norm of the gradients; 0: no clipping
  // With clipping: make the update as if nothing were clipped, then validate it when the norm is known. The bits are the same. Error for a
  // row without a fused op.
  bool validated = false;
};

// The number that the losses of a batch are divided by: the model's count of it, or, where a step has micro-batches of several shapes and
// so no tensor of the whole batch, the data port "count" i64[], which stands behind "seed".
enum class BatchCount : std::uint8_t { of_model, port };

// The samples of a step, the length of their rows, and into how many micro-batches they are cut.
struct StepShape {
  int batch = 1, context = 0, microbatches = 1;  // samples; tokens in a row, 0 for models without text; parts
  BatchCount count = BatchCount::of_model;       // the number that losses are divided by
  TextRows rows = {};                            // how rows hold samples of text
};

// One training step. Outputs after the state: "loss" (mean), "gradient_norm" (before clipping), "learning_rate".
// Nothing hides a loss or norm that is not finite: both are outputs, and the state takes it on.
Graph training_step(const Model& model, const StepShape& shape, const OptimiserOptions& optimiser);
// The other steps leave their state, the parameters, as it is.
// This one gives the loss and the gradients of the mean loss, with dropout as in step 0. Outputs: "loss", then "gradient:<name>".
Graph gradient_step(const Model& model, const StepShape& shape);
// Outputs "loss_sum" and "count" (i64, Model::count) and, where they are asked for, "output:<name>" for each of Model::outputs, with the
// batch's samples in front. Forward only.
Graph evaluation_step(const Model& model, const StepShape& shape, bool outputs = false);
// Data: only "tokens" i64[1,context]. Output "logits" f32[1,context,vocabulary]. Forward only, one micro-batch.
Graph generation_step(const Model& model, int context);
// One step of a picture's, of a model that makes some (Model::next_latents says what the data are). Outputs "latents", and "picture" f32
// [1,3,size,size], what they show so far. Forward only, one micro-batch.
Graph picture_step(const Model& model);

// Whether a state of a training step is the optimiser's: "first:<name>", "step".
bool is_kept_by_optimiser(std::string_view state);

// Graph code of the optimiser, for users' own steps.
// The learning rate, an f32 scalar, at `step` (i64 scalar, from 1): linear over `warmup`, then constant until `decay` begins.
Tensor learning_rate_schedule(Tensor step, const OptimiserOptions& options);
Tensor global_norm(const Parameters& gradients);  // a scalar of the gradients' widest dtype
Tensor clip_factor(Tensor norm, double limit);    // limit / max(norm, limit)
Parameters scale_gradients(const Parameters& gradients, Tensor factor);
Parameters clip_by_global_norm(const Parameters& gradients, Tensor norm, double limit);

// Traces `body`, which sees the inputs as tensors and returns the outputs.
Graph trace(const std::string& name, const std::vector<std::pair<std::string, TensorType>>& inputs,
            const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& body);

}  // namespace penstock
