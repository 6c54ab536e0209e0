// SPDX-License-Identifier: Apache-2.0
#include "driver/module_steps.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/numbers.h"
#include "base/text.h"
#include "batch/module_memory.h"
#include "config/compile.h"
#include "lower/stage_bytes.h"
#include "penstock/error.h"
#include "stage/stage_layers.h"

namespace penstock {
namespace {

// Texts of a micro-batch on each of the devices that share it.
std::int64_t rows_of_member(const Config& config) {
  return config.train.batch / config.pipeline.table.microbatches / devices_of_actor(config);
}

// The samples of each micro-batch as those devices take them, one after the other: dealt out by their numbers of images, as the device with
// most says how many all have, empty ones included.
std::vector<std::int64_t> dealt_out(const Config& config, const Dataset& data, std::vector<std::int64_t> samples) {
  const std::int64_t rows = rows_of_member(config), members = devices_of_actor(config);
  if (members == 1) return samples;
  std::vector<std::int64_t> out;
  for (auto begin = samples.begin(); begin != samples.end(); begin += rows * members) {
    std::stable_sort(begin, begin + rows * members, [&](std::int64_t a, std::int64_t b) { return data.images(a) > data.images(b); });
    for (std::int64_t member = 0; member < members; ++member)
      for (std::int64_t row = 0; row < rows; ++row) out.push_back(begin[row * members + (row % 2 == 0 ? member : members - 1 - member)]);
  }
  return out;
}

// Most images of a micro-batch on a device.
std::int64_t most_images(const Config& config, const Prepared& prepared) {
  std::int64_t most = 0;
  for (const DataPort& port : data_of(config, *prepared.model)) most = std::max(most, port.entries);
  return most * rows_of_member(config);
}

int vision_stages_of(const Config& config, int stages) {
  const auto found = config.model.numbers.find("vision_stages");
  const int given = found == config.model.numbers.end() ? 0 : static_cast<int>(found->second);
  return given > 0 ? given : stages / 2;
}

// Whether the schedule's rounds of stages all go from the first actor to the last, or every second one back; none: neither.
std::optional<bool> is_folded(const Schedule& schedule) {
  const std::vector<std::int32_t> actors = actor_of_stage(schedule);
  const auto ranks = static_cast<std::int32_t>(schedule.actors.size());
  const auto lies = [&](bool folded) {
    for (std::int32_t stage = 0; stage < std::ssize(actors); ++stage) {
      const std::int32_t place = stage % ranks;
      if (actors[static_cast<std::size_t>(stage)] != (folded && stage / ranks % 2 == 1 ? ranks - 1 - place : place)) return false;
    }
    return true;
  };
  return lies(false) ? std::optional(false) : lies(true) ? std::optional(true) : std::nullopt;
}

bool splits_backwards(const Schedule& schedule) {
  return std::ranges::any_of(schedule.actors, [](const std::vector<Action>& row) {
    return std::ranges::any_of(row, [](const Action& action) { return action.kind == Kind::I; });
  });
}

void check_axes(const Config& config, const CompileOptions& options) {
  for (const LayoutAxis& axis : options.axes) {
    if (!axis.stage_dims.empty())
      throw Error(concat(planner_text(config), " makes each part of images stages of its own, and [layout.", axis.stage_dims.begin()->first,
                         "] is for one stage"),
                  {}, "say in [layout] what holds for all stages");
    if (options.zero > 0 && axis.dims.contains("sequence"))
      throw Error(concat(planner_text(config), " with pipeline.zero = ", options.zero, ", and texts split over ", axis.name,
                         ": what devices share of a sum would depend on the lengths of a batch"),
                  {}, "set pipeline.zero = 0");
  }
}

void check_memory(const Config& config, const BatchPlannerInfo& planner) {
  if (config.batch.memory > 0)
    throw Error(concat(planner_text(config), " counts no tokens, and batch.memory is one of tokens"), {},
                "set batch.memory_limit, or batch.live");
  if (planner.given_table && config.batch.memory_limit > 0)
    throw Error(concat(planner_text(config), " keeps no limit of memory"), {},
                "set batch.planner = \"dip\", or raise pipeline.microbatches");
}

}  // namespace

ModuleSteps::ModuleSteps(const Config& config, const Prepared& prepared, const Dataset& data)
    : config_(config),
      planner_(find_batch_planner(config.batch.planner)),
      prepared_(prepared),
      data_(data),
      costs_{config.batch.image_fixed, config.batch.image_linear, config.batch.fixed, config.batch.linear, config.batch.quadratic},
      vision_stages_(vision_stages_of(config, prepared.schedule.stages())),
      text_stages_(prepared.schedule.stages() - vision_stages_),
      programs_(config, prepared) {
  const std::string planner = planner_text(config);
  if (!reads_images(data_of(config, *prepared.model)))
    throw Error(concat(planner, " plans texts with images; model ", quote(config.model.name), " reads none"), {},
                "take --set model.name=multimodal --set model.input=images, or leave out batch.planner");
  check_own_stages(config, prepared);
  check_memory(config, planner_);
  check_axes(config, prepared.options);
  part_ = planner_.given_table    ? std::numeric_limits<std::int32_t>::max()
          : config.batch.part > 0 ? config.batch.part
                                  : part_of(costs_, most_images(config, prepared));
  if (planner_.given_table) return;
  const int actors = config.pipeline.table.actors;
  if (vision_stages_ % actors != 0 || text_stages_ % actors != 0 || vision_stages_ == 0)
    throw Error(concat(planner, " spreads the encoder and the text each over all ", actors, " actors; they have ", vision_stages_, " and ",
                       text_stages_, " stages"),
                {}, "set pipeline.chunks = 2 and pipeline.schedule = \"zb-v\", or model.vision_stages to a multiple of the actors");
  const std::optional<bool> folded = is_folded(prepared.schedule);
  if (!folded)
    throw Error(concat(planner, ": the stages of schedule ", prepared.schedule.name, " do not go over the actors in rounds"),
                {"each round goes from the first actor to the last, or every second one back"},
                "take \"zb-v\", or an interleaved schedule");
  folded_ = *folded;
}

std::vector<BatchShape> ModuleSteps::shapes_of(const std::vector<std::int64_t>& samples) const {
  std::vector<BatchShape> out;
  const std::int64_t rows = rows_of_member(config_), members = devices_of_actor(config_),
                     round = config_.batch.round > 0 ? config_.batch.round : 8;
  for (auto sample = samples.begin(); sample != samples.end();) {
    BatchShape& shape = out.emplace_back(BatchShape{.samples = rows, .part = part_});
    for (std::int64_t member = 0; member < members; ++member) {
      std::int64_t images = 0;
      for (std::int64_t row = 0; row < rows; ++row, ++sample) {
        images += data_.images(*sample);
        shape.input = std::max(shape.input, (data_.length(*sample) + round - 1) / round * round);
      }
      shape.images = std::max(shape.images, images);
    }
    shape.input = std::min(shape.input, data_.tokens());
  }
  return out;
}

// Without what there is nothing to do for: the encoder's actions of micro-batches without images, or the encoder, where none has any.
Schedule ModuleSteps::given_table(const std::vector<BatchShape>& shapes) const {
  Schedule out = prepared_.schedule;
  out.cells.clear();
  const bool any = std::ranges::any_of(shapes, [](const BatchShape& shape) { return shape.images > 0; });
  for (std::vector<Action>& row : out.actors) {
    std::erase_if(row, [&](const Action& action) {
      return action.stage < vision_stages_ && action.microbatch >= 0 && shapes[static_cast<std::size_t>(action.microbatch)].images == 0;
    });
    for (Action& action : row) {
      action.fused_with_next = false;
      if (!any) action.stage -= vision_stages_;
    }
  }
  return out;
}

BatchStep ModuleSteps::step(const std::vector<std::int64_t>& given) {
  const std::vector<std::int64_t> samples = dealt_out(config_, data_, given);
  const std::vector<BatchShape> shapes = shapes_of(samples);
  const int actors = config_.pipeline.table.actors;
  if (planner_.given_table) return lowered(samples, shapes, given_table(shapes));
  ModuleProblem problem = module_problem(shapes, costs_, actors, vision_stages_ / actors, text_stages_ / actors);
  problem.most_live = static_cast<int>(config_.batch.live);
  problem.folded = folded_;
  problem.split = splits_backwards(prepared_.schedule);
  const ModuleSearchOptions options{
      .rollouts = config_.batch.rollouts, .nodes = config_.batch.nodes, .seed = static_cast<std::uint64_t>(config_.train.seed)};
  constexpr int kAttempts = 6;
  const double most = config_.batch.memory_limit > 0 ? config_.batch.memory_limit : kInfinity;
  double bytes = 0;
  const ModuleResult free = planner_.plan_modules(problem, options);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const ModuleResult found = attempt > 0 ? modules_in_room(problem, free, options) : free;
    std::vector<BatchShape> planned = shapes;
    const std::vector<std::vector<int>> again = again_of(problem, found.table);
    for (std::size_t m = 0; m < planned.size(); ++m) planned[m].again = again[m];
    BatchStep out = lowered(samples, planned, schedule_of(problem, found.table));
    out.predicted = found.table.makespan * kMillisecond;
    bytes = most_bytes(*out.program);
    if (bytes <= most) return out;
    if (problem.memory.empty()) problem.memory = memory_of(shapes, out.table);
    // Programs plan more than what was counted, how much is never known beforehand, so each attempt leaves more room for it than the last
    // was above.
    problem.room = std::min(problem.room, most_held(problem, found.table)) - (bytes - most) * (1 << attempt);
  }
  fail_above_limit(config_, samples.size(), bytes);
}

// A layer saves what each of all layers of a stage saves.
std::vector<std::vector<ModuleMemory>> ModuleSteps::memory_of(const std::vector<BatchShape>& shapes, const Schedule& table) {
  std::vector<std::vector<ModuleMemory>> out;
  const std::size_t in_part = at(vision_stages_), in_text = at(text_stages_);
  for (BatchShape shape : shapes) {
    const LowerInput& plain = programs_.class_of(shape, table)[0];
    const std::vector<StageBytes> all = stage_bytes(plain);
    std::vector<StageBytes> least = all;
    if (plans_layers(config_)) {
      shape.again = layer_counts(plain.step, plain.dag.names);
      least = stage_bytes(programs_.class_of(shape, table)[0]);
    }
    for (std::size_t stage = 0; stage < all.size(); ++stage) {
      if (stage % in_part == 0 && stage + in_text <= all.size()) out.emplace_back();
      const int layers = shape.again.empty() ? 0 : shape.again[stage];
      out.back().push_back(
          {.full = all[stage].live, .saved = (all[stage].live - least[stage].live) / std::max(layers, 1), .layers = layers});
    }
  }
  return out;
}

BatchStep ModuleSteps::lowered(const std::vector<std::int64_t>& samples, const std::vector<BatchShape>& shapes, const Schedule& table) {
  BatchStep out{.samples = samples, .shapes = shapes, .table = table};
  set_program(programs_, out);
  return out;
}

}  // namespace penstock
