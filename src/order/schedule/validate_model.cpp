// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "schedule/kinds.h"
#include "schedule/validate.h"

namespace penstock {
namespace {

std::string stage_of(const Schedule& schedule, const Action& action) {
  return stage_text(action.stage, schedule.slices, schedule.blocks);
}

std::string range_text(std::int64_t count) {
  return count == 1 ? "only 0" : concat("0 to ", count - 1);
}

void check_parts(const Schedule& schedule, const StageShape& shape) {
  if (schedule.slices != shape.slices) {
    throw Error(concat(title(schedule), ": the table has ", counted(schedule.slices, "slice"), " of each stage, the model ", shape.slices),
                {}, "use a table of as many slices, or cut the model's sequences into as many");
  }
  if (schedule.blocks != shape.blocks) {
    throw Error(concat(title(schedule), ": the table has ", counted(std::ssize(schedule.blocks), "block"),
                       " of attention apart, the model others, ", shape.blocks.size()),
                {}, "cut the model by the blocks of this table");
  }
}

// Checks that each action names a stage and a micro-batch that exist.
void check_names(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches) {
  const std::int64_t entries = std::ssize(shape.predecessors), stages = (entries - std::ssize(shape.blocks)) / schedule.slices;
  for_each_action(schedule, [&](const Action& action, Position here) {
    if (action.stage < 0 || action.stage >= entries) {
      throw Error(
          concat(named(schedule, here), " names an unknown stage"),
          {concat("the model has ", counted(stages, "stage"), ", ", range_text(stages), "; the table names ", schedule.whole_stages())},
          "use a table made for this number of stages, or cut the model into as many");
    }
    if (is_sharding(action.kind) && (action.microbatch >= 0 || action.count != 1)) {
      throw Error(concat(named(schedule, here), " names a micro-batch"), {"parameters, and the sum of gradients, belong to a stage"},
                  concat("write ", text({action.stage, action.kind}, schedule.slices, schedule.blocks)));
    }
    if (action.microbatch < 0 && !needs_microbatch(action.kind)) return;
    if (action.microbatch < 0 || action.count < 1 || action.microbatch >= microbatches || action.count > microbatches - action.microbatch) {
      throw Error(
          concat(named(schedule, here), " names an unknown micro-batch"),
          {concat(schedule.steps > 1 ? concat(schedule.steps, " steps have ") : "a step has ", counted(microbatches, "micro-batch"), ", ",
                  range_text(microbatches))},
          schedule.steps > 1 ? "the last step has no next one whose work it could do" : "change the number of micro-batches, or the table");
    }
    const bool backward = action.kind != Kind::F && is_compute(action.kind);
    if ((backward || is_residual(action.kind)) && !shape.has_backward[action.stage]) {
      throw Error(concat(named(schedule, here), backward ? " is a backward of a stage without" : " prepares a backward of a stage without"),
                  {concat("stage ", stage_of(schedule, action), " only runs forward")},
                  "leave it out, or use a table made with --forward-only");
    }
  });
}

// A generated table's stages with a forward alone are not trained.
void check_forward_stages(const Schedule& schedule, const StageShape& shape) {
  for (std::int32_t stage = 0; stage < std::ssize(schedule.forward_times); ++stage)
    if (shape.has_backward[number_of({stage}, schedule.slices, schedule.blocks)])
      throw Error(concat(title(schedule), ": stage ", stage, " is trained, and the table has its forward alone"), {},
                  "let pipeline.frozen have a time for each of the model's frozen stages, which are in front, and for no other");
}

bool are_in_order(const std::vector<std::vector<std::int32_t>>& predecessors, std::int32_t stages) {
  for (std::int32_t stage = 0; stage < std::ssize(predecessors); ++stage)
    for (const std::int32_t before : predecessors[static_cast<std::size_t>(stage)])
      if (before < 0 || before >= stage) return false;
  return std::ssize(predecessors) == stages;
}

// Which stages are before which, by stage and then by the other one's number.
std::vector<std::vector<bool>> stages_before(const std::vector<std::vector<std::int32_t>>& predecessors) {
  std::vector<std::vector<bool>> out(predecessors.size());
  for (std::size_t stage = 0; stage < out.size(); ++stage) {
    out[stage].resize(out.size());
    for (const std::int32_t before : predecessors[stage]) {
      out[stage][before] = true;
      for (std::size_t s = 0; s < stage; ++s) out[stage][s] = out[stage][s] || out[before][s];
    }
  }
  return out;
}

// The model's stages feed each other in an order that a table keeps which says one. Takes the square of the stages.
void check_feeding(const Schedule& schedule, const StageShape& shape) {
  if (schedule.predecessors.empty()) return;
  if (!are_in_order(schedule.predecessors, schedule.whole_stages()))
    throw Error(
        concat(title(schedule), ": what it says of which stages feed which is not of its ", counted(schedule.whole_stages(), "stage")), {},
        "give each stage those that feed it, all of smaller number");
  const std::vector<std::vector<bool>> before = stages_before(schedule.predecessors);
  const auto stage_of = [&](std::int32_t number) { return part_of(number, schedule.slices, schedule.blocks).stage; };
  for (std::int32_t number = 0; number < std::ssize(shape.predecessors); ++number)
    for (const std::int32_t feeding : shape.predecessors[number])
      if (const std::int32_t from = stage_of(feeding), to = stage_of(number); from != to && !before[to][from])
        throw Error(concat(title(schedule), ": stage ", from, " feeds stage ", to, ", which the table has beside it, not behind it"), {},
                    "use a schedule for a chain of stages, or a model whose stages feed each other as the table's do: for bidirectional, "
                    "of two: --set model.name=latent_diffusion --set backbones=2");
}

void check_idle(const Schedule& schedule, const StageShape& shape) {
  for_each_action(schedule, [&](const Action& action, Position here) {
    for (std::int32_t m = action.microbatch; m >= 0 && m < action.microbatch + action.count; ++m)
      if (shape.is_idle(action.stage, m))
        throw Error(
            concat(named(schedule, here), " is of a micro-batch for which stage ", stage_of(schedule, action), " has nothing to do"), {},
            "leave it out");
  });
}

// "1F1", or "1F1 to 1F8" of several micro-batches that follow each other.
std::string units_text(const Schedule& schedule, std::int32_t stage, Kind kind, std::int32_t first, std::int32_t end) {
  const std::string begin = unit_text(schedule, stage, kind, first);
  return end - first > 1 ? concat(begin, " to ", unit_text(schedule, stage, kind, end - 1)) : begin;
}

// The first forwards that `stage` lacks, and where they belong: before the first one's backward, else near the stage's forward before it,
// else near the micro-batch's in another stage.
[[noreturn]] void fail_missing_forward(const Schedule& schedule, const StageShape& shape, std::int32_t stage, std::int64_t forwards,
                                       const Microbatches& step) {
  std::vector<bool> present(step.count, false);
  if (!shape.idle.empty()) present = shape.idle[stage];
  for_each_action(schedule, [&](const Action& action, Position) {
    if (action.kind != Kind::F || action.stage != stage) return;
    for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) present[m] = true;
  });
  const std::int32_t missing = static_cast<std::int32_t>(std::find(present.begin(), present.end(), false) - present.begin());
  Position backward, same_stage, same_microbatch, any;
  for_each_action(schedule, [&](const Action& action, Position here) {
    const bool covers = action.microbatch <= missing && missing < action.microbatch + action.count;
    if (action.stage == stage && covers && !backward) backward = here;
    if (action.kind == Kind::F && action.stage == stage && action.microbatch < missing) same_stage = here;
    if (action.kind == Kind::F && covers) same_microbatch = here;
    if (!any) any = here;
  });
  const auto end = static_cast<std::int32_t>(std::find(present.begin() + missing, present.end(), true) - present.begin());
  const std::string unit = units_text(schedule, stage, Kind::F, missing, end),
                    is_missing = end - missing > 1 ? " are missing" : " is missing";
  std::string what = concat(title(schedule), ": ", unit, is_missing);
  if (const Position by = backward ? backward : same_stage ? same_stage : same_microbatch ? same_microbatch : any) {
    what = concat(place(schedule, by), ": ", unit, is_missing, backward ? " before " : " near ", text_at(schedule, by));
  }
  std::vector<std::string> details = {concat("stage ", stage_text(stage, schedule.slices, schedule.blocks),
                                             " must run forward once for each of ", counted(step.count, "micro-batch"), "; the table has ",
                                             counted(forwards, "such forward"))};
  if (step.named_by) {
    details.push_back(concat(named(schedule, step.named_by), " names the last micro-batch"));
  }
  throw Error(what, details, concat("add ", unit, ", or give the model as many stages and micro-batches as the table has"));
}

// Every stage has every forward. Needs no memory beyond one stage's micro-batches, so that a table that names few of many is
// rejected before the index is made.
void check_forwards(const Schedule& schedule, const StageShape& shape, const Microbatches& step) {
  std::vector<std::int64_t> forwards(shape.predecessors.size(), 0);
  for_each_action(schedule, [&](const Action& action, Position) {
    if (action.kind == Kind::F) forwards[action.stage] += action.count;
  });
  for (std::int32_t s = 0; s < std::ssize(forwards); ++s) {
    const std::int64_t without = shape.idle.empty() ? 0 : std::ranges::count(shape.idle[s], true);
    if (forwards[s] < step.count - without) fail_missing_forward(schedule, shape, s, forwards[s], step);
  }
}

}  // namespace

void check_model(const Schedule& schedule, const StageShape& shape, const Microbatches& step) {
  check_parts(schedule, shape);
  check_names(schedule, shape, step.count);
  check_forward_stages(schedule, shape);
  check_idle(schedule, shape);
  check_forwards(schedule, shape, step);
  check_feeding(schedule, shape);
}

void check_backwards(const WorkIndex& work) {
  const Schedule& schedule = *work.schedule;
  for (std::int32_t s = 0; s < std::ssize(work.shape->predecessors); ++s) {
    if (!work.shape->has_backward[s]) continue;
    for (std::int32_t m = 0; m < work.microbatches; ++m) {
      if (work.shape->is_idle(s, m)) continue;
      const Position forward = work.forward[work.unit(s, m)], backward = work.backward[work.unit(s, m)],
                     weight = work.weight[work.unit(s, m)];
      if (!backward) {
        const Position by = weight ? weight : forward;
        std::int32_t end = m + 1;
        while (end < work.microbatches && !work.backward[work.unit(s, end)] && !work.shape->is_idle(s, end)) ++end;
        throw Error(concat(named(schedule, by), weight ? " has no input gradient before it" : " has no backward"),
                    {concat(weight ? "" : units_text(schedule, s, Kind::B, m, end) + " or ", units_text(schedule, s, Kind::I, m, end),
                            end - m > 1 ? " are missing" : " is missing")},
                    concat("add it to row ", forward.actor + 1, ", where ", text_at(schedule, forward), " stands"));
      }
      if (!weight && work.shape->has_parameters[s]) {
        throw Error(
            concat(named(schedule, backward), " has no weight gradient after it"),
            {concat(unit_text(schedule, s, Kind::W, m), " is missing")},
            concat("add ", unit_text(schedule, s, Kind::W, m), " to any row, or write ", unit_text(schedule, s, Kind::B, m), " for both"));
      }
    }
  }
}

}  // namespace penstock
