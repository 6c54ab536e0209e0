// SPDX-License-Identifier: Apache-2.0
// Functions that are other ops put together: they have no names of their own in a graph, and types, gradients and layouts of their parts.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/words.h"
#include "ops/builder.h"
#include "ops/infer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

Tensor number_like(Tensor x, double value) {
  return full(x, {}, value, x.dtype());
}

// i64 [rows, columns] of the last two dims of x: the column less the row of each place.
Tensor diagonals(std::string_view function, Tensor x) {
  if (x.rank() < 2) throw Error(concat(function, ": needs x[..., rows, columns], not ", x.type().text()));
  return arange(x, x.size(-1), DType::i64) - unsqueeze(arange(x, x.size(-2), DType::i64), 1);
}

// The place in a dim of this size that stands at each place of the dim with `before` and `behind` places more. `mode` is ATen's.
Tensor padded_places(Tensor like, std::int64_t size, std::int64_t before, std::int64_t behind, std::string_view mode) {
  const Tensor place = arange(like, before + size + behind, DType::i64) - static_cast<double>(before);
  const double last = static_cast<double>(size - 1), count = static_cast<double>(size);
  if (mode == "replicate") return clamp(place, 0, last);
  if (mode == "circular") return where(lt(place, 0), place + count, where(gt(place, last), place - count, place));
  const auto reflected = [](Tensor x) { return maximum(x, x * -1); };
  return reflected(reflected(place) - last) * -1 + last;
}

void require_padding(const Integers& pad, Tensor x, std::string_view mode) {
  if (pad.size() % 2 != 0 || std::ssize(pad) > 2 * x.rank())
    throw Error(concat("pad: ", counted(std::ssize(pad), "number"), " for ", x.type().text()), {},
                "two of the last dim, before and behind it, then two of each dim before it");
  const Integers modes = {mode == "constant", mode == "reflect", mode == "replicate", mode == "circular"};
  if (std::ranges::count(modes, 1) == 0)
    throw Error(concat("pad: no mode ", quote(std::string(mode))), {}, "modes: constant, reflect, replicate, circular");
  for (std::size_t i = 0; i < pad.size(); ++i) {
    const std::int64_t size = x.size(-1 - static_cast<int>(i / 2)), most = mode == "reflect" ? size - 1 : size;
    if (pad[i] < 0 ? -pad[i] > size : (mode == "reflect" || mode == "circular") && pad[i] > most)
      throw Error(concat("pad: ", pad[i], " places more of a dim of ", size, " in mode ", mode));
    if (pad[i] < 0 && mode != "constant") throw Error(concat("pad: mode ", mode, " takes nothing away"));
  }
}

// x with constants before and behind along dim; negative widths take places away.
Tensor with_edges(Tensor x, int dim, std::int64_t before, std::int64_t behind, double value) {
  x = slice(x, dim, std::max<std::int64_t>(-before, 0), x.size(dim) + std::min<std::int64_t>(behind, 0));
  const auto edge = [&](std::int64_t width) {
    Shape shape = x.shape();
    shape[static_cast<std::size_t>(dim)] = width;
    return full(x, shape, value, x.dtype());
  };
  Tensors all = {x};
  if (before > 0) all.insert(all.begin(), edge(before));
  if (behind > 0) all.push_back(edge(behind));
  return all.size() > 1 ? cat(all, dim) : x;
}

}  // namespace

Tensor clamp(Tensor x, std::optional<double> min, std::optional<double> max) {
  Tensor out = x;
  if (min) out = where(lt(x, *min), number_like(x, *min), out);
  if (max) out = where(gt(out, *max), number_like(x, *max), out);
  return out;
}

Tensor masked_fill(Tensor x, Tensor mask, double value) {
  return where(mask, number_like(x, value), x);
}

Tensor tril(Tensor x, std::int64_t diagonal) {
  return where(le(diagonals("tril", x), static_cast<double>(diagonal)), x, number_like(x, 0));
}

Tensor triu(Tensor x, std::int64_t diagonal) {
  return where(ge(diagonals("triu", x), static_cast<double>(diagonal)), x, number_like(x, 0));
}

Tensor stack(const std::vector<Tensor>& parts, int dim) {
  if (parts.empty()) throw Error("stack: takes at least one operand");
  Tensors rows;
  for (const Tensor& part : parts) {
    if (part.type() != parts[0].type())
      throw Error(concat("stack: operands must have one type, not ", parts[0].type().text(), " and ", part.type().text()));
    rows.push_back(unsqueeze(part, dim));
  }
  return rows.size() == 1 ? rows[0] : cat(rows, static_cast<int>(wrap(dim, rows[0].rank())));
}

Tensor one_hot(Tensor indices, std::int64_t num_classes) {
  if (indices.dtype() != DType::i64) throw Error(concat("one_hot: indices must be i64, not ", indices.type().text()));
  if (num_classes < 1) throw Error(concat("one_hot: ", num_classes, " classes"), {}, "their number is a part of the result's shape");
  return to(eq(unsqueeze(indices, -1), arange(indices, num_classes, DType::i64)), DType::i64);
}

Tensor pad(Tensor x, std::vector<std::int64_t> pad, std::string_view mode, double value) {
  require_padding(pad, x, mode);
  for (std::size_t i = 0; i < pad.size(); i += 2) {
    const int dim = x.rank() - 1 - static_cast<int>(i / 2);
    if (pad[i] == 0 && pad[i + 1] == 0) continue;
    if (mode == "constant")
      x = with_edges(x, dim, pad[i], pad[i + 1], value);
    else
      x = index_select(x, dim, padded_places(x, x.size(dim), pad[i], pad[i + 1], mode));
  }
  return x;
}

// max(x, 0) + log(1 + exp(-|x|)) of the scaled x, which never overflows; ATen's is linear beyond the threshold.
Tensor softplus(Tensor x, double beta, double threshold) {
  const Tensor scaled = beta == 1 ? x : x * beta;
  const Tensor soft = maximum(scaled, number_like(x, 0)) + log1p(exp(neg(abs(scaled))));
  return where(gt(scaled, threshold), x, beta == 1 ? soft : soft / beta);
}

Tensor pow(double base, Tensor exponent) {
  return pow(number_like(exponent, base), exponent);
}

Tensor group_norm(Tensor x, std::int64_t num_groups, Tensor weight, Tensor bias, double eps) {
  if (x.rank() < 2 || num_groups < 1 || x.size(1) % num_groups != 0)
    throw Error(concat("group_norm: needs x[n, channels, ...] whose channels divide into ", num_groups, " groups, not ", x.type().text()));
  const Tensor y = reshape(layer_norm(reshape(x, {x.size(0), num_groups, -1}), {}, {}, eps), x.shape());
  if (!weight && !bias) return y;
  Shape by_channel(static_cast<std::size_t>(x.rank()) - 1, 1);
  by_channel[0] = x.size(1);
  for (const Tensor& each : {weight, bias})
    if (each && each.type() != TensorType{x.dtype(), {x.size(1)}})
      throw Error(concat("group_norm: weight and bias must have x's dtype and the shape [channels], not ", each.type().text()));
  const Tensor scaled = weight ? y * reshape(weight, by_channel) : y;
  return bias ? scaled + reshape(bias, by_channel) : scaled;
}

}  // namespace penstock
