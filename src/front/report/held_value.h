// SPDX-License-Identifier: Apache-2.0
// Who holds what of a value: the parts of a tensor and the devices that have each, for drawing (as JAX's visualize_array_sharding does).
#pragma once

#include <string>
#include <vector>

#include "lower/member_inputs.h"
#include "report/mesh_traffic.h"

namespace penstock {

// A tensor is shown as a matrix: dims before the first that is split are left out, as all of them look alike, and the rest is flattened
// to two.
struct HeldBox {
  std::int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
  auto operator<=>(const HeldBox&) const = default;
};

struct HeldPart {
  std::vector<HeldBox> boxes;
  // Who has it. Where what the devices have are terms of a sum there is a list for each term.
  std::vector<std::vector<std::int32_t>> terms;
};

struct HeldValue {
  std::string name;
  std::string what;  // "f32[128,384], a parameter"
  std::int64_t rows = 1, columns = 1;
  std::string row_text, column_text;  // "dim 0: embed 128"
  // Devices that share micro-batches have tensors of their own, of other samples: below each other, each of `rows`. Empty: all have the
  // same tensor.
  std::vector<std::string> bands;
  std::vector<HeldPart> parts;
  std::vector<std::string> notes;  // a line each

  std::int64_t all_rows() const { return rows * static_cast<std::int64_t>(bands.empty() ? 1 : bands.size()); }
};

std::string devices_text(const HeldPart& part);                        // "0, 2", "0 + 1", "(0, 2) + (1, 3)"
std::string boxes_text(const HeldValue& value, const HeldPart& part);  // "rows 0 to 63, all columns"

// A state of the step, by what the program's slots have of it. `dims`: names for its dims, or none.
HeldValue held_state(const Program& program, const std::string& name, const TensorType& type, const std::vector<DimName>& dims);

// A value of the loop's body, as it is made, on these devices of the mesh. `step`: the staged step that the axes were decided of, or the
// first of them has decided. Throws Error along an axis of the model's own collectives.
HeldValue held_activation(const Graph& step, const std::vector<AxisDecision>& axes, ValueId value, const MeshShape& mesh,
                          const std::vector<std::int32_t>& devices);

}  // namespace penstock
