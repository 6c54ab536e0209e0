// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "base/text.h"
#include "ops/definition.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Table = std::unordered_map<std::string_view, const OpDefinition*>;

std::vector<std::span<const OpDefinition>> families() {
  return {elementwise_ops(),   activation_ops(), reduction_ops(),  shape_ops(),     product_ops(),  convolution_ops(),
          normalisation_ops(), resampling_ops(), attention_ops(),  embedding_ops(), indexing_ops(), loss_ops(),
          random_ops(),        optimiser_ops(),  collective_ops(), control_ops()};
}

Table make_table() {
  Table table;
  for (std::span<const OpDefinition> family : families())
    for (const OpDefinition& definition : family) table.emplace(definition.name, &definition);
  return table;
}

// Users' own, which only grow.
class OwnOps {
 public:
  void add(const OpDefinition& definition) {
    const std::unique_lock lock(mutex_);
    OpDefinition& own = definitions_.emplace_back(definition);
    own.name = names_.emplace_back(definition.name);
    table_[own.name] = &own;
  }
  const OpDefinition* find(std::string_view name) const {
    const std::shared_lock lock(mutex_);
    const auto found = table_.find(name);
    return found == table_.end() ? nullptr : found->second;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::deque<std::string> names_;  // deques, as what they hold must stay where it is
  std::deque<OpDefinition> definitions_;
  Table table_;
};

OwnOps& own_ops() {
  static OwnOps ops;
  return ops;
}

}  // namespace

const OpDefinition* find_op(std::string_view name) {
  static const Table table = make_table();
  const auto found = table.find(name);
  return found == table.end() ? own_ops().find(name) : found->second;
}

void register_op(const OpDefinition& definition) {
  const std::string name = quote(std::string(definition.name));
  if (find_op(definition.name) != nullptr)
    throw Error(concat("an op ", name, " is known already"), {}, "give your own a prefix: mine::swish");
  if (definition.infer == nullptr || definition.compute == nullptr)
    throw Error(concat("op ", name, " has no ", definition.infer == nullptr ? "infer" : "compute"), {},
                "an op of one's own says its results' types and computes them");
  if (definition.views >= 0 || definition.collective) throw Error(concat("op ", name, ": views and collectives are Penstock's own"));
  own_ops().add(definition);
}

bool is_view(const Op& op) {
  const OpDefinition* definition = find_op(op.name);
  return definition && definition->views >= 0;
}

std::vector<std::string_view> op_names() {
  std::vector<std::string_view> names;
  for (std::span<const OpDefinition> family : families())
    for (const OpDefinition& definition : family) names.push_back(definition.name);
  return names;
}

namespace {

// The op whose formulas say what this one costs: attention that stays by name, as its query heads share keys, takes what ours does.
const OpDefinition* find_costed(std::string_view name) {
  constexpr std::string_view kFused = "aten::_scaled_dot_product_flash_attention_for_cpu";
  if (!name.starts_with(kFused)) return find_op(name);
  return find_op(concat("scaled_dot_product_attention", name.substr(kFused.size())));
}

}  // namespace

OpCost cost(const Graph& graph, const Op& op) {
  OpCost out;
  if (op.body) {
    for (const Op& inner : op.body->ops) {
      const OpCost one = cost(*op.body, inner);
      out.flops += one.flops;
      out.bytes += one.bytes;
    }
    const double times = static_cast<double>(attribute_or(op, "microbatches", std::int64_t{1}));
    return {out.flops * times, out.bytes * times};
  }
  const OpDefinition* definition = find_costed(op.name);
  if (definition && definition->views >= 0) return out;
  const std::vector<TensorType> operands = types_of(graph, op.operands), results = types_of(graph, op.results);
  if (definition && definition->bytes) {
    out.bytes = definition->bytes(op, operands, results);
  } else {
    for (const TensorType& type : operands) out.bytes += static_cast<double>(type.bytes());
    for (const TensorType& type : results) out.bytes += static_cast<double>(type.bytes());
  }
  if (definition && definition->flops) {
    out.flops = definition->flops(op, operands, results);
  } else if (definition) {
    for (const TensorType& type : results) out.flops += static_cast<double>(type.elements());
  }
  return out;
}

}  // namespace penstock
