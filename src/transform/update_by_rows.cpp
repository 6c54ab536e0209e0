// Tables of embeddings that plain SGD updates by the rows that a step has read. A gradient of all rows is mostly zeros, and is cleared,
// scaled, squared and added in full, which for a table of a million rows takes many times as long as the step. The loop gives a row of
// gradients for each index instead: a sum over micro-batches like any other, as each adds its samples' rows in their own places.
#include <algorithm>
#include <optional>
#include <set>

#include "transform/passes.h"
#include "transform/rewrite.h"

namespace penstock {
namespace {

struct Table {
  std::size_t result = 0;  // of the loop
  OpId gradient;           // in the body: embedding_dense_backward
  ValueId indices;         // of the whole batch
  std::int64_t rows = 0;
};

struct Finder {
  const Graph& step;
  const Op& loop;
  IdVector<ValueId, OpId> inner;  // who makes a value of the body
  IdVector<ValueId, int> inner_uses;
  std::int64_t split = 0;  // operands that the loop cuts

  // The step's value that is cut into this value of the body; none: it is no such thing.
  ValueId whole(ValueId part) const {
    const auto place = std::ranges::find(loop.body->inputs, part) - loop.body->inputs.begin();
    return place < split ? loop.operands[static_cast<std::size_t>(place)] : ValueId();
  }
};

bool is_plain_sgd(const Op& op) {
  return op.name == "sgd" && attribute<double>(op, "momentum") == 0 && attribute<double>(op, "weight_decay") == 0;
}

// Whether the op maps a tensor element by element, zeros to zeros, or adds up all its elements.
bool fits_rows(const Graph& step, const Op& op, ValueId gradient) {
  const auto is_scalar = [&](ValueId v) { return step.type(v).shape.empty(); };
  if (op.name == "neg" || op.name == "to") return true;
  if (op.name == "sum") return is_scalar(op.results[0]);
  if (op.name != "mul" && op.name != "div") return false;
  if (op.operands[0] != gradient) return op.name == "mul" && is_scalar(op.operands[0]);
  return op.operands.size() == 1 || is_scalar(op.operands[1]) || (op.name == "mul" && op.operands[1] == gradient);
}

// The values that have the gradient's shape, itself first, where one plain SGD and sums are all that becomes of them; else none.
std::set<ValueId> values_of_gradient(const Graph& step, ValueId gradient) {
  std::set<ValueId> out = {gradient};
  const IdVector<ValueId, int> uses = use_counts(step);
  int updates = 0;
  for (const Op& op : step.ops)
    for (const ValueId operand : op.operands) {
      if (!out.contains(operand)) continue;
      const bool updates_by_it = is_plain_sgd(op) && op.operands[1] == operand && uses[op.results[1]] == 1;
      updates += updates_by_it;
      if (!updates_by_it && !fits_rows(step, op, operand)) return {};
      if (!updates_by_it && op.name != "sum") out.insert(op.results[0]);
    }
  for (const ValueId output : step.outputs)
    if (out.contains(output)) return {};
  return updates == 1 ? out : std::set<ValueId>();
}

std::optional<Table> table_of(const Finder& f, std::size_t result) {
  const Graph& body = *f.loop.body;
  const ValueId value = body.outputs[result];
  if (!f.inner[value] || f.inner_uses[value] != 1) return std::nullopt;
  const Op& op = body.ops[f.inner[value]];
  if (op.name != "embedding_dense_backward" || op.attributes.contains("whole")) return std::nullopt;
  Table out{result, f.inner[value], f.whole(op.operands[1]), attribute<std::int64_t>(op, "num_weights")};
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
void give_rows(Graph& body, const Table& table, ValueId rows, std::int64_t batch) {
  const Op marks = body.ops[table.gradient];
  const TensorType dy = body.type(marks.operands[0]);
  const std::int64_t samples = dy.shape[0], wide = dy.elements() / samples;
  const ValueId flat =
      add_like(body, marks, "reshape", {marks.operands[0]}, {{"shape", Shape{samples, wide}}}, {dy.dtype, {samples, wide}});
  body.outputs[table.result] =
      add_like(body, marks, "embedding_dense_backward", {flat, rows}, {{"num_weights", batch}}, {dy.dtype, {batch, wide}});
}

// The op as it is for rows: what had the table's shape has the rows'.
void append_for_rows(Graph& step, Op op, const std::set<ValueId>& values, ValueId gradient, ValueId summed, ValueId indices) {
  const auto is_of = [&](ValueId v) { return values.contains(v); };
  const bool updates = op.name == "sgd" && is_of(op.operands[1]);
  for (const ValueId result : op.results)
    if (is_of(result)) step.values[result].type.shape = step.type(summed).shape;
  for (ValueId& operand : op.operands)
    if (operand == gradient) operand = summed;
  if (updates) {
    // The state that it keeps without momentum is its last gradient, which nothing reads: it stays as it was.
    const ValueId kept = op.results[1], before = op.operands[2];
    for (ValueId& output : step.outputs)
      if (output == kept) output = before;
    op.name = "sgd_rows";
    op.operands = {op.operands[0], op.operands[1], indices, op.operands[3]};
    op.results.pop_back();
    op.attributes.clear();
  }
  step.ops.push_back(std::move(op));
}

// The step with that table updated by rows.
Graph by_rows(const Graph& step, OpId loop, const Table& table, ValueId rows, const std::set<ValueId>& values) {
  Graph out = step;
  out.ops = {};
  const ValueId gradient = step.ops[loop].results[table.result];
  const Shape index_shape = step.type(table.indices).shape;
  const std::int64_t n = step.type(table.indices).elements(), width = step.type(gradient).shape[1];
  const DType dtype = step.type(gradient).dtype;
  ValueId summed, flat;
  for (const OpId o : step.ops.ids()) {
    if (o != loop) {
      append_for_rows(out, step.ops[o], values, gradient, summed, flat);
      continue;
    }
    Op made = step.ops[o];
    Graph body = *made.body;
    give_rows(body, table, rows, index_shape[0]);
    out.values[gradient].type = body.type(body.outputs[table.result]);
    made.body = std::make_shared<const Graph>(std::move(body));
    out.ops.push_back(std::move(made));
    const Op marks;
    flat = add_like(out, marks, "reshape", {table.indices}, {{"shape", Shape{n}}}, {DType::i64, {n}});
    const ValueId each = add_like(out, marks, "reshape", {gradient}, {{"shape", Shape{n, width}}}, {dtype, {n, width}});
    summed = add_like(out, marks, "sum_equal_rows", {each, flat}, {{"num_weights", table.rows}}, {dtype, {n, width}});
  }
  return out;
}

}  // namespace

Graph update_by_rows(const Graph& step) {
  Graph out = step;
  const OpId at(std::ranges::find_if(step.ops, [](const Op& op) { return op.body != nullptr; }) - step.ops.begin());
  if (at.index() == step.ops.size()) return out;
  for (std::size_t result = 0; result < step.ops[at].results.size(); ++result) {
    const Op op = out.ops[at];
    const Finder f{out, op, producers(*op.body), use_counts(*op.body), attribute<std::int64_t>(op, "split")};
    const std::optional<Table> table = table_of(f, result);
    if (!table) continue;
    const ValueId rows = rows_port(f, *table);
    const std::set<ValueId> values = values_of_gradient(out, op.results[result]);
    if (rows && !values.empty()) out = by_rows(out, at, *table, rows, values);
  }
  return out;
}

}  // namespace penstock
