#include "config/shape_programs.h"

#include <algorithm>

#include "batch/modules.h"
#include "lower/lower.h"
#include "penstock/step.h"
#include "schedule/slices.h"
#include "transform/slices.h"

namespace penstock {
namespace {

// Slices are cut where the model says which dims are the sequence, so its constraints have to stay until then.
Graph in_slices(const Graph& step, const std::vector<std::int64_t>& lengths) {
  const LayoutAxis axis{"slice", static_cast<int>(lengths.size()), {}};
  const StagedStep staged = prepare_stages(step, /*hoist=*/true, {&axis, 1});
  return unroll_slices(staged.step, axis.size, lengths);
}

}  // namespace

std::pair<const ShapeClass*, bool> ShapePrograms::find_class(const BatchShape& shape, const Schedule& of_step) {
  const auto slices = static_cast<int>(shape.slices.size());
  const Schedule schedule = of_step.slices > 1 ? first_slices(of_step, slices) : of_step;
  const auto stages = static_cast<std::size_t>(schedule.stages());
  const Key key{shape, split_stages(schedule, stages), recomputed_stages(schedule, stages)};
  if (const auto known = classes_.find(key); known != classes_.end()) {
    uses_.splice(uses_.begin(), uses_, known->second.use);
    return {&known->second.inputs, false};
  }
  const bool pairs = shape.target > 0;
  const TextRows rows{.several = shape.is_ragged(), .inputs = pairs ? shape.input : 0, .parts = even_parts(shape.images, shape.part)};
  Graph step = training_step(*prepared_.model, shape.is_ragged() ? 1 : static_cast<int>(shape.samples),
                             static_cast<int>(pairs ? shape.target : shape.input), 1, optimiser_of(config_), BatchCount::port, rows);
  if (slices > 0) step = in_slices(step, shape.slices);
  ShapeClass inputs = compile_class(step, schedule, compile_options(config_, prepared_));
  uses_.push_front(key);
  const auto [made, fresh] = classes_.emplace(key, Class{std::move(inputs), uses_.begin()});
  return {&made->second.inputs, true};
}

const ShapeClass& ShapePrograms::class_of(const BatchShape& shape, const Schedule& schedule) {
  return *find_class(shape, schedule).first;
}

ShapeProgram ShapePrograms::training(const std::vector<BatchShape>& microbatches, const Schedule& schedule) {
  ShapeProgram out;
  std::map<BatchShape, std::int32_t> number;
  std::vector<const ShapeClass*> classes;
  std::vector<std::int32_t> shape_class;
  for (const BatchShape& shape : microbatches) {
    const auto [it, is_first] = number.try_emplace(shape, static_cast<std::int32_t>(classes.size()));
    shape_class.push_back(it->second);
    if (!is_first) continue;
    const auto [inputs, is_new] = find_class(shape, schedule);
    classes.push_back(inputs);
    out.new_classes += is_new;
  }
  out.classes = std::ssize(classes);
  out.program = compile_joined(classes, std::move(shape_class), schedule, compile_options(config_, prepared_), pool_);
  for (const auto limit = static_cast<std::size_t>(config_.batch.classes); uses_.size() > std::max(limit, classes.size()); uses_.pop_back())
    classes_.erase(uses_.back());
  return out;
}

}  // namespace penstock
