// SPDX-License-Identifier: Apache-2.0
#include "config/shape_programs.h"

#include <algorithm>
#include <set>

#include "batch/modules.h"
#include "lower/lower.h"
#include "penstock/step.h"
#include "schedule/slices.h"
#include "stage/stage_layers.h"
#include "transform/slices.h"

namespace penstock {
namespace {

// A shape of the whole mesh's, for what follows the loop: one that there is, or one that no micro-batch has.
BatchShape of_all_members(const std::vector<BatchShape>& microbatches, int members) {
  const auto found = std::ranges::find(microbatches, members, &BatchShape::degree);
  return found != microbatches.end() ? *found : BatchShape{.input = 8 * members, .degree = members};
}

}  // namespace

Graph ShapePrograms::step_of(const BatchShape& shape) const {
  const bool pairs = shape.target > 0;
  const TextRows rows{.several = shape.is_ragged(),
                      .inputs = pairs ? shape.input : 0,
                      .parts = even_parts(shape.images, shape.part),
                      .shorter = !shape.is_ragged()};
  const StepShape step{.batch = shape.is_ragged() ? 1 : static_cast<int>(shape.samples),
                       .context = static_cast<int>(pairs ? shape.target : shape.input),
                       .count = BatchCount::port,
                       .rows = rows};
  return gradients_ ? gradient_step(*prepared_.model, step) : training_step(*prepared_.model, step, optimiser_of(config_));
}

// The sums are those of the longest row there can be, in one slice and with images, so that they depend on the configuration and not on the
// batch that comes first.
const LoopSums& ShapePrograms::sums_for(const BatchShape& shape, const Schedule& schedule, const CompileOptions& options) {
  if (options.axes.empty() || !sums_.empty()) return sums_;
  BatchShape longest = shape;
  longest.samples = std::min<std::int64_t>(longest.samples, 1);
  longest.input = context_of(config_);
  if (longest.target > 0) longest.target = longest.input;
  for (const DataPort& port : data_of(config_, *prepared_.model)) longest.images = std::max(longest.images, port.entries);
  sums_ = loop_sums(step_of(longest), schedule.slices > 1 ? first_slices(schedule, 1) : schedule, options);
  return sums_;
}

std::pair<const ShapeClass*, bool> ShapePrograms::find_class(const BatchShape& shape, const Schedule& of_step) {
  const auto slices = static_cast<int>(shape.slices.size());
  const Schedule schedule = of_step.slices > 1 ? first_slices(of_step, slices) : of_step;
  const auto stages = static_cast<std::size_t>(schedule.stages());
  const Key key{shape, split_stages(schedule, stages), recomputed_stages(schedule, stages)};
  if (const auto known = classes_.find(key); known != classes_.end()) {
    uses_.splice(uses_.begin(), uses_, known->second.use);
    return {&known->second.inputs, false};
  }
  Graph step = step_of(shape);
  if (slices > 0) step = unroll_slices(prepare_for_slices(step, slices, prepared_.options, /*window=*/false).step, slices, shape.slices);
  if (!shape.again.empty()) step = mark_layers(prepare_stages(step, prepared_.options.zero < 3, prepared_.options.axes), shape.again);
  CompileOptions all = prepared_.options;
  all.recompute = std::max(all.recompute, shape.recompute);
  const bool in_groups = shape.degree > 0;
  const LoopSums& sums = sums_for(shape, schedule, in_groups ? for_group(all, all.axes.at(0).size) : all);
  ShapeClass inputs = compile_class(step, schedule, in_groups ? for_group(all, shape.degree) : all, sums);
  uses_.push_front(key);
  const auto [made, fresh] = classes_.emplace(key, Class{std::move(inputs), uses_.begin()});
  return {&made->second.inputs, true};
}

const ShapeClass& ShapePrograms::class_of(const BatchShape& shape, const Schedule& schedule) {
  return *find_class(shape, schedule).first;
}

ShapeProgram ShapePrograms::program(const std::vector<BatchShape>& microbatches, const Schedule& schedule) {
  ShapeProgram out;
  std::map<std::pair<BatchShape, std::int32_t>, std::int32_t> number;  // of a shape and its first member
  std::set<BatchShape> shapes;
  std::vector<PlacedClass> classes;
  const auto class_number = [&](const BatchShape& shape, std::int32_t first) {
    const auto [it, is_first] = number.try_emplace({shape, first}, static_cast<std::int32_t>(classes.size()));
    if (!is_first) return it->second;
    const auto [inputs, is_new] = find_class(shape, schedule);
    classes.push_back({inputs, first});
    shapes.insert(shape);
    out.new_classes += is_new;
    return it->second;
  };
  const bool in_groups = microbatches[0].degree > 0;
  const int members = in_groups ? prepared_.options.axes.at(0).size : 1;
  if (in_groups) class_number(of_all_members(microbatches, members), 0);
  std::vector<std::int32_t> shape_class;
  std::int32_t first = 0;
  for (const BatchShape& shape : microbatches) {
    shape_class.push_back(class_number(shape, first));
    first = (first + shape.degree) % members;
  }
  out.classes = std::ssize(shapes);
  out.program = compile_joined(classes, std::move(shape_class), schedule, prepared_.options, pool_);
  for (const auto limit = static_cast<std::size_t>(config_.batch.classes); uses_.size() > std::max(limit, classes.size()); uses_.pop_back())
    classes_.erase(uses_.back());
  return out;
}

}  // namespace penstock
