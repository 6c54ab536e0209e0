// SPDX-License-Identifier: Apache-2.0
#include "exported/rename.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "exported/patterns.h"
#include "exported/place.h"
#include "exported/rebuild.h"
#include "exported/rename_rows.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Make = std::vector<Tensor> (*)(const NamedCall&);

// The function of the row of that name; null: there is no such row.
Make find_row(std::string_view name) {
  static const auto table = [] {
    std::unordered_map<std::string_view, Make> rows;
    for (const RenameRow& row : rename_rows()) rows.emplace(row.name, row.make);
    return rows;
  }();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

// Makes the graph anew, each op by its row where that takes it.
class Renamer {
 public:
  explicit Renamer(const Graph& from) : from_(from), made_(from), readers_(use_counts(from)) {}

  Graph run() {
    for (const Op& op : from_.ops) {
      made_.mark(op);
      Tensors results = by_row(op);
      if (results.empty()) made_.copy(op);
      if (results.size() == 1)
        if (const Tensor one = fused(results[0])) results[0] = one;
      for (std::size_t i = 0; i < results.size(); ++i) made_[op.results[i]] = results[i];
    }
    return made_.finish();
  }

 private:
  // The op as its row makes it; nothing where there is no row or it does not take the op. Ops of ours say themselves which operands they
  // take: asking them first would repeat their rules here.
  Tensors by_row(const Op& op) {
    const Make make = find_row(op.name);
    if (!make || op.results.empty()) return {};
    std::vector<int> readers;
    Tensors operands, results;
    const Integers none = attribute_or(op, "none", Integers());
    for (std::size_t place = 0, next = 0; next < op.operands.size() || std::ranges::count(none, place); ++place) {
      const bool absent = std::ranges::count(none, place) != 0;
      operands.push_back(absent ? Tensor() : made_[op.operands[next]]);
      readers.push_back(absent ? 0 : readers_[op.operands[next]]);
      if (!absent) ++next;
    }
    try {
      results = make({op, std::move(operands), types_of(from_, op.results), made_.builder, readers, constants_});
    } catch (const Error&) {
      return {};
    }
    return fits(op, results) ? results : Tensors();
  }

  // Whether the row gives what the graph declares; what nobody reads may be absent.
  bool fits(const Op& op, const Tensors& results) const {
    if (results.size() != op.results.size()) return false;
    for (std::size_t i = 0; i < results.size(); ++i)
      if (results[i] ? results[i].type() != from_.type(op.results[i]) : readers_[op.results[i]] > 0) return false;
    return true;
  }

  const Graph& from_;
  Rebuild made_;
  IdVector<ValueId, int> readers_;  // of the source's values
  Constants constants_;
};

// For each sequence number of a forward op the number of one that is `kept`: its own, or that of the first op behind it that is, which it
// has become part of.
std::map<std::int64_t, std::int64_t> kept_sequences(const Graph& from, const std::set<std::int64_t>& kept) {
  std::map<std::int64_t, std::int64_t> out;
  IdVector<ValueId, std::int64_t> read_by(from.values.size());  // a kept number behind the value; -1: none
  std::ranges::fill(read_by, -1);
  for (std::size_t i = from.ops.size(); i-- > 0;) {
    const Op& op = from.ops[i];
    if (op.phase == Phase::backward) continue;
    std::int64_t number = kept.contains(op.sequence) ? op.sequence : -1;
    for (ValueId result : op.results)
      if (number == -1) number = read_by[result];
    if (number == -1) continue;
    if (op.sequence >= 0) out[op.sequence] = number;
    for (ValueId operand : op.operands) read_by[operand] = number;
  }
  return out;
}

// Backward ops whose forward op is gone take the number of the one that it has become part of, as their stage follows from it.
void link_backward(Graph& graph, const Graph& from) {
  std::set<std::int64_t> kept;
  for (const Op& op : graph.ops)
    if (op.phase == Phase::forward) kept.insert(op.sequence);
  const std::map<std::int64_t, std::int64_t> sequences = kept_sequences(from, kept);
  for (Op& op : graph.ops)
    if (const auto found = sequences.find(op.sequence); op.phase == Phase::backward && found != sequences.end())
      op.sequence = found->second;
}

// Throws Error where an op by name reads memory by strides, which are the executor's to choose.
void check_strides(const Graph& graph) {
  for (const Op& op : graph.ops)
    if (op.name.starts_with("aten::as_strided"))
      throw Error(concat(place_of(op), " reads memory by strides"), {}, "write it with views: view, transpose, unfold, slices");
}

}  // namespace

std::vector<RenameRow> rename_rows() {
  std::vector<RenameRow> all;
  for (const auto rows : {elementwise_rows(), reduction_rows(), shape_rows(), constant_rows(), product_rows(), convolution_rows(),
                          normalisation_rows(), attention_rows(), indexing_rows(), loss_rows()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

Tensors under_our_name(const NamedCall& call) {
  return emit_all(std::string_view(call.op.name).substr(std::string_view("aten::").size()), call.operands, call.op.attributes);
}

Tensors along_dim(const NamedCall& call, std::string_view name) {
  return emit_all(name, call.operands, {{"dim", wrap(attribute<std::int64_t>(call.op, "dim"), call.operand(0).rank())}});
}

const Op* made_by(Tensor x, std::string_view name) {
  if (!x) return nullptr;
  const Op* op = x.builder()->producer(ValueId(x.value()));
  return op && op->name == name ? op : nullptr;
}

Tensor operand_of(Tensor x, const Op& op, std::size_t i) {
  return {x.builder(), op.operands[i].value};
}

std::optional<double> constant_number(Tensor x) {
  const Op* constant = made_by(x, "full");
  if (!constant || x.rank() > 0) return std::nullopt;
  return number_attribute(*constant, "fill_value");
}

Tensor cast(Tensor x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (const Op* constant = made_by(x, "full")) return full(x, x.shape(), number_attribute(*constant, "fill_value"), dtype);
  return to(x, dtype);
}

Tensor unrounded(Tensor x) {
  const Op* rounded = made_by(x, "to");
  const Tensor from = rounded ? operand_of(x, *rounded, 0) : Tensor();
  return from && from.dtype() == statistic(x.dtype()) ? from : cast(x, statistic(x.dtype()));
}

Integers output_mask(const Op& op) {
  const Integers& mask = attribute<Integers>(op, "output_mask");
  if (mask.size() != 3) throw Error(concat(op.name, ": output_mask is not of three"));
  return mask;
}

std::vector<Tensor> masked(const Op& op, const std::vector<Tensor>& all) {
  const Integers mask = output_mask(op);
  Tensors given;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (mask[i] != 0) given.push_back(all[i]);
  return given;
}

Graph rename_ops(const Graph& graph) {
  Graph renamed = Renamer(graph).run();
  check_strides(renamed);
  link_backward(renamed, graph);
  return renamed;
}

}  // namespace penstock
