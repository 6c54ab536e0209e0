// SPDX-License-Identifier: Apache-2.0
#include "exported/sample_flow.h"

#include <algorithm>
#include <cmath>

#include "exported/sample_rules.h"
#include "exported/uniform.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

using Kind = SampleFlow::Kind;
using Finding = FlowFinding::Kind;
using Flows = std::vector<SampleFlow>;

bool is_product(const Op& op) {
  return op.name == "mm" || op.name == "bmm" || op.name == "linear" || op.name == "addmm" || op.name == "matmul";
}

bool is_zero(const Graph& graph, const IdVector<ValueId, OpId>& producers, ValueId value) {
  if (!producers[value]) return false;
  const Op& op = graph.ops[producers[value]];
  if (op.name == "full") return number_attribute(op, "fill_value") == 0;
  return op.name == "expand" && is_zero(graph, producers, op.operands[0]);
}

// Ops that give m^d times the result for m^d times each operand; a number "other" that they add or compare with has no degree.
bool keeps_degree(const Op& op) {
  static const std::set<std::string, std::less<>> names = {
      "add",  "sub",   "add_n",  "maximum", "minimum", "where", "cat",    "neg",  "abs",         "relu",         "to",
      "amax", "split", "select", "sum",     "mean",    "slice", "gather", "topk", "sort.stable", "index_select", "cumsum"};
  return names.contains(op.name) || is_linear(op);
}

class Follower {
 public:
  Follower(const Graph& graph, const CountedInputs& inputs, std::size_t loss, const FlowOptions& options)
      : graph_(graph), producers_(producers(graph)), options_(options) {
    out_.values.resize(graph.values.size());
    for (ValueId input : graph.inputs) begin(input, inputs);
    const IdVector<ValueId, bool> needed = needed_for(graph, {graph.outputs[loss]});
    for (OpId id : graph.ops.ids()) {
      const Op& op = graph.ops[id];
      const bool is_needed = std::ranges::any_of(op.results, [&](ValueId result) { return needed[result]; });
      if (op.phase == Phase::forward && is_needed) follow(id);
    }
  }

  SampleFlows take() { return std::move(out_); }

 private:
  void begin(ValueId input, const CountedInputs& inputs) {
    SampleFlow& flow = out_.values[input];
    const std::string& name = graph_.values[input].name;
    const bool split = std::ranges::count(inputs.split, name) != 0, fixed = std::ranges::count(inputs.fixed, name) != 0;
    flow.source = split ? Source::data : fixed ? Source::fixed : Source::parameter;
    if (!split) return;
    flow.kind = Kind::rows;
    flow.rows = split_layout(0, 1, options_.samples, options_.samples);
  }

  // The results of one op.
  void follow(OpId id) {
    const Op& op = graph_.ops[id];
    Flows from;
    Source source = Source::fixed;
    for (ValueId operand : op.operands) {
      from.push_back(out_.values[operand]);
      source = joined(source, from.back().source);
    }
    const std::vector<TensorType> operands = types_of(graph_, op.operands), results = types_of(graph_, op.results);
    if (options_.literals && options_.literals->contains(id) && !options_.literals->at(id)) find(Finding::grows, id);
    Flows to = results_of({op, operands, results, options_.samples}, id, from);
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i].source = to[i].source == Source::fixed ? source : joined(source, to[i].source);
      out_.values[op.results[i]] = counted_if_data(op.results[i], op, to[i]);
    }
  }

  // Notes a sum over the samples that is made of data alone as counted: it is taken from the whole batch.
  SampleFlow counted_if_data(ValueId value, const Op& op, const SampleFlow& flow) {
    if (!flow.is(Kind::term) || flow.source != Source::data) return flow;
    const int degree = flow.literals;
    const bool mean = op.name == "mean" || named_reduction(op) == 1;
    out_.sums.push_back({value, mean});
    return {.kind = Kind::fixed, .source = Source::data, .degree = degree, .literals = degree, .counted = true};
  }

  Flows results_of(const LayoutSite& site, OpId id, Flows from) {
    const auto some = [&](Kind kind) { return std::ranges::any_of(from, [&](const SampleFlow& flow) { return flow.is(kind); }); };
    if (!some(Kind::rows) && !some(Kind::term))
      return some(Kind::own) ? of_own(site, id, from) : Flows(site.results.size(), of_fixed(site, id, from));
    for (SampleFlow& flow : from)
      if (flow.counted) flow.degree = 0;  // it is read as the whole batch's
    if (some(Kind::rows)) return of_rows(site, id, from);
    return some(Kind::own) ? of_own(site, id, from) : of_terms(site, id, from);
  }

  SampleFlow of_fixed(const LayoutSite& site, OpId id, const Flows& from) {
    SampleFlow out;
    if (kind_of_named(site.op.name) == NamedKind::draw && !site.results[0].shape.empty() && site.results[0].shape[0] == options_.samples)
      return {.kind = Kind::rows, .source = Source::both, .rows = split_layout(0, 1, options_.samples, options_.samples)};
    for (const SampleFlow& flow : from) out.counted = out.counted || flow.counted;
    if (from.empty() && site.op.name == "full")
      out.degree = out.literals = literal(id).value_or(0);
    else
      set_degree(site, id, from, out);
    return out;
  }

  // Sets the degree that the operands' give; where there is none, a finding and 0.
  void set_degree(const LayoutSite& site, OpId id, const Flows& from, SampleFlow& out) {
    if (!from.empty() && may_be_samples(site.op, from[0])) find(Finding::size, id);
    const std::optional<int> degree = degree_of(site, id, from, &SampleFlow::degree);
    const bool adds = site.op.name == "add" || site.op.name == "sub" || site.op.name == "cat" || site.op.name == "add_n";
    if (!degree) find(adds ? Finding::unequal : Finding::nonlinear, id);
    out.degree = degree.value_or(0);
    out.literals = degree_of(site, id, from, &SampleFlow::literals).value_or(0);
  }

  // By how much the number of an op grows with the samples; none: it has no number.
  std::optional<int> literal(OpId id) const {
    if (!options_.literals) return std::nullopt;
    const auto found = options_.literals->find(id);
    return found == options_.literals->end() ? 0 : found->second.value_or(0);
  }

  std::optional<int> degree_of(const LayoutSite& site, OpId id, const Flows& from, int SampleFlow::* of) const {
    const Op& op = site.op;
    const bool number = op.attributes.contains("other");
    if (op.name == "mul" || op.name == "div") {
      const int sign = op.name == "mul" ? 1 : -1;
      if (from.size() == 2) return from[0].*of + sign * (from[1].*of);
      return from[0].*of + sign * literal(id).value_or(divides_by_samples(op, from[0]) ? 1 : 0);
    }
    if (op.name == "pow" && from[0].*of != 0) {
      const double exponent = number_attribute(op, "exponent");
      return exponent == std::floor(exponent) ? std::optional(static_cast<int>(exponent) * (from[0].*of)) : std::nullopt;
    }
    std::optional<int> common;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const bool is_choice = op.name == "where" && i == 0;
      if (is_choice || is_zero(graph_, producers_, op.operands[i])) continue;
      if (common && *common != from[i].*of) return std::nullopt;
      common = from[i].*of;
    }
    const bool alike = keeps_degree(op) && !(number && number_attribute(op, "other") != 0);
    return common.value_or(0) == 0 || alike ? common.value_or(0) : std::optional<int>();
  }

  // Without knowledge of literals: whether a mean, or rows, are divided by as many as there are samples, or a mean is multiplied by them,
  // or what is counted is divided by a multiple of them.
  bool may_be_samples(const Op& op, const SampleFlow& x) const {
    if (options_.literals || !op.attributes.contains("other") || x.is(Kind::own)) return false;
    if (x.is(Kind::fixed)) return divides_by_samples(op, x);
    if (op.name != "div" && !(op.name == "mul" && x.is(Kind::term))) return false;
    return !divides_by_samples(op, x) && number_attribute(op, "other") == static_cast<double>(options_.samples);
  }

  // Without knowledge of literals: a sum that is divided by a multiple of the samples is a mean.
  bool divides_by_samples(const Op& op, const SampleFlow& divided) const {
    const bool is_sum = divided.is(Kind::term) ? divided.degree >= 1 : divided.is(Kind::fixed) && divided.counted;
    if (options_.literals || op.name != "div" || !op.attributes.contains("other") || !is_sum) return false;
    return std::fmod(number_attribute(op, "other"), static_cast<double>(options_.samples)) == 0;
  }

  // Whether the op divides or multiplies by a number that is counted, and takes another than that of all micro-batches.
  bool is_share(const LayoutSite& site, OpId id, const Flows& from) {
    const std::optional<std::size_t> number = counted_number(site, from);
    if (!number) return false;
    const SampleFlow& other = from[1 - *number];
    const bool by_itself = options_.shares && (other.is(Kind::rows) || other.degree >= 1);
    const bool mixed = from[*number].source == Source::both;
    const bool taken = by_itself != options_.flipped.contains(id);
    if (taken && mixed) find(Finding::nonlinear, id);
    out_.boundaries[id] = !taken ? Taken::whole : mixed ? Taken::own : Taken::share;
    return taken;
  }

  // The operand that is a number that is counted, by which the op multiplies or divides what is not fixed.
  static std::optional<std::size_t> counted_number(const LayoutSite& site, const Flows& from) {
    if ((site.op.name != "mul" && site.op.name != "div") || from.size() != 2) return std::nullopt;
    const auto is_number = [&](std::size_t i) { return from[i].is(Kind::fixed) && from[i].counted; };
    const std::size_t number = is_number(1) ? 1 : site.op.name == "mul" ? 0 : 1;
    if (!is_number(number) || from[1 - number].is(Kind::fixed) || !is_floating(site.operands[number].dtype)) return std::nullopt;
    return number;
  }

  // A value that is known as each micro-batch's own is multiplied or divided by its own numbers, as by the whole batch's its mean would be
  // m times as large or small.
  Flows of_own(const LayoutSite& site, OpId id, const Flows& from) {
    const bool counts = std::ranges::any_of(from, [](const SampleFlow& flow) { return flow.is(Kind::fixed) && flow.counted; });
    if (counts && (site.op.name == "mul" || site.op.name == "div")) out_.boundaries[id] = Taken::own;
    return Flows(site.results.size(), SampleFlow{.kind = Kind::own});
  }

  // --- rows

  Flows of_rows(const LayoutSite& site, OpId id, const Flows& from) {
    Flows out(site.results.size());
    if (is_mean(site.op, from)) {
      out[0].kind = Kind::term;
      set_degree(site, id, from, out[0]);
      return out;
    }
    const std::vector<Layout> layouts = layouts_of_rows(site, id, from);
    for (std::size_t i = 0; i < out.size(); ++i) {
      SampleFlow& flow = out[i];
      flow.kind = layouts[i].is_split() ? Kind::rows : layouts[i].is_term() ? Kind::term : Kind::own;
      flow.rows = layouts[i];
      if (flow.is(Kind::own)) continue;
      set_degree(site, id, from, flow);
      if (flow.is(Kind::term) && named_reduction(site.op) != 1) ++flow.degree;
    }
    if (is_share(site, id, from)) --out[0].degree;
    return out;
  }

  static bool is_mean(const Op& op, const Flows& from) {
    if (op.name != "mean") return false;
    const auto& dims = attribute<std::vector<std::int64_t>>(op, "dim");
    return std::ranges::count(dims, std::int64_t{from[0].rows.dim}) != 0;
  }

  // Returns how the results lie: split where they are rows, terms where they are sums, whole where each micro-batch has its own.
  std::vector<Layout> layouts_of_rows(const LayoutSite& site, OpId id, const Flows& from) {
    std::vector<Layout> at;
    std::size_t first = from.size();
    for (std::size_t i = 0; i < from.size(); ++i) {
      at.push_back(from[i].is(Kind::rows) ? from[i].rows : kWhole);
      if (first == from.size() && from[i].is(Kind::rows)) first = i;
    }
    const std::optional<LayoutRow> row = row_of(site, first, at);
    if (!row) {
      find(finding_of(site, at), id);
      return guessed(site, at, first);
    }
    for (std::size_t i = 0; i < at.size(); ++i) {
      const Layout& wanted = row->operands[i];
      if (from[i].is(Kind::rows) ? wanted == at[i] : wanted.is_whole() || from[i].is(Kind::own)) continue;
      if (from[i].is(Kind::term)) {
        if (!is_zero(graph_, producers_, site.op.operands[i])) find(Finding::nonlinear, id);
      } else if (from[i].is(Kind::rows)) {
        find(is_product(site.op) && contracts(site, i, at[i]) ? Finding::across : Finding::mixes, id);
      } else if (const auto uniform = is_uniform(graph_, producers_, site.op.operands[i], wanted, options_.samples); uniform != true) {
        find(uniform ? Finding::places : Finding::unknown, id);
      }
    }
    if (std::ranges::any_of(from, [](const SampleFlow& flow) { return flow.is(Kind::term); })) find(Finding::nonlinear, id);
    return row->results;
  }

  std::optional<LayoutRow> row_of(const LayoutSite& site, std::size_t operand, const std::vector<Layout>& at) const {
    if (site.op.name == "aten::index.Tensor") return index_row(graph_, producers_, site, at, options_.samples);
    if (!find_op(site.op.name)) return named_row(site, operand, at);
    if (const std::optional<LayoutRow> picks = picks_row(site, at)) return picks;
    if (options_.samples == 1 && expands(site, at[0])) return std::nullopt;
    const bool reshapes = site.op.name == "reshape" || site.op.name == "squeeze" || site.op.name == "unsqueeze";
    if (!reshapes || options_.samples > 1) return layout_row(site, operand, at[operand]);
    std::optional<Layout> single = reshaped_single(at[0], site.operands[0].shape, site.results[0].shape);
    if (site.op.name == "unsqueeze") {  // which says where the new dim is
      single = at[0];
      if (attribute<std::int64_t>(site.op, "dim") <= at[0].dim) ++single->dim;
    }
    return single ? std::optional(LayoutRow{{at[0]}, {*single}}) : std::nullopt;
  }

  // Whether the op makes more places of the dim along which the one sample lies.
  static bool expands(const LayoutSite& site, const Layout& split) {
    if (site.op.name != "expand") return false;
    const Shape &from = site.operands[0].shape, &to = site.results[0].shape;
    const auto dim = static_cast<std::size_t>(split.dim);
    return to[to.size() - from.size() + dim] != from[dim];
  }

  // Whether the product sums over the dim along which this operand's samples lie.
  static bool contracts(const LayoutSite& site, std::size_t operand, const Layout& rows) {
    const std::optional<LayoutRow> alone = layout_row(site, operand, rows);
    return alone && alone->results[0].is_term();
  }

  Finding finding_of(const LayoutSite& site, const std::vector<Layout>& at) const {
    const std::string& name = site.op.name;
    if (!find_op(name) && kind_of_named(name) == NamedKind::unknown && name != "aten::index.Tensor") return Finding::unknown;
    if (name == "attention" || name.find("dot_product") != name.npos || name == "convolution" || name == "aten::convolution")
      return Finding::across;
    return takes_apart(site, at) ? Finding::across : Finding::mixes;
  }

  // Whether the op, with others like it, takes out every sample by itself, as a recurrence does.
  bool takes_apart(const LayoutSite& site, const std::vector<Layout>& at) const {
    const std::string& name = site.op.name;
    const std::int64_t size = site.operands[0].shape[static_cast<std::size_t>(at[0].is_split() ? at[0].dim : 0)];
    if (options_.samples == 1 || !at[0].is_split()) return false;
    if (name == "split" || name == "aten::unbind.int" || name == "aten::split_with_sizes") return std::ssize(site.results) == size;
    if (name != "select") return false;
    std::set<std::int64_t> taken;
    for (const Op& op : graph_.ops)
      if (op.name == "select" && op.phase == Phase::forward && op.operands == site.op.operands &&
          attribute<std::int64_t>(op, "dim") == attribute<std::int64_t>(site.op, "dim"))
        taken.insert(wrap(attribute<std::int64_t>(op, "index"), size));
    return std::ssize(taken) == size;
  }

  // A value in which samples were mixed is treated as if it were still of the samples, where it has a dim of the size of theirs in the same
  // place, or in front.
  std::vector<Layout> guessed(const LayoutSite& site, const std::vector<Layout>& at, std::size_t operand) const {
    const Layout& like = at[operand];
    const Shape& from = site.operands[operand].shape;
    const std::int64_t size = from[static_cast<std::size_t>(like.dim)];
    std::vector<Layout> out;
    for (const TensorType& type : site.results) {
      const bool first = !type.shape.empty() && type.shape[0] == size && size % options_.samples == 0;
      const Layout in_front = split_layout(0, 1, options_.samples, options_.samples);
      out.push_back(type.shape == from ? like : first ? in_front : kWhole);
    }
    return out;
  }

  // --- terms

  Flows of_terms(const LayoutSite& site, OpId id, const Flows& from) {
    SampleFlow out{.kind = Kind::term};
    if (!is_linear_in_terms(site.op, from)) {
      find(Finding::nonlinear, id);
      return of_own(site, id, from);
    }
    if (is_product(site.op)) {
      for (const SampleFlow& flow : from) out.degree += flow.degree;
    } else {
      set_degree(site, id, from, out);
    }
    if (is_share(site, id, from)) --out.degree;
    return Flows(site.results.size(), out);
  }

  // Whether the result is a linear function of the terms; a mean may have what is fixed added to it.
  bool is_linear_in_terms(const Op& op, const Flows& from) const {
    const auto terms = std::ranges::count_if(from, [](const SampleFlow& flow) { return flow.is(Kind::term); });
    const bool means = std::ranges::all_of(from, [](const SampleFlow& flow) { return !flow.is(Kind::term) || flow.degree == 0; });
    const auto fixed = [&](std::size_t i) { return from[i].is(Kind::fixed); };
    if (op.name == "mul") return terms == 1;
    if (op.name == "div") return from.size() == 1 || fixed(1);
    if (is_product(op)) {
      const bool added = (op.name == "linear" && from.size() == 3) || op.name == "addmm";
      const std::size_t bias = op.name == "addmm" ? 0 : 2;
      return terms == 1 && (!added || (fixed(bias) && means));
    }
    if (op.name == "where") return fixed(0);
    return is_linear(op) || op.name == "add" || op.name == "sub" || op.name == "cat" || op.name == "to";
  }

  void find(Finding kind, OpId id) { out_.findings.push_back({kind, id}); }

  const Graph& graph_;
  const IdVector<ValueId, OpId> producers_;
  const FlowOptions& options_;
  SampleFlows out_;
};

}  // namespace

Source joined(Source a, Source b) {
  if (a == b) return a;
  return std::min(a, b) == Source::fixed ? std::max(a, b) : Source::both;
}

SampleFlows sample_flows(const Graph& joint, const CountedInputs& inputs, std::size_t loss, const FlowOptions& options) {
  return Follower(joint, inputs, loss, options).take();
}

}  // namespace penstock
