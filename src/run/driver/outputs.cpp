// SPDX-License-Identifier: Apache-2.0
#include "driver/outputs.h"

#include <algorithm>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"
#include "state/initialise.h"

namespace penstock {

std::vector<double> output_values(const Program& program, const StepResult& result, const std::string& name) {
  const auto port = std::find_if(program.outputs.begin(), program.outputs.end(), [&](const Port& p) { return p.name == name; });
  const auto bytes = result.outputs.find(name);
  invariant(port != program.outputs.end() && bytes != result.outputs.end(), "a step gives every output of its program");
  if (static_cast<std::int64_t>(bytes->second.size()) != port->type.bytes())
    throw Error(concat("output ", quote(name), " came with ", bytes->second.size(), " bytes, its type is ", port->type.text()));
  std::vector<double> out(port->type.elements());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = load_element(port->type.dtype, bytes->second, i);
  return out;
}

double scalar_output(const Program& program, const StepResult& result, const std::string& name) {
  return output_values(program, result, name).at(0);
}

}  // namespace penstock
