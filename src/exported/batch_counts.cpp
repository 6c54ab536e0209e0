#include "exported/batch_counts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/text.h"
#include "exported/place.h"
#include "exported/subgraph.h"
#include "ops/layouts.h"
#include "penstock/error.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// How a value comes about.
enum class Source : std::uint8_t {
  fixed,      // nothing that differs between micro-batches
  parameter,  // parameters too
  data,       // the micro-batch's data, and what is fixed
  both,
};

Source joined(Source a, Source b) {
  if (a == b) return a;
  return std::min(a, b) == Source::fixed ? std::max(a, b) : Source::both;
}

constexpr const char* kGiveWhole = "give the whole batch's number as an input that is not cut into micro-batches";

class DivisorFinder {
 public:
  DivisorFinder(const Graph& graph, const CountedInputs& inputs, std::size_t loss)
      : graph_(graph),
        producers_(producers(graph)),
        sources_(graph.values.size(), Source::fixed),
        quotients_(graph.values.size()),
        for_loss_(graph.values.size()) {
    for (ValueId input : graph.inputs) {
      const std::string& name = graph.values[input].name;
      const bool split = std::ranges::count(inputs.split, name) != 0, fixed = std::ranges::count(inputs.fixed, name) != 0;
      sources_[input] = split ? Source::data : fixed ? Source::fixed : Source::parameter;
    }
    for (const Op& op : graph.ops)
      for (ValueId result : op.results)
        for (ValueId operand : op.operands) sources_[result] = joined(sources_[result], sources_[operand]);
    for (const Op& op : graph.ops) {
      const bool quotient = is_quotient_of_data(op) || std::ranges::any_of(op.operands, [&](ValueId v) { return quotients_[v]; });
      for (ValueId result : op.results) quotients_[result] = quotient;
    }
    for_loss_[graph.outputs[loss]] = true;
    for (std::size_t i = graph.ops.size(); i-- > 0;)
      if (is_for_loss(graph.ops[i]))
        for (ValueId operand : graph.ops[i].operands) for_loss_[operand] = true;
  }

  // The scalars by which the loss is divided, in order.
  std::vector<ValueId> divisors() const {
    std::vector<ValueId> found;
    for (OpId id : graph_.ops.ids()) {
      const Op& op = graph_.ops[id];
      if (!is_quotient_of_data(op) || !is_for_loss(op) || !goes_into_loss(id)) continue;
      if (std::ranges::count(found, op.operands[1]) == 0) found.push_back(op.operands[1]);
    }
    return found;
  }

  // Whether the op divides by a scalar of data. A scalar has no dims: a number for each sample has some, even where there is one sample.
  bool divides_by_data(const Op& op) const {
    return op.name == "div" && op.operands.size() == 2 && graph_.type(op.operands[1]).shape.empty() &&
           sources_[op.operands[1]] == Source::data;
  }

  // Adds the sums of which the value, a divisor, is a function to those that are there.
  void add_sums(ValueId value, std::vector<ValueId>& sums) const {
    if (sources_[value] != Source::data || std::ranges::count(sums, value) != 0) return;
    const Op* op = producer(value);
    if (op && is_sum(*op)) {
      sums.push_back(value);
      return;
    }
    if (op && of_singles(*op)) {
      for (ValueId operand : op->operands) add_sums(operand, sums);
      return;
    }
    const std::string made = op ? concat("it is made by ", place_of(*op)) : concat("it is input ", quote(graph_.values[value].name));
    throw Error("the loss is divided by a number of the micro-batch's data that is no function of sums", {made},
                concat("divide by a sum, or ", kGiveWhole));
  }

 private:
  const Op* producer(ValueId value) const { return producers_[value] ? &graph_.ops[producers_[value]] : nullptr; }
  bool is_single(ValueId value) const { return graph_.type(value).elements() == 1; }
  bool of_singles(const Op& op) const {
    return std::ranges::all_of(op.operands, [&](ValueId operand) { return is_single(operand); });
  }
  // Whether the op is a sum over samples. That over a single one is too, unless what it adds is itself made of sums.
  bool is_sum(const Op& op) const { return op.name == "sum" && !(is_single(op.operands[0]) && is_made_of_sums(op.operands[0])); }
  bool is_made_of_sums(ValueId value) const {
    if (sources_[value] != Source::data) return true;
    const Op* op = producer(value);
    if (!op) return false;
    return is_sum(*op) || (of_singles(*op) && std::ranges::all_of(op->operands, [&](ValueId operand) { return is_made_of_sums(operand); }));
  }

  bool is_for_loss(const Op& op) const {
    return std::ranges::any_of(op.results, [&](ValueId result) { return for_loss_[result]; });
  }

  bool is_quotient_of_data(const Op& op) const { return op.phase == Phase::forward && divides_by_data(op); }

  // Whether the loss is linear in what the op gives. Then all that it is a factor of is to be a sum over the samples: throws Error where it
  // is not.
  bool goes_into_loss(OpId divided) const;
  // Whether the op gives a sum of products of which each has one factor that depends on a quotient, on this one.
  bool is_linear_in(const Op& op, const std::set<ValueId>& depending) const;
  // Throws Error where a scalar that depends on data is not made of sums.
  void require_sums(ValueId scalar, const Op& division) const;
  void require_sum(const Op& reduction, const Op& division) const;

  const Graph& graph_;
  IdVector<ValueId, OpId> producers_;
  IdVector<ValueId, Source> sources_;
  IdVector<ValueId, bool> quotients_;  // what depends on a quotient by a scalar of data
  IdVector<ValueId, bool> for_loss_;   // what the loss depends on
};

bool DivisorFinder::is_linear_in(const Op& op, const std::set<ValueId>& depending) const {
  const auto depends = [&](std::size_t i) { return depending.contains(op.operands[i]); };
  const auto is_quotient = [&](std::size_t i) { return quotients_[op.operands[i]]; };
  if (op.name == "mul" && op.operands.size() == 2) return !(is_quotient(0) && is_quotient(1));
  if (op.name == "div" && op.operands.size() == 2) return !is_quotient(1);
  if (op.name == "where") return !depends(0);
  return is_linear(op) || op.name == "add" || op.name == "sub" || op.name == "to";
}

void DivisorFinder::require_sum(const Op& reduction, const Op& division) const {
  const bool summed_by_name = reduction.name.starts_with("aten::nll_loss") && attribute_or(reduction, "reduction", std::int64_t{0}) == 2;
  if (reduction.name == "sum" || reduction.name == "cross_entropy" || summed_by_name) return;
  throw Error("the loss is divided by a number of the micro-batch's data, but what is divided is no sum",
              {concat("it is made by ", place_of(reduction)), concat("it is divided by ", place_of(division))},
              concat("divide sums over the samples, or ", kGiveWhole));
}

void DivisorFinder::require_sums(ValueId scalar, const Op& division) const {
  if (sources_[scalar] == Source::fixed || sources_[scalar] == Source::parameter) return;
  const Op* op = producer(scalar);
  if (!op) return;
  if (of_singles(*op))
    for (ValueId operand : op->operands) require_sums(operand, division);
  else
    require_sum(*op, division);
}

bool DivisorFinder::goes_into_loss(OpId divided) const {
  const Op& division = graph_.ops[divided];
  std::set<ValueId> depending = {division.results[0]};
  std::vector<const Op*> way;
  for (std::size_t i = divided.index() + 1; i < graph_.ops.size(); ++i) {
    const Op& op = graph_.ops[i];
    if (!is_for_loss(op) || std::ranges::none_of(op.operands, [&](ValueId operand) { return depending.contains(operand); })) continue;
    if (!is_linear_in(op, depending)) return false;
    depending.insert(op.results.begin(), op.results.end());
    way.push_back(&op);
  }
  if (is_single(division.operands[0])) require_sums(division.operands[0], division);
  for (const Op* op : way) {
    const bool reduces = is_single(op->results[0]) && std::ranges::none_of(op->operands, [&](ValueId v) { return is_single(v); });
    if (reduces) require_sum(*op, division);
    if (op->name == "mul" && op->operands.size() == 2 && is_single(op->results[0]))
      for (ValueId operand : op->operands)
        if (!depending.contains(operand)) require_sums(operand, division);
  }
  return true;
}

// For each value the first one that is made alike, by equal ops of alike values: the backward computes some of the forward's anew.
IdVector<ValueId, ValueId> first_alike(const Graph& graph) {
  IdVector<ValueId, ValueId> first(graph.values.size());
  for (ValueId input : graph.inputs) first[input] = input;
  std::map<std::string, const Op*> known;
  for (const Op& op : graph.ops) {
    std::string key = op.name;
    for (ValueId operand : op.operands) key += concat(" %", first[operand].value);
    for (const auto& [name, value] : op.attributes) key += concat(" ", name, "=", text_of(value));
    const Op* same = known.emplace(key, &op).first->second;
    for (std::size_t i = 0; i < op.results.size(); ++i) first[op.results[i]] = same->results[i];
  }
  return first;
}

// The graph with new inputs in the places of what it divides by. Throws Error where the gradient of a division that is changed so reads
// another number of the data.
Graph with_counts(Graph graph, const std::vector<ValueId>& divisors, const DivisorFinder& finder) {
  const IdVector<ValueId, ValueId> first = first_alike(graph);
  std::vector<ValueId> counts;
  std::set<std::int64_t> changed;
  for (std::size_t i = 0; i < divisors.size(); ++i) counts.push_back(graph.add_input(graph.type(divisors[i]), concat("count.", i)));
  for (Op& op : graph.ops) {
    if (!finder.divides_by_data(op)) continue;
    const auto is_same = [&](ValueId divisor) { return first[divisor] == first[op.operands[1]]; };
    if (const auto found = std::ranges::find_if(divisors, is_same); found != divisors.end()) {
      op.operands[1] = counts[static_cast<std::size_t>(found - divisors.begin())];
      changed.insert(op.sequence);
    } else if (op.phase == Phase::backward && changed.contains(op.sequence)) {
      throw Error("the loss is divided by a number of the micro-batch's data, and its gradient by another one",
                  {concat("by ", place_of(op))}, kGiveWhole);
    }
  }
  return graph;
}

}  // namespace

BatchCounts batch_counts(const Graph& joint, const CountedInputs& inputs, std::size_t loss) {
  for (const Op& op : joint.ops)
    if (op.name.starts_with("aten::nll_loss") && attribute_or(op, "reduction", std::int64_t{0}) == 1)
      throw Error("the loss is a mean over the targets that count, whose number cannot be taken from the whole batch",
                  {concat("by ", place_of(op))}, "take reduction=\"sum\" and divide by a number");
  const DivisorFinder finder(joint, inputs, loss);
  const std::vector<ValueId> divisors = finder.divisors();
  std::vector<ValueId> sums;
  for (ValueId divisor : divisors) finder.add_sums(divisor, sums);
  std::vector<GivenValue> given;
  for (std::size_t i = 0; i < sums.size(); ++i) given.push_back({sums[i], concat("sum.", i)});
  return {eliminate_dead_code(with_counts(joint, divisors, finder)), subgraph(joint, "counts", {}, sums),
          subgraph(joint, "divisors", given, divisors)};
}

}  // namespace penstock
