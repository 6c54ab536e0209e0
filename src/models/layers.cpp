#include "models/layers.h"

#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

Tensor causal_self_attention(Tensor qkv, std::int64_t heads) {
  const std::int64_t batch = qkv.size(0), length = qkv.size(1), width = qkv.size(2) / 3;
  std::vector<Tensor> parts = split(qkv, width, 2);
  for (Tensor& part : parts) part = transpose(reshape(part, {batch, length, heads, width / heads}), 1, 2);
  const Tensor mixed = scaled_dot_product_attention(parts[0], parts[1], parts[2], true);
  return reshape(transpose(mixed, 1, 2), {batch, length, width});
}

Tensor token_loss(Tensor logits, Tensor targets) {
  const Tensor rows = reshape(logits, {-1, logits.size(-1)});
  return cross_entropy(rows.dtype() == DType::f64 ? rows : to(rows, DType::f32), reshape(targets, {-1}));
}

std::string stage_name(std::int64_t number) {
  return std::to_string(number);
}

std::int64_t spread(std::int64_t i, std::int64_t parts, std::int64_t stages, std::int64_t first) {
  return first + i * stages / parts;
}

void check_stages(std::string_view model, const ModelOptions& options, std::int64_t most, std::string_view what) {
  if (options.stages >= 1 && options.stages <= most) return;
  throw Error(concat("model ", quote(model), " with ", what, " cannot be cut into ", options.stages, " stages"), {},
              concat("use 1 to ", most, " stages (actors times chunks)"));
}

void check_word(std::string_view option, const std::string& value, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  throw Error(concat("model option ", quote(option), " is ", quote(value)), {}, concat("use ", join(known, " or ")));
}

void check_heads(std::int64_t width, std::int64_t heads) {
  if (width % heads == 0) return;
  throw Error(concat("width ", width, " is not divisible by ", heads, " heads"), {},
              concat("use a width of ", width / heads * heads + heads, ", or a number of heads that divides ", width));
}

}  // namespace penstock
