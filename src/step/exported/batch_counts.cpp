// SPDX-License-Identifier: Apache-2.0
#include "exported/batch_counts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/text.h"
#include "base/words.h"
#include "exported/place.h"
#include "exported/subgraph.h"
#include "ops/infer.h"
#include "penstock/error.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using Kind = SampleFlow::Kind;
using Finding = FlowFinding::Kind;

constexpr const char* kGiveWhole = "give the whole batch's number as an input that is not cut into micro-batches";

std::int64_t samples_of(const Graph& joint, const CountedInputs& inputs) {
  for (ValueId input : joint.inputs)
    if (const Shape& shape = joint.type(input).shape; !shape.empty() && std::ranges::count(inputs.split, joint.values[input].name) != 0)
      return shape[0];
  return 1;
}

// Whether the mean of the micro-batches' losses (`sum`: their sum) is the whole batch's.
bool is_whole(const SampleFlow& loss, bool sum) {
  if (loss.is(Kind::own)) return true;  // a finding says what it is
  if (loss.is(Kind::fixed) && !loss.counted && loss.degree != 0) return false;
  return loss.is(Kind::term) ? loss.degree == (sum ? 1 : 0) : !sum;
}

// The flows with those boundaries flipped that leave the fewest findings.
SampleFlows best_flows(const Graph& joint, const CountedInputs& inputs, const CountOptions& options) {
  FlowOptions with{.samples = samples_of(joint, inputs), .literals = options.literals, .shares = !options.loss_is_sum};
  const auto flows_of = [&](const std::set<OpId>& flipped) {
    with.flipped = flipped;
    return sample_flows(joint, inputs, options.loss, with);
  };
  const auto faults_of = [&](const SampleFlows& flows) {
    return flows.findings.size() + (is_whole(flows.values[joint.outputs[options.loss]], options.loss_is_sum) ? 0 : 1);
  };
  std::set<OpId> flipped;
  SampleFlows best = flows_of({});
  std::set<OpId> all;
  for (const auto& [boundary, taken] : best.boundaries) all.insert(boundary);
  const auto attempt = [&](std::set<OpId> other) {
    SampleFlows flows = flows_of(other);
    if (faults_of(flows) >= faults_of(best)) return;
    best = std::move(flows);
    flipped = std::move(other);
  };
  if (faults_of(best) > 0 && !all.empty()) attempt(all);
  for (OpId boundary : all) {
    if (faults_of(best) == 0) break;
    std::set<OpId> other = flipped;
    if (!other.erase(boundary)) other.insert(boundary);
    attempt(std::move(other));
  }
  return best;
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

// Finds what of a joint graph is counted, and makes the graphs.
class Counter {
 public:
  Counter(const Graph& joint, const SampleFlows& flows)
      : joint_(joint), flows_(flows), producers_(producers(joint)), first_(first_alike(joint)), makers_of_own_(makers_of_own()) {
    any_own_ = std::ranges::any_of(flows.boundaries, [](const auto& boundary) { return boundary.second == Taken::own; });
  }

  BatchCounts run() {
    BatchCounts out;
    out.joint = with_ports();
    std::vector<ValueId> numbers;
    for (const Port& port : ports_) {
      numbers.push_back(port.number);
      out.shares.push_back(port.share);
      add_sums(port.number);
    }
    count(out);
    out.divisors = subgraph(joint_, "divisors", sums_, numbers);
    return out;
  }

 private:
  struct Port {
    ValueId number;
    int share;
    ValueId input;
  };

  const Op* producer(ValueId value) const { return producers_[value] ? &joint_.ops[producers_[value]] : nullptr; }
  const SampleFlow& flow(ValueId value) const { return flows_.values[first_[value]]; }
  bool is_counted(ValueId value) const { return flow(value).is(Kind::fixed) && flow(value).counted; }
  const FlowSum* sum_of(ValueId value) const {
    const auto found = std::ranges::find(flows_.sums, value, &FlowSum::value);
    return found == flows_.sums.end() ? nullptr : &*found;
  }

  // The graph with new inputs in the places of what is counted.
  Graph with_ports() {
    Graph graph = joint_;
    for (OpId id : joint_.ops.ids()) {
      const Op& op = joint_.ops[id];
      const bool makes_counted = std::ranges::any_of(op.results, [&](ValueId result) { return is_counted(result); });
      if (makes_counted) continue;
      for (std::size_t i = 0; i < op.operands.size(); ++i)
        if (is_counted(op.operands[i]) && !takes_own(id, i))
          graph.ops[id].operands[i] = port(graph, first_[op.operands[i]], share_of(id, i)).input;
    }
    for (ValueId& output : graph.outputs)
      if (is_counted(output)) output = port(graph, first_[output], -flow(output).literals).input;
    return eliminate_dead_code(graph);
  }

  const Port& port(Graph& graph, ValueId number, int share) {
    for (const Port& known : ports_)
      if (known.number == number && known.share == share) return known;
    const ValueId input = graph.add_input(joint_.type(number), concat("count.", ports_.size()));
    return ports_.emplace_back(Port{number, share, input});
  }

  // The share that an op takes of its operand. The gradient of a product or quotient takes the same. Throws Error where it cannot be told
  // which.
  int share_of(OpId id, std::size_t operand) const {
    const Op& op = joint_.ops[id];
    const int whole = -flow(op.operands[operand]).literals;
    const bool divides = op.name == "div" && operand == 1;
    if (!divides && op.name != "mul") return whole;
    const int part = whole + (divides ? 1 : -1);
    if (const auto found = flows_.boundaries.find(id); found != flows_.boundaries.end())
      return found->second == Taken::share ? part : whole;
    if (op.phase == Phase::forward) return whole;
    return taken_by_gradient(id, operand) == Taken::share ? part : whole;
  }

  // Whether the op takes the micro-batch's own number.
  bool takes_own(OpId id, std::size_t operand) const {
    if (const auto found = flows_.boundaries.find(id); found != flows_.boundaries.end()) return found->second == Taken::own;
    const bool gradient = joint_.ops[id].phase != Phase::forward;
    return gradient && any_own_ && taken_by_gradient(id, operand) == Taken::own;
  }

  Taken taken_by_gradient(OpId id, std::size_t operand) const {
    const Op& op = joint_.ops[id];
    const std::set<Taken> taken = taken_in_forward(op, first_[op.operands[operand]]);
    if (taken.size() > 1)
      throw Error("the loss is divided by a number of the micro-batch's data in two ways, and its gradient in one of them",
                  {concat("by ", place_of(op))}, kGiveWhole);
    return taken.empty() ? Taken::whole : *taken.begin();
  }

  // The ops that make numbers with parameters in them of which the micro-batch's own are taken.
  std::set<OpId> makers_of_own() const {
    std::set<OpId> out;
    std::vector<ValueId> open;
    for (const auto& [id, taken] : flows_.boundaries)
      if (taken == Taken::own) open.insert(open.end(), joint_.ops[id].operands.begin(), joint_.ops[id].operands.end());
    while (!open.empty()) {
      const ValueId value = open.back();
      open.pop_back();
      if (!producers_[value] || !is_counted(value) || flow(value).source != Source::both || !out.insert(producers_[value]).second) continue;
      const Op& op = joint_.ops[producers_[value]];
      open.insert(open.end(), op.operands.begin(), op.operands.end());
    }
    return out;
  }

  // Returns the forms in which forward ops take this number: those of the gradient's own sequence if any reads it, else all that do.
  std::set<Taken> taken_in_forward(const Op& gradient, ValueId number) const {
    std::set<Taken> own, all;
    for (const OpId id : joint_.ops.ids()) {
      const Op& op = joint_.ops[id];
      if (op.phase != Phase::forward || std::ranges::none_of(op.operands, [&](ValueId operand) { return first_[operand] == number; }))
        continue;
      const auto boundary = flows_.boundaries.find(id);
      const bool known = boundary != flows_.boundaries.end(), makes_own = makers_of_own_.contains(id);
      const Taken taken = known ? boundary->second : makes_own ? Taken::own : Taken::whole;
      if (known || makes_own) all.insert(taken);
      if (op.sequence == gradient.sequence) own.insert(taken);
    }
    return own.empty() ? all : own;
  }

  // Adds the sums that a value depends on, each behind those that it depends on itself; gives the highest level among them.
  std::size_t add_sums(ValueId value) {
    if (const FlowSum* sum = sum_of(value)) {
      if (const auto known = levels_.find(value); known != levels_.end()) return known->second;
      std::size_t level = 0;
      for (ValueId operand : producer(value)->operands) level = std::max(level, add_sums_of_rows(operand));
      levels_[value] = level + 1;
      by_level_.resize(std::max(by_level_.size(), level + 1));
      by_level_[level].push_back(*sum);
      return level + 1;
    }
    return add_sums_of_rows(value);
  }
  std::size_t add_sums_of_rows(ValueId value) {
    if (sum_of(value)) return add_sums(value);
    std::size_t level = 0;
    if (const auto known = seen_.find(value); known != seen_.end()) return known->second;
    if (const Op* op = producer(value))
      for (ValueId operand : op->operands) level = std::max(level, add_sums_of_rows(operand));
    return seen_[value] = level;
  }

  void count(BatchCounts& out) {
    for (const std::vector<FlowSum>& level : by_level_) {
      std::vector<ValueId> values;
      for (const FlowSum& sum : level) values.push_back(sum.value);
      out.counts.push_back(subgraph(joint_, "counts", sums_, values));
      for (const FlowSum& sum : level) {
        sums_.push_back({sum.value, concat("sum.", sums_.size())});
        out.means.push_back(sum.mean);
      }
    }
  }

  const Graph& joint_;
  const SampleFlows& flows_;
  const IdVector<ValueId, OpId> producers_;
  const IdVector<ValueId, ValueId> first_;
  const std::set<OpId> makers_of_own_;
  bool any_own_ = false;
  std::vector<Port> ports_;
  std::map<ValueId, std::size_t> levels_, seen_;
  std::vector<std::vector<FlowSum>> by_level_;
  std::vector<GivenValue> sums_;
};

// The graph's inputs that the value is made of.
std::set<ValueId> inputs_of(const Graph& joint, const IdVector<ValueId, OpId>& producers, ValueId value) {
  std::set<ValueId> seen, found;
  std::vector<ValueId> open = {value};
  while (!open.empty()) {
    const ValueId next = open.back();
    open.pop_back();
    if (!seen.insert(next).second) continue;
    if (!producers[next])
      found.insert(next);
    else
      for (ValueId operand : joint.ops[producers[next]].operands) open.push_back(operand);
  }
  return found;
}

// Throws Error where the samples are read as a sequence: by attention along them, or where each place has a parameter of its own.
void refuse_sequences(const Graph& joint, const SampleFlows& flows) {
  const IdVector<ValueId, OpId> made = producers(joint);
  for (const FlowFinding& finding : flows.findings) {
    const Op& op = joint.ops[finding.op];
    const bool fixed = finding.kind == Finding::places && op.name == "add" && std::ranges::any_of(op.operands, [&](ValueId operand) {
                         const SampleFlow& flow = flows.values[operand];
                         return flow.is(Kind::fixed) && !joint.type(operand).shape.empty() && !inputs_of(joint, made, operand).empty();
                       });
    if (finding.kind != Finding::across && !fixed) continue;
    throw Error(concat(place_of(op), fixed ? " has a parameter or a buffer for each place along dim 0 of the batch's tensors"
                                           : " reads along dim 0 of the batch's tensors as along a sequence"),
                {"samples lie along dim 0 of what is cut into micro-batches: another batch has others there"},
                "give samples first: batch_first=True, or x.transpose(0, 1) of the batch here and back again in the module's forward");
  }
}

// Throws Error where the loss is divided by what data says in another way than by sums.
void refuse_divisors(const Graph& joint, const SampleFlows& flows, std::size_t loss) {
  const IdVector<ValueId, OpId> made = producers(joint);
  const IdVector<ValueId, bool> needed = needed_for(joint, {joint.outputs[loss]});
  for (const Op& op : joint.ops) {
    if (op.name.starts_with("aten::nll_loss") && attribute_or(op, "reduction", std::int64_t{0}) == 1)
      throw Error("the loss is a mean over the targets that count, whose number cannot be taken from the whole batch",
                  {concat("by ", place_of(op))}, "take reduction=\"sum\" and divide by a number");
    if (op.name != "div" || op.operands.size() != 2 || op.phase == Phase::backward || !needed[op.results[0]]) continue;
    const SampleFlow& divisor = flows.values[op.operands[1]];
    if (!divisor.is(Kind::own) || divisor.source != Source::data || flows.values[op.operands[0]].source == Source::data) continue;
    const OpId maker = made[op.operands[1]];
    throw Error("the loss is divided by a number of the micro-batch's data that is no function of sums",
                {concat("it is made by ", place_of(joint.ops[maker]))}, concat("divide by a sum, or ", kGiveWhole));
  }
}

// Throws Error where the gradient of a division by a number that is counted divides by another one of the data.
void refuse_gradients(const Graph& joint, const SampleFlows& flows) {
  const IdVector<ValueId, OpId> made = producers(joint);
  std::set<std::int64_t> counted;
  for (const auto& [id, taken] : flows.boundaries)
    if (joint.ops[id].name == "div") counted.insert(joint.ops[id].sequence);
  const IdVector<ValueId, ValueId> first = first_alike(joint);
  for (const Op& op : joint.ops) {
    if (op.phase == Phase::forward || op.name != "div" || op.operands.size() != 2 || !counted.contains(op.sequence)) continue;
    if (flows.values[first[op.operands[1]]].counted) continue;
    const std::set<ValueId> inputs = inputs_of(joint, made, op.operands[1]);
    const auto source = [&](ValueId input) { return flows.values[input].source; };
    const bool data = std::ranges::any_of(inputs, [&](ValueId input) { return source(input) == Source::data; }) &&
                      std::ranges::all_of(inputs, [&](ValueId input) { return source(input) != Source::parameter; });
    if (data && joint.type(op.operands[1]).shape.empty())
      throw Error("the loss is divided by a number of the micro-batch's data, and its gradient by another one",
                  {concat("by ", place_of(op))}, kGiveWhole);
  }
}

std::string note_of(Finding kind, const std::string& place) {
  switch (kind) {
    case Finding::nonlinear:
      return concat(place, ": a sum over the samples of each micro-batch, not that of the whole batch, is taken where it does not add up");
    case Finding::unequal:
      return concat(
          place,
          ": what grows with the samples, as a sum over them does, is added to what does not; both are means over the micro-batches");
    case Finding::places:
      return concat(place, ": another value for each place in a micro-batch is read, not in the whole batch");
    case Finding::size:
      return concat(place,
                    ": a number may be that of a micro-batch's samples: the module does not run with twice as many, which would tell");
    case Finding::grows:
      return concat(place, ": a number depends on how many samples a micro-batch has, not on how many the whole batch has");
    case Finding::unknown:
      return concat(place, ": it cannot be told whether several samples are read; if so, those of each micro-batch by themselves");
    default:
      return concat(place, ": the samples of each micro-batch are read by themselves, not those of the whole batch");
  }
}

// A note for each kind of finding and name of an op, which names the first such op.
std::vector<std::string> notes_of(const Graph& joint, const SampleFlows& flows, const CountOptions& options) {
  std::map<std::pair<Finding, std::string>, std::vector<std::string>> places;
  for (const FlowFinding& finding : flows.findings) {
    const Op& op = joint.ops[finding.op];
    std::vector<std::string>& known = places[{finding.kind, op.name}];
    if (std::ranges::find(known, place_of(op)) == known.end()) known.push_back(place_of(op));
  }
  std::vector<std::string> notes;
  for (const auto& [kind, each] : places) {
    const std::string more = each.size() == 1 ? "" : concat(" and ", counted(static_cast<int>(each.size()) - 1, "other"));
    notes.push_back(note_of(kind.first, concat(each[0], more)));
  }
  if (!is_whole(flows.values[joint.outputs[options.loss]], options.loss_is_sum))
    notes.emplace_back(
        options.loss_is_sum
            ? "the loss is no sum over the samples, but reduction=\"sum\" adds up the micro-batches'"
            : "the loss is a sum over the samples: the batch's is the mean of the micro-batches', reduction=\"sum\" adds them up");
  return notes;
}

}  // namespace

BatchCounts batch_counts(const Graph& joint, const CountedInputs& inputs, const CountOptions& options) {
  const SampleFlows flows = best_flows(joint, inputs, options);
  refuse_sequences(joint, flows);
  refuse_divisors(joint, flows, options.loss);
  refuse_gradients(joint, flows);
  BatchCounts out = Counter(joint, flows).run();
  out.notes = notes_of(joint, flows, options);
  return out;
}

}  // namespace penstock
