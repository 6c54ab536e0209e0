// Which dims of a model are split over which axis, from --mesh and [layout].
#include "config/mesh.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "config/config_text.h"
#include "models/support.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

Config parse(std::string_view toml, const std::vector<std::string>& settings = {}, std::string_view mesh = {}) {
  std::vector<Override> overrides;
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  if (!mesh.empty())
    for (Override& axis : parse_mesh(mesh)) overrides.push_back(std::move(axis));
  return parse_config(toml, "run.toml", overrides, builtin_models());
}

// "tensor 2 {heads, mlp, vocab}", one after the other.
std::string axes(const Config& config) {
  return join(prepare(config, builtin_models()).axes, " ", [](const LayoutAxis& axis) {
    return concat(axis.name, " ", axis.size, " {", join(std::vector<std::string>(axis.dims.begin(), axis.dims.end()), ", "), "}");
  });
}

std::string failure(std::string_view mesh, const std::vector<std::string>& settings = {}) {
  return message_of([&] { axes(parse("", settings, mesh)); });
}

constexpr const char* kGptDims = "  the dims of model \"gpt\": batch, embed, heads, mlp, position, sequence, vocab";

TEST(Mesh, SplitsWhatTheModelNamesByDefault) {
  EXPECT_EQ(axes(parse("")), "");
  EXPECT_EQ(axes(parse("", {}, "pipe=2,data=2")), "");
  EXPECT_EQ(axes(parse("", {}, "pipe=2,data=2,tensor=2")), "tensor 2 {heads, mlp, vocab}");
  EXPECT_EQ(axes(parse("", {"name=mlp"}, "tensor=2")), "tensor 2 {vocab}");
  EXPECT_EQ(axes(parse("[pipeline]\ntensor = 2\ncontext = 4\n")), "context 4 {sequence} tensor 2 {heads, mlp, vocab}");
}

TEST(Mesh, AxesAreInTheOrderInWhichTheyAreWritten) {
  EXPECT_EQ(axes(parse("", {}, "context=2,tensor=2")), "context 2 {sequence} tensor 2 {heads, mlp, vocab}");
  EXPECT_EQ(axes(parse("", {}, "tensor=2,context=2")), "tensor 2 {heads, mlp, vocab} context 2 {sequence}");
  EXPECT_EQ(axes(parse("[pipeline]\ntensor = 2\ncontext = 2\naxes = [\"tensor\", \"context\"]\n")),
            "tensor 2 {heads, mlp, vocab} context 2 {sequence}");
  // One that is not listed is outside of those that are.
  EXPECT_EQ(axes(parse("[pipeline]\ntensor = 2\ncontext = 2\naxes = \"context\"\n")), "tensor 2 {heads, mlp, vocab} context 2 {sequence}");
  // A mesh names all axes: the others have one member.
  EXPECT_EQ(axes(parse("[pipeline]\ntensor = 2\n", {}, "pipe=2,context=2")), "context 2 {sequence}");
  EXPECT_EQ(parse("", {}, "data=2,tensor=2,expert=2").pipeline.axes, (std::vector<std::string>{"context", "tensor", "expert"}));
}

TEST(Mesh, LayoutMapsDimsToAxes) {
  EXPECT_EQ(axes(parse("", {"layout.sequence=tensor"}, "tensor=2")), "tensor 2 {heads, mlp, sequence, vocab}");
  EXPECT_EQ(axes(parse("[layout]\nvocab = \"\"\nsequence = \"tensor\"\nmlp = \"context\"\n", {}, "context=2,tensor=2")),
            "context 2 {mlp} tensor 2 {heads, sequence}");
  EXPECT_EQ(axes(parse("", {"layout.mlp=", "layout.embed=expert"}, "expert=2,tensor=2")), "expert 2 {embed} tensor 2 {heads, vocab}");
}

// `penstock config` and a run's config.toml show what is in force, and read back.
TEST(Mesh, IsKeptWithTheConfiguration) {
  const Config config = parse("[layout]\nembed = \"expert\"\n\"odd\\nname\" = \"\"\nvocab = \"\"\n", {}, "tensor=2,context=2");
  const std::string text = print(config);
  EXPECT_NE(text.find("tensor = 2\naxes = [\"expert\", \"tensor\", \"context\"]\n"), std::string::npos) << text;
  EXPECT_NE(
      text.find("\n[layout]\nembed = \"expert\"\nexperts = \"expert\"\nheads = \"tensor\"\nmlp = \"tensor\"\n\"odd\\u000Aname\" = \"\"\n"
                "sequence = \"context\"\nvocab = \"\"\n\n[run]\n"),
      std::string::npos)
      << text;
  const Config again = parse_config(explained(config, builtin_models()), "stored", {}, builtin_models());
  EXPECT_EQ(print(again), text);
  EXPECT_EQ(again.layout, config.layout);
  for (const KeyLine& line : key_lines(config, builtin_models())) {
    if (line.section != "layout") continue;
    EXPECT_EQ(line.fallback == "\"\"", line.name == "embed" || line.name == "odd\nname") << line.name << line.fallback;
  }
}

TEST(Mesh, AKeyAloneIsTheModels) {
  EXPECT_EQ(parse("", {"context=32"}).model.numbers.at("context"), 32);
  EXPECT_EQ(parse("", {"pipeline.context=2"}).pipeline.context, 2);
  EXPECT_EQ(parse("", {"heads=2"}).model.numbers.at("heads"), 2);
  EXPECT_EQ(message_of([] { parse("", {"sequence=tensor"}); }).substr(0, 38), "--set sequence: unknown key \"sequence\"");
}

TEST(Mesh, BadMappings) {
  const auto parsed = [](std::string_view toml, const std::vector<std::string>& settings = {}) {
    return message_of([&] { parse(toml, settings); });
  };
  EXPECT_EQ(parsed("[layout]\nheads = \"tenso\"\n"), "run.toml:2:9: unknown axis \"tenso\"\n  hint: did you mean \"tensor\"?");
  EXPECT_EQ(parsed("[layout]\nheads = \"data\"\n"), "run.toml:2:9: unknown axis \"data\"\n  hint: known: expert, context, tensor");
  EXPECT_EQ(parsed("", {"layout.mlp=tenso"}), "--set layout.mlp: unknown axis \"tenso\"\n  hint: did you mean \"tensor\"?");
  EXPECT_EQ(parsed("[layout]\nheads = [\"tensor\", \"context\"]\n"),
            "run.toml:2:9: layout.heads names 2 axes: tensor, context\n  a dim is split over one axis");
  EXPECT_EQ(parsed("", {"layout.heads=tensor, context"}),
            "--set layout.heads: layout.heads names 2 axes: tensor, context\n  a dim is split over one axis");
  EXPECT_EQ(parsed("[layout]\nheads = 2\n"), "run.toml:2:9: layout.heads needs a text, this is a whole number");
  EXPECT_EQ(parsed("[pipeline]\naxes = [\"tensor\", \"contex\"]\n"),
            "run.toml:2:8: unknown axis \"contex\"\n  hint: did you mean \"context\"?");
  EXPECT_EQ(parsed("[pipeline]\naxes = [\"tensor\", \"tensor\"]\n"), "run.toml:2:8: pipeline.axes names \"tensor\" twice");
}

TEST(Mesh, BadLayoutsOfAModel) {
  EXPECT_EQ(failure("", {"layout.haeds=tensor"}),
            concat("layout.haeds = \"tensor\": model \"gpt\" has no dim \"haeds\"\n", kGptDims, "\n  hint: did you mean \"heads\"?"));
  EXPECT_EQ(failure("", {"name=resnet", "layout.mlp="}),
            "layout.mlp = \"\": model \"resnet\" has no dim \"mlp\"\n  no dim of model \"resnet\" has a name");
  EXPECT_EQ(failure("data=2", {"layout.batch=tensor"}), "layout.batch = \"tensor\": the batch is split over data\n  hint: --mesh data=N");
  EXPECT_EQ(failure("expert=2"), concat("pipeline.expert = 2: nothing is split over axis expert\n", kGptDims,
                                        "\n  hint: map a dim to it: --set layout.NAME=expert"));
  EXPECT_EQ(failure("tensor=2", {"name=resnet"}),
            "pipeline.tensor = 2: nothing is split over axis tensor\n  no dim of model \"resnet\" has a name\n"
            "  hint: map a dim to it: --set layout.NAME=tensor");
  EXPECT_EQ(failure("tensor=8"),
            "pipeline.tensor = 8: \"heads\" has 4 in h.0.attn.c_attn.weight, fewer than members of the axis\n"
            "  hint: use a smaller tensor, or --set layout.heads=");
  EXPECT_EQ(failure("context=4", {"context=2"}),
            "pipeline.context = 4: \"sequence\" has 2 in an activation, fewer than members of the axis\n"
            "  hint: use a smaller context, or --set layout.sequence=");
}

}  // namespace
}  // namespace penstock
