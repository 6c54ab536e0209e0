// SPDX-License-Identifier: Apache-2.0
#include "torch/bind.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

#include "base/invariant.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "torch/chain.h"
#include "torch/copy.h"

namespace penstock {
namespace {

constexpr std::size_t kEnd = std::numeric_limits<std::size_t>::max();  // a position after the last op

// When an output's value gets into the result's memory.
enum class Route : std::uint8_t {
  direct,    // its op writes (or adds) to that memory itself
  at_op,     // it is copied (or added) right after its op
  at_begin,  // it is an input, copied before the first op (a later update may overwrite it)
  // It is copied after the last op, because something still reads the memory it goes to; a value in an input's memory that a result is
  // written over is first put aside (two states may change places).
  at_end,
};

// The task, and what follows from its graph.
struct Facts {
  const Graph& graph;
  std::vector<const Kernel*> kernels;  // by op; null where it runs by name
  std::vector<OpId> producers;
  std::vector<int> uses;
  std::vector<ValueId> root;                // by value: the value that it is a view of
  std::vector<std::size_t> last_read = {};  // by root: the last op that reads it or a view of it; kEnd where an output shows it

  const Kernel* kernel(ValueId value) const { return kernels[producers[value.index()].index()]; }
  const Op* producer(ValueId value) const {
    const OpId op = producers[value.index()];
    return op ? &graph.ops[op.index()] : nullptr;
  }
};

Facts facts_of(const Graph& graph) {
  Facts facts{graph, {}, producers(graph), use_counts(graph), {}};
  facts.last_read.assign(graph.values.size(), 0);
  for (std::size_t v = 0; v < graph.values.size(); ++v) facts.root.emplace_back(static_cast<std::int64_t>(v));
  for (std::size_t o = 0; o < graph.ops.size(); ++o) {
    const Op& op = graph.ops[o];
    const Kernel* kernel = facts.kernels.emplace_back(find_kernel(op.name));
    for (ValueId operand : op.operands) facts.last_read[facts.root[operand.index()].index()] = o;
    if (kernel && kernel->view)
      for (ValueId result : op.results) facts.root[result.index()] = facts.root[op.operands[0].index()];
  }
  for (ValueId output : graph.outputs) facts.last_read[facts.root[output.index()].index()] = kEnd;
  return facts;
}

// Where the task's outputs are computed, and when they are copied.
struct Homes {
  std::vector<at::Tensor> of;      // by value: the result memory it is computed in
  std::vector<bool> adds;          // by value: its op adds to that memory
  std::vector<Route> routes = {};  // by output
};

bool adds(const Facts& facts, ValueId value) {
  const auto& results = facts.producer(value)->results;
  const Kernel* kernel = facts.kernel(value);
  return kernel && (kernel->accumulates >> (std::ranges::find(results, value) - results.begin()) & 1u);
}

// `alike`: the input has the shape of what the op writes.
bool reads_by_element(const Facts& facts, std::size_t o, ValueId input, bool alike) {
  const Op& op = facts.graph.ops[o];
  const OpDefinition* definition = find_op(op.name);
  if (!definition || !definition->elementwise) return false;
  for (ValueId operand : op.operands)
    if (facts.root[operand.index()] == input && (operand != input || !alike)) return false;
  return true;
}

// Whether op o may write to `place`. Inputs in that memory must have been read before, or be read by o itself element by element.
bool overwrites_safely(const Facts& facts, std::span<const at::Tensor> operands, std::size_t o, const at::Tensor& place) {
  for (std::size_t i = 0; i < facts.graph.inputs.size(); ++i) {
    const ValueId input = facts.graph.inputs[i];
    if (operands[i].data_ptr() != place.data_ptr()) continue;
    if (facts.last_read[input.index()] > o) return false;
    if (facts.last_read[input.index()] == o && !reads_by_element(facts, o, input, operands[i].sizes() == place.sizes())) return false;
  }
  return true;
}

// Whether op `to` only widens a bf16 value that nothing else reads, and that is, but for views, the result of a kernel that can as well
// write f32: then its result's place is the kernel's, and the bf16 value never exists.
bool is_free_cast(const Facts& facts, const Op& to) {
  const Graph& graph = facts.graph;
  if (to.name != "to" || graph.type(to.operands[0]).dtype != DType::bf16 || graph.type(to.results[0]).dtype != DType::f32) return false;
  for (ValueId v = to.operands[0];;) {
    const Op* op = facts.producer(v);
    if (!op || facts.uses[v.index()] != 1) return false;
    const Kernel* kernel = facts.kernel(v);
    if (!kernel || !kernel->view) return kernel && kernel->widens;
    v = op->operands[0];
  }
}

// Makes `memory` the place where the value is computed, going back through ops that are only views. Returns false where that is not
// possible.
bool claim(const Facts& facts, std::span<const at::Tensor> operands, ValueId value, const BoundResult& result, Homes& homes) {
  std::vector<std::pair<ValueId, at::Tensor>> chain;
  const auto& [memory, mode] = result;
  at::Tensor place = memory;
  for (ValueId v = value;;) {
    const Op* op = facts.producer(v);
    if (!op || homes.of[v.index()].defined() || std::ranges::count(facts.graph.outputs, v) > 1) return false;
    if (v != value && std::ranges::count(facts.graph.outputs, v)) return false;
    // A value that is added to memory never exists by itself, so nobody else may read it.
    if (mode == ResultMode::add && facts.uses[v.index()] != 1) return false;
    chain.emplace_back(v, place);
    const Kernel* kernel = facts.kernel(v);
    if (is_free_cast(facts, *op)) {
      v = op->operands[0];
      continue;
    }
    if (!kernel || !kernel->view) break;
    const ValueId operand = op->operands[0];
    if (!kernel->unview) return false;
    place = kernel->unview(*op, facts.graph.type(operand), place);
    if (!place.defined()) return false;
    v = operand;
  }
  const ValueId root = chain.back().first;
  if (!chain.back().second.is_contiguous() && !writes_strided(*facts.producer(root))) return false;
  if (mode == ResultMode::add && !adds(facts, root)) return false;
  if (mode == ResultMode::update && !overwrites_safely(facts, operands, facts.producers[root.index()].index(), chain.back().second))
    return false;
  for (auto& [v, tensor] : chain) homes.of[v.index()] = tensor;
  homes.adds[root.index()] = mode == ResultMode::add;
  return true;
}

Homes homes_of(const Facts& facts, std::span<const at::Tensor> operands, std::span<const BoundResult> results) {
  Homes homes{std::vector<at::Tensor>(facts.graph.values.size()), std::vector<bool>(facts.graph.values.size())};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const ValueId value = facts.graph.outputs[i];
    const bool update = results[i].mode == ResultMode::update;
    if (!facts.producer(value))
      homes.routes.push_back(update ? Route::at_end : Route::at_begin);
    else if (claim(facts, operands, value, results[i], homes))
      homes.routes.push_back(Route::direct);
    else
      homes.routes.push_back(update ? Route::at_end : Route::at_op);
  }
  return homes;
}

class Binder {
 public:
  Binder(const Graph& graph, const ScratchPlan& plan, std::span<const at::Tensor> operands, std::span<const BoundResult> results,
         std::byte* scratch, Spare& spare)
      : graph_(graph),
        plan_(plan),
        results_(results),
        scratch_(scratch),
        spare_(spare),
        facts_(facts_of(graph)),
        homes_(homes_of(facts_, operands, results)),
        tensors_(graph.values.size()),
        aside_(results.size()) {
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) tensors_[graph.inputs[i].index()] = operands[i];
    place_parts(operands);
  }

  std::vector<BoundCall> bind() {
    emit_copies(Route::at_begin, kEnd);
    for (std::size_t o = 0; o < graph_.ops.size(); ++o) {
      bind_op(o);
      emit_copies(Route::at_op, o);
    }
    emit_copies(Route::at_end, kEnd);
    end_chain();
    return std::move(calls_);
  }

 private:
  void bind_op(std::size_t o) {
    const Op& op = graph_.ops[o];
    const Kernel* kernel = facts_.kernels[o];
    if (op.name == "to" && homes_.of[op.operands[0].index()].defined() && is_free_cast(facts_, op)) return pass_on(op);
    std::vector<at::Tensor> operands, results;
    for (ValueId operand : op.operands) operands.push_back(tensors_[operand.index()]);
    if (kernel && kernel->view && bind_view(op, *kernel, operands[0])) return;
    unsigned accumulate = 0;
    for (std::size_t r = 0; r < op.results.size(); ++r) {
      const ValueId value = op.results[r];
      tensors_[value.index()] = storage(value);
      results.push_back(tensors_[value.index()]);
      if (homes_.adds[value.index()]) accumulate |= 1u << r;
    }
    if (spare_.compiler() && !accumulate && joins_chain(o, operands, results)) return;
    push(call_of(o, operands, results, accumulate), OpId(static_cast<std::int64_t>(o)));
  }

  Bound call_of(std::size_t o, std::span<const at::Tensor> operands, std::span<const at::Tensor> results, unsigned accumulate) {
    const Op& op = graph_.ops[o];
    const Kernel* kernel = facts_.kernels[o];
    const Site site{graph_, op, operands, results, accumulate, spare_.faults()};
    const OpDefinition* own = kernel ? nullptr : find_op(op.name);
    return kernel                ? (kernel->bind_device && !spare_.device().is_cpu() ? kernel->bind_device : kernel->bind)(site)
           : own && own->compute ? bind_own(site, own->compute)
                                 : bind_by_name(site);
  }

  // Whether the op becomes a part of a chain, which is bound when it ends: ahead of the next call that is none of its ops.
  bool joins_chain(std::size_t o, const std::vector<at::Tensor>& operands, const std::vector<at::Tensor>& results) {
    const Op& op = graph_.ops[o];
    if (results.size() != 1 || results[0].scalar_type() != scalar_type(graph_.type(op.results[0]).dtype)) return false;
    ChainOp next{&op, o, operands, {}, results[0]};
    for (const ValueId operand : op.operands) next.roots.push_back(facts_.root[operand.index()]);
    if (extend(chain_, next)) return true;
    end_chain();
    return extend(chain_, std::move(next));
  }

  // The ops that are left where a chain is cut are joined anew, as what made rows of it may be gone.
  void end_chain() {
    const std::vector<ChainOp> ops = std::exchange(chain_, {}).ops;
    for (std::span<const ChainOp> left = ops; !left.empty();) {
      ChainOps chain;
      for (auto op = left.begin(); op != left.end() && extend(chain, *op);) ++op;
      const std::optional<PlacedChain> found = longest_chain(chain, facts_.last_read);
      Bound call = found ? bind_chain(*found, *spare_.compiler(), spare_.device()) : Bound();
      const std::size_t count = call ? found->ops : 1;
      if (!call) call = call_of(left[0].index, left[0].operands, {&left[0].result, 1}, 0);
      if (call) calls_.push_back({std::move(call), static_cast<std::int32_t>(left[count - 1].index)});
      left = left.subspan(count);
    }
  }

  // Gives the values that the plan has in a part of what they are copied to their places there, from the copies back to the ops that make
  // them. A copy over an input, which may be read before it, is made.
  void place_parts(std::span<const at::Tensor> inputs) {
    for (const Op& op : graph_.ops | std::views::reverse) {
      std::int64_t begin = 0;
      for (const ValueId operand : op.operands) {
        if (!plan_.parts[operand.index()]) break;
        const ValueId result = op.results[0];
        const bool is_copy = !plan_.parts[result.index()];
        if (is_copy) tensors_[result.index()] = storage(result);
        const at::Tensor place = is_copy ? tensors_[result.index()] : homes_.of[result.index()];
        const auto lies_there = [&](const at::Tensor& input) { return input.data_ptr() == place.data_ptr(); };
        if (!place.defined() || homes_.of[operand.index()].defined() || (is_copy && std::ranges::any_of(inputs, lies_there))) break;
        const TensorType& type = graph_.type(operand);
        if (op.name == "cat") {
          const std::int64_t dim = attribute<std::int64_t>(op, "dim"), size = type.shape[static_cast<std::size_t>(wrap(dim, place.dim()))];
          homes_.of[operand.index()] = place.narrow(dim, begin, size);
          begin += size;
        } else {
          homes_.of[operand.index()] = find_kernel(op.name)->unview(op, type, place);
        }
      }
    }
  }

  // The result is where the operand was computed.
  void pass_on(const Op& op) { tensors_[op.results[0].index()] = tensors_[op.operands[0].index()]; }

  // Binds a view op. Returns true if every result is a view; results that are to be written elsewhere need a copy.
  bool bind_view(const Op& op, const Kernel& kernel, const at::Tensor& operand) {
    std::vector<at::Tensor> views;
    for (std::size_t r = 0; r < op.results.size(); ++r) {
      const ValueId value = op.results[r];
      const at::Tensor& home = homes_.of[value.index()];
      if (!may_view(value)) return false;
      at::Tensor view = kernel.view(op, graph_.type(value), operand, r);
      if (!view.defined()) return false;
      invariant(!home.defined() || home.data_ptr() == view.data_ptr(), "a claimed result is not where its view looks");
      views.push_back(std::move(view));
    }
    for (std::size_t r = 0; r < op.results.size(); ++r) tensors_[op.results[r].index()] = views[r];
    return true;
  }

  // Whether the value may be a view although the plan gives it storage of its own: the plan may use the operand's storage for something
  // else after this op. So it must be an output that is copied right behind the op and read by nothing else, or one whose place the operand
  // has, too.
  bool may_view(ValueId value) const {
    if (plan_.views[value.index()] || homes_.of[value.index()].defined()) return true;
    const auto output = std::ranges::find(graph_.outputs, value);
    return output != graph_.outputs.end() && facts_.uses[value.index()] == 1 &&
           homes_.routes[static_cast<std::size_t>(output - graph_.outputs.begin())] == Route::at_op;
  }

  at::Tensor storage(ValueId value) {
    if (tensors_[value.index()].defined()) return tensors_[value.index()];
    if (homes_.of[value.index()].defined()) return homes_.of[value.index()];
    const TensorType& type = graph_.type(value);
    const std::int64_t offset = plan_.offsets[value.index()];
    return tensor_at(offset >= 0 ? scratch_ + offset : spare_.take(type.bytes()), type, spare_.device());
  }

  void emit_copies(Route when, std::size_t o) {
    for (std::size_t i = 0; i < results_.size(); ++i) {
      const ValueId value = graph_.outputs[i];
      const OpId op = facts_.producers[value.index()];
      if (homes_.routes[i] == Route::at_end && when != Route::at_end && (op ? op.index() : kEnd) == o) put_aside(i);
      if (homes_.routes[i] != when || (when == Route::at_op && op.index() != o)) continue;
      at::Tensor from = aside_[i].defined() ? aside_[i] : tensors_[value.index()], to = results_[i].memory;
      if (results_[i].mode == ResultMode::add)
        push([from, to] { to.add_(from); }, op);
      else
        push(bind_copy(to, from), op);
    }
  }

  // Copies an output that lies in an input's memory to memory of its own where a result is written over that, unless it lies right where it
  // goes. An output that views that memory in another order (a state's next value that is its transpose) cannot be copied over it in place.
  void put_aside(std::size_t i) {
    const ValueId value = graph_.outputs[i];
    const at::Tensor &from = tensors_[value.index()], &to_be = results_[i].memory;
    const bool is_there = from.data_ptr() == to_be.data_ptr() && from.strides() == to_be.strides();
    const ValueId root = facts_.root[value.index()];
    if (facts_.producer(root) || is_there || !is_written_over(tensors_[root.index()])) return;
    const at::Tensor to = aside_[i] = tensor_at(spare_.take(graph_.type(value).bytes()), graph_.type(value), spare_.device());
    push(bind_copy(to, from), facts_.producers[value.index()]);
  }

  bool is_written_over(const at::Tensor& input) const {
    return std::ranges::any_of(results_, [&](const BoundResult& result) { return result.memory.data_ptr() == input.data_ptr(); });
  }

  void push(Bound call, OpId op) {
    end_chain();
    if (call) calls_.push_back({std::move(call), op.value});
  }

  const Graph& graph_;
  const ScratchPlan& plan_;
  const std::span<const BoundResult> results_;
  std::byte* const scratch_;
  Spare& spare_;
  const Facts facts_;
  Homes homes_;
  std::vector<at::Tensor> tensors_;  // by value: the inputs, and what is bound
  std::vector<at::Tensor> aside_;    // by output, where it was put aside
  ChainOps chain_;                   // that goes on
  std::vector<BoundCall> calls_;
};

}  // namespace

std::byte* Spare::take(std::int64_t bytes) {
  const std::int64_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (size <= std::ssize(planned_)) return std::exchange(planned_, planned_.subspan(static_cast<std::size_t>(size))).data();
  while (block_ < blocks_.size() && used_ + size > blocks_[block_].bytes()) ++block_, used_ = 0;
  if (block_ == blocks_.size()) blocks_.emplace_back(size, device_), used_ = 0;
  std::byte* memory = blocks_[block_].data() + used_;
  used_ += size;
  taken_ += size;
  return memory;
}

std::int64_t Spare::bytes() const {
  std::int64_t sum = 0;
  for (const Arena& block : blocks_) sum += block.bytes();
  return sum;
}

std::vector<BoundCall> bind_task(const Task& task, const ScratchPlan& plan, std::span<const at::Tensor> operands,
                                 std::span<const BoundResult> results, std::span<std::byte> scratch, Spare& spare) {
  spare.rewind(scratch.subspan(static_cast<std::size_t>(plan.bytes)));
  return Binder(task.graph, plan, operands, results, scratch.data(), spare).bind();
}

void move_tensor(const at::Tensor& tensor, std::byte* memory) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->data() != memory) storage->set_data_ptr_noswap(at::DataPtr(memory, tensor.device()));
}

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return at::kDouble;
    case DType::f32:
      return at::kFloat;
    case DType::bf16:
      return at::kBFloat16;
    case DType::f16:
      return at::kHalf;
    case DType::i64:
      return at::kLong;
    case DType::i32:
      return at::kInt;
    case DType::boolean:
      return at::kBool;
  }
  invariant(false, "a dtype that does not exist");
  return at::kFloat;
}

at::Tensor tensor_at(std::byte* memory, const TensorType& type, c10::Device device) {
  const at::TensorOptions options = at::TensorOptions(scalar_type(type.dtype)).device(device);
  return at::for_blob(memory, type.shape).options(options).target_device(device).make_tensor();  // CUDA is not asked whose the address is
}

}  // namespace penstock
