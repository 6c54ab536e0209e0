// SPDX-License-Identifier: Apache-2.0
#include "config/compile.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "base/words.h"
#include "config/mesh.h"
#include "config/planned_config.h"
#include "config/workers.h"
#include "lower/lower.h"
#include "lower/member_inputs.h"
#include "lower/sizes.h"
#include "penstock/compile.h"
#include "penstock/error.h"
#include "penstock/step.h"
#include "plan/merged_nodes.h"
#include "plan/place_step.h"
#include "rules/load_schedule.h"
#include "schedule/kinds.h"
#include "schedule/options.h"
#include "schedule/sizes.h"
#include "schedule/traits.h"
#include "schedule/versions.h"
#include "schedule/work.h"
#include "transform/collectives.h"
#include "transform/passes.h"

namespace penstock {
namespace {

DType dtype_of(const Config& config) {
  DType dtype = DType::f32;
  parse_dtype(config.train.dtype, dtype);
  return dtype;
}

// The parts that the model has of its vocabulary. One for numbers that the model refuses.
int head_shards_of(const Config& config) {
  const auto found = config.model.numbers.find("head_shards");
  const bool is_given = found != config.model.numbers.end() && found->second >= 1 && found->second <= 1e6;
  return is_given ? static_cast<int>(found->second) : 1;
}

bool names_generator(const Config& config) {
  const std::string& schedule = config.pipeline.schedule;
  return !names_table(schedule) && !names_rules(schedule) && !is_planned(config);
}

// Whether the model trains on what it gave itself, by a schedule that has stages for that.
bool self_conditions(const Config& config) {
  const auto found = config.model.numbers.find("self_conditioning");
  return found != config.model.numbers.end() && found->second > 0 && names_generator(config) &&
         takes(config.pipeline.schedule, "--self-conditioning");
}

// The options of the configured table, with those that are said elsewhere.
ScheduleOptions table_options(const Config& config) {
  ScheduleOptions options = config.pipeline.table;
  options.slices = slices_of(config);
  options.head_shards = head_shards_of(config);
  options.self_conditioning = self_conditions(config);
  return options;
}

// Throws Error for options that shape a schedule: a table is taken as it stands.
void check_unshaped(const Config::Pipeline& pipeline) {
  for (const ScheduleOption& option : schedule_options())
    if (!option.is_size && option.is_given(pipeline.table))
      throw Error(concat(pipeline.schedule, " is a table: it takes no ", option.name), {}, concat("leave out pipeline.", option.name));
}

Schedule schedule_of(const Config& config) {
  const Config::Pipeline& pipeline = config.pipeline;
  if (names_table(pipeline.schedule)) check_unshaped(pipeline);
  const ScheduleOptions options = table_options(config);
  Schedule schedule = load_schedule(pipeline.schedule, options);
  if (options.slices > 1 && schedule.slices != options.slices)  // 1: as a table says
    throw Error(concat(pipeline.schedule, " has ", counted(schedule.slices, "slice"), ", pipeline.slices is ", options.slices), {},
                concat("--slices ", schedule.slices));
  if (static_cast<std::int64_t>(schedule.actors.size()) != pipeline.table.actors)
    throw Error(concat(pipeline.schedule, " has ", schedule.actors.size(), " actors, pipeline.actors is ", pipeline.table.actors), {},
                concat("--actors ", schedule.actors.size()));
  return schedule;
}

std::unique_ptr<Model> make_model(const Config& config, int stages, const ModelRegistry& models) {
  ModelOptions options;
  options.numbers = config.model.numbers;
  options.words = config.model.words;
  options.stages = stages;
  options.compute = dtype_of(config);
  return models.at(config.model.name).make(options);
}

bool can_cut(const Config& config, int stages, const ModelRegistry& models) {
  try {
    make_model(config, stages, models);
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool is_for_attention_apart(const Config& config) {
  return names_generator(config) && has_attention_apart(config.pipeline.schedule);
}

// Whether the model can be cut into so many stages, and around its attentions where the schedule is for that. Such a cut has one stage more
// than twice the attentions, and a model that can be cut into one fewer is cut between its layers, into any number up to that of layers.
bool fits(const Config& config, int stages, const ModelRegistry& models) {
  return can_cut(config, stages, models) && !(is_for_attention_apart(config) && can_cut(config, stages - 1, models));
}

// Returns how many chunks the configured schedule would need for a table of stages that the model can be cut into: fewer if there are such,
// else more; 0: no number. Long tables are not tried.
int fitting_chunks(const Config& config, const ModelRegistry& models) {
  constexpr double kMost = 1e5;  // forwards of a table
  ScheduleOptions options = table_options(config);
  std::vector<int> candidates;
  for (int fewer = options.chunks - 1; fewer >= 1; --fewer) candidates.push_back(fewer);
  for (int more = 1; more <= 64; ++more) candidates.push_back(options.chunks + more);
  for (const int candidate : candidates) {
    options.chunks = candidate;
    if (1.0 * options.actors * options.chunks * options.microbatches * options.slices > kMost) continue;
    try {
      if (fits(config, load_schedule(config.pipeline.schedule, options).whole_stages(), models)) return candidate;
    } catch (const Error&) {
      continue;  // no such table
    }
  }
  return 0;
}

std::string stages_text(const Config& config, const Schedule& schedule) {
  return concat(config.pipeline.schedule, " has ", counted(schedule.whole_stages(), "stage"), " for ",
                counted(config.pipeline.table.actors, "actor"), " and ", counted(config.pipeline.table.chunks, "chunk"), " each");
}

// Throws Error where the schedule is for attention in stages of its own, and the model in so many stages has it in its layers'.
void check_attention(const Config& config, const Schedule& schedule, const ModelRegistry& models) {
  const int stages = schedule.whole_stages();
  if (!is_for_attention_apart(config) || !can_cut(config, stages, models) || fits(config, stages, models)) return;
  const int chunks = fitting_chunks(config, models);
  throw Error(
      concat("model ", quote(config.model.name), " is cut into ", counted(stages, "stage"), " between its layers, none for attention"),
      {stages_text(config, schedule), "every second is for attention"},
      chunks > 0 ? concat("--chunks ", chunks) : "let actors times chunks be the attentions of a model that marks them, as gpt and t5 do");
}

// Blocks that a schedule has apart are of the attention of so many layers for each actor (schedule/slimpipe_exchange.cpp). The model may
// have as many stages by others, which are not in these places.
void check_layers(const Config& config, const Schedule& schedule, const ModelRegistry& models) {
  const auto layers = config.model.numbers.find("layers");
  const bool by_name = schedule.cells.empty() && !is_planned(config);
  if (schedule.blocks.empty() || !by_name || layers == config.model.numbers.end()) return;
  const auto [actors, chunks] = std::pair(config.pipeline.table.actors, config.pipeline.table.chunks);
  const auto there = static_cast<std::int64_t>(layers->second);
  if (there == actors * chunks) return;
  Config fitting = config;
  fitting.model.numbers["layers"] = static_cast<double>(actors * chunks);
  try {
    make_model(fitting, schedule.whole_stages(), models);
  } catch (const Error&) {
    return;  // layers are not what is missing
  }
  std::int64_t fewer = actors;
  while (there % fewer != 0) --fewer;
  throw Error(concat("model ", quote(config.model.name), " with ", counted(there, "layer"), " cannot be cut into ",
                     counted(schedule.whole_stages(), "stage"), " of ", config.pipeline.schedule),
              {stages_text(config, schedule), concat("they are those of actors times chunks layers, which are ", actors * chunks)},
              fewer == actors ? concat("--chunks ", there / actors)
                              : concat("--set layers=", actors * chunks, ", or --actors ", fewer, " --chunks ", there / fewer));
}

// The model in as many stages as the table names. If it can be cut, but not into so many, the error names the action that asks for the last
// stage, or the chunks of the schedule that ask for as many as there can be.
std::unique_ptr<Model> model_for(const Config& config, const Schedule& schedule, const ModelRegistry& models) {
  check_layers(config, schedule, models);
  check_attention(config, schedule, models);
  try {
    return make_model(config, schedule.whole_stages(), models);
  } catch (const Error& error) {
    make_model(config, 1, models);
    if (schedule.cells.empty()) {
      const int chunks = is_planned(config) ? 0 : fitting_chunks(config, models);
      if (chunks == 0) throw;
      throw Error(split(error.what(), '\n').front(), {stages_text(config, schedule)}, concat("--chunks ", chunks));
    }
    const std::int32_t stages = schedule.stages();
    for (std::int32_t actor = 0; const auto& row : schedule.actors) {
      const auto last = std::find_if(row.begin(), row.end(), [&](const Action& action) { return action.stage + 1 == stages; });
      if (last != row.end())
        throw Error(concat(place(schedule, {actor, static_cast<std::int32_t>(last - row.begin())}), ": ", text(*last), " asks for stage ",
                           last->stage, ": ", error.what()));
      ++actor;
    }
    throw;
  }
}

// The step of all members, where one device is to do what they do; with the plan's stages as marks, and in slices. `whole`: the step has
// all of the model's nodes that a plan can name.
Graph planned(Graph step, const Prepared& prepared, bool whole) {
  if (prepared.of_all_members) step = of_all_members(std::move(step));
  if (prepared.plan) {
    step = eliminate_dead_code(prepared.options.axes.empty() && prepared.schedule.slices == 1 ? drop_constraints(step)
                                                                                              : step);  // dead ops have no stage
    if (whole) check_nodes(*prepared.plan, nodes_of(drop_constraints(step)));
    step = mark_stages(step, *prepared.plan);
  }
  if (prepared.schedule.slices > 1) return in_slices(step, prepared.schedule, prepared.options, prepared.slice_lengths);
  return step;
}

// The table with the step's own numbers of the stages.
Schedule schedule_for(const Graph& step, const Prepared& prepared) {
  return prepared.plan ? renumbered(*prepared.plan, prepared.schedule, prepare_stages(step, true, prepared.options.axes).stages)
                       : prepared.schedule;
}

}  // namespace

OptimiserOptions optimiser_of(const Config& config) {
  const Config::Train& train = config.train;
  OptimiserOptions options;
  options.name = train.optimiser;
  options.learning_rate = train.learning_rate;
  options.final_fraction = train.final_fraction;
  options.warmup = static_cast<int>(train.warmup);
  options.decay = train.decay;
  options.steps = static_cast<int>(train.decay_end > 0 ? train.decay_end : train.steps);
  options.decay_steps = static_cast<int>(train.decay_steps);
  options.numbers = {train.beta1, train.beta2, train.eps, train.weight_decay, train.momentum};
  options.clip = train.clip;
  options.validated = config.pipeline.update == UpdateTime::validated;
  return options;
}

namespace {

// The ZeRO level: 3 where a table gathers parameters, unless the configuration says otherwise. One host has all of them.
int zero_of(const Config& config, const Prepared& prepared) {
  const int chosen = has_gathers(prepared.schedule) ? 3 : 0;
  const int said = config.pipeline.program.zero, level = said < 0 ? chosen : said;
  return zero_level(level, shares_of(prepared.options.devices), prepared.options.local);
}

// Returns the options with which a program beside the one that updates finds the state that training leaves.
CompileOptions beside(const Config& config, const Prepared& prepared) {
  CompileOptions options = prepared.options;
  if (options.zero < 3) return options;
  const Graph training = training_graph(config, prepared);
  options.blocks = shared_blocks(training, schedule_for(training, prepared), options);
  return options;
}

// The length of a sequence; 0 where the model reads no text.
int length_of(const Config& config, const Prepared& prepared) {
  return reads_text(data_of(config, *prepared.model)) ? static_cast<int>(context_of(config)) : 0;
}

}  // namespace

namespace {

// Throws Error where there are no workers that could be apart, or states that they share.
void check_waves(const Config& config, const Schedule& schedule) {
  const int distance = config.pipeline.program.distance;
  if (distance < 0) return;
  const std::string what = concat("pipeline.distance = ", distance, " is of workers that update by themselves");
  if (schedule.steps == 1)
    throw Error(concat(what, "; schedule ", schedule.name, " is for one step"), {},
                "set pipeline.schedule = \"hetpipe\" and pipeline.window");
  if (devices_of_actor(config) == 1)
    throw Error(concat(what, ", and each actor has one device"), {}, "say how many they are: --mesh pipe=2,data=2");
  if (config.pipeline.program.zero > 0)
    throw Error(concat(what, "; pipeline.zero = ", config.pipeline.program.zero, " shares what they update"), {}, "set pipeline.zero = 0");
}

// Throws Error where something else makes tables than the window's.
void check_window(const Config& config, const Schedule& schedule) {
  if (schedule.steps == 1) return;
  if (plans_batches(config))
    throw Error(concat(schedule.name, " is for a window of ", schedule.steps, " steps; batch.planner = ", quote(config.batch.planner),
                       " makes a table for each batch"),
                {}, "leave out one or the other");
}

Schedule updating(const Config& config, Schedule schedule) {
  const bool adds_updates = config.pipeline.update != UpdateTime::end && schedule.steps == 1;
  return adds_updates ? with_updates(std::move(schedule)) : std::move(schedule);
}

// Tells the program what the model's parameters are, and their dims: as the model names them, or as a choice of layouts has renamed them.
void name_parameters(Prepared& prepared) {
  prepared.options.parameters.clear();
  prepared.options.dims.clear();
  for (const ParameterSpec& parameter : prepared.parameters) {
    prepared.options.parameters.push_back(parameter.name);
    if (!parameter.dims.empty()) prepared.options.dims[parameter.name] = parameter.dims;
  }
}

}  // namespace

Prepared prepare(const Config& config, Schedule schedule, std::int64_t microbatches, const ModelRegistry& models) {
  check_window(config, schedule);
  Prepared prepared;
  prepared.microbatches = static_cast<int>(microbatches);
  prepared.model = model_for(config, schedule, models);
  prepared.schedule = updating(config, std::move(schedule));
  prepared.options = config.pipeline.program;
  prepared.options.devices.assign(prepared.schedule.actors.size(), 1);
  prepared.options.zero = 0;
  prepared.options.local = 1;
  if (prepared.schedule.slices > 1) prepared.slice_lengths = slice_lengths(config);
  prepared.parameters = prepared.model->parameters();
  name_parameters(prepared);
  return prepared;
}

Prepared prepare(const Config& config, PlanFile plan, const ModelRegistry& models) {
  if (plan.model != config.model.name)
    throw Error(concat(plan.file, " is a plan of ", quote(plan.model), ", the model is ", quote(config.model.name)), {},
                "plan this model: penstock plan CONFIG --cluster local --out FILE");
  Prepared prepared = prepare(config, make_schedule("sequential", {.actors = 1, .microbatches = 1}), plan.microbatches, models);
  prepared.schedule = updating(config, without_updates(plan.schedule));
  prepared.options.devices = devices_of_actors(plan);
  prepared.plan = std::move(plan);
  return prepared;
}

void choose_axes(const Config& config, Prepared& prepared) {
  const StagedStep staged = prepare_stages(training_graph(config, prepared), prepared.options.zero < 3, prepared.options.axes);
  prepared.choices = choose_along(config.chosen_axes, {staged.step, prepared.options.axes, prepared.parameters, usual_layout(config)});
  name_parameters(prepared);
}

void spread_actors(const Config& config, Prepared& prepared) {
  for (int& devices : prepared.options.devices) devices *= devices_of_actor(config);
  prepared.options.local = config.pipeline.program.local * (prepared.plan ? prepared.plan->local : 1);  // one of them is 1
  prepared.options.axes = axes_of(config, *prepared.model);
  prepared.options.zero = zero_of(config, prepared);
  if (!config.chosen_axes.empty()) choose_axes(config, prepared);
  if (prepared.options.zero >= 2 && prepared.schedule.steps == 1 && !has_gathers(prepared.schedule))
    prepared.schedule = with_gathers(std::move(prepared.schedule), /*turns=*/true);
  choose_sizes(config, prepared);
}

void choose_sizes(const Config& config, Prepared& prepared) {
  prepared.one_by_one.clear();
  prepared.together = micro_batches_together(prepared.schedule);
  if (prepared.together == 1) return;
  const Graph step = training_graph(config, prepared);
  prepared.one_by_one = why_one_by_one(step, schedule_for(step, prepared), prepared.options);
  if (!prepared.one_by_one.empty()) prepared.together = 1;
}

namespace {

Prepared prepare_workers(const Config& config, const ModelRegistry& models) {
  const std::vector<Schedule> tables = tables_of_workers(config, schedule_of(config));
  Prepared prepared = prepare(config, tables[0], config.pipeline.table.microbatches, models);
  for (std::size_t w = 1; w < tables.size(); ++w) prepared.options.others.push_back(updating(config, tables[w]));
  return prepared;
}

}  // namespace

namespace {

// Predictions are made of last gradients, and workers that lag behind each other exchange whole ones.
bool reads_last_gradients(const Config& config, const Prepared& prepared) {
  const auto predicts = [](const Action& action) { return action.ahead > 0; };
  return config.pipeline.program.distance >= 0 ||
         std::ranges::any_of(prepared.schedule.actors, [&](const auto& row) { return std::ranges::any_of(row, predicts); });
}

// Throws Error where updates are not of rows.
void check_lazy_rows(const Config& config, const Prepared& prepared) {
  if (!config.train.lazy_rows) return;
  const auto refuse = [](const std::string& why, const std::string& hint) {
    throw Error(concat("train.lazy_rows leaves rows as they are, and ", why), {}, concat(hint, ", or train.lazy_rows = false"));
  };
  if (plans_batches(config))
    refuse(concat("batch.planner = ", quote(config.batch.planner), " makes a step for each shape of micro-batch, by whole gradients"),
           "set batch.planner = \"pad\"");
  if (reads_last_gradients(config, prepared))
    refuse(concat("schedule ", prepared.schedule.name,
                  config.pipeline.program.distance >= 0 ? " exchanges updates of whole tables between workers" : " predicts whole tables"),
           "take a schedule that does not, such as nestpipe");
}

}  // namespace

Prepared prepare(const Config& config, const ModelRegistry& models) {
  const std::string& plan = config.pipeline.plan;
  Prepared prepared = plan.empty() ? prepare_workers(config, models) : prepare(config, parse_plan(read_file(plan), plan), models);
  check_waves(config, prepared.schedule);
  check_lazy_rows(config, prepared);
  if (config.pipeline.program.prefetch && prepared.schedule.steps == 1)
    throw Error(concat("pipeline.prefetch looks rows up in the step before, and schedule ", prepared.schedule.name, " is for one step"),
                {"the last step of a window has no data of a next one"}, "set pipeline.schedule = \"nestpipe\" and pipeline.window");
  spread_actors(config, prepared);
  return prepared;
}

Prepared prepare_sequential(const Config& config, const ModelRegistry& models, std::int64_t microbatches) {
  ScheduleOptions options;
  options.actors = 1;
  options.microbatches = static_cast<int>(microbatches);
  Prepared prepared = prepare(config, make_schedule("sequential", options), microbatches, models);
  prepared.of_all_members = true;
  return prepared;
}

std::vector<int> devices_of_actors(const Prepared& prepared) {
  std::vector<int> devices = prepared.options.devices;
  for (const LayoutAxis& axis : prepared.options.axes)
    for (int& of_actor : devices) of_actor *= axis.size;
  return devices;
}

int step_microbatches(const Prepared& prepared) {
  return prepared.microbatches * shares_of(prepared.options.devices);
}

std::vector<DataPort> data_of(const Config& config, const Model& model) {
  const std::vector<DataPort> ports = model.data(config.model.numbers.contains("context") ? context_of(config) : 0);
  if (reads_text(ports)) context_of(config);
  return ports;
}

std::int64_t context_of(const Config& config) {
  const auto found = config.model.numbers.find("context");
  if (found == config.model.numbers.end() || found->second < 1)
    throw Error(concat("model ", quote(config.model.name), " needs a positive number context: the length of a sequence"));
  return static_cast<std::int64_t>(found->second);
}

TextRows rows_of(const Config& config, const Model& model) {
  const bool pairs = !config.data.pairs.empty() && model.reads({.inputs = 1});
  return {.inputs = pairs ? context_of(config) : 0};
}

std::int64_t vocabulary_of(const Config& config) {
  const auto found = config.model.numbers.find("vocabulary");
  return found == config.model.numbers.end() ? 256 : static_cast<std::int64_t>(found->second);
}

namespace {

StepShape shape_of(const Config& config, const Prepared& prepared) {
  return {.batch = static_cast<int>(config.train.batch),
          .context = length_of(config, prepared),
          .microbatches = step_microbatches(prepared) / prepared.together,
          .rows = rows_of(config, *prepared.model)};
}

}  // namespace

Graph training_graph(const Config& config, const Prepared& prepared) {
  Graph step = training_step(*prepared.model, shape_of(config, prepared), optimiser_of(config));
  if (!reads_last_gradients(config, prepared)) step = update_by_rows(std::move(step), config.train.lazy_rows);
  return planned(std::move(step), prepared, true);
}

Graph gradient_graph(const Config& config, const Prepared& prepared) {
  return planned(gradient_step(*prepared.model, shape_of(config, prepared)), prepared, true);
}

Graph evaluation_graph(const Config& config, const Prepared& prepared) {
  return planned(evaluation_step(*prepared.model, shape_of(config, prepared)), prepared, false);
}

Graph generation_graph(const Config& config, const Prepared& prepared) {
  return planned(generation_step(*prepared.model, length_of(config, prepared)), prepared, false);
}

Program compile_training(const Config& config, const Prepared& prepared) {
  const Graph step = training_graph(config, prepared);
  return compile(step, schedule_for(step, prepared), prepared.options);
}

Lowering training_lowering(const Config& config, const Prepared& prepared) {
  const Graph step = training_graph(config, prepared);
  return compile_lowering(step, schedule_for(step, prepared), prepared.options);
}

Program compile_gradients(const Config& config, const Prepared& prepared) {
  const Graph step = gradient_graph(config, prepared);
  return compile(step, one_step(schedule_for(step, prepared), 0), beside(config, prepared));
}

Program compile_evaluation(const Config& config, const Prepared& prepared) {
  const Graph step = evaluation_graph(config, prepared);
  return compile(step, schedule_for(step, prepared), beside(config, prepared));
}

Program compile_generation(const Config& config, const Prepared& prepared) {
  return lower(generation_graph(config, prepared), forward_only(prepared.schedule));
}

Program compile_picture_step(const Prepared& prepared) {
  return lower(planned(picture_step(*prepared.model), prepared, false), forward_only(prepared.schedule));
}

std::vector<AxisDecision> training_layouts(const Config& config, const Prepared& prepared) {
  const Graph step = training_graph(config, prepared);
  return compile_layouts(step, schedule_for(step, prepared), prepared.options);
}

std::string stages_text(const Config& config, const Prepared& prepared) {
  const Graph graph = training_graph(config, prepared);
  const StagedStep step = prepare_stages(graph, prepared.options.zero < 3, prepared.options.axes);
  const Schedule schedule = schedule_for(graph, prepared);
  const StageDag dag = cut_for(step, schedule, prepared.options);

  const char* sources[] = {"data", "invariant", "edge", "accumulator"};
  const auto bundles = [&](const std::vector<BundleId>& list) {
    return join(list, ", ", [&](BundleId i) {
      const Bundle& bundle = dag.bundles[i];
      std::int64_t bytes = 0;
      for (const TensorType& type : bundle.types) bytes += type.bytes();
      return concat("%", i.value, " ", sources[static_cast<int>(bundle.source)], " of ", bundle.types.size(), " (",
                    bytes_text(static_cast<double>(bytes)), ")");
    });
  };
  std::string out = "penstock stages 1\n";
  for (const StageId stage : dag.names.ids()) {
    const auto& before = dag.shape.predecessors[stage.value];
    out += concat("stage ", stage.value, " ", quote(dag.names[stage]), " after {",
                  join(before, ", ", [](std::int32_t s) { return concat(s); }), "}\n");
    for (const StageTask& task : dag.tasks)
      if (task.stage == stage)
        out += concat("  ", name(task.kind), task.light ? " light" : "", ": ", task.graph->ops.size(), " ops\n    reads ",
                      bundles(task.reads), "\n    writes ", bundles(task.writes), "\n");
  }
  return out;
}

}  // namespace penstock
