// SPDX-License-Identifier: Apache-2.0
// Parses the flags that describe links and disturbances.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/simulate.h"
#include "penstock/error.h"
#include "program/backends.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

[[noreturn]] void fail(const std::string& flag, const std::string& value, const std::string& why, const std::string& hint = {}) {
  throw Error(concat(flag, " ", value, ": ", why), {}, hint);
}

double bandwidth_of(const std::string& flag, double value) {
  if (!(value > 0)) fail(flag, number(value), "a bandwidth is above 0");  // an infinite bandwidth means that transfers take no time
  return value;
}

std::int32_t device_of(const std::string& flag, const std::string& value, std::string_view text, std::int32_t devices) {
  const std::optional<std::int32_t> device = parse_number<std::int32_t>(text);
  if (!device) fail(flag, value, concat(quote(text), " is no actor's number"));
  if (*device < 0 || *device >= devices)
    fail(flag, value, concat("there is no actor ", *device), concat("there are ", devices, ": 0 to ", devices - 1));
  return *device;
}

constexpr const char* kLinkForm = "a link is written 2-3:latency=0.5,bandwidth=100, both directions at once";

void set(Link& link, const std::string& value, const std::string& setting) {
  const std::size_t equals = setting.find('=');
  const std::string key = setting.substr(0, equals);
  const std::optional<double> to = equals == std::string::npos ? std::nullopt : parse_number<double>(setting.substr(equals + 1));
  if (!to || (key != "latency" && key != "bandwidth")) fail("--link", value, concat("cannot read ", quote(setting)), kLinkForm);
  if (key == "latency")
    link.latency = checked(concat("--link ", value, ": latency"), *to);
  else
    link.bandwidth = bandwidth_of(concat("--link ", value, ": bandwidth"), *to);
}

void add_link(Network& network, const std::string& value, std::int32_t devices) {
  const std::size_t colon = value.find(':'), dash = value.find('-');
  if (colon == std::string::npos || dash == std::string::npos || dash > colon) fail("--link", value, "this is no link", kLinkForm);
  const std::int32_t a = device_of("--link", value, std::string_view(value).substr(0, dash), devices);
  const std::int32_t b = device_of("--link", value, std::string_view(value).substr(dash + 1, colon - dash - 1), devices);
  if (a == b) fail("--link", value, "a link is between two actors", kLinkForm);
  if (network.between.contains({a, b})) fail("--link", value, concat("link ", a, "-", b, " is given twice"));
  Link link = network.link;
  for (const std::string& setting : split(value.substr(colon + 1), ',')) set(link, value, setting);
  network.between[{a, b}] = network.between[{b, a}] = link;
}

}  // namespace

void add_cost_options(CLI::App& command, SimulateArguments& arguments) {
  begin_group(command, groups::kTimes);
  command.add_option("--forward", arguments.forward,
                     "Time of F, of one micro-batch and an actor's whole share, in any unit: all times given and said are in it [1]");
  command.add_option("--backward", arguments.backward, "Time of B, in that unit [input + weight]");
  command.add_option("--input", arguments.input, "Time of I, in that unit [half of backward, or 1]");
  command.add_option("--weight", arguments.weight, "Time of W, in that unit [half of backward, or 1]");
  command.add_option("--recompute-time", arguments.recompute, "Time of R, in that unit [forward's, or as measured]");
  command.add_option("--offload-time", arguments.offload,
                     "Time to copy a micro-batch's activations to host memory, or back, in that unit [0]");
  command.add_option("--kept", arguments.kept, "Part of a micro-batch's activations that R and offloading leave there, from 0 to 1 [0]");
  command.add_option("--gather", arguments.gather,
                     "Time to gather an actor's share of parameters, in that unit: every schedule shards them [not sharded]");
  command.add_option("--reduce", arguments.reduce, "Time to reduce the gradients of an actor's share, in that unit [0]");
  command.add_option("--parameters", arguments.parameters, "What an actor's share of parameters counts, in micro-batches' activations [0]");
  command.add_flag("--per-stage", arguments.per_stage, "All these are of each stage, with all its slices, not of an actor's whole share");
  command.add_option("--latency", arguments.latency,
                     "Latency of every link, in that unit, or seconds with measured or published times [0]");
  command.add_option("--bandwidth", arguments.bandwidth, "Bandwidth of every link, in bytes per unit of time, or per second [unlimited]");
  command.add_option("--bytes", arguments.bytes, "Bytes of one transfer of a whole micro-batch [0]");
  command.add_option("--link", arguments.links, "One link, both directions: 2-3:latency=0.5,bandwidth=100")
      ->type_name("A-B:latency=L[,bandwidth=B]")
      ->take_all()
      ->expected(1, -1);
  command.add_option("--costs", arguments.costs, "What penstock profile measured, in seconds, instead of the times above")
      ->type_name("FILE");
  command.add_option("--backend", arguments.backend, "Whose measured costs count")
      ->check(CLI::IsMember(backend_names()))
      ->capture_default_str();
}

double checked(const std::string& flag, double value) {
  if (!std::isfinite(value) || value < 0) fail(flag, number(value), "it must be a finite number, 0 or above");
  return value;
}

Network network_of(const SimulateArguments& arguments, std::int32_t devices, Network network) {
  if (arguments.latency) network.link.latency = checked("--latency", *arguments.latency);
  if (arguments.bandwidth) network.link.bandwidth = bandwidth_of("--bandwidth", *arguments.bandwidth);
  for (const std::string& value : arguments.links) add_link(network, value, devices);
  return network;
}

Disturbance disturbance_of(const SimulateArguments& arguments, std::int32_t devices) {
  Disturbance disturbance;
  if (!(arguments.jitter >= 0 && arguments.jitter < 1))
    fail("--jitter", number(arguments.jitter), "it is a share of each time: 0 or above, below 1");
  disturbance.jitter = arguments.jitter;
  disturbance.seed = arguments.seed;
  for (const std::string& value : arguments.stragglers) {
    const std::size_t equals = value.find('=');
    const std::optional<double> factor = equals == std::string::npos ? std::nullopt : parse_number<double>(value.substr(equals + 1));
    if (!factor) fail("--straggler", value, "this is no actor and factor", "actor 2 at half its speed is written 2=2");
    const std::int32_t device = device_of("--straggler", value, std::string_view(value).substr(0, equals), devices);
    if (!std::isfinite(*factor) || *factor <= 0) fail("--straggler", value, "the factor must be a finite number above 0");
    disturbance.slowdown.resize(static_cast<std::size_t>(devices), 1);
    disturbance.slowdown[static_cast<std::size_t>(device)] *= *factor;
  }
  return disturbance;
}

UnitCosts unit_costs(const SimulateArguments& arguments) {
  const auto given = [](const char* flag, const std::optional<double>& value, double otherwise) {
    return value ? checked(flag, *value) : otherwise;
  };
  UnitCosts costs;
  costs.forward = given("--forward", arguments.forward, 1);
  const double backward = given("--backward", arguments.backward, 2);
  costs.input = given("--input", arguments.input, backward / 2);
  costs.weight = given("--weight", arguments.weight, backward / 2);
  costs.backward = arguments.backward ? backward : costs.input + costs.weight;
  costs.bytes = given("--bytes", arguments.bytes, 0);
  return costs;
}

void set_memory_costs(const SimulateArguments& arguments, double share, TableCosts& costs, std::int32_t slices) {
  const double times = arguments.per_stage ? 1 : share;
  const auto set = [&](const char* flag, const std::optional<double>& value, std::initializer_list<Kind> kinds) {
    if (!value) return;
    for (StageCosts& stage : costs.stages)
      for (const Kind kind : kinds)
        stage.time[static_cast<std::size_t>(kind)] = (needs_microbatch(kind) ? times / slices : times) * checked(flag, *value);
  };
  set("--recompute-time", arguments.recompute, {Kind::R});
  set("--offload-time", arguments.offload, {Kind::OFFLOAD, Kind::RELOAD});
  set("--gather", arguments.gather, {Kind::UNSHARD});
  set("--reduce", arguments.reduce, {Kind::REDUCE_GRAD});
  if (arguments.reduce && !arguments.gather)
    throw Error("--reduce says nothing without --gather", {}, "give the time to gather an actor's share of parameters, 0 if it is nothing");
  if (arguments.kept.value_or(0) > 1) fail("--kept", number(*arguments.kept), "it is a part of a micro-batch's activations: from 0 to 1");
  for (StageCosts& stage : costs.stages) {
    stage.kept = stage.live * checked("--kept", arguments.kept.value_or(0));
    stage.parameters = share * checked("--parameters", arguments.parameters.value_or(0));
  }
}

void set_bytes(const SimulateArguments& arguments, std::int32_t slices, TableCosts& costs) {
  const double bytes = checked("--bytes", arguments.bytes.value_or(0)) / slices;
  for (StageCosts& stage : costs.stages) stage.forward_bytes = stage.backward_bytes = stage.weight_bytes = stage.gradient_bytes = bytes;
}

Schedule as_sharded(const SimulateArguments& arguments, Schedule schedule) {
  return arguments.gather ? with_gathers(std::move(schedule)) : std::move(schedule);
}

void check_bytes(const SimulateArguments& arguments) {
  const auto names_bandwidth = [](const std::string& link) { return link.find("bandwidth") != std::string::npos; };
  const bool bandwidth = arguments.bandwidth || std::any_of(arguments.links.begin(), arguments.links.end(), names_bandwidth);
  if (bandwidth && !arguments.bytes) throw Error("a bandwidth says nothing without --bytes", {}, "give the bytes of a transfer");
  if (arguments.bytes && !bandwidth && arguments.costs.empty())
    throw Error("--bytes says nothing without --bandwidth", {}, "give the bytes that a link moves per time");
}

}  // namespace penstock
