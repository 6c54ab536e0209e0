// penstock size: how many GPUs and parameter servers.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cost/sizing.h"
#include "penstock/error.h"

namespace penstock {
namespace {

struct SizeArguments {
  std::optional<double> overhead, alpha, parameters, bandwidth, compute;
  std::optional<int> gpus, workers;
  bool json = false;
};

struct Answer {
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  std::string text;

  void add(const char* name, const nlohmann::ordered_json& value, const std::string& how) {
    values[name] = value;
    text += concat(name, std::string(24 - std::string_view(name).size(), ' '), value.dump(), "   ", how, "\n");
  }
};

double rounded(double value) {
  return std::stod(short_decimal(value, 6));
}

void size_gpus(const SizeArguments& given, Answer& out) {
  const double overhead = *given.overhead;
  if (!given.gpus && !given.alpha)
    throw Error("--overhead alone says nothing", {}, "add --gpus for their efficiency, or --alpha for the most GPUs that reach it");
  if (given.gpus) {
    out.add("efficiency", rounded(gpu_efficiency(overhead, *given.gpus)), "(1 + R) / (1 + G R)");
    out.add("simulated_efficiency", rounded(simulated_efficiency(overhead, *given.gpus)),
            "a table of G that share what the overhead takes");
  }
  if (!given.alpha) return;
  const int most = most_gpus(overhead, *given.alpha);
  out.add("most_gpus", most, "G <= (1 + R - alpha) / (alpha R)");
}

void size_servers(const SizeArguments& given, Answer& out) {
  const ParameterTraffic traffic{*given.parameters, *given.workers, *given.bandwidth, *given.compute};
  const int servers = parameter_servers(traffic);
  out.add("servers", servers, "2 S N / (B T), rounded up");
  out.add("exposed_seconds", rounded(exposed_traffic(traffic, servers)), "a step beyond its computing, simulated");
  if (servers > 1) out.add("exposed_with_one_fewer", rounded(exposed_traffic(traffic, servers - 1)), "the same with a server less");
}

void size(const SizeArguments& given) {
  const int of_servers = given.parameters.has_value() + given.workers.has_value() + given.bandwidth.has_value() + given.compute.has_value();
  if (!given.overhead && (given.gpus || given.alpha)) throw Error("--gpus and --alpha need --overhead", {}, "add --overhead");
  if (!given.overhead && of_servers == 0)
    throw Error("nothing is given", {}, "--overhead with --gpus or --alpha; or --parameters, --workers, --bandwidth and --compute");
  if (of_servers != 0 && of_servers != 4)
    throw Error(concat("servers follow from four figures, and ", of_servers, of_servers == 1 ? " is given" : " are given"), {},
                "give all of --parameters, --workers, --bandwidth and --compute");
  Answer out;
  if (given.overhead) size_gpus(given, out);
  if (of_servers == 4) size_servers(given, out);
  if (given.json)
    print_json(out.values);
  else
    std::cout << out.text;
}

}  // namespace

void add_size(CLI::App& app) {
  CLI::App* command = app.add_subcommand("size", "how many GPUs a job is worth, and how many parameter servers it needs (1709.06622)");
  const auto given = std::make_shared<SizeArguments>();
  command->add_option("--overhead", given->overhead, "R: what a GPU adds to a mini-batch by sending and waiting, over its computing");
  command->add_option("--gpus", given->gpus, "G: for their efficiency");
  command->add_option("--alpha", given->alpha, "an efficiency: for the most GPUs that reach it");
  command->add_option("--parameters", given->parameters, "S: their size, in any unit of bytes");
  command->add_option("--workers", given->workers, "N: that compute");
  command->add_option("--bandwidth", given->bandwidth, "B: of a server, in that unit per second");
  command->add_option("--compute", given->compute, "T: seconds that a worker computes for each mini-batch");
  command->add_flag("--json", given->json, "one JSON object");
  command->footer(
      "Example: penstock size --overhead 0.1 --gpus 4 --alpha 0.8\n"
      "         penstock size --parameters 0.1 --workers 8 --bandwidth 1.25 --compute 0.5");
  command->callback([given] { size(*given); });
}

}  // namespace penstock
