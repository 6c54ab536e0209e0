// SPDX-License-Identifier: Apache-2.0
#include "report/plan_svg.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace penstock {
namespace {

PlanFile chain(int stages) {
  PlanFile plan;
  plan.model = "chain";
  plan.cluster = "a cluster";
  plan.planner = "hand";
  plan.peak_bytes.resize(static_cast<std::size_t>(stages));
  for (int s = 0; s < stages; ++s) {
    plan.stages.push_back({concat("stage<", s, ">"), {"node"}, {s}, 1, 1e-3, 2e-3, 4096});
    if (s > 0) plan.links.push_back({s - 1, s, 1024, 1e-6});
  }
  return plan;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(PlanSvg, ManyStagesStandInRows) {
  // Thirteen in four rows of four, four, four and one: three edges go to a next row.
  const std::string svg = plan_svg(chain(13));
  EXPECT_EQ(count(svg, "class=\"stage\""), 13U);
  EXPECT_EQ(count(svg, "class=\"edge\""), 12U);
  EXPECT_EQ(count(svg, "V") - count(plan_svg(chain(4)), "V"), 2U * 3U);  // each goes down twice
  EXPECT_NE(svg.find("viewBox=\"0 0 1274 "), std::string::npos) << svg.substr(0, 100);
}

TEST(PlanSvg, NothingOfANameIsCut) {
  PlanFile plan = chain(1);
  plan.stages[0].name = "encoder.layers.0.attention_and_feed_forward..encoder.layers.7.mlp and \xc3\xa4\xc3\xb6\xc3\xbc";
  std::string svg = plan_svg(plan), name;
  const std::string open = "<text class=\"name\"";
  for (std::size_t at = svg.find(open); at != std::string::npos; at = svg.find(open, at + 1)) {
    const std::size_t begin = svg.find('>', at) + 1;
    name += svg.substr(begin, svg.find('<', begin) - begin);
  }
  EXPECT_EQ(name, "0  " + plan.stages[0].name);
}

TEST(PlanSvg, OfNoStages) {
  EXPECT_EQ(count(plan_svg({}), "class=\"stage\""), 0U);
}

}  // namespace
}  // namespace penstock
