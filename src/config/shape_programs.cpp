#include "config/shape_programs.h"

#include "lower/passes.h"
#include "penstock/step.h"

namespace penstock {

Program ShapePrograms::training(const std::vector<BatchShape>& microbatches, const Schedule& schedule) {
  std::map<BatchShape, std::int32_t> number;
  std::vector<LowerInput> classes;
  std::vector<std::int32_t> shape_class;
  for (const BatchShape& shape : microbatches) {
    const auto [it, is_new] = number.try_emplace(shape, static_cast<std::int32_t>(classes.size()));
    shape_class.push_back(it->second);
    if (!is_new) continue;
    if (!inputs_.contains(shape)) {
      const Graph step = training_step(*prepared_.model, static_cast<int>(shape.samples), static_cast<int>(shape.input), 1,
                                       optimiser_of(config_), BatchCount::port);
      inputs_.emplace(shape, compile_class(step, schedule, compile_options(config_, prepared_)));
    }
    classes.push_back(inputs_.at(shape));
  }
  return lower(join_classes(classes, schedule, std::move(shape_class)));
}

}  // namespace penstock
