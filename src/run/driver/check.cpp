// SPDX-License-Identifier: Apache-2.0
#include "driver/check.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/invariant.h"
#include "base/text.h"
#include "config/compile.h"
#include "data/permutation.h"
#include "data/row_ports.h"
#include "data/synthetic.h"
#include "driver/outputs.h"
#include "formats/safetensors.h"
#include "penstock/error.h"
#include "state/initialise.h"

namespace penstock {
namespace {

// The ports of a step of pairs beside the model's.
constexpr std::string_view kPairPorts[] = {"inputs", "ranges", "input_ranges", "memory_ranges"};

std::uint64_t draw(std::int64_t seed, std::int64_t row, std::int64_t place) {
  return mix_key(mix_key(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(row)), static_cast<std::uint64_t>(place));
}

double largest(const std::vector<double>& values) {
  double out = 0;
  for (double value : values) out = std::max(out, std::abs(value));
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double out = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= out)) out = difference;  // written so that a NaN is kept
  }
  return out;
}

// Tensors, with their bytes, to be written to one file.
class TensorFile {
 public:
  void add(const std::string& name, TensorType type, std::vector<std::byte> bytes) {
    bytes_.push_back(std::move(bytes));
    tensors_.push_back({name, {std::move(type), bytes_.back()}});
  }
  void write(const std::filesystem::path& path) const { write_safetensors(path.string(), tensors_); }

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::pair<std::string, StoredTensor>> tensors_;
};

void write_gradients(const std::filesystem::path& path, const StepGradients& step, const std::vector<ParameterSpec>& parameters) {
  TensorFile file;
  for (const auto& [name, values] : step.gradients) {
    const TensorType& type = std::ranges::find(parameters, name, &ParameterSpec::name)->type;
    std::vector<std::byte> bytes(type.bytes());
    for (std::size_t i = 0; i < values.size(); ++i) store_element(type.dtype, values[i], bytes, i);
    file.add(name, type, std::move(bytes));
  }
  file.write(path);
}

}  // namespace

void RandomBatch::fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows,
                       std::span<std::byte> out) const {
  const std::span<std::int64_t> values(reinterpret_cast<std::int64_t*>(out.data()), out.size() / sizeof(std::int64_t));
  if (data_name(port) == "seed") {
    values[0] = input.seed;
    return;
  }
  if (data_name(port) == "rows") {
    // In a window each step counts from 0.
    const std::int64_t all = port.type.shape[0], step = port.split ? all / input.steps : all;
    std::iota(values.begin(), values.end(), input.steps > 1 ? first_row % step : first_row);
    return;
  }
  const std::string name(data_name(port));
  if (std::ranges::find(kPairPorts, name) != std::end(kPairPorts)) {
    const std::int64_t width = std::ssize(values) / rows;
    for (std::int64_t row = 0; row < rows; ++row)
      fill_pair(name, input.seed, first_row + row, values.subspan(static_cast<std::size_t>(row * width), static_cast<std::size_t>(width)));
    return;
  }
  const DataPort& declared = find_port(ports_, name);
  const auto bytes = static_cast<std::size_t>(declared.type.bytes()), elements = static_cast<std::size_t>(declared.type.elements());
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::size_t at = row;
    if (declared.is_text())
      fill_text(declared, input.seed, first_row + row, values.subspan(at * elements, elements));
    else if (declared.kind == DataPort::Kind::slots)
      fill_slots(declared, input.seed, first_row + row, at, values.subspan(at * elements, elements));
    else
      fill_synthetic(ports_, declared, input.seed, first_row + row, out.subspan(at * bytes, bytes));
  }
}

// Inputs and targets are as long as their rows, which are all of one length.
void RandomBatch::fill_pair(const std::string& port, std::int64_t seed, std::int64_t row, std::span<std::int64_t> out) const {
  const std::int64_t length = std::ssize(out) / 2;
  const RowPlace whole{0, length, 0, length};
  if (fill_row_port(port, {&whole, 1}, out)) return;
  constexpr std::int64_t kBeforeTargets = -1000;
  for (std::int64_t i = 0; i < std::ssize(out); ++i)
    out[i] = static_cast<std::int64_t>(draw(seed, row, kBeforeTargets - i) % static_cast<std::uint64_t>(vocabulary_));
}

void RandomBatch::fill_text(const DataPort& port, std::int64_t seed, std::int64_t row, std::span<std::int64_t> out) const {
  const bool targets = port.kind == DataPort::Kind::targets;
  const std::uint64_t context = out.size();
  // At least one target is counted, from `begin` on and around the end.
  const std::uint64_t counted = 1 + draw(seed, row, -1) % context, begin = draw(seed, row, -2) % context;
  for (std::uint64_t i = 0; i < context; ++i) {
    const bool is_ignored = targets && (i + context - begin) % context >= counted;
    const std::uint64_t token = draw(seed, row, static_cast<std::int64_t>(i) + targets) % static_cast<std::uint64_t>(vocabulary_);
    out[i] = is_ignored ? kIgnored : static_cast<std::int64_t>(token);
  }
}

void RandomBatch::fill_slots(const DataPort& port, std::int64_t seed, std::int64_t row, std::size_t place,
                             std::span<std::int64_t> out) const {
  const auto entries = static_cast<std::size_t>(find_port(ports_, port.of.at(0)).entries), size = static_cast<std::size_t>(port.below);
  const std::size_t filled = draw(seed, row, -3) % (entries + 1) * size;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = i < filled ? static_cast<std::int64_t>(1 + place * entries * size + i) : 0;
}

StepGradients step_gradients(const Program& program, Cluster& cluster, const std::vector<ParameterSpec>& parameters, std::int64_t seed) {
  return step_gradients(program, cluster, parameters, {.step = 1, .seed = seed});
}

StepGradients step_gradients(const Program& program, Cluster& cluster, const std::vector<ParameterSpec>& parameters,
                             const StepInput& input) {
  const StepResult result = cluster.step(cluster.load(program), input);
  StepGradients out;
  out.loss = scalar_output(program, result, "loss");
  for (const ParameterSpec& spec : parameters)
    if (spec.trained) out.gradients.emplace_back(spec.name, output_values(program, result, "gradient:" + spec.name));
  return out;
}

double relative_difference(double a, double b) {
  return std::abs(a - b) / std::max(std::abs(b), 1e-300);
}

Comparison compare(const StepGradients& pipelined, const StepGradients& sequential) {
  Comparison out;
  out.loss_difference = relative_difference(pipelined.loss, sequential.loss);
  double scale = 0;
  for (const auto& [name, values] : sequential.gradients) scale = std::max(scale, largest(values));
  for (std::size_t p = 0; p < sequential.gradients.size(); ++p) {
    const auto& [name, b] = sequential.gradients[p];
    const auto& a = pipelined.gradients[p].second;
    invariant(a.size() == b.size(), "both steps are of one model");
    const double difference = largest_difference(a, b) / std::max({largest(b), 0.01 * scale, 1e-300});
    if (!out.worst.empty() && difference <= out.gradient_difference) continue;
    out.gradient_difference = difference;
    out.worst = name;
    if (std::isnan(difference)) break;
  }
  return out;
}

Comparison larger(const Comparison& a, const Comparison& b) {
  // Written so that a NaN is kept.
  Comparison out = a.gradient_difference <= b.gradient_difference || std::isnan(b.gradient_difference) ? b : a;
  out.loss_difference = a.loss_difference <= b.loss_difference || std::isnan(b.loss_difference) ? b.loss_difference : a.loss_difference;
  return out;
}

double tolerance_of(const std::string& dtype) {
  if (dtype == "f64") return 1e-10;
  return dtype == "bf16" ? 2e-2 : 1e-4;
}

void dump_check(const std::string& folder, const Config& config, const Prepared& prepared, Cluster& sequential_cluster,
                const DataSource& data, const StepInput& input, const StepGradients& sequential, const StepGradients& pipelined) {
  const std::filesystem::path base(folder);
  std::error_code error;
  std::filesystem::create_directories(base, error);
  if (error) throw Error(concat("cannot make ", folder, ": ", error.message()));

  TensorFile state, batch;
  for (const ParameterSpec& spec : prepared.parameters) state.add(spec.name, spec.type, sequential_cluster.state(spec.name));
  state.write(base / "parameters.safetensors");
  const std::int64_t rows = config.train.batch;
  for (const DataPort& declared : data_of(config, *prepared.model)) {
    Port port{declared.name, declared.type, true};
    port.type.shape.insert(port.type.shape.begin(), rows);
    std::vector<std::byte> bytes(port.type.bytes());
    data.fill(port, input, 0, rows, bytes);
    batch.add(port.name, port.type, std::move(bytes));
  }
  batch.write(base / "batch.safetensors");
  write_gradients(base / "gradients_sequential.safetensors", sequential, prepared.parameters);
  write_gradients(base / "gradients_pipelined.safetensors", pipelined, prepared.parameters);

  nlohmann::ordered_json model = {{"name", config.model.name}};
  for (const auto& [key, value] : config.model.numbers) model[key] = value;
  for (const auto& [key, value] : config.model.words) model[key] = value;
  const nlohmann::ordered_json losses = {{"sequential", sequential.loss},
                                         {"pipelined", pipelined.loss},
                                         {"dtype", config.train.dtype},
                                         {"seed", config.train.seed},
                                         {"batch", rows},
                                         {"model", model}};
  write_file((base / "losses.json").string(), losses.dump(1) + "\n");
}

}  // namespace penstock
