// SPDX-License-Identifier: Apache-2.0
// Optimisers: a table with a row for each. A row writes the update of one parameter as graph code, so what is known of ops (how tensors lie
// in shares, what a window of steps reads) holds for it as for a model, and nothing else knows an optimiser by its name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/ops.h"

namespace penstock {

// A number of a ParameterGroup. A row reads those that it takes.
struct UpdateNumber {
  std::string_view name;           // "beta1"
  double ParameterGroup::* value;  // the member that has it
  bool below_one = false;          // what is kept is divided by 1 - beta^step; all are at least 0
};
std::span<const UpdateNumber> update_numbers();  // all members of ParameterGroup, by name

// A tensor that an optimiser keeps of a parameter, zero at first: state "<name>:<parameter>".
struct KeptTensor {
  std::string name;  // its part of the state's name: "first"
  TensorType type;   // which may differ from the parameter's
};

// The tensors and numbers that the update of one parameter reads.
struct UpdateSite {
  Tensor parameter, gradient;  // of one type: f32 or f64, as low precision is widened before
  std::vector<Tensor> kept;    // as OptimiserInfo::kept says
  Tensor rate;                 // the learning rate, a floating scalar
  Tensor step;                 // the one being done, from 1, an i64 scalar
  ParameterGroup numbers;      // of the parameter's group
};
// The parameter and what is kept of it behind the update, of the types before it.
struct Updated {
  Tensor parameter;          // its next value
  std::vector<Tensor> kept;  // their next values, in order
};

// An op that does an update in one pass: of parameter, gradient, what is kept, the learning rate and, where it reads it, the step, all as
// in UpdateSite but of any floating type, it makes the next parameter and what is kept.
struct FusedUpdate {
  std::string op;                    // its name, as Op::name
  std::vector<std::string> numbers;  // its attributes
  bool reads_step = false;           // whether the step is its last operand
};

// A row of the table: what an optimiser is called, takes and keeps, and its update.
struct OptimiserInfo {
  std::string name;                // as OptimiserOptions::name and a configuration have it
  std::string summary;             // one line
  std::vector<std::string> takes;  // names of update_numbers()
  bool decays_gradient = false;    // the weight decay is part of the gradient that `update` and the fused op read
  // Says what it keeps of a parameter of this type.
  std::vector<KeptTensor> (*kept)(const TensorType& parameter) = nullptr;
  // Traces the update of one parameter.
  Updated (*update)(const UpdateSite& site) = nullptr;
  std::optional<FusedUpdate> fused = {};  // the same as `update` to rounding, and taken in its place
};
const std::vector<OptimiserInfo>& optimisers();  // all rows, in the order in which errors and help list them
// The row of that name. Throws Error for an unknown name (nearest named).
const OptimiserInfo& find_optimiser(std::string_view name);
// The names, "a, b and c", of the rows for which `condition` holds.
std::string optimisers_where(bool (*condition)(const OptimiserInfo&));

}  // namespace penstock
