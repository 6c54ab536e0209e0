// SPDX-License-Identifier: Apache-2.0
#include "torch/device_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>

#include <algorithm>
#include <cmath>

#include "ops/optimiser.h"
#include "torch/adamw_numbers.h"
#include "torch/aten_kernels.h"
#include "torch/device.h"
#include "torch/device_launch.h"
#include "torch/element_type.h"
#include "torch/kernel_support.h"
#include "torch/row_places.h"

namespace penstock {
namespace {

using T = at::Tensor;

bool has_kernels(const Site& site) {
  const c10::Device device = site.results[0].device();
  return functions_of(device)->has_kernels(device);
}

template <class... Tensors>
bool are_f32(const Tensors&... x) {
  return ((kernel_type(x) == kF32) && ...);
}
template <class... Tensors>
bool are_dense(const Tensors&... x) {
  return (x.is_contiguous() && ...);
}

T room(const T& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}

}  // namespace

Bound cross_entropy_by_kernel(const Site& site) {
  const T &logits = site.operands[0], &targets = site.operands[1], &loss = site.results[0], &logsumexp = site.results[1];
  const std::optional<int> type = kernel_type(logits);
  const NormShape shape = rows_of(logits);
  if (!has_kernels(site) || !type || shape.width == 0 || !are_dense(targets, loss, logsumexp)) return {};
  const auto ignored = attribute<std::int64_t>(site.op, "ignore_index");
  return [kernel = DeviceKernel("cross_entropy", loss.device()), sum = DeviceKernel("sum", loss.device()), logits, targets, loss, logsumexp,
          shape, ignored, check = cross_entropy_check(site, shape.width, ignored), type = *type] {
    const T losses = room(loss, {shape.rows});
    kernel(row_grid(shape.rows, shape.width),
           {logits, targets, losses, logsumexp, shape.rows, shape.width, ignored, check.noted(), check.code(), type});
    sum({1, 1, 1024}, {losses, shape.rows, loss});
  };
}

// Operands: dloss, logits, targets, logsumexp.
Bound cross_entropy_backward_by_kernel(const Site& site) {
  const T &dloss = site.operands[0], &logits = site.operands[1], &targets = site.operands[2], &logsumexp = site.operands[3],
          &out = site.results[0];
  const std::optional<int> type = kernel_type(logits);
  if (!has_kernels(site) || !type || kernel_type(out) != type || !are_dense(dloss, targets, logsumexp)) return {};
  return
      [kernel = DeviceKernel("cross_entropy_backward", out.device()), dloss, logits, targets, logsumexp, out, shape = rows_of(logits),
       ignored = attribute<std::int64_t>(site.op, "ignore_index"), begin = attribute_or(site.op, "begin", std::int64_t{0}), type = *type] {
        kernel(row_grid(shape.rows, shape.width), {dloss, logits, targets, logsumexp, out, shape.rows, shape.width, ignored, begin, type});
      };
}

namespace {

// The tensors that row norms have in common; what an RMS norm, or a norm without weights, has not is undefined.
struct Norm {
  T x, weight, bias, mean, rstd;
};

int weight_type(const Norm& norm) {
  return norm.weight.defined() ? *kernel_type(norm.weight) : kF32;
}

bool is_taken(const Norm& norm) {
  const std::optional<int> type = kernel_type(norm.x);
  if (!type || type == kF16 || !are_f32(norm.rstd) || (norm.mean.defined() && !are_f32(norm.mean))) return false;
  for (const T& x : {norm.weight, norm.bias})
    if (x.defined() && kernel_type(x) != type && kernel_type(x) != kF32) return false;
  return true;
}

Bound norm_by_kernel(const Site& site, const Norm& norm, const T& y) {
  if (!has_kernels(site) || !is_taken(norm) || kernel_type(y) != kernel_type(norm.x)) return {};
  return [kernel = DeviceKernel("row_norm", y.device()), norm, y, shape = rows_of(norm.x),
          eps = static_cast<float>(number_attribute(site.op, "eps")), type = *kernel_type(y)] {
    const auto& [x, weight, bias, mean, rstd] = norm;
    kernel(row_grid(shape.rows, shape.width), {x, weight, bias, y, mean, rstd, shape.rows, shape.width, eps, type, weight_type(norm)});
  };
}

// Weights' gradients, or none of them.
struct NormResults {
  T dx, dweight, dbias;
  bool adds_weight = false, adds_bias = false;
};

// The sums over rows are made in ranges of rows first, so that there is work for a whole device.
class NormColumns {
 public:
  explicit NormColumns(c10::Device device) : columns_("row_norm_backward_columns", device), sum_("sum_columns", device) {}

  // [dweight and dbias, ranges, width]; no rows: no ranges.
  T in_ranges(const T& dy, const Norm& norm, NormShape shape, bool has_bias) const {
    constexpr std::int64_t kRows = 64, kMostRanges = 64, kWarps = 8, kWarp = 32;
    const std::int64_t ranges = std::min((shape.rows + kRows - 1) / kRows, kMostRanges);
    const T sums = at::empty({2, ranges, shape.width}, norm.rstd.options());
    const KernelGrid grid{static_cast<unsigned>((shape.width + kWarp - 1) / kWarp), static_cast<unsigned>(ranges),
                          static_cast<unsigned>(std::min(shape.rows, kWarps) * kWarp)};
    columns_(grid, {dy, norm.x, norm.mean, norm.rstd, sums.select(0, 0), has_bias ? sums.select(0, 1) : T(), shape.rows, shape.width,
                    *kernel_type(norm.x)});
    return sums;
  }
  void deliver(const T& sums, const T& result, bool adds) const {
    sum_(element_grid(result.numel()), {sums, sums.size(0), result.numel(), result, adds, *kernel_type(result)});
  }

 private:
  DeviceKernel columns_, sum_;
};

// dx is made behind the sums, which read what it may lie over, and ahead of what may lie over the weight.
Bound norm_backward_by_kernel(const Site& site, const T& dy, const Norm& norm, const NormResults& results) {
  if (!has_kernels(site) || !is_taken(norm)) return {};
  const int type = *kernel_type(norm.x), of_weight = weight_type(norm);
  if (kernel_type(dy) != type || kernel_type(results.dx) != type) return {};
  for (const T& x : {results.dweight, results.dbias})
    if (x.defined() && kernel_type(x) != of_weight) return {};
  return [kernel = DeviceKernel("row_norm_backward", dy.device()), columns = NormColumns(dy.device()), dy, norm, results,
          shape = rows_of(norm.x), type, of_weight] {
    T sums;
    if (results.dweight.defined()) sums = columns.in_ranges(dy, norm, shape, results.dbias.defined());
    kernel(row_grid(shape.rows, shape.width),
           {dy, norm.x, norm.mean, norm.rstd, norm.weight, results.dx, shape.rows, shape.width, type, of_weight});
    if (results.dweight.defined()) columns.deliver(sums.select(0, 0), results.dweight, results.adds_weight);
    if (results.dbias.defined()) columns.deliver(sums.select(0, 1), results.dbias, results.adds_bias);
  };
}

T or_none(std::span<const T> tensors, std::size_t i) {
  return i < tensors.size() ? tensors[i] : T();
}

}  // namespace

Bound layer_norm_by_kernel(const Site& site) {
  const std::span<const T> in = site.operands, out = site.results;
  return norm_by_kernel(site, {in[0], or_none(in, 1), or_none(in, 2), out[1], out[2]}, out[0]);
}

// Operands: dy, x, mean, rstd and, with the results dweight and dbias, weight and bias.
Bound layer_norm_backward_by_kernel(const Site& site) {
  const std::span<const T> in = site.operands, out = site.results;
  const bool adds_weight = site.accumulate >> 1 & 1u, adds_bias = site.accumulate >> 2 & 1u;
  return norm_backward_by_kernel(site, in[0], {in[1], or_none(in, 4), {}, in[2], in[3]},
                                 {out[0], or_none(out, 1), or_none(out, 2), adds_weight, adds_bias});
}

Bound rms_norm_by_kernel(const Site& site) {
  return norm_by_kernel(site, {site.operands[0], site.operands[1], {}, {}, site.results[1]}, site.results[0]);
}

// Operands: dy, x, rstd, weight.
Bound rms_norm_backward_by_kernel(const Site& site) {
  const std::span<const T> in = site.operands, out = site.results;
  return norm_backward_by_kernel(site, in[0], {in[1], in[3], {}, {}, in[2]}, {out[0], out[1], {}, (site.accumulate >> 1 & 1u) != 0});
}

namespace {

// The tensors that an update of AdamW's family reads and writes; those that one has not are undefined.
struct AdamwPlaces {
  std::span<const T> operands;  // adamw's: parameter, gradient, first, second, learning rate, step
  T factor = {}, assumed = {};
  std::vector<T> now = std::vector<T>(3), out, old = std::vector<T>(3);
};

Bound update_by_kernel(const Site& site, const AdamwPlaces& places) {
  const auto& [operands, factor, assumed, now, out, old] = places;
  const std::vector<T> in(operands.begin(), operands.begin() + 6);
  bool taken = has_kernels(site) && are_f32(in[0], in[1], in[2], in[3], in[4]);
  for (const std::vector<T>* tensors : {&now, &out, &old})
    for (const T& x : *tensors) taken = taken && (!x.defined() || are_f32(x));
  if (!taken) return {};
  return [kernel = DeviceKernel("adamw", in[0].device()), in, factor = factor, assumed = assumed, now = now, out = out, old = old,
          a = adamw_of(site.op), n = in[0].numel()] {
    kernel(element_grid(n), {in[0],  in[1],  in[2],  in[3],  in[4],  in[5],  factor, assumed, now[0],  now[1], now[2],
                             out[0], out[1], out[2], old[0], old[1], old[2], n,      a.beta1, a.beta2, a.eps,  a.weight_decay});
  };
}

std::vector<T> three(std::span<const T> tensors, std::size_t from) {
  return {tensors[from], tensors[from + 1], tensors[from + 2]};
}

}  // namespace

// A launch for each parameter, as each is an op of its own.
Bound adamw_by_kernel(const Site& site) {
  return update_by_kernel(site, {.operands = site.operands, .out = three(site.results, 0)});
}

// Operands: adamw's, assumed; or parameter, first, second, adamw's with the kept values, assumed, factor.
Bound adamw_half_by_kernel(const Site& site) {
  const std::span<const T> in = site.operands, out = site.results;
  if (is_update_ahead(site.op))
    return update_by_kernel(site, {.operands = in, .factor = in[6], .out = three(out, 0), .old = three(out, 3)});
  return update_by_kernel(site,
                          {.operands = in.subspan(3, 6), .factor = in[10], .assumed = in[9], .now = three(in, 0), .out = three(out, 0)});
}

// Operands: seed, step.
Bound random_key_by_kernel(const Site& site) {
  if (!has_kernels(site)) return {};
  return [kernel = DeviceKernel("random_key", site.results[0].device()), seed = site.operands[0], step = site.operands[1],
          op = attribute<std::int64_t>(site.op, "op"), out = site.results[0]] { kernel({1, 1, 1}, {seed, step, op, out}); };
}

// Operands: x, key, rows, positions?.
Bound dropout_by_kernel(const Site& site) {
  const T &x = site.operands[0], &key = site.operands[1], &rows = site.operands[2], &y = site.results[0];
  const T positions = or_none(site.operands, 3);
  const std::optional<int> type = kernel_type(x);
  if (!has_kernels(site) || !type || kernel_type(y) != type || !are_dense(key, rows)) return {};
  if (positions.defined() && !are_dense(positions)) return {};
  const std::int64_t count = x.size(0), width = x.numel() / std::max<std::int64_t>(count, 1);
  const RowPlaces row(site.op);
  const double p = number_attribute(site.op, "p");
  return [kernel = DeviceKernel("dropout", x.device()), x, y, key, rows, positions,
          places = row.is_whole() ? T() : places_in_row(row, width, x.device()), count, width, whole = row.whole_width(width),
          threshold = static_cast<std::uint32_t>(std::lround(p * 4294967295.0)), scale = static_cast<float>(1 / (1 - p)), type = *type] {
    kernel(element_grid(x.numel()), {x, y, key, rows, positions, places, count, width, whole, threshold, scale, type});
  };
}

Bound embedding_by_kernel(const Site& site) {
  const T &table = site.operands[0], &indices = site.operands[1], &out = site.results[0];
  const std::optional<int> type = kernel_type(table);
  if (!has_kernels(site) || !type || kernel_type(out) != type || !are_dense(indices)) return {};
  const std::int64_t rows = table.size(0), whole = attribute_or(site.op, "whole", rows);
  return [kernel = DeviceKernel("embedding", out.device()), table, indices, out, count = indices.numel(), width = table.size(1),
          begin = attribute_or(site.op, "begin", std::int64_t{0}), rows, whole, check = embedding_check(site, whole), type = *type] {
    kernel(row_grid(count, width), {table, indices, out, count, width, begin, rows, whole, check.noted(), check.code(), type});
  };
}

// Operands: dy, indices. Each row of dy goes to all the indices that a row of its has: one, or a bag. Rows of one index lie together once
// the indices are sorted, each the share of one block, which adds them in their order.
Bound embedding_backward_by_kernel(const Site& site) {
  const T &dy = site.operands[0], &indices = site.operands[1], &out = site.results[0];
  const std::optional<int> type = kernel_type(dy);
  if (!has_kernels(site) || !type || kernel_type(out) != type) return {};
  const std::int64_t rows = out.size(0), width = out.size(1), whole = attribute_or(site.op, "whole", rows);
  const std::int64_t bag = std::max<std::int64_t>(indices.numel() * width / std::max<std::int64_t>(dy.numel(), 1), 1);
  return [kernel = DeviceKernel("embedding_backward", out.device()), dy, indices, out, bag, width,
          begin = attribute_or(site.op, "begin", std::int64_t{0}), rows, whole, check = embedding_check(site, whole),
          adds = (site.accumulate & 1u) != 0, type = *type] {
    if (!adds) out.zero_();
    const auto [sorted, order] = at::sort(indices.reshape({-1}), true, 0, false);
    const std::int64_t count = sorted.numel();
    kernel(row_grid(count, width),
           {dy, sorted, order, out, count, width, bag, begin, rows, whole, check.noted(), check.code(), adds, type});
  };
}

}  // namespace penstock
