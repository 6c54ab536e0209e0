// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "base/text.h"
#include "torch/aten_composed.h"
#include "torch/aten_kernels.h"

namespace penstock {
namespace {

using T = at::Tensor;

// Finds rows of a table by indices, in the part of it that has `rows` of them from `begin` on.
class Lookup {
 public:
  Lookup(const Site& site, std::int64_t rows)
      : begin_(attribute_or(site.op, "begin", std::int64_t{0})),
        rows_(rows),
        whole_(attribute_or(site.op, "whole", rows)),
        check_(embedding_check(site, whole_)) {}

  std::int64_t begin() const { return begin_; }
  std::int64_t rows() const { return rows_; }
  bool has_all() const { return rows_ == whole_; }
  T checked(const T& indices) const { return check_(indices.reshape({-1})); }

 private:
  std::int64_t begin_, rows_, whole_;
  IndexCheck check_;
};

// Where rows lie that indices name; a row that is elsewhere is looked up at 0.
struct TableRows {
  T at, is_here;  // is_here undefined: all are

  TableRows(const T& indices, const Lookup& lookup) : at(lookup.checked(indices)) {
    if (lookup.has_all()) return;
    const PartPlaces places(at, lookup.begin(), lookup.rows());
    at = places.at, is_here = places.is_here;
  }

  // The rows, with zeros for those that belong to indices of rows elsewhere.
  T masked(const T& rows) const { return is_here.defined() ? at::where(is_here.unsqueeze(1), rows, zero_like(rows)) : rows; }
};

T looked_up(const T& weight, const T& indices, const Lookup& lookup) {
  const TableRows places(indices, lookup);
  if (weight.size(0) == 0) return at::zeros({indices.numel(), weight.size(1)}, weight.options());  // a part without rows
  return places.masked(weight.index_select(0, places.at));
}

}  // namespace

IndexCheck embedding_check(const Site& site, std::int64_t whole) {
  return {
      site.faults, whole, {"embedding: index ", concat(" is outside its ", whole, " rows"), "is a token outside the model's vocabulary?"}};
}

Bound embedding_by_aten(const Site& site) {
  return composed(
      site, [lookup = Lookup(site, site.operands[0].size(0))](const AtTensors& in) { return AtTensors{looked_up(in[0], in[1], lookup)}; });
}

// Operands: the table, indices, the rows that were looked up ahead, and the indices of rows that have changed since.
Bound embedding_patched_by_aten(const Site& site) {
  return composed(site, [lookup = Lookup(site, site.operands[0].size(0))](const AtTensors& in) {
    const T changed = at::zeros({lookup.rows()}, in[0].options().dtype(at::kInt));
    for (std::size_t i = 3; i < in.size(); ++i) {
      const TableRows places(in[i], lookup);
      const T ones = places.is_here.defined() ? places.is_here.to(at::kInt) : at::full_like(places.at, 1, changed.options());
      changed.index_add_(0, places.at, ones);
    }
    const TableRows places(in[1], lookup);
    T anew = changed.index_select(0, places.at).ne(0);
    if (places.is_here.defined()) anew = anew.logical_and(places.is_here);
    const T ahead = in[2].reshape({-1, in[0].size(1)});
    return AtTensors{at::where(anew.unsqueeze(1), in[0].index_select(0, places.at), ahead)};
  });
}

Bound embedding_bag_by_aten(const Site& site) {
  return composed(site, [lookup = Lookup(site, site.operands[0].size(0))](const AtTensors& in) {
    std::vector<std::int64_t> bags = in[1].sizes().vec();
    bags.push_back(in[0].size(1));
    return AtTensors{widened(looked_up(in[0], in[1], lookup).view(bags)).sum(-2)};
  });
}

// Operands: dy, indices. Each row of dy goes to all the indices that a row of its has: one, or a bag.
Bound embedding_dense_backward_by_aten(const Site& site) {
  const T& out = site.results[0];
  return composed(
      site, [lookup = Lookup(site, out.size(0)), rows = out.size(0), width = out.size(1), dtype = out.scalar_type()](const AtTensors& in) {
        const TableRows places(in[1], lookup);
        const std::int64_t bag = in[1].numel() * width / std::max<std::int64_t>(in[0].numel(), 1);
        const T given = in[0].to(dtype).reshape({-1, 1, width}).expand({-1, bag, -1}).reshape({-1, width});
        return AtTensors{at::zeros({rows, width}, given.options()).index_add_(0, places.at, places.masked(given))};
      });
}

// Operands: rows, indices. The first row of each index gets the sum of all rows of it, the others zeros.
Bound sum_equal_rows_by_aten(const Site& site) {
  const auto rows = attribute<std::int64_t>(site.op, "num_weights");
  return composed(site, [rows, lookup = Lookup(site, rows)](const AtTensors& in) {
    const T indices = lookup.checked(in[1]), places = at::arange(indices.numel(), indices.options());
    const T first = at::full({rows}, indices.numel(), indices.options()).scatter_reduce_(0, indices, places, "amin");
    return AtTensors{at::zeros_like(in[0]).index_add_(0, first.index_select(0, indices), in[0])};
  });
}

// Operands: the table, its gradient's rows, their indices, learning rate.
Bound sgd_rows_by_aten(const Site& site) {
  return composed(site, [lookup = Lookup(site, site.operands[0].size(0))](const AtTensors& in) {
    const TableRows places(in[2], lookup);
    const T step = (widened(in[1]) * in[3].reshape({})).to(in[0].scalar_type());
    return AtTensors{in[0].index_add(0, places.at, places.masked(step), -1)};
  });
}

// Operands: the table, rows, their indices. Entries of one place write the same: the row of the first of its indices, or what is there.
Bound put_rows_by_aten(const Site& site) {
  return composed(site, [lookup = Lookup(site, site.operands[0].size(0))](const AtTensors& in) {
    if (lookup.rows() == 0) return AtTensors{in[0]};
    const TableRows places(in[2], lookup);
    const std::int64_t n = places.at.numel();
    T numbers = at::arange(n, places.at.options());
    if (places.is_here.defined()) numbers = numbers.masked_fill(places.is_here.logical_not(), n);
    const T first =
        at::full({lookup.rows()}, n, numbers.options()).scatter_reduce_(0, places.at, numbers, "amin").index_select(0, places.at);
    const T rows = in[1].reshape({n, -1}).index_select(0, first.clamp_max(n - 1));
    return AtTensors{in[0].index_copy(0, places.at, at::where(first.lt(n).unsqueeze(1), rows, in[0].index_select(0, places.at)))};
  });
}

}  // namespace penstock
