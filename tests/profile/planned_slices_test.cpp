// SPDX-License-Identifier: Apache-2.0
// Planned lengths of slices: TeraPipe's published ones where tasks cost what its formula says, and all divisions by published figures.
#include "profile/planned_slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"
#include "penstock/table.h"
#include "profile/planning.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::draw;
using test::loaded;
using test::message_of;
using test::planning;
using test::Predicting;
using test::Random;

PlannedVariants plan(const VariantPlanning& how, const std::string& varied) {
  return plan_variants(combinations({parse_varied(varied)}), how);
}

// Predicts the time of a table where each action of a slice of l tokens behind c others takes fixed + .1 l + .02 l (c + l / 2), and twice
// that backward.
Predicting by_formula(double fixed) {
  return [fixed](const ConfigVariant& of, const Prepared& prepared, Program&) {
    const Schedule& schedule = prepared.schedule;
    std::vector<double> lengths = of.config.pipeline.slices;
    if (lengths.size() == 1) lengths.assign(at(schedule.slices), static_cast<double>(context_of(of.config)) / schedule.slices);
    TableCosts costs;
    for (std::int32_t stage = 0; stage < schedule.whole_stages(); ++stage) {
      double context = 0;
      for (const double length : lengths) {
        const double time = fixed + 0.1 * length + 0.02 * length * (context + length / 2);
        StageCosts& slice = costs.stages.emplace_back();
        slice.time[at(static_cast<int>(Kind::F))] = time;
        slice.time[at(static_cast<int>(Kind::B))] = 2 * time;
        context += length;
      }
    }
    const TableTime time = time_table(schedule, shape_of(schedule), costs, {.record = true});
    Prediction out;
    out.seconds = time.makespan;
    out.memory.assign(schedule.actors.size(), 0);
    out.timeline = timeline_of(schedule, shape_of(schedule), costs, time);
    return out;
  };
}

std::vector<std::string> small(int actors, int context, int microbatches = 1) {
  return {"schedule=terapipe",
          "layers=4",
          "width=8",
          "heads=1",
          "vocabulary=8",
          concat("context=", context),
          concat("actors=", actors),
          concat("batch=", microbatches),
          concat("microbatches=", microbatches)};
}

// The published plans of a forward, which take three times as long with their backward (tests/batch/slices_test.cpp).
TEST(PlannedSlices, OfPublishedCostsAreThePublishedPlans) {
  VariantPlanning how = planning(small(4, 16), by_formula(0.3));
  how.slice_unit = 1;
  PlannedVariants found = plan(how, "slices=planned,1,2,4,8,16,3,5,6,7");
  EXPECT_EQ(text(found.variants[0].settings), "slices=[5,3,2,2,2,2]");
  EXPECT_NEAR(found.variants[0].prediction.seconds, 3 * 9.26, 1e-6);
  EXPECT_EQ(text(found.variants[1].settings), "slices=8");
  EXPECT_NEAR(found.variants[1].prediction.seconds, 3 * 9.86, 1e-6);
  how = planning(small(2, 12), by_formula(0.3));
  how.slice_unit = 1;
  found = plan(how, "slices=planned");
  EXPECT_NEAR(found.variants[0].prediction.seconds, 3 * 4.8, 1e-6);
}

// All divisions of the units into slices, in tokens.
std::vector<SliceLengths> divisions(std::int64_t units, std::int64_t unit) {
  std::vector<SliceLengths> out;
  for (unsigned cuts = 0; cuts < 1U << (units - 1); ++cuts) {
    SliceLengths& lengths = out.emplace_back(1, unit);
    for (std::int64_t i = 0; i + 1 < units; ++i)
      if ((cuts >> i & 1) != 0)
        lengths.push_back(unit);
      else
        lengths.back() += unit;
  }
  return out;
}

LoadFit random_fit(Random& random) {
  LoadFit fit;
  fit.per_amount = {draw(random, 0, 100) * 1.0, 0, draw(random, 0, 10) * 0.1, draw(random, 0, 10) * 0.001, 0, 0, 0};
  return fit;
}

// Where the slice that is the longest forward is the longest backward no division is better; else none of equal slices is.
TEST(PlannedSlices, AreTheBestOfAllDivisions) {
  constexpr unsigned kSeed = 11;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(60); ++round) {
    const int units = draw(random, 2, 8);
    const PipelineSlicing slicing{.actors = draw(random, 1, 8), .microbatches = draw(random, 1, 4), .length = units * 16, .unit = 16};
    SliceFits fits = {std::vector<LoadFit>{random_fit(random), random_fit(random)}, {}};
    const bool alike = round % 2 == 0;
    fits[1] = alike ? fits[0] : std::vector<LoadFit>{random_fit(random), random_fit(random)};
    for (LoadFit& fit : fits[1])
      for (double& amount : fit.per_amount) amount *= 2;
    double least = kInfinity, least_equal = kInfinity;
    for (const SliceLengths& lengths : divisions(units, 16)) {
      const double seconds = step_seconds(slicing, fits, lengths);
      least = std::min(least, seconds);
      if (std::ranges::adjacent_find(lengths, std::ranges::not_equal_to()) == lengths.end()) least_equal = std::min(least_equal, seconds);
    }
    const std::vector<SliceLengths> plans = plan_slices(slicing, fits);
    const double planned = step_seconds(slicing, fits, plans[0]), small = 1e-9 * least;
    EXPECT_GE(planned, least - small) << "seed " << kSeed << ", round " << round;
    EXPECT_LE(planned, (alike ? least : least_equal) + small) << "seed " << kSeed << ", round " << round;
    EXPECT_NEAR(step_seconds(slicing, fits, plans[1]), least_equal, alike ? small : kInfinity) << "seed " << kSeed << ", round " << round;
  }
}

// A device that is idle, or a phase that there is not, costs nothing; the last slice takes the rest of the sequence.
TEST(PlannedSlices, TakeTheWholeSequence) {
  LoadFit fit;
  fit.per_amount = {1, 0, 1, 0, 0, 0, 0};
  const PipelineSlicing slicing{.actors = 4, .microbatches = 1, .length = 100, .unit = 30};
  EXPECT_EQ(plan_slices(slicing, {std::vector<LoadFit>{{}, fit}, {LoadFit(), LoadFit()}})[0], (SliceLengths{30, 30, 30, 10}));
  EXPECT_EQ(slice_unit(512), 32);
  EXPECT_EQ(slice_unit(4096), 128);
  EXPECT_EQ(slice_unit(1'000'000), 15625);
}

// By the roofline of a GPU, whose kernels take 4 us to start.
VariantPlanning by_figures(int context, const std::string& schedule = "terapipe", int microbatches = 1) {
  const auto predict = [cluster = uniform_cluster(4, 100e9, 1e-6, 80e9)](const ConfigVariant&, const Prepared&, Program& program) {
    return predict_on(program, cluster, "a100-80");
  };
  return planning({concat("schedule=", schedule), "layers=4", "width=512", "heads=8", "actors=4", concat("context=", context),
                   concat("batch=", microbatches), concat("microbatches=", microbatches)},
                  predict);
}

TEST(PlannedSlices, BeatEqualOnesWhereASliceHasFixedCosts) {
  const PlannedVariants found = plan(by_figures(2048), "slices=planned,1,2,3,4,5,6,7,8,9,10,11,12,14,16");
  EXPECT_NE(text(found.variants[0].settings).find("slices=["), std::string::npos) << text(found.variants[0].settings);
  EXPECT_LT(found.variants[0].prediction.seconds, 0.99 * found.variants[1].prediction.seconds) << text(found.variants[1].settings);
}

// In other orders than the planner's, too, none of the equal slices that it looks at is faster.
TEST(PlannedSlices, AreNeverSlowerThanEqualOnes) {
  for (const char* schedule : {"1f1b", "slimpipe"}) {
    const PlannedVariants found = plan(by_figures(2048, schedule, 4), "slices=planned,2,16");
    EXPECT_NE(text(found.variants[0].settings), "slices=2");
    const double first = found.variants[0].prediction.seconds;
    const auto is_planned = [&](const ConfigVariant& v) { return text(v.settings) != "slices=2" && text(v.settings) != "slices=16"; };
    EXPECT_TRUE(is_planned(found.variants[0]) || found.variants[1].prediction.seconds == first) << schedule;
  }
}

// All 32 divisions in units of 64 tokens are predicted whole: what is planned by fitted times is within a hundredth of the best.
TEST(PlannedSlices, AreAsGoodAsAllDivisionsPredictedWhole) {
  VariantPlanning how = by_figures(384);
  how.slice_unit = 64;
  const PlannedVariants found = plan(how, "slices=planned");
  std::vector<std::string> values;
  for (const SliceLengths& lengths : divisions(6, 64))
    values.push_back(lengths.size() == 1 ? "1" : concat("[", join(lengths, ",", [](std::int64_t n) { return std::to_string(n); }), "]"));
  const PlannedVariants all = plan(how, concat("slices=", join(values, ",", [](const std::string& value) { return value; })));
  EXPECT_EQ(all.variants.size(), 32u);
  EXPECT_LE(found.variants[0].prediction.seconds, 1.01 * all.variants[0].prediction.seconds)
      << text(found.variants[0].settings) << " against " << text(all.variants[0].settings);
  EXPECT_GE(found.variants[0].prediction.seconds, all.variants[0].prediction.seconds);
}

TEST(PlannedSlices, ThatCannotBe) {
  const auto refused = [](const VariantPlanning& how) { return message_of([&] { plan(how, "slices=planned"); }); };
  const auto said = [](const std::string& reason) {
    return concat("none of the configurations can be run\n  slices=planned: ", reason, "\n  hint: vary other keys, or other values");
  };
  VariantPlanning how = planning(small(2, 16), by_formula(1));
  how.slice_unit = 17;
  EXPECT_EQ(refused(how), said("slices in units of 17 tokens: a sequence of 16 has 1 unit"));
  how = planning(small(2, 4096), by_formula(1));
  how.slice_unit = 1;
  EXPECT_EQ(refused(how), said("slices in units of 1 token: a sequence of 4096 has 4096 units"));
  how = planning({"actors=2", "batch=2", "microbatches=2", "model.name=mlp"}, by_formula(1));
  EXPECT_EQ(refused(how), said("pipeline.slices = 2: no tensor has a dim \"sequence\" of as many tokens"));
  how = planning({"layers=3", "actors=4"}, by_formula(1));
  EXPECT_NE(refused(how).find("use 1 to 3 stages"), std::string::npos) << refused(how);
}

TEST(PlannedSlices, StopWhenTimeIsOver) {
  VariantPlanning how = planning(small(2, 16), by_formula(0.3));
  double now = 0;
  how.limit = TimeLimit(1.5, [&] { return now++; });
  EXPECT_EQ(text(plan(how, "slices=planned").variants[0].settings), "slices=2");
}

}  // namespace
}  // namespace penstock
