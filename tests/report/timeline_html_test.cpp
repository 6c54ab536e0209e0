// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_html.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "simulate/explain.h"
#include "support/timelines.h"

namespace penstock {
namespace {

TEST(TimelineHtml, ThePageNeedsNothingElse) {
  std::string page = timeline_html({"page", {test::small_timeline()}, {}});
  const std::string own = "url(#";  // within a picture
  for (std::size_t at = page.find(own); at != std::string::npos; at = page.find(own)) page.erase(at, own.size());
  for (const char* outside : {"http:", "https:", "src=", "@import", "url(", "fetch("})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
}

TEST(TimelineHtml, TextsAreEscaped) {
  Timeline timeline = test::small_timeline();
  timeline.devices[1] = "</script><b>";
  const std::string page = timeline_html({"a <b> & c", {timeline}, {{"x < y", "1 > 0 & \"so\"\n</pre>"}}});
  EXPECT_NE(page.find("<title>a &lt;b&gt; &amp; c</title>"), std::string::npos);
  EXPECT_NE(page.find("<h1>a &lt;b&gt; &amp; c</h1>"), std::string::npos);
  EXPECT_NE(page.find("<h2>x &lt; y</h2>\n<pre>1 &gt; 0 &amp; &quot;so&quot;\n&lt;/pre&gt;</pre>"), std::string::npos);
  EXPECT_EQ(page.find("<b>"), std::string::npos);
}

TEST(TimelineHtml, CarriesTheTimelinesAsColumns) {
  const std::string page = timeline_html({"page", {test::small_timeline(), test::small_timeline()}, {}});
  const std::string open = "id=\"data\">";
  const std::size_t begin = page.find(open) + open.size();
  const nlohmann::json data = nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  ASSERT_EQ(data["timelines"].size(), 2U);
  EXPECT_EQ(data["timelines"][1]["title"], "a <small> step");
  EXPECT_EQ(data["timelines"][1]["activities"]["begin"].size(), 14U);
  EXPECT_EQ(data["looks"].size(), 9U);
  EXPECT_EQ(data["lookOfKind"].size(), data["timelines"][0]["kinds"].size());
}

TEST(TimelineHtml, FiguresAreThoseOfTheExplanation) {
  const Timeline timeline = test::small_timeline();
  const std::string page = timeline_html({"page", {timeline}, {}});
  const std::string open = "id=\"data\">";
  const std::size_t begin = page.find(open) + open.size();
  const nlohmann::json figures = nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin))["figures"][0];
  const Explanation explanation = explain(timeline);
  EXPECT_EQ(figures["bubble"], explanation.bubble);
  EXPECT_EQ(figures["busy"], nlohmann::json(compute_times(timeline)));
  EXPECT_EQ(figures["path"]["activities"], nlohmann::json(explanation.path.activities));
  EXPECT_EQ(figures["path"]["compute"], explanation.path.compute);
  EXPECT_EQ(figures["idle"][1]["drain"], explanation.idle[1].drain);
  EXPECT_EQ(figures["stages"], nlohmann::json({{0}, {1}}));
}

TEST(TimelineHtml, AWarningStandsAboveTheChart) {
  EXPECT_EQ(timeline_html({"page", {test::small_timeline()}, {}}).find("<p class=\"warning\">"), std::string::npos);
  const std::string page = timeline_html({.title = "page", .timelines = {test::small_timeline()}, .sections = {}, .warning = "a < b"});
  EXPECT_LT(page.find("<p class=\"warning\">a &lt; b</p>"), page.find("id=\"chart\""));
}

TEST(TimelineHtml, ThePlanStandsInAFrameOfItsOwn) {
  EXPECT_EQ(timeline_html({"page", {test::small_timeline()}, {}}).find("class=\"picture\""), std::string::npos);
  const std::string page = timeline_html({"page", {test::small_timeline()}, {}, "<svg></svg>"});
  EXPECT_NE(page.find("class=\"picture\""), std::string::npos);
}

}  // namespace
}  // namespace penstock
