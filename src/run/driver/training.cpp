// SPDX-License-Identifier: Apache-2.0
#include "driver/training.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <memory>
#include <numeric>
#include <thread>

#include "base/text.h"
#include "base/words.h"
#include "driver/batch_stream.h"
#include "driver/outputs.h"
#include "driver/pending_checkpoint.h"
#include "formats/safetensors.h"
#include "lower/snapshot.h"
#include "penstock/error.h"
#include "program/flops.h"
#include "program/snapshot_name.h"
#include "state/not_finite.h"
#include "state/weight_files.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// Which steps are recorded: after caches and memory are warm, enough to have a middle one.
constexpr std::int64_t kFirstRecorded = 4, kRecorded = 9;
// Where batches have programs of their own, so many steps are shown, all of them.
constexpr std::int64_t kRecordedBatches = 20;
// So many steps say how fast the devices of an elastic run are.
constexpr std::int64_t kPaced = 20;

// The keys of the model that differ between two configurations, as "width: 64, here 128".
std::vector<std::string> model_differences(const Config::Model& theirs, const Config::Model& ours) {
  std::vector<std::string> out;
  if (theirs.name != ours.name) return {concat("name: ", theirs.name, ", here ", ours.name)};
  for (const auto& [key, value] : ours.numbers)
    if (theirs.numbers.at(key) != value) out.push_back(concat(key, ": ", theirs.numbers.at(key), ", here ", value));
  for (const auto& [key, value] : ours.words)
    if (theirs.words.at(key) != value) out.push_back(concat(key, ": ", theirs.words.at(key), ", here ", value));
  return out;
}

// The text of config.toml: how the run was started.
std::string started_with(const Config& config, const TrainingStart& start) {
  std::string out = "# What this run was started with: penstock train THIS-FILE --out FOLDER repeats it.\n";
  const auto from = [&] { return quote(fs::absolute(start.state.path).lexically_normal().string()); };
  if (start.init) out += concat("# It began with parameters: --init ", from(), "\n");
  if (start.state.kind == StateSource::Kind::checkpoint) out += concat("# It went on from a checkpoint: --resume ", from(), "\n");
  return out + print(with_absolute_paths(config));
}

// Tokens, or samples, of a batch.
std::int64_t amount_of(const Dataset& data, const std::vector<std::int64_t>& samples) {
  std::int64_t out = 0;
  for (const std::int64_t sample : samples) out += data.length(sample);
  return out > 0 ? out : std::ssize(samples) * std::max<std::int64_t>(1, data.tokens());
}

// The same of all batches ahead of this position.
std::int64_t amount_before(const Dataset& data, std::int64_t position) {
  std::int64_t out = 0;
  for (std::int64_t at = 0; at < position;) {
    const std::vector<std::int64_t> samples = data.training_samples(at);
    out += amount_of(data, samples);
    at += std::ssize(samples);
  }
  return out;
}

void add_up(const StepResult& step, std::int64_t steps, TrainingResult& result) {
  result.steps += steps;
  result.seconds += step.seconds;
  for (std::size_t i = 0; i < step.devices.size(); ++i) {
    DeviceReport& sum = result.devices[i];
    sum.busy += step.devices[i].busy;
    sum.waiting += step.devices[i].waiting;
    sum.planned_bytes = std::max(sum.planned_bytes, step.devices[i].planned_bytes);
    sum.measured_bytes = std::max(sum.measured_bytes, step.devices[i].measured_bytes);
  }
}

class Loop {
 public:
  explicit Loop(const TrainingRun& run)
      : run_(run),
        step_(run.start.step),
        position_(run.start.position),
        seen_(static_cast<double>(amount_before(run.data, run.start.position))),
        programs_(&run.programs),
        kept_{run.start.state, run.start.step, run.start.position},
        on_disk_(kept_),
        flops_(step_flops(run.programs.training)),
        first_recorded_(std::min(run.start.step + kFirstRecorded, run.config.train.steps)) {
    result_.devices.resize(run.programs.training.devices.size());
    result_.last.step = run.start.step;
    if (run.start.state.kind == StateSource::Kind::checkpoint) result_.checkpoint = run.start.state.path;
  }

  TrainingResult run() {
    try {
      load();
      run_.cluster.set_state(run_.start.state);
    } catch (const Error&) {
      go_on();
    }
    if (run_.hooks.begin) run_.hooks.begin();
    fs::create_directories(run_.config.run.out);
    write_file((fs::path(run_.config.run.out) / "config.toml").string(), started_with(run_.config, run_.start));
    MetricsFile metrics((fs::path(run_.config.run.out) / "metrics.jsonl").string());
    begin_stream();
    for (bool ended = false; !ended;) {
      try {
        ended = step_ >= run_.config.train.steps || stopping();
        if (!ended && run_.cluster.waiting() > 0) take_in();
        ended ? save() : turn(metrics);
      } catch (const Error&) {
        go_on();
        ended = false;
      }
    }
    result_.stopped = stopping();
    keep_usual_step();
    return std::move(result_);
  }

 private:
  // The state that a run can go back to, and where it was then.
  struct Kept {
    StateSource state;
    std::int64_t step, position;
    int generation = -1;  // of the snapshot that is that state; -1: `state` says it
  };

  bool keeps_snapshots() const { return run_.cluster.is_elastic() && run_.config.faults.snapshot_every > 0; }

  // The program that also keeps a snapshot of the generation that is not the last one, loaded.
  std::uint64_t program_with_snapshot() {
    if (stream_) return load_with_snapshot(*batch_.program);
    std::optional<std::uint64_t>& known = with_snapshot_[next_generation()];
    if (!known) known = load_with_snapshot(programs_->training);
    return *known;
  }
  std::uint64_t load_with_snapshot(const Program& training) {
    const int devices = static_cast<int>(training.devices.size()), of_host = static_cast<int>(run_.config.faults.devices_per_host);
    return run_.cluster.load(with_snapshot(training, next_generation(), buddies_of(devices, of_host > 0 ? of_host : devices)));
  }
  int next_generation() const { return kept_.generation == 0 ? 1 : 0; }
  // Whether the next step takes one: also for a checkpoint, which is written from it. One that would be written over what devices still
  // read waits until the disk has that; meanwhile the last one becomes older than it should be.
  bool takes_snapshot() const {
    if (!keeps_snapshots() || (pending_ && pending_->reads(next_generation()))) return false;
    const bool is_old = step_ - kept_.step >= run_.config.faults.snapshot_every;
    return is_old || is_snapshot_due_ || (is_checkpoint_due_ && !pending_);
  }

  void load() {
    training_ = run_.cluster.load(programs_->training);
    if (programs_->evaluation) evaluation_ = run_.cluster.load(*programs_->evaluation);
    with_snapshot_ = {};
    is_snapshot_due_ = true;  // what was kept may lie in one place only
  }

  // The steps that the program does at once, with what is due behind them.
  void turn(MetricsFile& metrics) {
    look_at_pending();
    std::vector<StepMetrics> measured = train_steps();
    if (programs_->evaluation && is_due(run_.config.train.validation_every)) measured.back().validation_loss = evaluate();
    check_validation(measured.back());
    if (measured.back().validation_loss) result_.validation_loss = measured.back().validation_loss;
    for (const StepMetrics& of_step : measured) {
      metrics.append(of_step);
      if (run_.hooks.step) run_.hooks.step(of_step);
    }
    result_.last = measured.back();
    if (!is_due(run_.config.run.checkpoint_every)) return;
    is_checkpoint_due_ = keeps_snapshots();
    if (!is_checkpoint_due_) save();
  }

  // Devices that have come are taken in, and what the others have is moved to where the programs for all want it.
  void take_in() {
    const int before = run_.cluster.devices();
    run_.cluster.regroup();
    plan();
    load();
    begin_stream();
    say(concat("at step ", step_, ": ", counted(run_.cluster.devices() - before, "device"), " came; ", going_on()));
  }

  // Goes back to the state that was kept, on the devices that are left. Rethrows the error under way where it is no failure of theirs.
  void go_on() try { throw; } catch (const Error& error) {
    const std::int64_t failed = step_ + 1;
    constexpr int kRepeats = 3;  // what fails so often in the same step on the same devices would fail for ever
    const bool repeats = failed == failed_step_ && repeats_ == kRepeats;
    if (!run_.cluster.is_elastic() || !run_.cluster.has_failed() || repeats) throw;
    const bool same_devices = regroup();
    repeats_ = failed == failed_step_ && same_devices ? repeats_ + 1 : 0;
    failed_step_ = failed;
    say(concat("in step ", failed, ": ", split(error.what(), '\n').front(), "; ", going_on(), " (", recovery_, ")"));
  }

  std::string going_on() const {
    const std::string predicted =
        programs_->predicted > 0 ? concat(", ", short_decimal(programs_->predicted, 3), " s a step predicted") : "";
    const int devices = run_.cluster.devices();
    return concat(counted(devices, "device"), devices == 1 ? " goes" : " go", " on from step ", step_, " as ", programs_->layout,
                  predicted);
  }

  void say(const std::string& line) const {
    if (run_.hooks.event) run_.hooks.event(line);
  }

  // Until the devices stay together for as long as it takes. Whether they are the same as before.
  bool regroup() {
    bool same = true;
    for (bool whole = false; !whole;) {
      std::vector<std::int32_t> as_before(static_cast<std::size_t>(run_.cluster.devices()));
      std::iota(as_before.begin(), as_before.end(), 0);
      recovery_ = "";
      note_time("connected", [&] { same = run_.cluster.regroup() == as_before && same; });
      note_time("planned", [&] { plan(); });
      try {
        note_time("loaded", [&] { load(); });
        note_time("state moved", [&] { restore(); });
        whole = true;
      } catch (const Error&) {
        if (!run_.cluster.has_failed()) throw;
      }
    }
    step_ = kept_.step;
    position_ = kept_.position;
    seen_ = static_cast<double>(amount_before(run_.data, position_));
    begin_stream();
    return same;
  }

  template <class Act>
  void note_time(const char* what, const Act& act) {
    const auto begin = std::chrono::steady_clock::now();
    act();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    recovery_ += concat(recovery_.empty() ? "" : ", ", what, " in ", short_decimal(seconds, 2), " s");
  }

  // The checkpoint takes the place of a snapshot of which a part was lost.
  void restore() {
    if (kept_.generation >= 0) {
      try {
        return run_.cluster.restore(kept_.generation);
      } catch (const Error& error) {
        if (run_.cluster.has_failed()) throw;
        say(concat("the snapshot of step ", kept_.step, " is lost: ", split(error.what(), '\n').front(), "; back to step ", on_disk_.step));
      }
      wait_for_pending();  // it may be the last one, and the one before be removed
      kept_ = on_disk_;
    }
    run_.cluster.set_state(kept_.state);
  }

  // The programs for the devices that there are now.
  void plan() {
    stream_.reset();
    if (pending_ && pending_->give_up()) is_checkpoint_due_ = true;
    replaced_ = run_.hooks.programs_on(run_.cluster.devices(), pace_);
    programs_ = &replaced_;
    flops_ = step_flops(programs_->training);
    result_.devices.resize(std::max(result_.devices.size(), programs_->training.devices.size()));
    usual_ = 0;
    recorded_.clear();
  }

  // The metrics of step `number` of those that the program does at once, which take equal parts of its time.
  StepMetrics metrics_of(const StepResult& result, const StepInput& input, std::int64_t number) const {
    const std::int64_t steps = programs_->steps;
    StepMetrics metrics;
    const auto output = [&](const std::string& name) {
      return scalar_output(programs_->training, result, steps == 1 ? name : concat(name, ".", number));
    };
    metrics.step = input.step + number;
    metrics.loss = output("loss");
    metrics.gradient_norm = output("gradient_norm");
    metrics.learning_rate = output("learning_rate");
    metrics.seconds = result.seconds / static_cast<double>(steps);
    metrics.counted = counted(run_.data);
    metrics.rate = static_cast<double>(amount_of(run_.data, input.samples)) / result.seconds;
    metrics.flops = flops_ / result.seconds;
    double busy = 0;
    for (const DeviceReport& device : result.devices) {
      busy += device.busy;
      metrics.peak_bytes.push_back(device.measured_bytes);
    }
    const double bubble = 1 - busy / (static_cast<double>(result.devices.size()) * result.seconds);
    metrics.bubble = bubble < 0 ? 0 : bubble;
    return metrics;
  }

  bool stopping() const { return stopping_ || (run_.hooks.stop && run_.hooks.stop()); }
  StepResult step(std::uint64_t program, const StepInput& input, bool record = false) {
    StepResult result = run_.cluster.step(program, input, record);
    stopping_ = stopping_ || result.stopping;
    return result;
  }
  // Whether one of the steps just done is the last, or a multiple.
  bool is_due(std::int64_t every) const {
    return step_ == run_.config.train.steps || (every > 0 && step_ / every > (step_ - programs_->steps) / every);
  }

  // Where batches have programs of their own, which the stream makes from this step on.
  void begin_stream() {
    if (!programs_->of_batch) return;
    const auto make = [this, first = position_](std::int64_t batch) {
      return programs_->of_batch(run_.data.training_samples(first + batch * run_.config.train.batch));
    };
    stream_.emplace(make, run_.config.train.steps - step_, run_.config.batch.ahead);
  }

  // In an elastic run a wait that takes ten times as long as a step is one for a device that is gone or stands still.
  double deadline() const { return run_.cluster.is_elastic() && usual_ > 0 ? 10 * usual_ + 1 : 0; }

  // Loads the program of the step's batch, and sets its samples in the program's order.
  BatchMetrics load_next(StepInput& input) {
    const auto begin = std::chrono::steady_clock::now();
    StreamedBatch next = stream_->next();
    batch_ = std::move(next.batch);
    input.samples = batch_.samples;
    input.begins = batch_.begins;
    const std::uint64_t program = run_.cluster.load(batch_.program);
    if (program != training_) run_.cluster.unload(std::exchange(training_, program));
    flops_ = step_flops(*batch_.program);
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return {.seconds = next.seconds,
            .waited = waited,
            .predicted = batch_.predicted,
            .microbatches = batch_.program->microbatches,
            .classes = batch_.classes,
            .new_classes = batch_.new_classes,
            .slices = most_slices(batch_.plan),
            .layers_again = layers_again(batch_),
            .recompute = recompute_of(run_.config, batch_.plan)};
  }

  // The steps that the program does at once.
  std::vector<StepMetrics> train_steps() {
    StepInput input{.step = step_ + 1, .seed = run_.config.train.seed, .steps = programs_->steps};
    std::optional<BatchMetrics> planned;
    if (stream_)
      planned = load_next(input);
    else
      for (std::int64_t step = 0; step < programs_->steps; ++step)
        std::ranges::copy(run_.data.training_samples(position_ + step * run_.config.train.batch), std::back_inserter(input.samples));
    const std::int64_t recorded = stream_ ? kRecordedBatches : kRecorded;
    const bool keeps = takes_snapshot();
    const std::uint64_t program = keeps ? program_with_snapshot() : training_;
    const bool is_shown = !keeps && input.step >= first_recorded_ && input.step < first_recorded_ + recorded;
    const bool is_paced = !keeps && run_.cluster.is_elastic() && pace_.steps() < kPaced && usual_ > 0 && !stream_;
    const bool record = is_shown || is_paced;
    input.deadline = deadline();
    StepResult result = step(program, input, record);
    if (keeps) {
      kept_ = {{}, step_, position_, next_generation()};
      is_snapshot_due_ = false;
      if (is_checkpoint_due_ && !pending_) begin_checkpoint();
      if (stream_) run_.cluster.unload(program);
    }
    usual_ = usual_ > 0 ? std::min(usual_, result.seconds) : result.seconds;
    if (is_paced) pace_.add(programs_->training, result);
    std::vector<StepMetrics> metrics;
    for (std::int64_t number = 0; number < programs_->steps; ++number) {
      metrics.push_back(metrics_of(result, input, number));
      seen_ += static_cast<double>(amount_of(run_.data, input.samples)) / static_cast<double>(programs_->steps);
      metrics.back().seen = seen_;
      metrics.back().planned = planned;
      check_finite(metrics.back());
    }
    step_ += programs_->steps;
    position_ += programs_->steps * run_.config.train.batch;
    add_up(result, programs_->steps, result_);
    if (is_shown && programs_->of_batch)
      result_.batches.push_back({step_, batch_, std::move(result)});
    else if (is_shown)
      recorded_.emplace_back(step_, std::move(result));
    return metrics;
  }

  // Keeps the recorded step with the median time.
  void keep_usual_step() {
    if (recorded_.empty()) return;
    const auto middle = recorded_.begin() + static_cast<std::ptrdiff_t>(recorded_.size() / 2);
    std::nth_element(recorded_.begin(), middle, recorded_.end(),
                     [](const auto& a, const auto& b) { return a.second.seconds < b.second.seconds; });
    result_.recorded_step = middle->first;
    if (programs_ == &replaced_) result_.replaced = std::move(replaced_.training);
    result_.recorded = std::move(middle->second);
  }

  // The one that is being written is older: it is kept.
  void check_finite(const StepMetrics& metrics) {
    if (std::isfinite(metrics.loss) && std::isfinite(metrics.gradient_norm)) return;
    wait_for_pending();
    throw Error(
        concat("step ", metrics.step, ": the loss is ", number(metrics.loss), ", the gradient norm ", number(metrics.gradient_norm)),
        {concat("learning rate ", number(metrics.learning_rate)), last_checkpoint()},
        "lower train.learning_rate, or clip gradients (train.clip)");
  }

  // The state may be finite where a loss is not: it is kept before the run ends.
  void check_validation(const StepMetrics& metrics) {
    if (std::isfinite(metrics.validation_loss.value_or(0))) return;
    save();
    throw Error(concat("step ", metrics.step, ": the validation loss is ", number(*metrics.validation_loss)), {last_checkpoint()},
                "lower train.learning_rate, or clip gradients (train.clip)");
  }

  std::string last_checkpoint() const {
    return result_.checkpoint.empty() ? "no checkpoint was written yet" : concat("the last checkpoint is ", result_.checkpoint);
  }

  // The validation loss; none where the run is stopped meanwhile: its checkpoint waits for no validation.
  std::optional<double> evaluate() {
    double loss = 0, count = 0;
    StepInput input{.step = step_, .seed = run_.config.train.seed, .validation = true};
    for (std::int64_t batch = 0; batch < run_.config.train.validation_batches; ++batch) {
      if (stopping()) return std::nullopt;
      input.samples = run_.data.validation_samples(batch);
      const StepResult result = step(evaluation_, input);
      loss += scalar_output(*programs_->evaluation, result, "loss_sum");
      count += scalar_output(*programs_->evaluation, result, "count");
    }
    return loss / count;
  }

  // Writes one of this step and position, with what saves the state.
  std::function<std::string(const SaveState&)> writer(std::int64_t step, std::int64_t position) const {
    Checkpoint info{.step = step, .position = position, .config = print(with_absolute_paths(run_.config)), .text = run_.data.fingerprint()};
    return [out = run_.config.run.out, info = std::move(info), keep = static_cast<int>(run_.config.run.keep),
            attempt = failed_checkpoints_](const SaveState& save) { return write_checkpoint(out, info, keep, save, attempt); };
  }

  void note_checkpoint(const std::string& folder, std::int64_t step, std::int64_t position) {
    result_.checkpoint = folder;
    on_disk_ = {{.kind = StateSource::Kind::checkpoint, .path = folder}, step, position};
  }

  // Writes the snapshot that was just taken, unless a run that went back has that checkpoint already.
  void begin_checkpoint() {
    is_checkpoint_due_ = false;
    if (kept_.step <= on_disk_.step) return;
    pending_kept_ = kept_;
    pending_ = std::make_unique<PendingCheckpoint>(run_.cluster, kept_.generation, writer(kept_.step, kept_.position));
  }

  // A checkpoint that could not be written is said, and the next one that is due tries again.
  void look_at_pending() {
    if (!pending_) return;
    try {
      const std::optional<std::string> folder = pending_->poll();
      if (!folder) return;
      note_checkpoint(*folder, pending_kept_.step, pending_kept_.position);
    } catch (const Error& error) {
      if (run_.cluster.has_failed()) throw;
      ++failed_checkpoints_;
      say(concat("the checkpoint of step ", pending_kept_.step, " could not be written: ", split(error.what(), '\n').front(), "; ",
                 last_checkpoint()));
    }
    pending_.reset();
  }

  void wait_for_pending() {
    constexpr std::chrono::milliseconds kBetweenLooks{5};
    for (look_at_pending(); pending_; look_at_pending()) std::this_thread::sleep_for(kBetweenLooks);
  }

  // The state of the present step, unless that is on disk: no step was made since, or the run went back to an older snapshot.
  void save() {
    wait_for_pending();
    if (step_ <= on_disk_.step) return;
    try {
      note_checkpoint(writer(step_, position_)([this](const std::string& folder) { return run_.cluster.save_state(folder); }), step_,
                      position_);
      if (!keeps_snapshots()) kept_ = on_disk_;
    } catch (const Error& error) {
      ++failed_checkpoints_;
      if (run_.cluster.has_failed()) throw;
      throw Error(concat("step ", step_, ": the checkpoint could not be written"), {error.what(), last_checkpoint()},
                  result_.checkpoint.empty() ? "" : "once that is mended, --resume goes on from the last one");
    }
  }

  const TrainingRun& run_;
  std::int64_t step_, position_;
  const TrainingPrograms* programs_;  // those of the run, or
  TrainingPrograms replaced_;         // others, since its devices changed
  Kept kept_, on_disk_;               // the last; the last that is no snapshot
  bool is_snapshot_due_ = false, is_checkpoint_due_ = false;
  // The programs that keep a snapshot of each generation, as far as they are loaded.
  std::array<std::optional<std::uint64_t>, kGenerations> with_snapshot_;
  int failed_checkpoints_ = 0;  // attempts
  std::string recovery_;        // what the last one took, in a phrase
  Pace pace_;
  double usual_ = 0;              // seconds of the fastest step on the present devices; 0: there was none yet
  std::int64_t failed_step_ = 0;  // that failed last, and how often again
  int repeats_ = 0;
  double seen_, flops_;  // tokens or samples since the first step; what the step's program takes
  std::int64_t first_recorded_;
  std::vector<std::pair<std::int64_t, StepResult>> recorded_;  // by step
  BatchStep batch_;                                            // where each step has a program of its own: this step's
  std::uint64_t training_ = 0, evaluation_ = 0;
  TrainingResult result_;
  bool stopping_ = false;                       // whether a device's process was asked to stop
  Kept pending_kept_ = {};                      // the state that this one has:
  std::unique_ptr<PendingCheckpoint> pending_;  // null: none is being written
  std::optional<BatchStream> stream_;           // where each batch has a program of its own; last: its thread uses the rest
};

}  // namespace

TrainingPrograms training_programs(const Config& config, const Prepared& prepared, const Dataset& data, std::int64_t position) {
  TrainingPrograms programs;
  programs.of_batch = batch_planner(config, prepared, data);
  programs.training = programs.of_batch ? *programs.of_batch(data.training_samples(position)).program : compile_training(config, prepared);
  programs.steps = prepared.schedule.steps;
  if (config.data.validation > 0) programs.evaluation = compile_evaluation(config, prepared);
  return programs;
}

namespace {

using Types = std::map<std::string, TensorType>;

constexpr std::string_view kPrefix = "transformer.";  // the class's, which names in some published GPT-2 files begin with

Types types_of(const std::vector<ParameterSpec>& parameters) {
  Types out;
  for (const ParameterSpec& spec : parameters) out[spec.name] = spec.type;
  return out;
}

// The types of the tensors in a file or folder (weight_files). Throws Error for a parameter's values that are not finite, and for what is
// not as its file's checksum says.
Types types_in(const std::string& path, const std::vector<ParameterSpec>& parameters) {
  std::map<std::string, SafetensorsFile> opened;
  const Types ours = types_of(parameters);
  Types out;
  for (const auto& [name, file] : weight_files(path)) {
    if (!opened.contains(file)) opened.emplace(file, SafetensorsFile::open(file)).first->second.check();
    const FileTensor& tensor = opened.at(file).tensors().at(name);
    out[name] = tensor.type;
    const bool prefixed = name.starts_with(kPrefix);
    if (!ours.contains(name) && !(prefixed && ours.contains(name.substr(kPrefix.size())))) continue;
    if (const std::string wrong = not_finite(tensor); !wrong.empty())
      throw Error(concat(file, ": ", quote(name), " has ", wrong), {}, "train from other parameters: these give no finite loss");
  }
  return out;
}

// Lists the faults of tensors of these types as the parameters of a model; adapters may be missing. Those that belong to it leave `left`.
std::vector<std::string> unfit(const std::vector<ParameterSpec>& parameters, Types& left, bool converts = true) {
  std::vector<std::string> problems;
  for (const ParameterSpec& spec : parameters) {
    auto found = left.find(spec.name);
    if (found == left.end()) found = left.find(concat(kPrefix, spec.name));
    if (found == left.end()) {
      if (!spec.adapter) problems.push_back(concat(quote(spec.name), " is missing"));
      continue;
    }
    const TensorType& type = found->second;
    if (type.shape != spec.type.shape || (!converts && type.dtype != spec.type.dtype))
      problems.push_back(concat(quote(found->first), " is ", type.text(), ", the model's is ", spec.type.text()));
    left.erase(found);
  }
  return problems;
}

void fail_unfit(const std::string& what, std::vector<std::string> problems, const std::string& hint) {
  if (problems.empty()) return;
  constexpr std::size_t kShown = 8;
  if (problems.size() > kShown) {
    problems[kShown] = concat("and ", problems.size() - kShown, " more");
    problems.resize(kShown + 1);
  }
  throw Error(what, problems, hint);
}

TrainingStart start_from_values(const Config& config, const Prepared& prepared, const std::string& file) {
  return {.state = {.kind = StateSource::Kind::safetensors, .seed = config.train.seed, .parameters = prepared.parameters, .path = file}};
}

// The types of the parameters in a checkpoint.
Types types_of_run(const Checkpoint& checkpoint, const ModelRegistry& models) {
  const Config theirs = parse_config(checkpoint.config, checkpoint.folder + "/manifest.json", {}, models);
  return types_of(prepare_sequential(theirs, models).parameters);
}

}  // namespace

TrainingStart fresh_start(const Config& config, const Prepared& prepared) {
  if (const std::string file = prepared.model->initial_values(); !file.empty()) {
    Types left = types_in(file, prepared.parameters);
    fail_unfit(concat(file, " has no values for parameters to begin with"), unfit(prepared.parameters, left),
               "--init FILE.safetensors takes them from another file");
    return start_from_values(config, prepared, file);
  }
  return {.state = {.seed = config.train.seed, .parameters = prepared.parameters}};
}

TrainingStart start_from_parameters(const Config& config, const Prepared& prepared, const std::string& path, const ModelRegistry& models) {
  std::error_code ignored;
  const bool is_run = fs::is_directory(path, ignored) && !is_pretrained(path);
  const Checkpoint checkpoint = is_run ? find_checkpoint(path).checkpoint : Checkpoint();
  const std::string file = is_run ? checkpoint.folder : path;
  Types left = is_run ? types_of_run(checkpoint, models) : types_in(file, prepared.parameters);
  std::vector<std::string> problems = unfit(prepared.parameters, left, /*converts=*/!is_run);
  for (const auto& [name, tensor] : left)
    if (is_run || (!name.ends_with(".attn.bias") && !name.ends_with(".attn.masked_bias") && !name.ends_with("lm_head.weight")))
      problems.push_back(concat(quote(name), " is unknown to the model"));
  fail_unfit(concat(file, ": these are not the parameters of this model"), std::move(problems),
             is_run ? "set the [model] table and train.dtype to those of the run" : "set the [model] table to the file's sizes");
  TrainingStart start = start_from_values(config, prepared, file);
  start.init = true;
  return start;
}

TrainingStart start_from_checkpoint(const Config& config, const std::string& path, const ModelRegistry& models) {
  FoundCheckpoint found = find_checkpoint(path);
  const Checkpoint& checkpoint = found.checkpoint;
  const Config theirs = parse_config(checkpoint.config, checkpoint.folder + "/manifest.json", {}, models);
  const std::vector<std::string> differences = model_differences(theirs.model, with_absolute_paths(config).model);
  if (!differences.empty())
    throw Error(concat(checkpoint.folder, " is of another model"), differences, "resume with the [model] table of the checkpoint");
  TrainingStart start{.state = {.kind = StateSource::Kind::checkpoint, .path = checkpoint.folder},
                      .step = checkpoint.step,
                      .position = checkpoint.position,
                      .before = theirs.train,
                      .text = checkpoint.text};
  for (const DamagedCheckpoint& damaged : found.damaged) start.damaged.insert(damaged.step);
  return start;
}

bool goes_on_in_place(const Config& config, const TrainingStart& start) {
  if (start.state.kind != StateSource::Kind::checkpoint) return false;
  std::error_code ignored;
  const fs::path checkpoint = fs::absolute(start.state.path).lexically_normal();
  // The checkpoint may be a link in the run's folder, or be named by a link that lies elsewhere.
  const fs::path named_in = (checkpoint.has_filename() ? checkpoint : checkpoint.parent_path()).parent_path(), lies_in = checkpoint / "..";
  return fs::equivalent(named_in, config.run.out, ignored) || fs::equivalent(lies_in, config.run.out, ignored);
}

void check_run(const Config& config, const TrainingStart& start) {
  if (start.step >= config.train.steps)
    throw Error(concat(start.state.path, " has done ", start.step, " of ", config.train.steps, " steps"), {}, "raise train.steps to go on");
  const std::vector<std::int64_t> steps = checkpoint_steps(config.run.out);
  if (steps.empty() || goes_on_in_place(config, start)) return;
  throw Error(concat(config.run.out, " already has checkpoint-", steps.back(), "; it is not overwritten"), {},
              concat("--resume ", config.run.out, " continues it, --out names another folder"));
}

TrainingResult train(const TrainingRun& run) {
  const auto& [config, programs, start, cluster, data, hooks] = run;
  if (const std::int64_t left = config.train.steps - start.step; left % programs.steps != 0)
    throw Error(concat("train.steps: ", left, " steps are left, and pipeline.window does ", programs.steps, " at a time"), {},
                concat("--steps ", start.step + left / programs.steps * programs.steps + programs.steps, ", or another window"));
  return Loop(run).run();
}

}  // namespace penstock
