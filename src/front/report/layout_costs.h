// SPDX-License-Identifier: Apache-2.0
// The bytes that the conversions between layouts send, and why they are there.
#pragma once

#include <string>
#include <vector>

#include "lower/member_inputs.h"

namespace penstock {

struct ConversionCost {
  std::string conversion;  // "all_reduce"
  std::string value;       // "%12 f32[4,16,32]"
  std::string from, to;    // layouts
  std::string why;         // "linear of h.0.attn.c_proj", the first op that asks for it
  int readers = 1;         // how many ask
  double bytes = 0;        // that each member sends
};
struct StageConversions {
  std::string stage;                        // "": what no stage does
  std::vector<ConversionCost> conversions;  // the dearest first; without slices, which send nothing
  int slices = 0;
  double bytes = 0;
};
struct AxisConversions {
  std::string axis;
  std::int64_t members = 1;
  bool own = false;                      // the axis of the model's own collectives
  std::vector<StageConversions> stages;  // of one micro-batch, by name
  StageConversions once;                 // outside of the loop
  double bytes = 0;                      // of one micro-batch
};
// The first axis of the mesh first.
std::vector<AxisConversions> layout_costs(const std::vector<AxisDecision>& axes);
std::string text_of(const std::vector<AxisConversions>& axes);

}  // namespace penstock
