// SPDX-License-Identifier: Apache-2.0
// Pass: rows of embeddings are looked up a step before they are read (NestPipe, 2604.06956). In a table for a window of steps the keys of
// all of them are there, so while a step computes, what the next one names of a table is taken from the table as it is. Behind the update
// the rows of keys that both steps have are read again: "gather, U, patch dirty rows". An update that leaves all other rows as they are
// makes this the same to the bit. Any device can read any part of the data, so it knows all keys of its step, also those of other devices;
// of a table whose rows lie along an axis it has its own rows ahead, and zeros for others. Data are read a step ahead then: an `input`
// whose reader does not follow it is done by a thread of the device (devices/data_reader.h), and its reader waits for it as for a receive.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "lower/passes.h"
#include "lower/window.h"
#include "ops/definition.h"
#include "ops/optimiser.h"
#include "penstock/error.h"
#include "penstock/optimiser.h"
#include "transform/rewrite.h"
#include "transform/table_update.h"

namespace penstock {
namespace {

// The ports that name the rows which a table's update changes.
using Ports = std::set<InputId>;

struct Lookups {
  const LowerInput& input;
  Draft& draft;
  std::int32_t microbatches;                                           // of a step
  IdVector<ValueId, OpId> outer, inner;                                // who makes each value of the step, of the loop's body
  std::map<std::pair<InputId, std::int32_t>, InstanceId> data{};       // of a port, the part of a micro-batch of the window
  std::map<InstanceId, Ports> ports{};                                 // of each table that has been asked for
  std::map<InstanceId, std::vector<std::size_t>> updates{};            // where a row writes each state
  std::map<std::pair<StageId, std::int32_t>, std::size_t> forwards{};  // where it has the last F of a stage and a micro-batch
};

[[noreturn]] void refuse(const Lookups& l, InstanceId table, const std::string& why, const std::string& hint) {
  throw Error(concat("pipeline.prefetch: rows of ", quote(l.draft.instances[table].name), " cannot be looked up ahead"), {why}, hint);
}

bool can_leave_rows(const OptimiserInfo& optimiser) {
  return optimiser.fused && !find_op(optimiser.fused->op)->update->by_rows.empty();
}

// Throws Error unless rows with a gradient of zero stay as they are. Gives the gradient.
ValueId gradient_of(const Lookups& l, InstanceId table, ValueId next) {
  const Op& update = l.input.step.ops[l.outer[next]];
  if (!update_of_rows(update, {}))
    refuse(l, table, concat("an update ", moves_rows(update), " changes rows that no sample names"),
           concat("set train.lazy_rows = true, or use an optimiser that leaves them by itself with momentum = 0 and weight_decay = 0: ",
                  optimisers_where(can_leave_rows)));
  return update.operands[1];
}

// The loop's result that the gradient is, times what does not matter; -1: it is no such thing.
std::int32_t loop_result(const Lookups& l, ValueId gradient) {
  while (l.outer[gradient] && keeps_zeros(l.input.step.ops[l.outer[gradient]])) gradient = l.input.step.ops[l.outer[gradient]].operands[0];
  const auto& results = l.input.loop_op().results;
  const auto found = std::ranges::find(results, gradient);
  return found == results.end() ? -1 : static_cast<std::int32_t>(found - results.begin());
}

// Adds the ports of the indices by which a value of the body has its rows; false where others may not be zero.
bool add_ports(const Lookups& l, ValueId value, Ports& ports) {
  const Graph& body = *l.input.loop_op().body;
  if (!l.inner[value]) return false;
  const Op& op = body.ops[l.inner[value]];
  if (op.name == "add_n" || op.name == "add")
    return std::ranges::all_of(op.operands, [&](ValueId term) { return add_ports(l, term, ports); });
  if (keeps_zeros(op)) return add_ports(l, op.operands[0], ports);
  if (!is_lookup_gradient(op)) return false;
  const auto port = std::ranges::find(body.inputs, op.operands[1]);
  if (port == body.inputs.end()) return false;
  const InputId from = l.input.input_of_operand(static_cast<std::int32_t>(port - body.inputs.begin()));
  if (!from || l.input.is_state(from)) return false;
  ports.insert(from);
  return true;
}

// The port of the rows' indices by which an update of rows makes the table's next value; none: another op makes it.
InputId port_of_rows(const Lookups& l, InstanceId table) {
  const OpId made = l.outer[l.input.step.outputs[l.draft.instances[table].input.index()]];
  ValueId indices = made ? indices_of_rows(l.input.step.ops[made]) : ValueId();
  if (!indices) return {};
  while (l.outer[indices] && l.input.step.ops[l.outer[indices]].name == "reshape") indices = l.input.step.ops[l.outer[indices]].operands[0];
  return l.input.input_of[indices];
}

const Ports& ports_of(Lookups& l, InstanceId table) {
  const auto known = l.ports.find(table);
  if (known != l.ports.end()) return known->second;
  if (const InputId port = port_of_rows(l, table)) return l.ports[table] = {port};
  const std::int32_t result = loop_result(l, gradient_of(l, table, l.input.step.outputs[l.draft.instances[table].input.index()]));
  Ports ports;
  if (result < 0 || !add_ports(l, l.input.loop_op().body->outputs[result], ports))
    refuse(l, table, "its gradient is not of lookups by the data's keys alone", "use a model whose tables are read by lookups only");
  return l.ports[table] = std::move(ports);
}

bool is_bag(const Op& op) {
  return op.name == "embedding_bag";
}

// An `embedding` of a run's task that can be done ahead, or an `embedding_bag`, of which the rows are.
struct Lookup {
  OpId op;
  InstanceId table, keys;
  std::vector<InstanceId> changed;  // what names the rows that have changed since
};

// The instance that a task's graph has as this input, if it is all of it.
std::map<ValueId, InstanceId> whole_inputs(const Lookups& l, const Run& run, const Graph& graph) {
  std::map<ValueId, InstanceId> out;
  std::size_t input = 0;
  for (const InstanceId read : run.reads) {
    const std::size_t parts = l.draft.instances[read].types.size();
    if (parts == 1) out[graph.inputs[input]] = read;
    input += parts;
  }
  return out;
}

// The keys of all micro-batches of the steps whose updates stand from position `begin` to `end`.
std::vector<InstanceId> changed_between(Lookups& l, InstanceId table, std::size_t begin, std::size_t end) {
  std::vector<InstanceId> out;
  const std::vector<std::size_t>& updates = l.updates[table];
  for (std::size_t step = 0; step < updates.size(); ++step) {
    if (updates[step] < begin || updates[step] > end) continue;
    for (const InputId port : ports_of(l, table))
      for (std::int32_t m = 0; m < l.microbatches; ++m)
        out.push_back(l.data.at({port, static_cast<std::int32_t>(step) * l.microbatches + m}));
  }
  return out;
}

std::vector<Lookup> lookups_of(Lookups& l, const Run& run, std::size_t ahead, std::size_t at) {
  const Graph& graph = *l.draft.tasks[run.task].graph;
  const std::map<ValueId, InstanceId> inputs = whole_inputs(l, run, graph);
  std::vector<Lookup> out;
  for (std::size_t o = 0; o < graph.ops.size(); ++o) {
    const Op& op = graph.ops[o];
    if ((op.name != "embedding" && !is_bag(op)) || !inputs.contains(op.operands[0]) || !inputs.contains(op.operands[1])) continue;
    const InstanceId table = inputs.at(op.operands[0]), keys = inputs.at(op.operands[1]);
    if (l.draft.instances[table].source != Instance::Source::state || l.draft.instances[keys].source != Instance::Source::data) continue;
    std::vector<InstanceId> changed = changed_between(l, table, ahead, at);
    if (!changed.empty()) out.push_back({OpId(o), table, keys, std::move(changed)});
  }
  return out;
}

TensorType type_of_rows(const Lookups& l, const Lookup& lookup) {
  const TensorType& table = l.draft.instances[lookup.table].types[0];
  Shape shape = l.draft.instances[lookup.keys].types[0].shape;
  shape.push_back(table.shape[1]);
  return {table.dtype, std::move(shape)};
}

// The run that makes the rows of all lookups, as the parts of one instance.
Run make_lookups(Lookups& l, const Run& reader, const std::vector<Lookup>& lookups, ActorId device) {
  const Graph& from = *l.draft.tasks[reader.task].graph;
  Run run;
  run.kind = Kind::F;
  run.stage = reader.stage;
  run.unit = reader.unit;
  Graph graph;
  std::map<InstanceId, ValueId> inputs;
  const auto read = [&](InstanceId i) {
    if (!inputs.contains(i)) {
      inputs[i] = graph.add_input(l.draft.instances[i].types[0], concat("x", graph.inputs.size()));
      run.reads.push_back(i);
    }
    return inputs.at(i);
  };
  Instance rows;
  rows.name = concat("ahead:", reader.stage.value, ".", reader.unit.microbatch);
  rows.home = device;
  rows.unit = reader.unit;
  for (const Lookup& lookup : lookups) {
    Op op = from.ops[lookup.op];
    op.name = "embedding";
    rows.types.push_back(type_of_rows(l, lookup));
    op.operands = {read(lookup.table), read(lookup.keys)};
    op.results = {graph.add_value(rows.types.back())};
    graph.outputs.push_back(op.results[0]);
    graph.ops.push_back(std::move(op));
  }
  run.writes = {{add(l.draft, std::move(rows))}};
  run.task = add_task(l.draft, concat("lookup.", reader.stage.value), std::move(graph));
  return run;
}

// Makes op `at` give rows of this type, and sums them behind it as the bags that it was: in their order, so to the same bits.
void sum_bags(Graph& graph, OpId at, const TensorType& rows) {
  const Op bags = graph.ops[at];
  const auto tail = static_cast<std::ptrdiff_t>(graph.ops.size());
  const std::int64_t width = rows.shape.back(), n = rows.elements() / std::max<std::int64_t>(width, 1);
  const Shape indices(rows.shape.begin(), rows.shape.end() - 1);
  const ValueId each = graph.add_value(rows);
  graph.ops[at].results = {each};
  const ValueId flat = add_like(graph, bags, "reshape", {each}, {{"shape", Shape{n, width}}}, {rows.dtype, {n, width}});
  const ValueId numbers = add_like(graph, bags, "arange", {}, {{"end", n}, {"dtype", DType::i64}}, {DType::i64, {n}});
  const ValueId places = add_like(graph, bags, "reshape", {numbers}, {{"shape", indices}}, {DType::i64, indices});
  Op sum = bags;
  sum.operands = {flat, places};
  sum.attributes.clear();
  graph.ops.push_back(std::move(sum));
  std::rotate(graph.ops.begin() + at.value + 1, graph.ops.begin() + tail, graph.ops.end());
}

// Makes the reader's lookups patches of the rows that are made ahead.
void patch_lookups(Lookups& l, Run& reader, const std::vector<Lookup>& lookups, InstanceId rows) {
  Graph graph = *l.draft.tasks[reader.task].graph;
  std::map<InstanceId, ValueId> keys;
  const auto read = [&](InstanceId i, std::size_t part) {
    const ValueId value = graph.add_input(l.draft.instances[i].types[part], concat("ahead", graph.inputs.size()));
    if (part == 0) reader.reads.push_back(i);
    return value;
  };
  std::vector<ValueId> ahead;
  for (std::size_t part = 0; part < lookups.size(); ++part) ahead.push_back(read(rows, part));
  for (std::size_t i = lookups.size(); i-- > 0;) {  // from the last op, as ops behind one may move
    if (is_bag(graph.ops[lookups[i].op])) sum_bags(graph, lookups[i].op, type_of_rows(l, lookups[i]));
    Op& op = graph.ops[lookups[i].op];
    op.name = "embedding_patched";
    op.operands.push_back(ahead[i]);
    for (const InstanceId changed : lookups[i].changed) {
      if (!keys.contains(changed)) keys[changed] = read(changed, 0);
      op.operands.push_back(keys.at(changed));
    }
  }
  reader.task = add_task(l.draft, concat(l.draft.tasks[reader.task].name, ".patched"), std::move(graph));
}

Lookups lookups_in(const LowerInput& input, const std::vector<Run>& row, Draft& draft) {
  Lookups l{input, draft, input.microbatches / input.schedule.steps, producers(input.step), producers(*input.loop_op().body)};
  for (const InstanceId i : draft.instances.ids())
    if (const Instance& instance = draft.instances[i]; instance.source == Instance::Source::data && instance.unit)
      l.data[{instance.input, instance.unit.microbatch}] = i;
  for (std::size_t r = 0; r < row.size(); ++r)
    for (const Write& write : row[r].writes)
      if (draft.instances[write.instance].source == Instance::Source::state) l.updates[write.instance].push_back(r);
  return l;
}

// In a device's row, for each `embedding` or bag of a table as it is in an F: behind the F of the same micro-batch of the step before a run
// that looks the rows up, and in the F's task `embedding_patched` instead. Throws Error where an update may change rows that no sample of
// its step names.
void look_up_ahead(const LowerInput& input, ActorId device, Draft& draft) {
  std::vector<Run> row = std::move(draft.actors[device]);
  Lookups l = lookups_in(input, row, draft);
  std::map<std::size_t, std::vector<Run>> made;  // behind which run
  for (std::size_t r = 0; r < row.size(); ++r) {
    Run& run = row[r];
    if (run.opcode != Opcode::run || run.kind != Kind::F || !run.unit) continue;
    const auto before = l.forwards.find({run.stage, run.unit.microbatch - l.microbatches});
    l.forwards[{run.stage, run.unit.microbatch}] = r;
    if (before == l.forwards.end()) continue;
    const std::vector<Lookup> lookups = lookups_of(l, run, before->second, r);
    if (lookups.empty()) continue;
    made[before->second].push_back(make_lookups(l, run, lookups, device));
    patch_lookups(l, run, lookups, made[before->second].back().writes[0].instance);
  }
  std::vector<Run> out;
  for (std::size_t r = 0; r < row.size(); ++r) {
    out.push_back(std::move(row[r]));
    if (const auto behind = made.find(r); behind != made.end()) std::ranges::move(behind->second, std::back_inserter(out));
  }
  draft.actors[device] = std::move(out);
}

}  // namespace

void look_up_rows(const LowerInput& input, Draft& draft) {
  if (!is_window(input) || !input.options.prefetch) return;
  for (const ActorId device : draft.actors.ids()) look_up_ahead(input, device, draft);
}

}  // namespace penstock
