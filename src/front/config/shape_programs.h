// SPDX-License-Identifier: Apache-2.0
// Programs of steps whose micro-batches have shapes of their own.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "batch/lengths.h"
#include "config/compile.h"
#include "lower/classes.h"

namespace penstock {

struct ShapeProgram {
  Program program;
  std::int64_t classes = 0, new_classes = 0;  // of its micro-batches; those of them that had to be traced and cut
};

// Makes a program for each batch. What a shape takes to be traced and cut is done once and kept, of the config.batch.classes shapes that
// were used last (of all that one batch has, even if these are more). Where shapes have slices the table has as many as the most of a
// shape, and the rest of these no actions for others.
class ShapePrograms {
 public:
  // The programs are training steps, or steps that give their gradients as compile_gradients() does. `config`, `prepared` must outlive it.
  ShapePrograms(const Config& config, const Prepared& prepared, bool gradients = false)
      : config_(config), prepared_(prepared), gradients_(gradients) {}

  // `microbatches` stand in the table's order; their samples follow on each other in the step's. Where they are of groups (degree), these
  // stand one after the other on the mesh's first axis inside of an actor, beginning anew when it is full. Where an actor's
  // devices share micro-batches, each has as many shares of its shape as step_microbatches() says, one after the other. Throws Error as
  // compile() does.
  ShapeProgram program(const std::vector<BatchShape>& microbatches, const Schedule& schedule);
  // The step of one micro-batch of this shape, cut as the table splits and recomputes stages; kept until the next program is made.
  const ShapeClass& class_of(const BatchShape& shape, const Schedule& schedule);

 private:
  // A shape, the stages that are split, those that are recomputed.
  using Key = std::tuple<BatchShape, std::vector<bool>, std::vector<bool>>;
  struct Class {
    ShapeClass inputs;
    std::list<Key>::iterator use;  // in uses_
  };

  Graph step_of(const BatchShape& shape) const;
  // Returns how the sums of micro-batches lie along the axes of the options, which are those of all classes.
  const LoopSums& sums_for(const BatchShape& shape, const Schedule& schedule, const CompileOptions& options);
  // The shape's class, and whether it is new.
  std::pair<const ShapeClass*, bool> find_class(const BatchShape& shape, const Schedule& of_step);

  const Config& config_;
  const Prepared& prepared_;
  bool gradients_;
  std::map<Key, Class> classes_;
  std::list<Key> uses_;  // the last used first
  LoopSums sums_;        // once they are known
  TaskPool pool_;
};

}  // namespace penstock
