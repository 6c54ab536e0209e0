// SPDX-License-Identifier: Apache-2.0
#include "exported/sample_rules.h"

#include <algorithm>
#include <unordered_map>

#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/graph.h"

namespace penstock {
namespace {

using Rows = std::optional<LayoutRow>;

constexpr std::string_view kElementwise =
    "abs acos acosh add addcdiv addcmul alias asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu "
    "clamp clamp_max clamp_min clone copysign cos cosh deg2rad detach digamma div elu eq erf erfc erfinv exp exp2 expm1 floor "
    "floor_divide fmod frac full_like gcd ge gelu glu_jvp gt hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 isfinite "
    "isinf isnan isneginf isposinf ldexp le leaky_relu lerp lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and "
    "logical_not logical_or logical_xor logit log_sigmoid_forward lt masked_fill maximum minimum mish mul nan_to_num ne neg "
    "ones_like polygamma pow _prelu_kernel rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign signbit "
    "silu sin sinc sinh softplus softshrink special_entr special_erfcx special_i0e special_i1 special_ndtri special_xlog1py "
    "special_zeta special_log_ndtr sqrt sub tan tanh threshold _to_copy trunc where xlogy zeros_like";
constexpr std::string_view kLosses =
    "binary_cross_entropy binary_cross_entropy_with_logits huber_loss mse_loss smooth_l1_loss soft_margin_loss";
constexpr std::string_view kFirst =
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d "
    "channel_shuffle col2im convolution grid_sampler_2d grid_sampler_3d im2col max_pool2d_with_indices max_pool3d_with_indices "
    "native_channel_shuffle native_group_norm pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d "
    "replication_pad1d replication_pad2d replication_pad3d _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu upsample_bicubic2d _upsample_bicubic2d_aa "
    "upsample_bilinear2d _upsample_bilinear2d_aa upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_trilinear3d native_layer_norm "
    "_fused_rms_norm affine_grid_generator";
constexpr std::string_view kLeading =
    "_linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd bmm cholesky_solve linalg_cholesky_ex linalg_inv_ex "
    "linalg_qr linalg_solve_triangular tril triu";
constexpr std::string_view kChannels = "_native_batch_norm_legit native_batch_norm";
constexpr std::string_view kAlong =
    "_log_softmax _safe_softmax _softmax all amax amin any argmax argmin argsort cummax cummin cumprod cumsum flip gather glu "
    "index_add index_copy index_fill index_select kthvalue linalg_vector_norm logcumsumexp logsumexp max mean median min mode "
    "nanmedian nansum norm prod roll scatter scatter_add scatter_reduce select slice slice_scatter select_scatter sort std "
    "std_mean sum topk unbind unfold var var_mean";
constexpr std::string_view kDraws =
    "bernoulli multinomial native_dropout normal normal_functional poisson rand rand_like randint randint_like randn randn_like "
    "uniform";

// "aten::softplus.out" is softplus.
std::string_view plain(std::string_view name) {
  if (!name.starts_with("aten::")) return {};
  name.remove_prefix(std::string_view("aten::").size());
  return name.substr(0, name.find('.'));
}

Integers dims_along(const Op& op, std::int64_t rank) {
  Integers dims;
  for (const char* name : {"dim", "dims", "dimension"}) {
    const auto found = op.attributes.find(name);
    if (found == op.attributes.end()) continue;
    if (const auto* one = std::get_if<std::int64_t>(&found->second)) dims = {*one};
    if (const auto* several = std::get_if<Integers>(&found->second)) dims = *several;
  }
  for (std::int64_t& dim : dims) dim = wrap(dim, rank);
  return dims;
}

// Dims that the op reads along are not the samples'; operands and results of the operand's rank are split as it is.
Rows row_along(const LayoutSite& site, std::size_t operand, const Layout& split) {
  const std::int64_t rank = std::ssize(site.operands[operand].shape);
  const bool ends = site.op.name.starts_with("aten::sort") || site.op.name.starts_with("aten::topk");
  const Integers dims = ends && !site.op.attributes.contains("dim") ? Integers{rank - 1} : dims_along(site.op, rank);
  if (dims.empty() || std::ranges::count(dims, std::int64_t{split.dim}) != 0) return std::nullopt;
  const auto before = static_cast<std::int32_t>(std::ranges::count_if(dims, [&](std::int64_t dim) { return dim < split.dim; }));
  LayoutRow row;
  for (const TensorType& type : site.operands) row.operands.push_back(std::ssize(type.shape) == rank ? split : kWhole);
  for (const TensorType& type : site.results) {
    Layout result = split;
    if (std::ssize(type.shape) < rank) result.dim -= before;
    if (result.dim >= std::ssize(type.shape)) return std::nullopt;
    row.results.push_back(result);
  }
  return row;
}

// Operands that are split are so along their first dims, of which `kept` at the end are not the samples'; the others are whole.
Rows row_of_leading(const LayoutSite& site, std::size_t operand, std::span<const Layout> from, std::int64_t kept, std::int32_t last) {
  const Layout& split = from[operand];
  if (split.dim > last || split.dim >= std::ssize(site.operands[operand].shape) - kept) return std::nullopt;
  LayoutRow row;
  for (const Layout& each : from) row.operands.push_back(each.is_split() ? split : kWhole);
  for (const TensorType& type : site.results) {
    if (split.dim >= std::ssize(type.shape) || type.shape[static_cast<std::size_t>(split.dim)] % (split.outer * split.units) != 0)
      return std::nullopt;
    row.results.push_back(split);
  }
  return row;
}

// (points [..., P, M], others [..., R, M]) -> distances [..., P, R]: the samples lie in front of the points, or are those of one operand.
Rows row_of_distances(const LayoutSite& site, std::size_t operand, std::span<const Layout> from) {
  const bool are_points = from[operand].dim == std::ssize(site.operands[operand].shape) - 2;
  if (!are_points || from[1 - operand].is_split()) return row_of_leading(site, operand, from, 2, 1 << 20);
  LayoutRow row{{kWhole, kWhole}, {from[operand]}};
  row.operands[operand] = from[operand];
  row.results[0].dim = static_cast<std::int32_t>(std::ssize(site.results[0].shape)) - (operand == 0 ? 2 : 1);
  return row;
}

// (log probabilities [N, C, ...], targets [N, ...], weights [C]?) -> loss, of the targets' shape or a sum, and the targets' weight
Rows row_of_classes(const LayoutSite& site, std::size_t operand, std::span<const Layout> from) {
  Layout classes = from[operand], targets = from[operand];
  if (site.operands[0].shape.size() < 2 || operand > 1) return std::nullopt;
  if (operand == 0 && classes.dim == 1) return std::nullopt;
  if (operand == 0 && classes.dim > 1) --targets.dim;
  if (operand == 1 && targets.dim > 0) ++classes.dim;
  LayoutRow row{{classes, targets}, {site.results[0].shape.empty() ? kTerm : targets, kTerm}};
  row.operands.resize(site.operands.size());
  return row;
}

Rows row_of_channels(const LayoutSite& site, std::span<const Layout> from) {
  if (from[0].dim != 1) return std::nullopt;
  const auto on = [&](const TensorType& type) {
    Layout out = from[0];
    out.dim = std::ssize(type.shape) == 1 ? 0 : 1;
    return type.shape.empty() ? kWhole : out;
  };
  LayoutRow row;
  for (const TensorType& type : site.operands) row.operands.push_back(on(type));
  for (const TensorType& type : site.results) row.results.push_back(on(type));
  return row;
}

// Widths say how much is added before and behind each dim, from the last on.
bool leaves_samples(const LayoutSite& site, const Layout& split) {
  const auto widths = attribute_or(site.op, "pad", Integers());
  const auto first = 2 * static_cast<std::size_t>(std::ssize(site.operands[0].shape) - 1 - split.dim);
  return first >= widths.size() || (widths[first] == 0 && widths[first + 1] == 0);
}

}  // namespace

NamedKind kind_of_named(std::string_view name) {
  static const auto table = [] {
    std::unordered_map<std::string_view, NamedKind> kinds;
    const auto add = [&](std::string_view names, NamedKind kind) {
      for (std::size_t end = 0; !names.empty(); names.remove_prefix(std::min(end + 1, names.size()))) {
        end = std::min(names.find(' '), names.size());
        kinds.emplace(names.substr(0, end), kind);
      }
    };
    add(kElementwise, NamedKind::elementwise);
    add(kLosses, NamedKind::loss);
    add(kFirst, NamedKind::first);
    add(kLeading, NamedKind::leading);
    add(kChannels, NamedKind::channels);
    add(kAlong, NamedKind::along);
    add(kDraws, NamedKind::draw);
    return kinds;
  }();
  const auto found = table.find(plain(name));
  return found == table.end() ? NamedKind::unknown : found->second;
}

std::optional<std::int64_t> named_reduction(const Op& op) {
  if (kind_of_named(op.name) != NamedKind::loss) return std::nullopt;
  return attribute_or(op, "reduction", std::int64_t{1});
}

Rows named_row(const LayoutSite& site, std::size_t operand, std::span<const Layout> from) {
  switch (kind_of_named(site.op.name)) {
    case NamedKind::elementwise:
    case NamedKind::loss:  // where it reduces, the result is a term
    case NamedKind::draw:
      return all_dims(site, operand, from[operand]);
    case NamedKind::first:
      return row_of_leading(site, operand, from, std::ssize(attribute_or(site.op, "normalized_shape", Integers{1})), 0);
    case NamedKind::leading:
      return row_of_leading(site, operand, from, 2, 1 << 20);
    case NamedKind::channels:
      return operand == 0 ? row_of_channels(site, from) : std::nullopt;
    case NamedKind::along:
      return row_along(site, operand, from[operand]);
    case NamedKind::unknown:
      break;
  }
  const std::string_view name = plain(site.op.name);
  if (name == "_cdist_forward") return row_of_distances(site, operand, from);
  if (name == "nll_loss_forward" || name == "nll_loss2d_forward") return row_of_classes(site, operand, from);
  if (site.op.name == "aten::constant_pad_nd" && leaves_samples(site, from[operand])) return all_dims(site, operand, from[operand]);
  return std::nullopt;
}

Rows picks_row(const LayoutSite& site, std::span<const Layout> from) {
  const bool picks = site.op.name == "gather" || site.op.name == "index_select";
  if (!picks || from[0].is_split() || !from[1].is_split()) return std::nullopt;
  const std::int64_t dim = wrap(attribute<std::int64_t>(site.op, "dim"), std::ssize(site.operands[0].shape));
  if (from[1].dim != (site.op.name == "gather" ? dim : 0)) return std::nullopt;
  LayoutRow row{{kWhole, from[1]}, {from[1]}};
  row.results[0].dim = static_cast<std::int32_t>(dim);
  return row;
}

}  // namespace penstock
