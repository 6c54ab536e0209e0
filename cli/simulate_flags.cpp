// SPDX-License-Identifier: Apache-2.0
// Reads the numbers of a machine from flags: costs, links and disturbances.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/shared_options.h"
#include "cli/simulate.h"
#include "penstock/error.h"
#include "program/backends.h"

namespace penstock {
namespace {

[[noreturn]] void fail(const std::string& flag, const std::string& value, const std::string& why, const std::string& hint = {}) {
  throw Error(concat(flag, " ", value, ": ", why), {}, hint);
}

void check_bandwidth(const std::string& flag, double value) {
  if (!(value > 0)) fail(flag, number(value), "a bandwidth is above 0");  // an infinite bandwidth means that transfers take no time
}

std::int32_t device_of(const std::string& flag, const std::string& value, std::string_view text, std::int32_t devices) {
  const std::optional<std::int32_t> device = parse_number<std::int32_t>(text);
  if (!device) fail(flag, value, concat(quote(text), " is no actor's number"));
  if (*device < 0 || *device >= devices)
    fail(flag, value, concat("there is no actor ", *device), concat("there are ", devices, ": 0 to ", devices - 1));
  return *device;
}

constexpr const char* kLinkForm = "a link is written 2-3:latency=0.5,bandwidth=100, both directions at once";

void set(NumberedLink& link, const std::string& value, const std::string& setting, GivenUnits& units) {
  const std::size_t equals = setting.find('=');
  const std::string key = setting.substr(0, equals), flag = concat("--link ", value, ": ", key);
  const Quantity quantity = key == "latency" ? Quantity::seconds : Quantity::bytes_per_second;
  const std::optional<Amount> to = equals == std::string::npos ? std::nullopt : parse_amount(setting.substr(equals + 1), quantity);
  if (!to || (key != "latency" && key != "bandwidth")) fail("--link", value, concat("cannot read ", quote(setting)), kLinkForm);
  units.note(flag, *to, quantity);
  if (key == "latency")
    link.latency = checked(flag, to->value);
  else
    check_bandwidth(flag, *(link.bandwidth = to->value));
}

NumberedLink link_of(const std::string& value, std::int32_t devices, GivenUnits& units) {
  const std::size_t colon = value.find(':'), dash = value.find('-');
  if (colon == std::string::npos || dash == std::string::npos || dash > colon) fail("--link", value, "this is no link", kLinkForm);
  NumberedLink link;
  link.a = device_of("--link", value, std::string_view(value).substr(0, dash), devices);
  link.b = device_of("--link", value, std::string_view(value).substr(dash + 1, colon - dash - 1), devices);
  if (link.a == link.b) fail("--link", value, "a link is between two actors", kLinkForm);
  for (const std::string& setting : split(value.substr(colon + 1), ',')) set(link, value, setting, units);
  return link;
}

void add_link(std::vector<NumberedLink>& links, const std::string& value, std::int32_t devices, GivenUnits& units) {
  const NumberedLink link = link_of(value, devices, units);
  for (const NumberedLink& other : links)
    if (std::minmax(other.a, other.b) == std::minmax(link.a, link.b))
      fail("--link", value, concat("link ", link.a, "-", link.b, " is given twice"));
  links.push_back(link);
}

void add_straggler(std::vector<double>& slowdown, const std::string& value, std::int32_t devices) {
  const std::size_t equals = value.find('=');
  const std::optional<double> factor = equals == std::string::npos ? std::nullopt : parse_number<double>(value.substr(equals + 1));
  if (!factor) fail("--straggler", value, "this is no actor and factor", "actor 2 at half its speed is written 2=2");
  const std::int32_t device = device_of("--straggler", value, std::string_view(value).substr(0, equals), devices);
  if (!std::isfinite(*factor) || *factor <= 0) fail("--straggler", value, "the factor must be a finite number above 0");
  slowdown.resize(static_cast<std::size_t>(devices), 1);
  slowdown[static_cast<std::size_t>(device)] *= *factor;
}

void check_ranges(const TableNumbers& numbers) {
  const std::pair<const char*, const std::optional<double>&> given[] = {
      {"--forward", numbers.forward},       {"--backward", numbers.backward}, {"--input", numbers.input},
      {"--weight", numbers.weight},         {"--bytes", numbers.bytes},       {"--recompute-time", numbers.recompute},
      {"--offload-time", numbers.offload},  {"--gather", numbers.gather},     {"--reduce", numbers.reduce},
      {"--parameters", numbers.parameters}, {"--kept", numbers.kept},         {"--latency", numbers.latency}};
  for (const auto& [flag, value] : given)
    if (value) checked(flag, *value);
  if (numbers.kept.value_or(0) > 1) fail("--kept", number(*numbers.kept), "it is a part of a micro-batch's activations: from 0 to 1");
  if (numbers.bandwidth) check_bandwidth("--bandwidth", *numbers.bandwidth);
  if (!(numbers.jitter >= 0 && numbers.jitter < 1))
    fail("--jitter", number(numbers.jitter), "it is a share of each time: 0 or above, below 1");
}

// Throws Error where a flag is given without the one that it needs to mean something.
void check_together(const TableNumbers& numbers, bool measured) {
  const bool bandwidth =
      numbers.bandwidth || std::ranges::any_of(numbers.links, [](const NumberedLink& link) { return link.bandwidth.has_value(); });
  if (bandwidth && !numbers.bytes) throw Error("a bandwidth says nothing without --bytes", {}, "give the bytes of a transfer");
  if (numbers.bytes && !bandwidth && !measured)
    throw Error("--bytes says nothing without --bandwidth", {}, "give the bytes that a link moves per time");
  if (numbers.reduce && !numbers.gather)
    throw Error("--reduce says nothing without --gather", {}, "give the time to gather an actor's share of parameters, 0 if it is nothing");
}

// Times with a unit are seconds: then all have one, also those that are 1 where they are not given.
void check_units(const SimulateArguments& arguments, const GivenUnits& units) {
  if (units.with.empty()) return;
  const TableNumbers& numbers = arguments.numbers;
  std::vector<std::string> without = units.without;
  const bool has_backward = numbers.backward || (numbers.input && numbers.weight) || arguments.table.options.forward_only;
  if (!numbers.forward) without.emplace_back("--forward");
  if (!has_backward) without.emplace_back("--backward");
  if (!without.empty())
    throw Error(concat(units.with[0], " has a unit, and ", join(without, ", "), without.size() == 1 ? " has none" : " have none"), {},
                "give all times a unit, as --forward 10ms --backward 20ms, or none");
}

// Measured costs have these times themselves.
void check_beside_costs(const TableNumbers& numbers, const std::string& costs) {
  const std::pair<const char*, bool> flags[] = {{"--forward", numbers.forward.has_value()},
                                                {"--backward", numbers.backward.has_value()},
                                                {"--input", numbers.input.has_value()},
                                                {"--weight", numbers.weight.has_value()},
                                                {"--per-stage", numbers.per_stage},
                                                {"--stage-times", !numbers.stage_times.empty()},
                                                {"--slice-times", !numbers.slice_times.empty()}};
  std::vector<std::string> given;
  for (const auto& [flag, is_given] : flags)
    if (is_given) given.push_back(flag);
  if (!given.empty()) throw Error(concat("--costs ", costs, " says what each stage takes"), {}, concat("leave out ", join(given, ", ")));
}

}  // namespace

void GivenUnits::note(const std::string& flag, const Amount& amount, Quantity quantity) {
  if (quantity == Quantity::bytes) return;  // which are bytes with and without one
  if (amount.has_unit)
    with.push_back(flag);
  else if (quantity == Quantity::seconds && amount.value != 0)
    without.push_back(flag);
}

namespace {

// A number that may have a unit.
struct NumberFlag {
  const char* name;
  std::optional<double> TableNumbers::* number;
  Quantity quantity;
  const char* meaning;
};

void add_numbers(CLI::App& command, SimulateArguments& arguments, const std::vector<NumberFlag>& flags) {
  for (const NumberFlag& flag : flags)
    add_amount_option(
        command, flag.name, flag.quantity,
        [&arguments, flag](const Amount& amount) {
          arguments.numbers.*flag.number = amount.value;
          arguments.units.note(flag.name, amount, flag.quantity);
        },
        flag.meaning);
}

}  // namespace

void add_cost_options(CLI::App& command, SimulateArguments& arguments) {
  TableNumbers& numbers = arguments.numbers;
  using N = TableNumbers;
  constexpr Quantity kTime = Quantity::seconds;
  begin_group(command, groups::kTimes);
  add_numbers(
      command, arguments,
      {{"--forward", &N::forward, kTime,
        "Time of F, of one micro-batch and an actor's whole share, in any unit: all times given and said are in it [1]"},
       {"--backward", &N::backward, kTime, "Time of B, in that unit [input + weight]"},
       {"--input", &N::input, kTime, "Time of I, in that unit [half of backward, or 1]"},
       {"--weight", &N::weight, kTime, "Time of W, in that unit [half of backward, or 1]"},
       {"--recompute-time", &N::recompute, kTime, "Time of R, in that unit [forward's, or as measured]"},
       {"--offload-time", &N::offload, kTime, "Time to copy a micro-batch's activations to host memory, or back, in that unit [0]"}});
  command.add_option("--kept", numbers.kept, "Part of a micro-batch's activations that R and offloading leave there, from 0 to 1 [0]");
  add_numbers(command, arguments,
              {{"--gather", &N::gather, kTime,
                "Time to gather an actor's share of parameters, in that unit: every schedule shards them [not sharded]"},
               {"--reduce", &N::reduce, kTime, "Time to reduce the gradients of an actor's share, in that unit [0]"}});
  command.add_option("--parameters", numbers.parameters, "What an actor's share of parameters counts, in micro-batches' activations [0]");
  command.add_flag("--per-stage", numbers.per_stage, "All these are of each stage, with all its slices, not of an actor's whole share");
  add_numbers(command, arguments,
              {{"--latency", &N::latency, kTime, "Latency of every link, in that unit, or seconds with measured or published times [0]"},
               {"--bandwidth", &N::bandwidth, Quantity::bytes_per_second,
                "Bandwidth of every link, in bytes per unit of time, or per second [unlimited]"},
               {"--bytes", &N::bytes, Quantity::bytes, "Bytes of one transfer of a whole micro-batch [0]"}});
  command
      .add_option("--link", arguments.links, "One link, both directions: 2-3:latency=0.5,bandwidth=100, or latency=5us,bandwidth=25GB/s")
      ->type_name("A-B:latency=L[,bandwidth=B]")
      ->take_all()
      ->expected(1, -1);
  CLI::Option* costs =
      command.add_option("--costs", arguments.costs, "What penstock profile measured, in seconds, instead of the times above")
          ->type_name("FILE");
  command.add_option("--backend", numbers.backend, "Whose measured costs count")
      ->check(CLI::IsMember(backend_names()))
      ->capture_default_str()
      ->needs(costs);
}

double checked(const std::string& flag, double value) {
  if (!std::isfinite(value) || value < 0) fail(flag, number(value), "it must be a finite number, 0 or above");
  return value;
}

bool in_seconds(const SimulateArguments& arguments) {
  return !arguments.costs.empty() || !arguments.units.with.empty();
}

namespace {

TableNumbers numbers_of(const SimulateArguments& arguments, std::int32_t actors, GivenUnits& units) {
  TableNumbers numbers = arguments.numbers;
  check_ranges(numbers);
  for (const std::string& value : arguments.links) add_link(numbers.links, value, actors, units);
  for (const std::string& value : arguments.stragglers) add_straggler(numbers.slowdown, value, actors);
  return numbers;
}

}  // namespace

TableNumbers numbers_of(const SimulateArguments& arguments, std::int32_t actors) {
  GivenUnits units;  // plain numbers are seconds, too
  return numbers_of(arguments, actors, units);
}

TableNumbers table_numbers(const SimulateArguments& arguments, std::int32_t actors) {
  GivenUnits units = arguments.units;
  TableNumbers numbers = numbers_of(arguments, actors, units);
  check_together(numbers, !arguments.costs.empty());
  numbers.in_seconds = in_seconds(arguments);
  if (arguments.costs.empty()) {
    check_units(arguments, units);
    return numbers;
  }
  check_beside_costs(numbers, arguments.costs);
  numbers.measured = parse_costs(read_file(arguments.costs), arguments.costs);
  numbers.file = arguments.costs;
  return numbers;
}

}  // namespace penstock
