// SPDX-License-Identifier: Apache-2.0
// penstock profile
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/device_name.h"
#include "base/text.h"
#include "cli/backend.h"
#include "cli/clusters.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/kernels.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "data/dataset.h"
#include "driver/training.h"
#include "penstock/error.h"
#include "profile/profile.h"
#include "profile/profile_batches.h"
#include "profile/unsteady.h"
#include "profile/workbench.h"
#include "program/backends.h"
#include "report/table.h"

namespace penstock {
namespace {

struct ProfileFlags {
  ConfigOptions config;
  int rounds = 10;
  bool json = false;
};

// The costs that an earlier profile left in the file; none where there is no file. It is checked before anything is measured.
std::optional<Costs> earlier_costs(const std::string& file, const Costs& description) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path folder = fs::path(file).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ignored))
    throw Error(concat(file, " cannot be written: there is no folder ", folder.string()));
  if (!fs::exists(file, ignored)) return std::nullopt;
  Costs costs = parse_costs(read_file(file), file);
  merge(costs, description, file);
  return costs;
}

std::vector<Program> programs_of(const Config& config, Prepared& prepared) {
  std::vector<Program> programs;
  prepared.options.others.clear();  // workers with other stages have the same tasks
  for (Schedule& table : profiled_tables(prepared.schedule)) {
    prepared.schedule = std::move(table);
    programs.push_back(compile_training(config, prepared));
    choose_kernels(config, programs.back());
  }
  return programs;
}

// Whole batches of training, halves, quarters and eighths of them, each planned as training would plan it.
BatchProfileOptions batch_profile(const Config& config, const Dataset& data, int rounds) {
  BatchProfileOptions out{
      .batches = {}, .split = config.pipeline.table.split_backward, .recompute = plans_recomputation(config), .seed = config.train.seed};
  for (int round = 0; round < rounds; ++round) {
    for (const std::int64_t share : {1, 2, 4, 8}) {
      std::vector<std::int64_t> samples = data.training_samples(round * config.train.batch);
      const auto members = static_cast<std::size_t>(devices_of_actor(config));
      samples.resize(std::max<std::size_t>(1, samples.size() / members / static_cast<std::size_t>(share)) * members);
      out.batches.push_back(std::move(samples));
    }
  }
  return out;
}

std::string milliseconds(const std::optional<Sample>& sample) {
  if (!sample) return "-";
  const double spread = sample->median > 0 ? 100 * sample->spread / sample->median : 0;
  return concat(fixed(1e3 * sample->median, 3), " +- ", fixed(spread, 1), " %");
}

std::string summary(const Costs& costs) {
  std::vector<std::string> header = {"task", "action", "alone, ms", "busy, ms"};
  std::vector<std::string> backends;
  for (const auto& [backend, ignored] : costs.step_overhead) backends.push_back(backend);
  for (const std::string& backend : backends) header.push_back(concat("in a step (", backend, "), ms"));
  std::vector<std::vector<std::string>> rows;
  for (const TaskCost& task : costs.tasks) {
    rows.push_back({task.name, task.stage < 0 ? "-" : concat(name(task.kind), " of stage ", task.stage, "/", task.stages),
                    milliseconds(task.alone), milliseconds(task.busy)});
    for (const std::string& backend : backends) {
      const auto found = task.beside.find(backend);
      rows.back().push_back(milliseconds(found == task.beside.end() ? std::nullopt : std::optional(found->second)));
    }
  }
  std::string out = concat(costs.model, "\n", costs.machine.processor, ", ", costs.machine.cores, " cores, ", costs.machine.build, "\n\n");
  if (!rows.empty()) out += table(header, rows) + "\n";
  rows.clear();
  for (const auto& [backend, link] : costs.links)
    rows.push_back({backend, fixed(1e6 * link.latency, 1), fixed(1e-9 * link.bandwidth, 1), fixed(1e6 * link.start_seconds, 2),
                    fixed(1e6 * link.wake_seconds, 2)});
  for (const auto& [backend, kinds] : costs.collectives)
    for (const auto& [opcode, link] : kinds)
      rows.push_back({concat(name(opcode), " (", backend, ")"), fixed(1e6 * link.latency, 1), fixed(1e-9 * link.bandwidth, 1),
                      fixed(1e6 * link.start_seconds, 2), ""});
  if (!rows.empty()) out += table({"link", "latency, us", "GB/s", "start, us", "wake, us"}, rows) + "\n";
  rows.clear();
  for (const auto& [backend, fit] : costs.batches) {
    out += concat("batches planned one by one (", backend, ", ", fit.stages, " stages", "): a step takes ", fixed(1e3 * fit.beyond, 2),
                  " ms beyond its table; steps differ from that by ", fixed(100 * fit.spread, 1), " % in the middle\n");
    for (const ActionFit& action : fit.actions) {
      std::vector<std::string> row = {concat(name(action.kind), " of stage ", action.stage)};
      for (const double amount : action.per_amount) row.push_back(fixed(1e6 * amount, amount > 1e-5 ? 1 : 6));
      rows.push_back(std::move(row));
    }
  }
  if (!rows.empty()) out += table({"us", "each", "per row", "per input", "its square", "per target", "its square", "product"}, rows) + "\n";
  rows.clear();
  for (const auto& [backend, seconds] : costs.step_overhead)
    rows.push_back({concat("a step beyond its work (", backend, ")"), fixed(1e6 * seconds, 1)});
  for (const auto& [port, seconds] : costs.input_seconds) rows.push_back({concat("input ", port), fixed(1e6 * seconds, 2)});
  return rows.empty() ? out : out + table({"also", "us"}, rows);
}

// The costs file as JSON, with the unsteady times in it.
nlohmann::ordered_json json_of(const Costs& costs, const std::vector<UnsteadyTime>& unsteady) {
  nlohmann::ordered_json out = nlohmann::ordered_json::parse(print(costs));
  out["unsteady"] = nlohmann::ordered_json::array();
  for (const auto& [task, where, sample] : unsteady)
    out["unsteady"].push_back({{"task", task}, {"where", where}, {"median", sample.median}, {"spread", sample.spread}});
  return out;
}

// A null cluster means that this process was not the controller. Only threads of the host run their tasks without communication.
ProfileCluster cluster_of(const Config& config, const std::vector<int>& groups, const std::shared_ptr<const DataSource>& data) {
  if (find_backend(config.pipeline.backend).processes || !is_host(config.run.device))
    return {nullptr, configured_cluster("profile", config, groups, data)};
  check_processes(config);
  ClusterOptions options;
  options.deadline = config.pipeline.deadline;
  return make_profile_cluster(devices_in(groups), executors_of(config, groups), data, options);
}

void profile(const ProfileFlags& options, const ModelRegistry& models) {
  const Config config = load_config(options.config, models);
  const std::future<void> loading = load_backend();
  const std::string& file = config.run.out;
  Costs description;
  description.machine = describe_machine(concat("libtorch ", backend().version()), backend().processor(config.run.device));
  description.model = describe_model(config);
  std::optional<Costs> costs = earlier_costs(file, description);

  Prepared prepared = prepare(config, models);
  const std::shared_ptr<const Dataset> data = make_dataset(config, *prepared.model);
  const ProfileCluster devices = cluster_of(config, devices_of_actors(prepared), data);
  if (!devices.cluster) return;
  const StateSource state = fresh_start(config, prepared).state;
  ProfileOptions profiling = profile_options(config, options.rounds);
  profiling.input = [&](std::int64_t number, const Program& program) {
    return training_input(config, *data, number, program.microbatches / step_microbatches(prepared));
  };
  profiling.progress = [&log = options.config.log](const std::string& text) { log.say("profile: " + text); };
  Costs measured;
  if (!plans_batches(config)) {
    measured = measure_costs(*devices.cluster, devices.isolation.get(), programs_of(config, prepared), state, profiling);
  } else {
    BatchSteps steps(config, prepared, *data);
    BatchProfileOptions batches = batch_profile(config, *data, options.rounds);
    batches.progress = profiling.progress;
    BatchFit& fit = measured.batches[config.pipeline.backend] = measure_batches(*devices.cluster, steps, state, batches);
    fit.under = measured_under(config);
  }
  measured.machine = description.machine;
  measured.model = description.model;
  if (costs) {
    merge(*costs, measured, file);
  } else {
    costs = std::move(measured);
  }
  write_file(file, print(*costs));
  const std::vector<UnsteadyTime> unsteady = unsteady_times(*costs);
  std::fputs(unsteady_text(unsteady).c_str(), stderr);
  if (options.json) return print_json(json_of(*costs, unsteady));
  std::fputs(summary(*costs).c_str(), stdout);
}

}  // namespace

void add_profile(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command = program.add_subcommand("profile", "Measures times of tasks and links of this machine, for simulate and plan");
  command->footer(
      "Example:\n  penstock profile examples/gpt.toml --out costs.json\n"
      "  penstock launch -n 2 -- profile examples/gpt.toml --backend gloo --out costs.json\n"
      "The second adds what it measures to the first one's file.");
  const auto options = std::make_shared<ProfileFlags>();
  add_config_options(*command, options->config);
  command->get_option("--out")
      ->required()
      ->description("The file of costs; what it has for this machine and model is kept or replaced")
      ->type_name("FILE")
      ->default_str("");
  begin_group(*command, groups::kModel);
  command->add_option("--rounds", options->rounds, "Measured steps of each program [10]")->check(CLI::Range(1, 100000));
  add_json_flag(*command, options->json);
  command->callback([options, &models] { profile(*options, models); });
}

}  // namespace penstock
