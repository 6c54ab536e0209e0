// SPDX-License-Identifier: Apache-2.0
#include "torch/choose.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/cursor.h"
#include "base/machine.h"
#include "base/text.h"
#include "penstock/error.h"
#include "torch/kernel.h"

namespace penstock {
namespace {

constexpr const char* kCandidates[] = {"penstock", "onednn", "mkl"};
// Another kernel than the first has to take less than this share of its time: a tie should not be decided by noise.
constexpr double kMargin = 0.97;

struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transposed_a = false, transposed_b = false;
  bool bias = false, accumulate = false;

  std::string text() const {
    return concat("f32 ", m, "x", n, "x", k, " ", transposed_a ? "t" : "n", transposed_b ? "t" : "n", " ",
                  bias         ? "bias"
                  : accumulate ? "add"
                               : "store");
  }
};

// Whether a matrix is read with its dims swapped: through an odd number of transpositions of a dense one.
bool is_transposed(const Graph& graph, const std::vector<OpId>& producer, ValueId value) {
  bool flipped = false;
  for (OpId op = producer[value.index()]; op; op = producer[value.index()]) {
    const Op& made = graph.ops[op.index()];
    if (made.name != "transpose" || graph.type(value).shape.size() != 2) break;
    flipped = !flipped;
    value = made.operands[0];
  }
  return flipped;
}

// Whether the value, as it is or in other shapes, is an output that the task's runs add to memory.
bool is_added(const Graph& graph, const std::vector<ResultMode>& modes, ValueId value) {
  for (std::size_t i = 0; i < graph.outputs.size(); ++i)
    if (graph.outputs[i] == value) return modes[i] == ResultMode::add;
  for (const Op& op : graph.ops)
    if ((op.name == "transpose" || op.name == "reshape") && op.operands[0] == value) return is_added(graph, modes, op.results[0]);
  return false;
}

bool is_product(const Graph& graph, const Op& op) {
  const bool known = op.name == "linear" || op.name == "mm" || op.name == "addmm";
  return known && graph.type(op.results[0]).dtype == DType::f32 && graph.type(op.results[0]).elements() > 0 &&
         graph.type(op.operands[0]).elements() > 0;
}

ProductShape shape_of(const Graph& graph, const std::vector<OpId>& producer, const std::vector<ResultMode>& modes, const Op& op) {
  const std::size_t first = op.name == "addmm" ? 1 : 0;
  const ValueId a = op.operands[first], b = op.operands[first + 1];
  ProductShape shape;
  shape.n = graph.type(op.results[0]).shape.back();
  shape.m = graph.type(op.results[0]).elements() / shape.n;
  shape.k = graph.type(a).shape.back();
  shape.transposed_a = is_transposed(graph, producer, a);
  shape.transposed_b = is_transposed(graph, producer, b) != (op.name == "linear");  // linear's weight is [out, in]
  shape.bias = op.operands.size() == 3;
  shape.accumulate = !shape.bias && is_added(graph, modes, op.results[0]);
  return shape;
}

// The result modes of the last run of each task (all runs but an accumulator's first have the same modes).
std::vector<std::vector<ResultMode>> modes_of(const Program& program) {
  std::vector<std::vector<ResultMode>> modes(program.tasks.size());
  for (std::size_t t = 0; t < modes.size(); ++t) modes[t].resize(program.tasks[t].graph->outputs.size(), ResultMode::store);
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& instruction : device.instructions) {
      if (instruction.opcode != Opcode::run) continue;
      std::size_t next = 0;
      for (const Result& result : device.results_of(instruction))
        for (std::size_t part = 0; part < device.slots[result.slot.index()].parts.size(); ++part)
          modes[instruction.task.index()].at(next++) = result.mode;
    }
  return modes;
}

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The best of a few runs, in CPU time of the thread, in which other work on the machine hardly shows.
double seconds_of(const Bound& call) {
  call();
  double best = INFINITY;
  for (double spent = 0, runs = 0; runs < 5 || (spent < 2e-3 && runs < 100); ++runs) {
    const double begin = thread_seconds();
    call();
    const double seconds = thread_seconds() - begin;
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

struct MeasuredKernel {
  std::string name;
  double seconds = INFINITY;
};

MeasuredKernel fastest(const ProductShape& p) {
  const auto matrix = [](std::int64_t rows, std::int64_t columns, bool transposed) {
    return transposed ? at::ones({columns, rows}).t() : at::ones({rows, columns});
  };
  std::vector<at::Tensor> operands = {matrix(p.m, p.k, p.transposed_a), matrix(p.k, p.n, p.transposed_b)};
  if (p.bias) operands.insert(operands.begin(), at::ones({p.n}));
  const std::vector<at::Tensor> results = {at::ones({p.m, p.n})};
  Op op;
  op.name = p.bias ? "addmm" : "mm";
  const Graph graph;
  MeasuredKernel best;
  for (const char* candidate : kCandidates) {
    op.attributes["kernel"] = std::string(candidate);
    const double seconds = seconds_of(find_kernel(op.name)->bind({graph, op, operands, results, p.accumulate ? 1u : 0u}));
    if (seconds < best.seconds * (best.name.empty() ? 1 : kMargin)) best = {candidate, seconds};
  }
  return best;
}

}  // namespace

KernelChoices read_kernel_choices(const std::string& file) {
  KernelChoices choices;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return choices;
  const std::string text = read_file(file);
  Cursor cursor(file, text);
  cursor.header("kernels", 1);
  cursor.expect("processor");
  const bool mine = cursor.string() == processor_name();
  while (!cursor.at_end()) {
    const std::string product = cursor.string();
    cursor.skip();
    const std::size_t position = cursor.position();
    const std::string kernel = cursor.string();
    if (std::ranges::find(kCandidates, kernel) == std::end(kCandidates))
      cursor.fail_at(position, concat("unknown kernel ", quote(kernel)), "remove the file: it is measured again");
    if (mine) choices[product] = kernel;
  }
  return choices;
}

void write_kernel_choices(const std::string& file, const KernelChoices& choices) {
  std::string text = concat("penstock kernels 1\nprocessor ", quote(processor_name()), "\n");
  for (const auto& [product, kernel] : choices) text += concat(quote(product), " ", quote(kernel), "\n");
  write_file(file, text);
}

double product_rate(DType dtype) {
  constexpr std::int64_t kSize = 512;
  constexpr double kFlops = 2.0 * kSize * kSize * kSize;
  if (dtype == DType::f32) return kFlops / fastest({.m = kSize, .n = kSize, .k = kSize}).seconds;
  const at::Tensor factor = at::ones({kSize, kSize}, scalar_type(dtype));
  const std::vector<at::Tensor> operands = {factor, factor}, results = {at::empty({kSize, kSize}, scalar_type(dtype))};
  Op op;
  op.name = "mm";
  const Graph graph;
  return kFlops / seconds_of(find_kernel(op.name)->bind({graph, op, operands, results, 0u}));
}

bool choose_kernels(Program& program, KernelChoices& choices) {
  bool measured = false;
  const auto modes = modes_of(program);
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    Graph graph = *program.tasks[t].graph;
    const std::vector<OpId> producer = producers(graph);
    for (Op& op : graph.ops) {
      if (!is_product(graph, op)) continue;
      const ProductShape shape = shape_of(graph, producer, modes[t], op);
      auto [entry, fresh] = choices.try_emplace(shape.text());
      if (fresh) entry->second = fastest(shape).name;
      measured = measured || fresh;
      op.attributes["kernel"] = entry->second;
    }
    program.tasks[t].graph = std::move(graph);
  }
  return measured;
}

void choose_kernels(Program& program, const std::string& file) {
  KernelChoices choices = read_kernel_choices(file);
  if (!choose_kernels(program, choices)) return;
  const auto folder = std::filesystem::path(file).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) throw Error(concat("cannot make the folder ", folder.string(), ": ", error.message()));
  write_kernel_choices(file, choices);
}

}  // namespace penstock
