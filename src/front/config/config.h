// SPDX-License-Identifier: Apache-2.0
// A run's configuration: TOML with a default for every key, changed by overrides from the command line.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/compile.h"
#include "penstock/schedule.h"
#include "penstock/trace.h"

namespace penstock {

// The time at which a stage's parameters are updated: at the end of the step; as soon as the stage's gradients are complete (without
// clipping); or then, also with clipping, and made anew where clipping shortens the gradients.
enum class UpdateTime : std::uint8_t { end, by_stage, validated };

struct Config {
  struct Model {
    std::string name = "gpt";
    std::map<std::string, double> numbers;  // values of the keys that the registry's entry has
    std::map<std::string, std::string> words;
  } model;
  struct Data {
    std::vector<std::string> text;       // files or folders; empty: see default_text() of data/text_dataset.h
    std::vector<std::string> documents;  // files or folders of sequences with their own lengths (data/sequence_dataset.h), instead of text
    std::string tokenizer = "bytes";     // or a file (data/tokenizer.h)
    // Files of sequences that are an input and a target, instead of both. A model that reads pairs (Model::reads) has them apart; to any
    // other a pair is a text, of which only the target is learnt.
    std::vector<std::string> pairs;
    double validation = 0.05;  // share of the samples that is kept for validation
  } data;
  struct Train {
    std::int64_t steps = 400;
    std::int64_t batch = 16;          // sequences per step, over all micro-batches
    std::string optimiser = "adamw";  // of penstock/optimiser.h
    double learning_rate = 1e-3, final_fraction = 0.1;
    std::int64_t warmup = 20;  // steps
    // The way in which the learning rate falls to final_fraction of itself: cosine, linear, wsd (warm-up, stable, decay: linear, at the
    // end) or constant.
    std::string decay = "cosine";
    std::int64_t decay_end = 0;    // the step at which it has fallen; 0: the last one
    std::int64_t decay_steps = 0;  // steps that the fall takes; 0: all after the warm-up, but for wsd the last tenth of decay_end
    double clip = 1.0;             // limit of the global norm; 0: no clipping
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, momentum = 0.9;
    bool lazy_rows = false;     // rows of tables that no sample of a step names stay as they are (transform/passes.h, update_by_rows)
    std::string dtype = "f32";  // of the computation: "f32", "f64" or "bf16"
    std::int64_t seed = 0;
    std::int64_t validation_every = 50;  // steps; 0: only after the last
    std::int64_t validation_batches = 4;
  } train;
  // How a batch of sequences with lengths of their own is cut into micro-batches (batch/plan_batch.h). A micro-batch of n sequences of s
  // tokens takes fixed + n (s/linear + s^2/quadratic) milliseconds on a stage.
  struct Batch {
    std::string planner = "pad";            // of batch/batch_planners.h
    bool ragged = false;                    // searched puts all samples of a micro-batch one after the other in a row, not each in its own
    std::int64_t slices = 4;                // into which infinipipe and terapipe may cut a text, at most
    std::string costs;                      // a file of costs that `penstock profile` measured with a planner; "": the figures below
    std::int64_t candidates = 50;           // tables that a search tries for a batch
    Recompute recompute = Recompute::none;  // the most that planners may have computed again, where memory asks for it
    std::int64_t round = 0;                 // lengths round up to multiples of it; 0: of 8, and the lengths of ragged rows of 64
    double fixed = 0.5, linear = 33, quadratic = 5e4;
    double memory = 0;           // tokens that live on a stage at once, at most; 0: no limit
    double memory_limit = 0;     // bytes that a batch's program may plan on a device; 0: no limit
    std::int64_t ahead = 2;      // steps whose programs are made while the one before them runs
    std::int64_t classes = 200;  // shapes of micro-batches whose tasks are kept, those used last
    // For "dip": the encoder works on parts of at most `part` images (0: the least with nearly the best throughput), which take image_fixed
    // + images / image_linear milliseconds on a stage. At most `live` parts and texts live on an actor at once (0: any number).
    std::int64_t part = 0, live = 0;
    double image_fixed = 0.5, image_linear = 4;
    std::int64_t rollouts = 500, nodes = 20'000;  // tables that the search of "dip" tries, and those of its proof
  } batch;
  struct Pipeline {
    std::string plan;               // a file that says stages, actors, micro-batches and schedule; "": the model's own stages
    std::string schedule = "1f1b";  // a name, a CSV file, or a file of rules; "plan" where a plan says it
    // The options that shape the table. Two of them stay as they are here: how many slices there are, and parts of the vocabulary
    // (table_options of config/compile.cpp).
    ScheduleOptions table = {.microbatches = 8};
    // Slices of a sequence that stages work on one after the other (transform/slices.h): how many, or the length of each, in tokens or any
    // other unit.
    std::vector<double> slices = {1};
    // The options of the table's program, as far as a configuration says them; prepare() of config/compile.h says the others. Level -1 of
    // zero is as the schedule says: 3 where it gathers parameters, otherwise 0.
    CompileOptions program = {.zero = -1};
    // Each actor has `data` hosts of `program.local` devices, which share every micro-batch. Both are 1 where a plan says how many devices
    // each actor has.
    int data = 1;
    // Members of the axes over which each of these devices' tensors are split, as `layout` says, and the order of these axes in a device's
    // number: the last varies fastest.
    int expert = 1, context = 1, tensor = 1;
    std::vector<std::string> axes = {"expert", "context", "tensor"};
    // For each worker, how many of the model's stages each stage of the table has; none: all workers have one each.
    std::vector<std::vector<double>> workers;
    std::string backend = "threads";  // or "gloo" or "nccl", between processes
    UpdateTime update = UpdateTime::end;
    double deadline = 60;  // the most seconds that a device may wait for one thing
  } pipeline;
  // The axis over which each named dim of the model is split; "": over none. Dims that are not here are whole, but the batch, which is
  // split over data.
  std::map<std::string, std::string> layout = {
      {"experts", "expert"}, {"heads", "tensor"}, {"mlp", "tensor"}, {"sequence", "context"}, {"vocab", "tensor"}};
  // Axes along which Penstock finds itself what is split (config/chosen_layouts.h): no dim is mapped to them.
  std::vector<std::string> chosen_axes;
  // The user's own names of axes, and which they are: "model", "tensor". All that names an axis has these in their place: layouts, the
  // order of axes, and what is said of them.
  std::map<std::string, std::string> axis_names;
  // By stage, the dims for which it has another axis than `layout` says: [layout.STAGE].
  std::map<std::string, std::map<std::string, std::string>> stage_layout;
  struct Run {
    std::string out = "runs/gpt";
    std::int64_t checkpoint_every = 100;  // steps; 0: only at the end
    std::int64_t keep = 3;                // how many checkpoints stay
    // Kernels of f32 matrix products: "own", or a file that keeps the library measured fastest here for each product.
    std::string kernels = "own";
    std::string device = "cpu";  // where stages compute (base/device_name.h)
    bool replay = true;          // whether steps are recorded and replayed where the device can
    bool fuse = false;           // whether chains of ops are one generated kernel each, on devices that compile kernels
    std::string straggler;       // actors, or devices of them, that are held back, and by which factor: "1=2,3.0=1.5" (stragglers_of)
  } run;
  // A run whose devices may go and come (penstock launch --elastic).
  struct Faults {
    // Steps from one snapshot of the state, in the memory of two hosts, to the next: so many are done again at most when a device is lost.
    // 0: there are none, and it goes back to its last checkpoint.
    std::int64_t snapshot_every = 10;
    std::int64_t devices_per_host =
        0;  // consecutive devices that are lost together: a snapshot's second place is elsewhere; 0: all are one host's
  } faults;
  std::set<std::string> given;       // keys that the file or an override gave: "pipeline.actors"
  std::set<std::string> overridden;  // those of them that an override gave
};

int slices_of(const Config& config);
// Whether each batch has a program of its own.
bool plans_batches(const Config& config);
// run.straggler: by which factor each device is held back, of actors of so many devices. Throws Error where it names one that there is not,
// or a factor below 1.
std::vector<double> stragglers_of(const Config& config, const std::vector<int>& groups);
// In any unit; none: they are equal.
std::vector<std::int64_t> slice_lengths(const Config& config);

// Whether Penstock finds itself what is split along the axis.
bool is_chosen(const Config& config, const std::string& axis);

// `key = value`, the value as TOML or, for texts, unquoted. The key is "train.steps" or, where only one section has it, "steps".
struct Override {
  std::string key, value;
  std::string source;  // the name for messages: "--steps"
};
// Reads "train.steps=400", as in --set. Throws Error without '='.
Override parse_override(std::string_view text);

// Reads "pipe=2,data=4,tensor=2", as in --mesh: it sets pipeline.actors, data, local, tensor, context and expert, 1 for those not named,
// and the order of data and local, pipeline.local_outside, and of the last three, pipeline.axes. `names`: the user's own
// (Config::axis_names). Throws Error for anything else.
std::vector<Override> parse_mesh(std::string_view text, const std::map<std::string, std::string>& names = {});
// The same as an override that is read when the configuration says its names of axes.
Override mesh_override(std::string text);

// The name of the axis "tensor" or another of the six, where the configuration has its own, and which of them it names.
std::string axis_named(const Config& config, const std::string& axis);
std::string axis_of(const Config& config, const std::string& name);
// The dims that lie along axes where nothing says otherwise.
std::map<std::string, std::string> usual_layout(const Config& config);

// Devices that share every micro-batch, each with rows of its own, where no plan says it. The axes of a layout multiply them.
int devices_of_actor(const Config& config);
// The same with the members of these axes.
int devices_with_members(const Config& config);

// Throws Error with file:line:column (or the override's source): bad TOML, unknown model, unknown key (the nearest named), wrong type,
// value out of range, batch not divisible by the micro-batches.
Config parse_config(std::string_view toml, std::string_view file, const std::vector<Override>& overrides, const ModelRegistry& models);
// Takes the keys that pipeline.plan decides from the plan, in place of the file's. Throws Error where an override contradicts it, or the
// batch cannot be cut so.
void take_from_plan(Config& config, const std::vector<Override>& overrides);
// Whether the path is that of a configuration: a .toml file, or a model's own file (ModelEntry::suffixes).
bool names_config(const std::string& path, const ModelRegistry& models);
// Reads a file; an empty path stands for no file, and a model's own file (ModelEntry::suffixes) for that model. A schedule that is a table
// says how many actors and micro-batches there are unless they were given; a plan says both.
Config load_config(const std::string& path, const std::vector<Override>& overrides, const ModelRegistry& models);
// Reads the configuration of another run that print() stored in `file`, with overrides. A table among them says how many actors and
// micro-batches there are, as in load_config. `file` is the manifest of a checkpoint: throws Error, beside what parse_config throws, where
// what is to be written (run.kernels) lies outside of that checkpoint's run and is not overridden.
Config load_stored_config(std::string_view toml, std::string_view file, const std::vector<Override>& overrides,
                          const ModelRegistry& models);
// TOML that parse_config reads back.
std::string print(const Config& config);
// Makes every path absolute, so that a stored configuration means the same in any folder.
Config with_absolute_paths(Config config);

}  // namespace penstock
