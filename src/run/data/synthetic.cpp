// SPDX-License-Identifier: Apache-2.0
#include "data/synthetic.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/hash.h"
#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"
#include "state/draws.h"
#include "state/initialise.h"

namespace penstock {
namespace {

using Values = std::vector<double>;

constexpr std::size_t kPatches = 48;  // equal stretches of the flattened sample, for a class's pattern
// Elements that a response reads of each port, at most: drawing wide ports again would take longer than the model.
constexpr std::int64_t kResponseReads = 32;

std::uint64_t key_of(std::string_view what, std::string_view name, std::uint64_t a, std::uint64_t b = 0) {
  Hash key;
  key.add(what);
  key.add(name);
  key.add(a);
  key.add(b);
  return key.value();
}

Values normal_values(std::uint64_t key, std::size_t count) {
  Values out(count);
  for (std::size_t i = 0; i < count; i += 2) {
    const auto draws = normal_draws(key, i / 2);
    std::copy_n(draws.begin(), std::min<std::size_t>(2, count - i), out.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return out;
}

// The first `count` elements of the port's sample.
Values sample_of(const std::vector<DataPort>& ports, const DataPort& port, std::int64_t seed, std::int64_t sample, std::int64_t count);

// Adds the class's pattern. It is made of patches of one value: white noise would vanish in the averages that a convolution takes.
void add_pattern(Values& values, const DataPort& port, double of_class) {
  const Values pattern = normal_values(key_of("pattern", port.name, static_cast<std::uint64_t>(of_class)), kPatches);
  const std::size_t elements = port.type.elements();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += pattern[i * kPatches / elements];
}

// One element of the response: the sum of weight times value, divided by the root of their number.
double response(const std::vector<DataPort>& ports, const DataPort& port, const std::vector<Values>& inputs, std::uint64_t element) {
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const DataPort& input = find_port(ports, port.of[i]);
    const std::uint64_t key = key_of("weight", port.name + "/" + input.name, element);
    if (input.kind == DataPort::Kind::indices) {
      for (const double index : inputs[i]) sum += normal_draws(key, static_cast<std::uint64_t>(index))[0];
    } else {
      const Values weights = normal_values(key, inputs[i].size());
      sum = std::inner_product(weights.begin(), weights.end(), inputs[i].begin(), sum);
    }
    count += inputs[i].size();
  }
  return sum / std::sqrt(static_cast<double>(std::max<std::size_t>(count, 1)));
}

// The class of a response: classes are equal shares of a standard normal distribution.
double class_of(double response, std::int64_t classes) {
  const double share = 0.5 * std::erfc(-response / std::sqrt(2.0));
  return std::min(std::floor(share * static_cast<double>(classes)), static_cast<double>(classes - 1));
}

Values responses(const std::vector<DataPort>& ports, const DataPort& port, std::int64_t seed, std::int64_t sample, std::size_t count) {
  std::vector<Values> inputs;
  for (const std::string& name : port.of) {
    const DataPort& input = find_port(ports, name);
    inputs.push_back(sample_of(ports, input, seed, sample, std::min(input.type.elements(), kResponseReads)));
  }
  Values out(count);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = response(ports, port, inputs, i);
  return out;
}

Values sample_of(const std::vector<DataPort>& ports, const DataPort& port, std::int64_t seed, std::int64_t sample, std::int64_t count) {
  using Kind = DataPort::Kind;
  const std::size_t elements = count;
  const std::uint64_t key = key_of("data", port.name, static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(sample));
  Values out;
  switch (port.kind) {
    case Kind::normal:
      out = normal_values(key, elements);
      if (!port.of.empty()) add_pattern(out, port, sample_of(ports, find_port(ports, port.of[0]), seed, sample, 1).at(0));
      return out;
    case Kind::uniform:
    case Kind::indices:
      for (std::size_t i = 0; i < elements; ++i) out.push_back(uniform_draw(key, i));
      if (port.kind == Kind::indices)
        for (double& value : out) value = std::floor(value * static_cast<double>(port.below));
      return out;
    case Kind::response:
      return responses(ports, port, seed, sample, elements);
    case Kind::labels:
      out = responses(ports, port, seed, sample, elements);
      for (double& value : out) value = class_of(value, port.below);
      return out;
    case Kind::tokens:
    case Kind::targets:
    case Kind::slots:
    case Kind::given:
      break;
  }
  invariant(false, "text and what a caller gives is not drawn");
  return out;
}

}  // namespace

const DataPort& find_port(const std::vector<DataPort>& ports, const std::string& name) {
  std::vector<std::string> names;
  for (const DataPort& port : ports) {
    if (port.name == name) return port;
    names.push_back(port.name);
  }
  throw Error(concat("the data has no port ", quote(name)), {concat("there are ", join(names, ", "), ", rows and seed")});
}

void fill_synthetic(const std::vector<DataPort>& ports, const DataPort& port, std::int64_t seed, std::int64_t sample,
                    std::span<std::byte> out) {
  const Values values = sample_of(ports, port, seed, sample, port.type.elements());
  for (std::size_t i = 0; i < values.size(); ++i) store_element(port.type.dtype, values[i], out, i);
}

SyntheticDataset::SyntheticDataset(std::vector<DataPort> ports, std::int64_t batch, std::int64_t seed)
    : ports_(std::move(ports)), batch_(batch), seed_(seed) {}

void SyntheticDataset::fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows,
                            std::span<std::byte> out) const {
  if (data_name(port) == "seed") return store_element(DType::i64, static_cast<double>(input.seed), out, 0);
  if (data_name(port) == "rows") {
    for (std::int64_t row = 0; row < rows; ++row)
      store_element(DType::i64, static_cast<double>(row_in_step(input, first_row + row)), out, static_cast<std::size_t>(row));
    return;
  }
  const DataPort& declared = find_port(ports_, std::string(data_name(port)));
  const std::size_t bytes = declared.type.bytes();
  invariant(out.size() == bytes * static_cast<std::size_t>(rows), "a port's rows are of its type");
  for (std::int64_t row = 0; row < rows; ++row)
    fill_synthetic(ports_, declared, seed_, sample_in_row(input, first_row + row),
                   out.subspan(static_cast<std::size_t>(row) * bytes, bytes));
}

std::string SyntheticDataset::summary() const {
  return concat("synthetic data (seed ", seed_, ")");
}

std::uint64_t SyntheticDataset::fingerprint() const {
  Hash hash;
  hash.add(static_cast<std::uint64_t>(seed_));
  for (const DataPort& port : ports_) {
    hash.add(port.name);
    hash.add(port.type.text());
    hash.add(static_cast<std::uint64_t>(port.kind));
    hash.add(static_cast<std::uint64_t>(port.below));
    for (const std::string& name : port.of) hash.add(name);
  }
  return hash.value();
}

}  // namespace penstock
