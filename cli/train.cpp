// penstock train
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/clusters.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/kernels.h"
#include "penstock/error.h"
#include "report/progress.h"
#include "report/table.h"
#include "report/timeline_html.h"
#include "report/timeline_json.h"
#include "runtime/checkpoint.h"
#include "runtime/generation.h"
#include "runtime/measured.h"
#include "runtime/stop_signal.h"
#include "runtime/training.h"

namespace penstock {
namespace {

constexpr std::int64_t kSampleTokens = 300;  // shown after training

struct TrainOptions {
  ConfigOptions config;
  bool json = false;
};

TrainingStart start_of(const TrainOptions& options, const Config& config, const Prepared& prepared, const ModelRegistry& models) {
  if (!options.config.resume.empty()) return start_from_checkpoint(config, options.config.resume, models);
  if (!options.config.init.empty()) return start_from_parameters(config, prepared, options.config.init);
  return fresh_start(config, prepared);
}

void print_beginning(const Config& config, const Prepared& prepared, const Dataset& data, const TrainingStart& start) {
  std::int64_t parameters = 0;
  for (const ParameterSpec& spec : prepared.parameters) parameters += spec.type.elements();
  const bool grouped = devices_in(prepared.replicas) > static_cast<int>(prepared.replicas.size());
  const std::string size = data.tokens() > 0 ? concat(" x ", data.tokens(), " tokens") : std::string(" samples");
  std::fprintf(stderr, "%s with %s parameters; %s on %d actors%s (%s), %d micro-batches of %d%s; %s\n", config.model.name.c_str(),
               short_number(static_cast<double>(parameters)).c_str(), prepared.schedule.name.c_str(),
               static_cast<int>(config.pipeline.actors), grouped ? concat(" of ", groups_text(prepared.replicas), " devices").c_str() : "",
               config.pipeline.backend.c_str(), static_cast<int>(config.pipeline.microbatches),
               static_cast<int>(config.train.batch / config.pipeline.microbatches), size.c_str(), data.summary().c_str());
  if (start.step > 0) std::fprintf(stderr, "resumed from %s\n", start.state.path.c_str());
  if (start.step > 0 && read_checkpoint(start.state.path).text != data.fingerprint())
    std::fprintf(stderr, "note: the data is not the one that the checkpoint was trained on\n");
}

std::string device_table(const Prepared& prepared, const TrainingResult& result) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < result.devices.size(); ++i) {
    const DeviceReport& device = result.devices[i];
    rows.push_back({concat(i), fixed(device.busy, 1) + " s", fixed(device.waiting, 1) + " s",
                    bytes_text(static_cast<double>(device.planned_bytes)), bytes_text(static_cast<double>(device.measured_bytes))});
  }
  return table({result.devices.size() > prepared.replicas.size() ? "device" : "actor", "busy", "waiting", "memory planned", "measured"},
               rows);
}

// timeline.json and, to look at, timeline.html, whose path this is.
std::string write_timeline(const Config& config, const TrainingPrograms& programs, const TrainingResult& result) {
  const std::string title = concat(config.model.name, ", ", config.pipeline.schedule, ", step ", result.recorded_step);
  const Timeline timeline = timeline_of(programs.training, result.recorded, title);
  const std::filesystem::path folder = config.run.out;
  write_file((folder / "timeline.json").string(), timeline_json(timeline));
  const std::string path = (folder / "timeline.html").string();
  write_file(path, timeline_html({title, {timeline}, {}}));
  return path;
}

std::string text_sample(const Config& config, const TrainingResult& result, const ModelRegistry& models) {
  StateSource state;
  state.kind = StateSource::Kind::checkpoint;
  state.path = result.checkpoint;
  GenerationOptions options;
  options.tokens = kSampleTokens;
  options.seed = config.train.seed;
  return generate(config, models, state, "", options,
                  [&](std::shared_ptr<const DataSource> data) { return local_cluster(1, config, std::move(data)); });
}

void print_json(const Config& config, const Dataset& data, const TrainingResult& result, const std::string& timeline) {
  nlohmann::ordered_json out = {{"step", result.last.step}, {"loss", result.last.loss}};
  if (result.validation_loss) out["validation_loss"] = *result.validation_loss;
  out["stopped"] = result.stopped;
  out["seconds"] = result.seconds;
  const std::int64_t amount = result.steps * config.train.batch * std::max<std::int64_t>(1, data.tokens());
  out[counted(data) + "_per_second"] = static_cast<double>(amount) / result.seconds;
  out["out"] = config.run.out;
  out["checkpoint"] = result.checkpoint;
  if (!timeline.empty()) out["timeline"] = timeline;
  for (const DeviceReport& device : result.devices)
    out["actors"].push_back({{"busy", device.busy},
                             {"waiting", device.waiting},
                             {"planned_bytes", device.planned_bytes},
                             {"measured_bytes", device.measured_bytes}});
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void train(const TrainOptions& options, const ModelRegistry& models) {
  const Config config = load_config(options.config, models);
  StopSignal stop;  // before any other thread
  const Prepared prepared = prepare(config, models);
  const TrainingStart start = start_of(options, config, prepared, models);
  check_run(config, start);
  const std::shared_ptr<const Dataset> data = make_dataset(config, *prepared.model);
  const std::unique_ptr<Cluster> cluster = configured_cluster(config, prepared.replicas, data);
  if (cluster == nullptr) return;
  TrainingPrograms programs = compile_programs(config, prepared);
  choose_kernels(config, programs.training);
  if (programs.evaluation) choose_kernels(config, *programs.evaluation);
  print_beginning(config, prepared, *data, start);

  TrainingResult result;
  {
    Progress progress(stderr, terminal_of(stderr), config.train.steps);
    TrainingHooks hooks;
    hooks.step = [&](const StepMetrics& metrics) { progress.show(metrics); };
    hooks.stop = [&] { return stop.requested(); };
    result = train(config, programs, start, *cluster, *data, hooks);
  }
  if (result.stopped) std::fprintf(stderr, "stopped by a signal after step %d\n", static_cast<int>(result.last.step));
  const std::string timeline = result.recorded_step > 0 ? write_timeline(config, programs, result) : std::string();
  if (options.json) {
    print_json(config, *data, result, timeline);
    return;
  }
  if (!result.stopped && prepared.model->generates())
    std::printf("\nA sample:\n%s\n", printable(text_sample(config, result, models)).c_str());
  std::printf("\n%scheckpoint  %s\n", device_table(prepared, result).c_str(), result.checkpoint.c_str());
  if (!timeline.empty()) std::printf("timeline    %s\n", timeline.c_str());
}

}  // namespace

void add_train(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command = program.add_subcommand("train", "Trains a model on real text, or on synthetic data where its model reads no text.");
  command->footer(
      "Example:\n  penstock train --schedule zb-h1 --actors 2 --steps 200 --text src docs --out runs/mine\n"
      "  penstock train --resume runs/mine --set train.steps=400");
  const auto options = std::make_shared<TrainOptions>();
  add_config_options(*command, options->config);
  command->add_flag("--json", options->json, "one JSON object on standard output");
  command->callback([options, &models] { train(*options, models); });
}

}  // namespace penstock
