// SPDX-License-Identifier: Apache-2.0
// Tables of embeddings that an update can change by the rows that a step has read alone: plain SGD leaves the others as they are, and what
// goes element by element does where it is asked to be lazy. A gradient of all rows is mostly zeros, and is cleared, scaled, squared and
// added in full, which for a table of a million rows takes many times as long as the step. The loop gives a row of gradients for each index
// instead, or for each bag of indices: a sum over micro-batches like any other, as each adds its samples' rows in their own places.
#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <utility>

#include "base/text.h"
#include "ops/optimiser.h"
#include "penstock/error.h"
#include "transform/passes.h"
#include "transform/rewrite.h"
#include "transform/table_update.h"

namespace penstock {
namespace {

struct Table {
  std::size_t result = 0;  // of the loop
  OpId gradient;           // in the body: that of an embedding or of bags
  ValueId indices;         // of the whole batch
  std::int64_t rows = 0, width = 0, bag = 1;
  ValueId port = {};  // of the body: it numbers the samples
  TableUpdate update = {};
  bool is_plain = false;            // one op does it that leaves rows without a gradient as they are
  ValueId flat = {}, summed = {};   // behind the loop: the indices in a row, and the sum of gradients for each
  ValueId places = {};              // the indices in a column
  std::map<ValueId, ValueId> at{};  // of a gradient or a state, the rows of these indices, [n, 1, width]
};

struct Finder {
  const Graph& step;
  OpId at;  // of the loop
  const Op& loop;
  IdVector<ValueId, OpId> inner;  // who makes a value of the body
  IdVector<ValueId, int> inner_uses;
  std::int64_t split = 0;  // operands that the loop cuts

  // The step's value that is cut into this value of the body; none: it is no such thing.
  ValueId whole(ValueId part) const {
    const std::vector<ValueId>& inputs = loop.body->inputs;
    const auto place = std::find(inputs.begin(), inputs.begin() + split, part) - inputs.begin();
    return place < split ? loop.operands[static_cast<std::size_t>(place)] : ValueId();
  }
};

bool is_bag(const Op& op) {
  return op.name == "embedding_bag_dense_backward";
}

// The port that numbers the samples, one for each entry of the indices' first dim; none: there is none.
ValueId rows_port(const Finder& f, ValueId indices) {
  for (std::int64_t i = 0; i < f.split; ++i) {
    const Value& port = f.step.values[f.loop.operands[static_cast<std::size_t>(i)]];
    if (port.name == "rows" && port.type == TensorType{DType::i64, {f.step.type(indices).shape[0]}})
      return f.loop.body->inputs[static_cast<std::size_t>(i)];
  }
  return {};
}

std::optional<Table> table_of(const Finder& f, std::size_t result) {
  const Graph& body = *f.loop.body;
  const ValueId value = body.outputs[result];
  if (!f.inner[value] || f.inner_uses[value] != 1) return std::nullopt;
  const Op& op = body.ops[f.inner[value]];
  if (!is_lookup_gradient(op) || op.attributes.contains("whole")) return std::nullopt;
  const Shape& of_indices = body.type(op.operands[1]).shape;
  Table out{result, f.inner[value], f.whole(op.operands[1]), attribute<std::int64_t>(op, "num_weights"),
            f.step.type(f.loop.results[result]).shape[1]};
  if (is_bag(op)) out.bag = of_indices.back();
  if (!out.indices || of_indices.size() < (is_bag(op) ? 2 : 1) || out.bag == 0) return std::nullopt;
  out.port = rows_port(f, out.indices);
  return out.port ? std::optional(std::move(out)) : std::nullopt;
}

bool is_plain(const Graph& step, const IdVector<ValueId, int>& uses, const Table& table) {
  if (!table.update.obstacle.empty() || table.update.ops.size() != 1) return false;
  const Op& op = step.ops[table.update.ops[0]];
  return update_of_rows(op, {}) && uses[op.results[1]] == 1;
}

// --- the loop

// The body gives the samples' rows of gradients, each in its place in the batch.
void give_rows(Graph& body, const Table& table, std::int64_t batch) {
  const Op marks = body.ops[table.gradient];
  const TensorType dy = body.type(marks.operands[0]);
  const std::int64_t samples = dy.shape[0], wide = dy.elements() / samples;
  const ValueId flat =
      add_like(body, marks, "reshape", {marks.operands[0]}, {{"shape", Shape{samples, wide}}}, {dy.dtype, {samples, wide}});
  body.outputs[table.result] =
      add_like(body, marks, "embedding_dense_backward", {flat, table.port}, {{"num_weights", batch}}, {dy.dtype, {batch, wide}});
}

ValueId with_shape(Graph& step, ValueId x, const Shape& shape) {
  return add_like(step, Op(), "reshape", {x}, {{"shape", shape}}, {step.type(x).dtype, shape});
}

// Behind the loop: the sum of gradients for each index.
void sum_rows(Graph& step, Table& table) {
  const Op marks;
  const DType dtype = step.type(table.update.gradients[0]).dtype;
  const std::int64_t n = step.type(table.indices).elements();
  const Shape bags = {n / table.bag, table.bag, table.width};
  table.flat = with_shape(step, table.indices, {n});
  ValueId each = table.update.gradients[0];
  if (table.bag > 1)
    each = add_like(step, marks, "expand", {with_shape(step, each, {bags[0], 1, table.width})}, {{"size", bags}}, {dtype, bags});
  each = with_shape(step, each, {n, table.width});
  table.summed = add_like(step, marks, "sum_equal_rows", {each, table.flat}, {{"num_weights", table.rows}}, {dtype, {n, table.width}});
}

// The loop's op, and behind it the sums of its tables' rows.
void append_loop(Graph& step, Op loop, std::vector<Table>& tables) {
  Graph body = *loop.body;
  for (const Table& table : tables) {
    give_rows(body, table, step.type(table.indices).shape[0]);
    step.values[table.update.gradients[0]].type = body.type(body.outputs[table.result]);
  }
  loop.body = std::make_shared<const Graph>(std::move(body));
  step.ops.push_back(std::move(loop));
  for (Table& table : std::views::reverse(tables)) sum_rows(step, table);
}

// --- behind the loop

// Gives the value that stands in an update of rows for this one of the whole table's update.
ValueId at_rows(Graph& step, Table& table, ValueId v) {
  const bool is_gradient = std::ranges::find(table.update.gradients, v) != table.update.gradients.end();
  const bool is_state = std::ranges::any_of(table.update.states, [&](InputId i) { return step.inputs[i.index()] == v; });
  if (!is_gradient && !is_state) return v;
  const auto [found, is_new] = table.at.try_emplace(v);
  if (!is_new) return found->second;
  const std::int64_t n = step.type(table.flat).elements();
  const Shape shape = {n, 1, table.width};
  if (!table.places) table.places = with_shape(step, table.flat, {n, 1});
  const ValueId rows = v == table.update.gradients[0] ? table.summed : v;
  return found->second = is_gradient ? with_shape(step, rows, shape)
                                     : add_like(step, Op(), "take_rows", {v, table.places}, {}, {step.type(v).dtype, shape});
}

// The op makes something of the gradient, here for the rows alone.
void append_of_gradient(Graph& step, Op op, const Table& table) {
  for (ValueId& operand : op.operands)
    if (operand == table.update.gradients[0]) operand = table.summed;
  if (op.name != "sum") step.values[op.results[0]].type.shape = step.type(table.summed).shape;
  step.ops.push_back(std::move(op));
}

// The update, of the rows alone. The state that a plain one keeps is its last gradient, which nothing reads: it stays as it was.
void append_update(Graph& step, Op op, Table& table) {
  if (table.is_plain) {
    for (const InputId state : table.update.states)
      if (ValueId& next = step.outputs[state.index()]; next == op.results[1]) next = step.inputs[state.index()];
    if (op.operands[1] == table.update.gradients[0]) op.operands[1] = table.summed;
    op = *update_of_rows(op, table.flat);
  } else {
    for (ValueId& operand : op.operands) operand = at_rows(step, table, operand);
    for (const ValueId result : op.results) step.values[result].type.shape = {step.type(table.flat).elements(), 1, table.width};
  }
  step.ops.push_back(std::move(op));
}

// The states' next values, which are as before but for the rows.
void put_rows(Graph& step, Table& table) {
  for (const InputId state : table.update.states) {
    const ValueId now = step.inputs[state.index()], next = at_rows(step, table, step.outputs[state.index()]);
    step.outputs[state.index()] = add_like(step, Op(), "put_rows", {now, next, table.places}, {}, step.type(now));
  }
}

// The step with these tables updated by rows.
Graph by_rows(Graph step, OpId loop, std::vector<Table> tables) {
  IdVector<OpId, Op> ops = std::exchange(step.ops, {});
  IdVector<ValueId, Table*> of_gradient(step.values.size());
  IdVector<OpId, Table*> of_update(ops.size());
  for (Table& table : tables) {
    for (const ValueId value : table.update.gradients) of_gradient[value] = &table;
    for (const OpId op : table.update.ops) of_update[op] = &table;
  }
  for (const OpId o : ops.ids()) {
    Op& op = ops[o];
    const auto read = std::ranges::find_if(op.operands, [&](ValueId v) { return of_gradient[v] != nullptr; });
    if (o == loop)
      append_loop(step, std::move(op), tables);
    else if (of_update[o])
      append_update(step, std::move(op), *of_update[o]);
    else if (read != op.operands.end())
      append_of_gradient(step, std::move(op), *of_gradient[*read]);
    else
      step.ops.push_back(std::move(op));
  }
  for (Table& table : tables)
    if (!table.is_plain) put_rows(step, table);
  return step;
}

// --- what cannot be lazy

// A state that is kept of a table is called "<name>:<table>".
std::string name_of(const Graph& step, const TableUpdate& update) {
  if (update.states.empty()) return "a table";
  const std::string& state = step.values[step.inputs[update.states[0].index()]].name;
  return quote(state.substr(state.rfind(':') + 1));
}

[[noreturn]] void refuse(const std::string& table, const std::string& why) {
  throw Error(concat("train.lazy_rows: rows of ", table, " cannot be updated by themselves"), {why},
              "take a model whose tables lookups by the data alone read, and an optimiser that goes element by element, such as adamw; or "
              "set train.lazy_rows = false");
}

// The loop's results that the gradients of lookups are part of.
std::vector<bool> results_of_lookups(const Graph& body) {
  IdVector<ValueId, bool> of_lookup(body.values.size());
  for (const Op& op : body.ops) {
    const bool is_part = is_lookup_gradient(op) || std::ranges::any_of(op.operands, [&](ValueId v) { return of_lookup[v]; });
    for (const ValueId result : op.results) of_lookup[result] = is_part;
  }
  std::vector<bool> out;
  for (const ValueId output : body.outputs) out.push_back(of_lookup[output]);
  return out;
}

// Throws Error where rows of a table would move that no sample names: it is none of these tables, or not updated by element.
void check_lazy(const Finder& f, const std::vector<Table>& tables) {
  const std::vector<bool> looked_up = results_of_lookups(*f.loop.body);
  if (std::ranges::find(looked_up, true) == looked_up.end())
    throw Error("train.lazy_rows: the model trains no table that it looks up", {}, "set train.lazy_rows = false");
  for (std::size_t result = 0; result < looked_up.size(); ++result) {
    if (!looked_up[result]) continue;
    const auto table = std::ranges::find(tables, result, &Table::result);
    if (table == tables.end())
      refuse(name_of(f.step, update_of_table(f.step, f.at, f.loop.results[result])),
             "its gradient is not of one lookup by the data's indices");
    if (!table->update.obstacle.empty()) refuse(name_of(f.step, table->update), table->update.obstacle);
  }
}

}  // namespace

Graph update_by_rows(Graph step, bool lazy) {
  const OpId at(std::ranges::find_if(step.ops, [](const Op& op) { return op.body != nullptr; }) - step.ops.begin());
  if (at.index() == step.ops.size()) return step;
  const Op& op = step.ops[at];
  const Finder f{step, at, op, producers(*op.body), use_counts(*op.body), attribute<std::int64_t>(op, "split")};
  const IdVector<ValueId, int> uses = use_counts(step);
  std::vector<Table> tables;
  const auto is_small = [&](const Table& table) { return step.type(table.indices).elements() >= table.rows; };
  for (std::size_t result = 0; result < op.results.size(); ++result) {
    std::optional<Table> table = table_of(f, result);
    if (!table || (!lazy && is_small(*table))) continue;
    table->update = update_of_table(step, at, op.results[result]);
    table->is_plain = is_plain(step, uses, *table);
    tables.push_back(std::move(*table));
  }
  if (lazy) check_lazy(f, tables);
  // What is plain leaves the other rows as they are in any case.
  std::erase_if(tables, [&](const Table& table) { return table.is_plain ? is_small(table) : !lazy; });
  return tables.empty() ? step : by_rows(std::move(step), at, std::move(tables));
}

}  // namespace penstock
