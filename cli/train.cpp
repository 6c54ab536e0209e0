// SPDX-License-Identifier: Apache-2.0
// penstock train
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/stop.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/backend.h"
#include "cli/clusters.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/kernels.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "config/elastic.h"
#include "config/learning_rate.h"
#include "driver/generation.h"
#include "driver/ranks.h"
#include "driver/run_lock.h"
#include "driver/training.h"
#include "penstock/error.h"
#include "profile/measured.h"
#include "profile/recorded_batches.h"
#include "report/progress.h"
#include "report/table.h"
#include "report/timeline_html.h"
#include "report/timeline_json.h"
#include "state/checkpoint.h"
#include "trace/decays.h"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

// Shown after training: so many tokens, or what comes in so many seconds. It needs a program of its own: none where the run's took longer.
constexpr std::int64_t kSampleTokens = 300;
constexpr std::chrono::seconds kSampleSeconds{5}, kCompileSeconds{10};

struct TrainOptions {
  ConfigOptions config;
  bool resume_or_start = false, changed_text = false;
  bool json = false;
};

// With --resume-or-start: resumes what there is to resume.
ConfigOptions settled(const TrainOptions& options, const ModelRegistry& models) {
  ConfigOptions out = options.config;
  if (!options.resume_or_start) return out;
  const std::string folder = load_config(out, models).run.out;
  if (!checkpoint_steps(folder).empty()) out.resume = folder;
  return out;
}

// A run goes on with the data that it has read, unless the user says otherwise.
void check_data(const TrainOptions& options, const TrainingStart& start, const Dataset& data) {
  if (!start.before || options.changed_text || start.text == data.fingerprint()) return;
  throw Error(concat(start.state.path, " was trained on other data"),
              {concat("here is ", data.summary()), "their names, sizes, contents or tokenizers differ"},
              "name the same text (--text), or go on with this one by --changed-text");
}

// The run's folder, where this process writes into it.
void take_folder(const Config& config, const TrainingStart& start, std::optional<RunLock>& lock) {
  const std::optional<Ranks> ranks = ranks_from_environment();
  if (ranks && ranks->rank != 0) return;
  lock.emplace(config.run.out);
  check_run(config, start);
}

// Gives up the checkpoints behind the step that the run goes on from in its folder: they are kept under other names.
void set_later_aside(const Config& config, const TrainingStart& start, const Log& log) {
  if (!goes_on_in_place(config, start)) return;
  for (const auto& [step, folder] : checkpoint_folders(config.run.out))
    if (step > start.step)
      log.say(concat("note: the run goes on from step ", start.step, ": ", folder, " is ",
                     set_aside(folder, start.damaged.contains(step) ? "damaged" : "later"), " from now on"));
}

void print_finished(const TrainOptions& options, const Config& config, const TrainingStart& start) {
  options.config.log.say(concat(start.state.path, " has done all ", start.step, " steps"));
  if (options.json)
    print_json(nlohmann::ordered_json{
        {"step", start.step}, {"stopped", false}, {"seconds", 0}, {"out", config.run.out}, {"checkpoint", start.state.path}});
}

// Prints how a resumed run goes on: from which checkpoint, with which learning rate and, where it is another one, seed.
void print_resumed(const Config& config, const TrainingStart& start, const Log& log) {
  log.say("resumed from " + start.state.path);
  const std::string rate = learning_rate_text(config.train), before = learning_rate_text(*start.before);
  const bool over = find_decay(config.train.decay).falls() && end_of_decay(config.train) < config.train.steps;
  log.say(concat("learning rate ", rate, rate == before ? ", as before" : concat("; before: ", before),
                 over ? concat("; --set decay_end=", config.train.steps, " lets it fall until the last step") : ""));
  if (config.train.seed != start.before->seed)
    log.say(concat("seed ", config.train.seed, "; before: ", start.before->seed, ", so the data come in another order from here on"));
}

void print_beginning(const Config& config, const Prepared& prepared, const Dataset& data, const TrainingStart& start, const Log& log) {
  std::int64_t parameters = 0;
  for (const ParameterSpec& spec : prepared.parameters) parameters += spec.type.elements();
  const std::vector<int> devices = devices_of_actors(prepared);
  const bool grouped = devices_in(devices) > static_cast<int>(devices.size());
  const std::string size = data.tokens() > 0 ? concat(" x ", data.tokens(), " tokens") : std::string(" samples");
  log.say(concat(config.model.name, " with ", short_number(static_cast<double>(parameters)), " parameters; ", prepared.schedule.name,
                 " on ", counted(config.pipeline.table.actors, "actor"),
                 grouped ? concat(" of ", groups_text(devices), " devices") : ", a device each", " (", config.pipeline.backend, "), ",
                 counted(config.pipeline.table.microbatches, "micro-batch"), " of ",
                 config.train.batch / config.pipeline.table.microbatches, size, "; ", data.summary()));
  say_sizes(prepared, log);
  if (start.before) print_resumed(config, start, log);
  const bool is_random = !start.before && !start.init && prepared.model->initial_values().empty();
  if (is_random && std::ranges::any_of(prepared.parameters, &ParameterSpec::adapter))
    log.say("note: adapters alone are trained, and the parameters beside them are random: --init FILE takes a trained model's");
}

std::string device_table(const TrainingResult& result) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < result.devices.size(); ++i) {
    const DeviceReport& device = result.devices[i];
    const auto text = [](double seconds) { return std::isfinite(seconds) ? fixed(seconds, 1) + " s" : std::string("-"); };
    rows.push_back({concat(i), text(device.busy), text(device.waiting), bytes_text(static_cast<double>(device.planned_bytes)),
                    bytes_text(static_cast<double>(device.measured_bytes))});
  }
  return table({"device", "busy", "waiting", "memory planned", "measured"}, rows);
}

// timeline.json and, to look at, timeline.html, whose path this is: a usual step or, where each has a program of its own, some consecutive
// ones as predicted (where they were) and as measured. "": nothing was recorded.
std::string write_timeline(const Config& config, const Prepared& prepared, const TrainingPrograms& programs, const TrainingResult& result) {
  std::string title = concat(config.model.name, ", ", config.pipeline.schedule, ", step ", result.recorded_step);
  std::vector<Timeline> timelines;
  if (!result.batches.empty()) {
    title = concat(config.model.name, ", ", config.batch.planner);
    timelines = timelines_of(result.batches);
  } else if (result.recorded_step > 0) {
    timelines = {timeline_of(result.replaced ? *result.replaced : programs.training, result.recorded, title)};
    timelines[0].slices = prepared.schedule.slices;
    timelines[0].blocks = prepared.schedule.blocks;
  } else {
    return {};
  }
  const std::filesystem::path folder = config.run.out;
  write_file((folder / "timeline.json").string(), timeline_json(timelines.back()));
  const std::string path = (folder / "timeline.html").string();
  write_file(path, timeline_html({title, timelines, {}}));
  return path;
}

// The run has ended well: what it has trained stays, whatever becomes of its timeline.
std::string written_timeline(const Config& config, const Prepared& prepared, const TrainingPrograms& programs,
                             const TrainingResult& result) {
  const auto fail = [&](const std::string& reason) {
    throw Error(concat("the timeline of ", config.run.out, " could not be written"),
                {reason, concat("training has ended, the last checkpoint is ", result.checkpoint)});
  };
  try {
    return write_timeline(config, prepared, programs, result);
  } catch (const std::bad_alloc&) {
    fail("this machine has no memory left for it");
  } catch (const std::exception& error) {
    fail(error.what());
  }
  return {};
}

std::string generated(const Config& config, const TrainingResult& result, const ModelRegistry& models) {
  const StateSource state{.kind = StateSource::Kind::checkpoint, .path = result.checkpoint};
  const std::chrono::duration<double> seconds = kSampleSeconds;
  return generate(config, models, state, {.prompt = {}, .tokens = kSampleTokens, .seed = config.train.seed, .seconds = seconds.count()},
                  [&](std::shared_ptr<const DataSource> data) { return local_cluster(1, config, std::move(data)); });
}

// A model that knows nothing has a loss of ln(vocabulary), and what it draws is noise. Below two thirds of it words begin to show.
bool is_text_by_now(const Config& config, const TrainingResult& result) {
  const auto vocabulary = config.model.numbers.find("vocabulary");
  if (vocabulary == config.model.numbers.end() || !(vocabulary->second > 1)) return true;
  return result.last.loss < std::log(vocabulary->second) * 2 / 3;
}

// The run has ended well, whatever becomes of the sample.
void print_sample(const Config& config, const TrainingResult& result, const ModelRegistry& models, const Log& log) {
  if (!is_text_by_now(config, result))
    return log.say(concat("no sample: at a loss of ", fixed(result.last.loss, 2), " it would be no text yet; more --steps lower it"));
  try {
    std::printf("\nA sample:\n%s\n", printable(generated(config, result, models)).c_str());
  } catch (const std::exception& error) {
    log.say(concat("no sample: ", error.what()));
  }
}

void print_result(const Config& config, const Dataset& data, const TrainingResult& result, const std::string& timeline) {
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
  print_json(out);
}

// The fastest of the ways in which the run fits these devices.
TrainingPrograms programs_on(int devices, const Pace& pace, const Config& config, const Dataset& data, const ModelRegistry& models) {
  std::string refused;
  std::optional<TrainingPrograms> best;
  for (const RunLayout& layout : layouts_on(config, devices)) {
    try {
      TrainingPrograms programs = training_programs(layout.config, prepare(layout, models), data, 0);
      if (static_cast<int>(programs.training.devices.size()) > devices)
        throw Error(concat("the layout needs ", programs.training.devices.size(), " devices"));
      choose_kernels(config, programs.training);
      if (programs.evaluation) choose_kernels(config, *programs.evaluation);
      programs.layout = text_of(layout);
      programs.predicted = pace.predict(programs.training);
      if (!best || programs.predicted < best->predicted) best = std::move(programs);
    } catch (const Error& error) {
      refused += concat(text_of(layout), ": ", error.what(), "\n");
    }
  }
  if (best) return std::move(*best);
  throw Error(concat("the run does not fit ", counted(devices, "device")), split(refused, '\n'), "start it again on more");
}

void train(const TrainOptions& options, const ModelRegistry& models) {
  const Log& log = options.config.log;
  const ConfigOptions settings = settled(options, models);
  const Config config = load_config(settings, models);
  const std::future<void> loading = load_backend();
  const Prepared prepared = prepare(config, models);
  const TrainingStart start = start_of(settings, config, prepared, models);
  if (options.resume_or_start && start.step >= config.train.steps) return print_finished(options, config, start);
  std::optional<RunLock> lock;
  take_folder(config, start, lock);
  const std::shared_ptr<const Dataset> data = make_dataset(config, *prepared.model);
  check_data(options, start, *data);
  std::unique_ptr<Cluster> cluster = configured_cluster("train", config, devices_of_actors(prepared), data);
  if (cluster == nullptr) return;
  const Clock::time_point begin = Clock::now();
  TrainingPrograms programs = training_programs(config, prepared, *data, start.position);
  const bool compiled_soon = Clock::now() - begin < kCompileSeconds;
  choose_kernels(config, programs.training);
  if (programs.evaluation) choose_kernels(config, *programs.evaluation);
  print_beginning(config, prepared, *data, start, log);

  TrainingResult result;
  std::optional<StopLater> later;  // until all is written and said
  {
    std::optional<Progress> progress;
    if (!log.quiet && !log.verbose) progress.emplace(stderr, terminal_of(stderr), config.train.steps, peak_of(config, cluster->devices()));
    const auto begin_run = [&] {
      later.emplace();
      set_later_aside(config, start, log);
    };
    const auto show = [&](const StepMetrics& metrics) {
      if (progress) progress->show(metrics);
      const std::string line = progress_text(metrics, config.train.steps);
      log.verbose ? log.say(line) : log.keep(line);
    };
    const auto say = [&](const std::string& line) { log.say(line); };
    result = penstock::train(
        {config,
         programs,
         start,
         *cluster,
         *data,
         {.begin = begin_run, .step = show, .stop = stop_requested, .event = say, .programs_on = [&](int count, const Pace& pace) {
            return programs_on(count, pace, config, *data, models);
          }}});
  }
  if (result.stopped) log.say(concat("stopped by a signal after step ", result.last.step));
  const std::string timeline = written_timeline(config, prepared, programs, result);
  if (options.json) {
    print_result(config, *data, result, timeline);
  } else {
    std::printf("\n%scheckpoint  %s\n", device_table(result).c_str(), result.checkpoint.c_str());
    if (!timeline.empty()) std::printf("timeline    %s\n", timeline.c_str());
  }
  cluster.reset();
  later.reset();
  if (result.stopped) throw CLI::RuntimeError(128 + SIGTERM);  // another rank got the signal
  if (!options.json && compiled_soon && prepared.model->generates()) print_sample(config, result, models, log);
}

}  // namespace

void add_train(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command = program.add_subcommand("train", "Trains a model on real text, or on synthetic data where its model reads no text");
  command->footer(
      "Example:\n  penstock train --schedule zb-h1 --actors 2 --steps 200 --text src docs --out runs/mine\n"
      "  penstock train --resume runs/mine --set train.steps=400\n"
      "  penstock train --resume-or-start --out runs/mine --steps 400");
  const auto options = std::make_shared<TrainOptions>();
  add_config_options(*command, options->config);
  begin_group(*command, groups::kWhat);
  command->add_flag("--changed-text", options->changed_text, "With --resume: go on although the text is not the one of the checkpoint");
  command
      ->add_flag("--resume-or-start", options->resume_or_start,
                 "Resume the run in --out where it has a checkpoint, and start it where not: one command for launchers that start again")
      ->excludes("--resume");
  add_json_flag(*command, options->json);
  command->callback([command, options, &models] {
    const bool resumes = options->resume_or_start || !options->config.resume.empty();
    check_beside(*command, {{{"--changed-text"}, resumes, "--resume RUN or --resume-or-start"}});
    train(*options, models);
  });
}

}  // namespace penstock
