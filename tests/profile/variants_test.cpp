// SPDX-License-Identifier: Apache-2.0
#include "profile/variants.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "models/registry.h"
#include "penstock/error.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

const ModelRegistry& models() {
  static const ModelRegistry all = builtin_models();
  return all;
}

Config small(const Settings& settings) {
  Settings all;
  for (const char* one : {"layers=4", "width=16", "heads=2", "context=512", "batch=4", "microbatches=4", "actors=2"})
    all.push_back(parse_override(one));
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config("", all, models());
}

VariantPlanning planning(std::function<Prediction(const ConfigVariant&, const Prepared&, Program&)> predict) {
  return {.load = small, .models = &models(), .predict = std::move(predict)};
}

std::string text_of(const std::vector<ConfigVariant>& variants) {
  return join(variants, "\n", [](const ConfigVariant& v) {
    return concat(text(v.settings), ": ",
                  v.refused.empty() ? concat(number(v.prediction.seconds), v.fits() ? "" : " too large") : v.refused);
  });
}

TEST(Variants, ValuesStandBetweenCommasAndListsInBrackets) {
  const Varied varied = parse_varied("slices=1,[5,3],4");
  EXPECT_EQ(varied.key, "slices");
  EXPECT_EQ(varied.values, (std::vector<std::string>{"1", "[5,3]", "4"}));
  for (const char* bad : {"slices", "=1", "slices=", "slices=1,"})
    EXPECT_EQ(message_of([&] { parse_varied(bad); }), concat("--vary ", bad, ": not a key with values\n  hint: --vary slices=1,4,8"));
}

TEST(Variants, CombinationsVaryTheLastKeyFastest) {
  const std::vector<Settings> all = combinations({{"a", {"1", "2"}}, {"b", {"x", "y", "z"}}});
  EXPECT_EQ(join(all, ", ", [](const Settings& s) { return text(s); }), "a=1 b=x, a=1 b=y, a=1 b=z, a=2 b=x, a=2 b=y, a=2 b=z");
  const Varied hundred{"a", std::vector<std::string>(101, "1")};
  EXPECT_EQ(message_of([&] { combinations({hundred, hundred}); }),
            "--vary gives 10201 combinations and more\n  hint: at most 10000: name fewer values");
}

TEST(Variants, SequencesAreWholeInSlicesAndSplit) {
  std::vector<std::string> lines;
  for (const Settings& settings : sequence_settings(small({}), 2)) lines.push_back(text(settings));
  // Recomputed or not. Two actors: whole, in 2 slices of 256 tokens, in planned ones, with parts of the vocabulary, helixpipe in two ways,
  // exchange. One actor: whole, in 2.
  EXPECT_EQ(lines.size(), 2u * (2 + 5 + 3 + 1 + 3) + 2u * (1 + 1));
  EXPECT_EQ(lines[0], "actors=2 pipeline.context=1 schedule=1f1b slices=1 recompute=none");
  EXPECT_EQ(lines[5], "actors=2 pipeline.context=1 schedule=1f1b slices=2 recompute=inputs");
  EXPECT_EQ(lines[16], "actors=2 pipeline.context=1 schedule=terapipe slices=planned recompute=none");
  EXPECT_EQ(lines[20], "actors=2 pipeline.context=1 schedule=slimpipe slices=2 head_shards=2 recompute=none");
  EXPECT_EQ(lines[22], "actors=2 pipeline.context=1 schedule=helixpipe slices=1 chunks=2 recompute=none");
  EXPECT_EQ(lines[24], "actors=2 pipeline.context=1 schedule=helixpipe slices=1 chunks=2 qkv_in_attention=1 recompute=none");
  EXPECT_EQ(lines[26], "actors=2 pipeline.context=1 schedule=slimpipe-exchange slices=2 chunks=2 recompute=none");
  EXPECT_EQ(lines[28], "actors=1 pipeline.context=2 schedule=1f1b slices=1 recompute=none");
  const auto of_three = sequence_settings(small({parse_override("microbatches=3"), parse_override("batch=3")}), 2);
  EXPECT_TRUE(std::ranges::none_of(of_three, [](const Settings& s) { return text(s).find("helixpipe") != std::string::npos; }));
}

TEST(Variants, PlannersOfConfigurationsHaveNamesOfTheirOwn) {
  for (const VariantPlanner& planner : variant_planners()) {
    EXPECT_EQ(find_variant_planner(planner.name), &planner);
    EXPECT_FALSE(planner.summary.empty());
    EXPECT_EQ(std::ranges::count(planners(), planner.name, &PlannerInfo::name), 0) << planner.name;
  }
  EXPECT_EQ(find_variant_planner("best"), nullptr);
}

TEST(Variants, RecomputesOnlyWhatDoesNotFit) {
  const auto recomputing = [](const char* schedule, const char* kept) {
    return Settings{{"schedule", schedule, ""}, {"recompute", kept, ""}};
  };
  const std::vector<Settings> settings = {recomputing("1f1b", "none"), recomputing("1f1b", "inputs"), recomputing("slimpipe", "none"),
                                          recomputing("slimpipe", "inputs"), recomputing("zb-h1", "inputs")};
  VariantPlanning all = planning([](const ConfigVariant& of, const Prepared&, Program&) {
    const bool large = of.config.pipeline.schedule == "1f1b" && of.config.pipeline.program.recompute == Recompute::none;
    return Prediction{.seconds = large ? 1.0 : 2.0, .bubble = 0, .lower_bound = 0, .memory = {large ? 9 : 1}, .timeline = {}};
  });
  all.memory = [](int) { return 8.0; };
  all.is_needless = recomputes_needlessly;
  EXPECT_EQ(text_of(plan_variants(settings, all).variants),
            "schedule=1f1b recompute=inputs: 2.0\nschedule=slimpipe recompute=none: 2.0\nschedule=zb-h1 recompute=inputs: 2.0\n"
            "schedule=1f1b recompute=none: 1.0 too large");
}

TEST(Variants, WhatFitsComesFirstThenTheLargeThenTheRefused) {
  VariantPlanning all = planning([](const ConfigVariant& of, const Prepared&, Program&) {
    const int slices = slices_of(of.config);
    return Prediction{.seconds = 10.0 - slices, .bubble = 0, .lower_bound = 0, .memory = {slices, 2 * slices}, .timeline = {}};
  });
  all.memory = [](int) { return 8.0; };
  const std::vector<Varied> varied = {{"schedule", {"slimpipe"}}, {"slices", {"2", "4", "8", "3", "1000"}}};
  const PlannedVariants planned = plan_variants(combinations(varied), all);
  EXPECT_EQ(text_of(planned.variants),
            "schedule=slimpipe slices=4: 6.0\nschedule=slimpipe slices=3: 7.0\nschedule=slimpipe slices=2: 8.0\n"
            "schedule=slimpipe slices=8: 2.0 too large\nschedule=slimpipe slices=1000: " +
                planned.variants.back().refused);
  EXPECT_NE(planned.variants.back().refused.find("1000"), std::string::npos);

  all.memory = [](int) { return 1.0; };
  EXPECT_EQ(message_of([&] { plan_variants(combinations(varied), all); }),
            "no configuration fits its devices' memory\n  the smallest, schedule=slimpipe slices=2, plans 4 B on its fullest device\n"
            "  hint: vary more keys: recompute=inputs, slices, pipeline.context; or give more --memory");
  EXPECT_EQ(message_of([&] { plan_variants(combinations({{"slices", {"1000"}}}), all); }).substr(0, 39),
            "none of the configurations can be run\n ");
}

TEST(Variants, StopsWhenTimeIsOver) {
  VariantPlanning all = planning([](const ConfigVariant&, const Prepared&, Program&) { return Prediction{}; });
  double now = 0;
  all.limit = TimeLimit(3.5, [&] { return now++; });
  const PlannedVariants planned = plan_variants(combinations({{"slices", {"1", "2", "4", "8", "16"}}}), all);
  EXPECT_EQ(planned.considered, 5u);
  EXPECT_EQ(planned.variants.size(), 3u);
  all.limit = TimeLimit(0, [] { return 1.0; });
  EXPECT_EQ(message_of([&] { plan_variants(combinations({{"slices", {"1"}}}), all); }),
            "no configuration was predicted in time\n  hint: give more --seconds");
}

// More slices leave less of the step idle, as the tables say.
TEST(Variants, PublishedFiguresOfACluster) {
  const ClusterSpec cluster = uniform_cluster(2, 100e9, 1e-6, 40e9);
  VariantPlanning all =
      planning([&](const ConfigVariant&, const Prepared&, Program& program) { return predict_on(program, cluster, "a100-80"); });
  const PlannedVariants planned = plan_variants(combinations({{"schedule", {"slimpipe"}}, {"slices", {"1", "4"}}}), all);
  for (const ConfigVariant& variant : planned.variants) {
    EXPECT_TRUE(variant.fits()) << variant.refused;
    EXPECT_GT(variant.prediction.seconds, 0);
    EXPECT_EQ(variant.prediction.memory.size(), 2u);
  }
  const bool whole_first = planned.variants[0].settings[1].value == "1";
  const Prediction &whole = planned.variants[whole_first ? 0 : 1].prediction, &sliced = planned.variants[whole_first ? 1 : 0].prediction;
  EXPECT_LT(sliced.bubble, whole.bubble);
  const ClusterSpec one = uniform_cluster(1, 1);
  all = planning([&](const ConfigVariant&, const Prepared&, Program& program) { return predict_on(program, one, "a100-80"); });
  EXPECT_NE(message_of([&] { plan_variants({{}}, all); }).find("the program has 2 devices, the cluster 1"), std::string::npos);
}

}  // namespace
}  // namespace penstock
