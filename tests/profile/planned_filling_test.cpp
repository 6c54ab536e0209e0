// SPDX-License-Identifier: Apache-2.0
// Cuts of a trained backbone behind frozen stages: the fastest of all.
#include "profile/planned_filling.h"

#include <gtest/gtest.h>

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
using test::Random;

// The keys of a latent diffusion model, and these.
std::vector<std::string> diffusion(std::vector<std::string> own = {}) {
  own.insert(own.begin(), {"model.name=latent_diffusion", "image=16", "patch=4", "batch=8", "clip=0", "window=3"});
  return own;
}

// Every cut of so many layers into so many stages, as 1+3.
void add_cuts(int layers, int stages, const std::string& before, std::vector<std::string>& out) {
  if (stages == 1) return out.push_back(concat(before, layers));
  for (int first = 1; first + stages - 1 <= layers; ++first) add_cuts(layers - first, stages - 1, concat(before, first, "+"), out);
}

// By how much a planned cut takes longer than the fastest of all cuts.
double beyond_best(const VariantPlanning& planning, int actors, int layers) {
  std::vector<Varied> varied = {{"actors", {std::to_string(actors)}}, {"stage_layers", {"planned"}}, {"frozen", {"planned"}}};
  const double found = plan_variants(combinations(varied), planning).variants[0].prediction.seconds;
  varied[1].values.clear();
  add_cuts(layers, actors, "", varied[1].values);
  return found / plan_variants(combinations(varied), planning).variants[0].prediction.seconds - 1;
}

// By figures of a published device. The first and last layer have more to do than the others.
TEST(PlannedFilling, IsTheFastestOfAllCuts) {
  const auto predict = [](const ConfigVariant&, const Prepared&, Program& program) {
    return predict_on(program, uniform_cluster(static_cast<int>(program.devices.size()), 1e10), "v100");
  };
  const std::pair<int, std::vector<std::string>> models[] = {
      {4, {"layers=4", "width=64", "text_width=32", "heads=2", "microbatches=4"}},
      {5, {"layers=5", "width=16", "text_width=64", "heads=2", "microbatches=2"}},
      {6, {"layers=6", "width=32", "text_width=16", "heads=2", "microbatches=8", "text_layers=6", "frozen_stages=4"}}};
  for (const auto& [layers, own] : models)
    for (const int actors : {1, 2, 3})
      EXPECT_NEAR(beyond_best(planning(diffusion(own), predict), actors, layers), 0, 1e-9) << join(own, " ") << ", " << actors << " actors";
}

// The times of layers and frozen stages, drawn.
struct DrawnTimes {
  std::vector<double> layers, frozen;

  Prediction of(const Config& config, const Schedule& schedule) const {
    const std::string& word = config.model.words.at("stage_layers");
    StageLayers cut;
    for (const std::string& one : split(word == "even" ? "" : word, '+')) cut.push_back(parse_number<int>(one).value_or(0));
    if (word == "even") cut.assign(layers.size(), 1);
    TableCosts costs = uniform_costs(schedule.stages());
    for (StageCosts& stage : costs.stages) stage.time = {};
    const auto set = [&](std::size_t stage, Kind kind, double time) { costs.stages[stage].time[static_cast<std::size_t>(kind)] = time; };
    for (std::size_t f = 0; f < frozen.size(); ++f) set(f, Kind::F, frozen[f]);
    for (std::size_t s = 0, layer = 0; s < cut.size(); ++s) {
      double time = 0;
      for (int i = 0; i < cut[s]; ++i) time += layers[layer++];
      set(frozen.size() + s, Kind::F, time);
      set(frozen.size() + s, Kind::B, 2 * time);
    }
    const StageShape shape = shape_of(schedule);
    const TableTime time = time_table(schedule, shape, costs, {.record = true});
    return {.seconds = time.makespan, .memory = {}, .timeline = timeline_of(schedule, shape, costs, time)};
  }
};

TEST(PlannedFilling, IsTheFastestOfUnevenLayers) {
  for (int seed = 1; seed <= test::rounds(40); ++seed) {
    Random random(seed);
    DrawnTimes times{.layers = std::vector<double>(static_cast<std::size_t>(draw(random, 3, 6))), .frozen = {0, 0}};
    for (double& time : times.layers) time = draw(random, 1, 16);
    for (double& time : times.frozen) time = draw(random, 1, 16);
    const std::string layers = concat("layers=", times.layers.size()), microbatches = concat("microbatches=", 1 << draw(random, 0, 3));
    const double beyond = beyond_best(
        planning(diffusion({layers, microbatches, "width=4", "text_width=4", "heads=1"}),
                 [&](const ConfigVariant& of, const Prepared& prepared, Program&) { return times.of(of.config, prepared.schedule); }),
        draw(random, 2, 3), static_cast<int>(times.layers.size()));
    EXPECT_NEAR(beyond, 0, 1e-9) << "seed " << seed;
  }
}

TEST(PlannedFilling, CountsATrainedStageAsThreeForwards) {
  const FillingTimes times{.frozen = {2, 6}, .forward = {1, 2, 3}, .backward = {2, 4, 6}};
  EXPECT_EQ(frozen_shares(times, {1, 2}), (std::vector<double>{2 / 3.0, 2}));
  EXPECT_EQ(best_cut(times, 2, 4), (StageLayers{2, 1}));
  EXPECT_EQ(even_cut(times, 2), (StageLayers{2, 1}));
  EXPECT_EQ(neighbours({1, 3, 1}), (std::vector<StageLayers>{{2, 2, 1}, {1, 2, 2}}));
}

TEST(PlannedFilling, ChoosesActorsAndTheEncodersStages) {
  std::vector<std::string> lines;
  for (const Settings& settings : filling_settings(loaded(diffusion({"layers=2"})), 3)) lines.push_back(text(settings));
  EXPECT_EQ(lines.size(), 2u * 3u);  // one layer a stage at most; up to two stages of text and one of images
  EXPECT_EQ(lines[5], "actors=2 frozen_stages=3 stage_layers=planned frozen=planned");
}

TEST(PlannedFilling, MistakesAreNamed) {
  EXPECT_EQ(message_of([] { filling_settings(loaded(diffusion({"window=1"})), 2); }),
            "pipeline.window is 1: frozen stages of a step fill the one before it, and none is in the table\n"
            "  hint: --set pipeline.window=8 --set clip=0");
  EXPECT_EQ(message_of([] { filling_settings(loaded({"window=2", "schedule=1f1b"}), 2); }),
            "model \"gpt\" has no frozen stages whose cut could be planned\n  hint: models that have: latent_diffusion");
  EXPECT_EQ(
      message_of([] { filling_settings(loaded(diffusion({"backbones=2", "chunks=2"})), 2); }),
      "model.backbones is 2, and the cut of one backbone is planned\n  hint: --vary stage_layers=1+3,2+2 compares cuts that both have");
  const VariantPlanning none = planning(diffusion(), [](const ConfigVariant&, const Prepared&, Program&) { return Prediction{}; });
  const std::string found = message_of([&] { plan_variants(combinations({{"actors", {"5"}}, {"stage_layers", {"planned"}}}), none); });
  EXPECT_EQ(found.substr(0, 37), "none of the configurations can be run") << found;
}

}  // namespace
}  // namespace penstock
