// SPDX-License-Identifier: Apache-2.0
// HelixPipe's programs send queries, keys and values to the actors of the attention, or its input and, once a step, the weights.
#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "models/registry.h"

namespace penstock {
namespace {

struct Sizes {
  std::int64_t actors, layers, microbatches, sequences, length, width;  // sequences: of a micro-batch
};

// Elements that all actors send in a step, without single numbers (the gradients' norm).
std::int64_t sent(const Sizes& s, bool qkv_in_attention) {
  std::vector<Override> overrides;
  for (const std::string& setting :
       {std::string("schedule=helixpipe"), concat("actors=", s.actors), concat("chunks=", s.layers / s.actors), concat("layers=", s.layers),
        concat("microbatches=", s.microbatches), concat("batch=", s.microbatches * s.sequences), concat("context=", s.length),
        concat("width=", s.width), std::string("heads=2"), std::string("tied=0"), concat("qkv_in_attention=", qkv_in_attention ? 1 : 0)})
    overrides.push_back(parse_override(setting));
  const Config config = load_config("", overrides, builtin_models());
  const Program program = compile_training(config, prepare(config, builtin_models()));
  std::int64_t elements = 0;
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& i : device.instructions)
      if (i.opcode == Opcode::send)
        for (const TensorType& part : device.slots[i.slot].parts) elements += part.elements() > 1 ? part.elements() : 0;
  return elements;
}

// Each layer and micro-batch that is elsewhere sends bsh elements instead of 3bsh, forth and back; each layer sends every actor but its own
// the weights 3h^2 and biases 3h, and gets their gradients.
TEST(Helixpipe, TheProductInTheAttentionsStageSendsItsInput) {
  for (const Sizes& s : {Sizes{2, 4, 4, 1, 16, 32}, Sizes{4, 4, 4, 2, 16, 16}, Sizes{2, 2, 2, 3, 16, 16}}) {
    const std::int64_t elsewhere = s.microbatches / s.actors * (s.actors - 1), rows = s.sequences * s.length;
    const std::int64_t saved = elsewhere * 2 * (2 * rows * s.width), weights = (s.actors - 1) * 2 * (3 * s.width * s.width + 3 * s.width);
    EXPECT_EQ(sent(s, false) - sent(s, true), s.layers * (saved - weights)) << s.actors << " actors";
  }
}

// In one round less is sent where a micro-batch has more than 1.5 (h + 1) tokens (2507.00394: 1.5 h, without biases).
TEST(Helixpipe, TheProductIsThereForMoreTokensThanThreeHalvesOfTheWidth) {
  for (const std::int64_t length : {16, 24, 26, 32}) {
    const Sizes s{2, 2, 2, 1, length, 16};
    EXPECT_EQ(sent(s, true) < sent(s, false), 2 * length > 3 * (s.width + 1)) << length;
  }
}

}  // namespace
}  // namespace penstock
