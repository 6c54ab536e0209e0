// SPDX-License-Identifier: Apache-2.0
// The ways of a run on fewer devices than it was configured for.
#include "config/elastic.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "models/support.h"

namespace penstock {
namespace {

Config parse(std::string_view mesh) {
  std::vector<Override> overrides = parse_mesh(mesh);
  for (const char* setting : {"layers=4", "width=32", "heads=4", "context=16", "batch=16", "microbatches=4"})
    overrides.push_back(parse_override(setting));
  return parse_config("", "run.toml", overrides, builtin_models());
}

std::string layouts(std::string_view mesh, int devices) {
  return join(layouts_on(parse(mesh), devices), "; ", [](const RunLayout& layout) { return text_of(layout); });
}

TEST(ElasticLayouts, AreFewerDevicesOfAnActorThenFewerActors) {
  EXPECT_EQ(layouts("pipe=2,data=2", 6), "2 actors of 2 devices");
  EXPECT_EQ(layouts("pipe=2,data=2", 4), "2 actors of 2 devices");
  EXPECT_EQ(layouts("pipe=2,data=2", 3), "2 actors of 2, 1 devices; 2 actors of 1, 2 devices; 1 actor of 2 devices");
  EXPECT_EQ(layouts("pipe=2,data=2", 2), "2 actors of 1 device; 1 actor of 2 devices");
  EXPECT_EQ(layouts("pipe=2,data=2", 1), "1 actor of 1 device");
}

TEST(ElasticLayouts, LeaveWorkersAsTheyAre) {
  Config config = parse("pipe=2,data=2");
  config.pipeline.workers = {{1, 1}, {1, 1}};
  const std::vector<RunLayout> layouts = layouts_on(config, 3);
  ASSERT_EQ(layouts.size(), 1u);
  EXPECT_TRUE(layouts[0].groups.empty());
  EXPECT_EQ(text_of(layouts[0]), "it is configured");
}

// Members of an axis stay together.
TEST(ElasticLayouts, KeepTheAxes) {
  EXPECT_EQ(layouts("pipe=2,tensor=2", 3), "1 actor of 1 device");
  EXPECT_EQ(layouts("pipe=1,tensor=4", 3), "");
}

TEST(ElasticLayouts, AreCompiledForTheirDevices) {
  for (const int devices : {4, 3, 2, 1})
    for (const RunLayout& layout : layouts_on(parse("pipe=2,data=2"), devices)) {
      const Prepared prepared = prepare(layout, builtin_models());
      EXPECT_EQ(prepared.options.devices, layout.groups);
      std::size_t all = 0;
      for (const int group : layout.groups) all += static_cast<std::size_t>(group);
      EXPECT_EQ(compile_training(layout.config, prepared).devices.size(), all) << text_of(layout);
    }
}

// The batch must have as many parts: 2 samples of a micro-batch of 4 devices' cannot be shared by 3.
TEST(ElasticLayouts, ThatDoNotDivideTheBatchAreRefused) {
  const std::vector<RunLayout> three = layouts_on(parse("pipe=1,data=4"), 3);
  ASSERT_EQ(three.size(), 1u);
  EXPECT_THROW(compile_training(three[0].config, prepare(three[0], builtin_models())), std::exception);
}

}  // namespace
}  // namespace penstock
