// What the models share.
#pragma once

#include <string>
#include <string_view>

#include "penstock/trace.h"

namespace penstock {

// Heads side by side in the last dimension: qkv [batch, length, 3*width] -> [batch, length, width].
Tensor causal_self_attention(Tensor qkv, std::int64_t heads);

// The summed loss of logits [batch, length, vocabulary], computed in at least f32.
Tensor token_loss(Tensor logits, Tensor targets);

// The mark of stage `number`: what a Stage takes.
std::string stage_name(std::int64_t number);
// The stage of part i of `parts` when they are spread evenly over stages first..first+stages-1.
std::int64_t spread(std::int64_t i, std::int64_t parts, std::int64_t stages, std::int64_t first = 0);

// Throws Error unless 1 <= options.stages <= most; `what` says what limits them: "4 layers".
void check_stages(std::string_view model, const ModelOptions& options, std::int64_t most, std::string_view what);
// Throws Error unless the option's value is one of `known`.
void check_word(std::string_view option, const std::string& value, const std::vector<std::string>& known);
// Throws Error unless width is divisible by heads.
void check_heads(std::int64_t width, std::int64_t heads);

}  // namespace penstock
