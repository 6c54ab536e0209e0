// Tables of embeddings that an update (plain SGD) can change by the rows that a step has read alone. A gradient of all rows is mostly
// zeros, and is cleared, scaled, squared and added in full, which for a table of a million rows takes many times as long as the step. The
// loop gives a row of gradients for each index instead: a sum over micro-batches like any other, as each adds its samples' rows in their
// own places.
#include <algorithm>
#include <optional>
#include <ranges>
#include <utility>

#include "ops/optimiser.h"
#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

struct Table {
  std::size_t result = 0;  // of the loop
  OpId gradient;           // in the body: embedding_dense_backward
  ValueId indices;         // of the whole batch
  std::int64_t rows = 0, width = 0;
  ValueId port = {};                 // of the body: it numbers the samples
  std::vector<ValueId> values = {};  // that have the gradient's shape, itself first
  ValueId flat = {}, summed = {};    // behind the loop: the indices in a row, and the sum of gradients for each
};

struct Finder {
  const Graph& step;
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

// Whether the op maps a tensor element by element, zeros to zeros, or adds up all its elements.
bool fits_rows(const Graph& step, const Op& op, ValueId gradient) {
  const auto is_scalar = [&](ValueId v) { return step.type(v).shape.empty(); };
  if (op.name == "neg" || op.name == "to") return true;
  if (op.name == "sum") return is_scalar(op.results[0]);
  if (op.name != "mul" && op.name != "div") return false;
  if (op.operands[0] != gradient) return op.name == "mul" && is_scalar(op.operands[0]);
  return op.operands.size() == 1 || is_scalar(op.operands[1]) || (op.name == "mul" && op.operands[1] == gradient);
}

// The ops that read each value, and how often.
using Readers = IdVector<ValueId, std::vector<OpId>>;

Readers readers_of(const Graph& step) {
  Readers out(step.values.size());
  for (const OpId op : step.ops.ids())
    for (const ValueId operand : step.ops[op].operands) out[operand].push_back(op);
  return out;
}

// The values that have the gradient's shape, itself first, where one update of rows and sums are all that becomes of them; else none.
std::vector<ValueId> values_of_gradient(const Graph& step, const Readers& readers, const IdVector<ValueId, int>& uses, ValueId gradient) {
  std::vector<ValueId> out = {gradient};
  int updates = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const ValueId value = out[i];
    if (uses[value] != std::ssize(readers[value])) return {};  // the step gives it
    for (const OpId reader : readers[value]) {
      const Op& op = step.ops[reader];
      const bool updates_by_it = update_of_rows(op, {}) && op.operands[1] == value && uses[op.results[1]] == 1;
      updates += updates_by_it;
      if (!updates_by_it && !fits_rows(step, op, value)) return {};
      if (!updates_by_it && op.name != "sum" && std::ranges::find(out, op.results[0]) == out.end()) out.push_back(op.results[0]);
    }
  }
  return updates == 1 ? out : std::vector<ValueId>();
}

std::optional<Table> table_of(const Finder& f, std::size_t result) {
  const Graph& body = *f.loop.body;
  const ValueId value = body.outputs[result];
  if (!f.inner[value] || f.inner_uses[value] != 1) return std::nullopt;
  const Op& op = body.ops[f.inner[value]];
  if (op.name != "embedding_dense_backward" || op.attributes.contains("whole")) return std::nullopt;
  Table out{result, f.inner[value], f.whole(op.operands[1]), attribute<std::int64_t>(op, "num_weights"),
            f.step.type(f.loop.results[result]).shape[1]};
  if (!out.indices || body.type(op.operands[1]).shape.empty() || f.step.type(out.indices).elements() >= out.rows) return std::nullopt;
  return out;
}

// The port that numbers the samples, one for each entry of the indices' first dim; none: there is none.
ValueId rows_port(const Finder& f, const Table& table) {
  for (std::int64_t i = 0; i < f.split; ++i) {
    const Value& port = f.step.values[f.loop.operands[static_cast<std::size_t>(i)]];
    if (port.name == "rows" && port.type == TensorType{DType::i64, {f.step.type(table.indices).shape[0]}})
      return f.loop.body->inputs[static_cast<std::size_t>(i)];
  }
  return {};
}

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

// Behind the loop: the sum of gradients for each index.
void sum_rows(Graph& step, Table& table) {
  const Op marks;
  const DType dtype = step.type(table.values[0]).dtype;
  const std::int64_t n = step.type(table.indices).elements();
  table.flat = add_like(step, marks, "reshape", {table.indices}, {{"shape", Shape{n}}}, {DType::i64, {n}});
  const ValueId each = add_like(step, marks, "reshape", {table.values[0]}, {{"shape", Shape{n, table.width}}}, {dtype, {n, table.width}});
  table.summed = add_like(step, marks, "sum_equal_rows", {each, table.flat}, {{"num_weights", table.rows}}, {dtype, {n, table.width}});
}

// The op as it is for rows: what had the table's shape has the rows'.
void append_for_rows(Graph& step, Op op, const Table& table, IdVector<ValueId, ValueId>& kept) {
  const auto is_of = [&](ValueId v) { return std::ranges::find(table.values, v) != table.values.end(); };
  const bool updates = is_update(op) && is_of(op.operands[1]);
  for (const ValueId result : op.results)
    if (is_of(result)) step.values[result].type.shape = step.type(table.summed).shape;
  for (ValueId& operand : op.operands)
    if (operand == table.values[0]) operand = table.summed;
  if (updates) {
    // The state that it keeps without momentum is its last gradient, which nothing reads: it stays as it was.
    kept[op.results[1]] = op.operands[2];
    op = *update_of_rows(op, table.flat);
  }
  step.ops.push_back(std::move(op));
}

// The loop's op, and behind it the sums of its tables' rows.
void append_loop(Graph& step, Op loop, std::vector<Table>& tables) {
  Graph body = *loop.body;
  for (const Table& table : tables) {
    give_rows(body, table, step.type(table.indices).shape[0]);
    step.values[table.values[0]].type = body.type(body.outputs[table.result]);
  }
  loop.body = std::make_shared<const Graph>(std::move(body));
  step.ops.push_back(std::move(loop));
  for (Table& table : std::views::reverse(tables)) sum_rows(step, table);
}

// The step with these tables updated by rows.
Graph by_rows(Graph step, OpId loop, std::vector<Table> tables) {
  IdVector<OpId, Op> ops = std::exchange(step.ops, {});
  IdVector<ValueId, const Table*> table_of(step.values.size());
  for (const Table& table : tables)
    for (const ValueId value : table.values) table_of[value] = &table;
  IdVector<ValueId, ValueId> kept(step.values.size());  // by a state's next value: what it is now
  for (const OpId o : ops.ids()) {
    Op& op = ops[o];
    const auto read = std::ranges::find_if(op.operands, [&](ValueId v) { return table_of[v] != nullptr; });
    const Table* table = read == op.operands.end() ? nullptr : table_of[*read];
    if (o == loop)
      append_loop(step, std::move(op), tables);
    else if (table != nullptr)
      append_for_rows(step, std::move(op), *table, kept);
    else
      step.ops.push_back(std::move(op));
  }
  for (ValueId& output : step.outputs)
    if (output.index() < kept.size() && kept[output]) output = kept[output];
  return step;
}

}  // namespace

Graph update_by_rows(Graph step) {
  const OpId at(std::ranges::find_if(step.ops, [](const Op& op) { return op.body != nullptr; }) - step.ops.begin());
  if (at.index() == step.ops.size()) return step;
  const Op& op = step.ops[at];
  const Finder f{step, op, producers(*op.body), use_counts(*op.body), attribute<std::int64_t>(op, "split")};
  std::vector<Table> tables;
  for (std::size_t result = 0; result < op.results.size(); ++result)
    if (std::optional<Table> table = table_of(f, result); table && (table->port = rows_port(f, *table)))
      tables.push_back(std::move(*table));
  if (tables.empty()) return step;
  const Readers readers = readers_of(step);
  const IdVector<ValueId, int> uses = use_counts(step);
  for (Table& table : tables) table.values = values_of_gradient(step, readers, uses, op.results[table.result]);
  std::erase_if(tables, [](const Table& table) { return table.values.empty(); });
  return by_rows(std::move(step), at, std::move(tables));
}

}  // namespace penstock
