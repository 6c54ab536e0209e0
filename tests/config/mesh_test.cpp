// SPDX-License-Identifier: Apache-2.0
// Which dims of a model are split over which axis, from --mesh and [layout].
#include "config/mesh.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "config/compile.h"
#include "config/config_text.h"
#include "models/support.h"
#include "support/errors.h"
#include "support/exchange_model.h"

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
  return join(prepare(config, builtin_models()).options.axes, " ", [](const LayoutAxis& axis) {
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
  EXPECT_NE(text.find("\n[layout]\nchoose = []\nembed = \"expert\"\nexperts = \"expert\"\nheads = \"tensor\"\nmlp = "
                      "\"tensor\"\n\"odd\\u000Aname\" = \"\"\n"
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

TEST(Mesh, AStageMayHaveALayoutOfItsOwn) {
  const auto stages = [](const Config& config) {
    return join(prepare(config, builtin_models()).options.axes[0].stage_dims, "; ", [](const auto& stage) {
      return concat(stage.first, " {", join(std::vector<std::string>(stage.second.begin(), stage.second.end()), ", "), "}");
    });
  };
  const Config config = parse("[layout]\nmlp = \"\"\n[layout.0]\nvocab = \"\"\nmlp = \"tensor\"\n", {"layout.1.heads="}, "pipe=2,tensor=2");
  EXPECT_EQ(axes(config), "tensor 2 {heads, vocab}");
  EXPECT_EQ(stages(config), "0 {heads, mlp}; 1 {vocab}");
  const std::string text = print(config);
  EXPECT_NE(text.find("\n[layout.0]\nmlp = \"tensor\"\nvocab = \"\"\n\n[layout.1]\nheads = \"\"\n"), std::string::npos) << text;
  const Config again = parse_config(explained(config, builtin_models()), "stored", {}, builtin_models());
  EXPECT_EQ(again.stage_layout, config.stage_layout);
  EXPECT_EQ(print(parse("[layout.\"a b\"]\nvocab = \"\"\n")).find("[layout.\"a b\"]") == std::string::npos, false);
  // An axis may be for one stage alone.
  EXPECT_EQ(stages(parse("", {"layout.1.embed=expert"}, "pipe=2,expert=2")), "1 {embed}");
}

// What is chosen has a name of its own, and no dim lies along the axis by the usual ones.
TEST(Mesh, ChoosesWhatIsSplit) {
  const Config config = parse("", {"layout.choose=tensor"}, "pipe=2,context=2,tensor=2");
  EXPECT_EQ(axes(config), "context 2 {sequence} tensor 2 {chosen along tensor}");
  const std::string text = print(config);
  EXPECT_NE(
      text.find(
          "\n[layout]\nchoose = [\"tensor\"]\nexperts = \"expert\"\nheads = \"\"\nmlp = \"\"\nsequence = \"context\"\nvocab = \"\"\n"),
      std::string::npos)
      << text;
  const Config again = parse_config(explained(config, builtin_models()), "stored", {}, builtin_models());
  EXPECT_EQ(print(again), text);
  EXPECT_EQ(axes(again), axes(config));
  // The names of the other axis stay there.
  const Prepared prepared = prepare(config, builtin_models());
  for (const LayoutClass& found : prepared.choices.at(0).choice.classes) EXPECT_NE(found.name, "sequence");
  // Two axes to choose for.
  EXPECT_EQ(axes(parse("", {"name=mlp", "layout.choose=[\"context\", \"tensor\"]"}, "context=2,tensor=2")),
            "context 2 {chosen along context} tensor 2 {chosen along tensor}");
}

TEST(Mesh, BadChoices) {
  EXPECT_EQ(failure("tensor=2", {"layout.choose=context"}),
            "layout.choose = \"context\": the mesh has no axis context\n  hint: --mesh context=2, or --set layout.choose=[]");
  EXPECT_EQ(failure("tensor=2", {"layout.choose=pipe"}),
            "--set layout.choose: unknown axis \"pipe\"\n  hint: known: expert, context, tensor");
  EXPECT_EQ(failure("tensor=2", {"layout.choose=tensor", "layout.embed=tensor"}),
            "layout.embed = \"tensor\" and layout.choose = \"tensor\"\n"
            "  along an axis dims are split that the layout names, or those that Penstock finds\n"
            "  hint: leave out layout.embed, or --set layout.embed=");
  EXPECT_EQ(failure("tensor=2", {"layout.choose=tensor", "layout.mlp=tensor"}).substr(0, 57),
            "layout.mlp = \"tensor\" and layout.choose = \"tensor\"\n  alon");
  EXPECT_EQ(failure("tensor=2", {"layout.choose=tensor", "layout.0.mlp=tensor"}),
            "layout.0.mlp = \"tensor\" and layout.choose = \"tensor\"\n"
            "  along an axis dims are split that the layout names, or those that Penstock finds\n"
            "  hint: leave out layout.0.mlp, or --set layout.0.mlp=");
  EXPECT_EQ(failure("tensor=512", {"layout.choose=tensor", "name=mlp"}),
            "layout.choose = \"tensor\": no parameter can be split over 512 members\n"
            "  a dim can be split that has as many units as there are members and lies along no other axis\n  hint: use a smaller tensor");
  // Without names for its dims a model is split along one axis.
  EXPECT_EQ(failure("context=2,tensor=2", {"name=resnet", "layout.choose=[\"context\", \"tensor\"]"}),
            "layout.choose = \"context\": no parameter can be split over 2 members\n"
            "  a dim can be split that has as many units as there are members and lies along no other axis\n  hint: use a smaller context");
  const auto own = [] {
    std::vector<Override> overrides = parse_mesh("tensor=2");
    for (const char* setting : {"name=exchange", "layout.choose=tensor"}) overrides.push_back(parse_override(setting));
    prepare(load_config("", overrides, test::exchange_models()), test::exchange_models());
  };
  EXPECT_EQ(message_of(own),
            "layout.choose = \"tensor\": the model has collectives of its own along tensor\n"
            "  along their axis nothing else is split\n  hint: --set layout.choose=[]");
}

TEST(Mesh, BadLayoutsOfAStage) {
  const auto compiled = [](const std::vector<std::string>& settings, std::string_view toml = {}) {
    return message_of([&] {
      const Config config = parse(toml, settings, "pipe=2,tensor=2");
      compile_gradients(config, prepare(config, builtin_models()));
    });
  };
  EXPECT_EQ(compiled({"layout.3.vocab="}), "layout.3: there is no stage \"3\"\n  the stages: \"0\", \"1\"\n  hint: did you mean \"0\"?");
  EXPECT_EQ(compiled({"layout.00.vocab="}), "layout.00: there is no stage \"00\"\n  the stages: \"0\", \"1\"\n  hint: did you mean \"0\"?");
  EXPECT_EQ(compiled({"layout.0.vocab="}),
            "\"wte.weight\" would lie in two ways along axis \"tensor\": stage \"0\" reads it whole, stage \"1\" split 0\n"
            "  \"wte.weight\" is f32[256,128], its dims \"vocab\", \"embed\"\n  a parameter lies in one way, whoever reads it\n"
            "  hint: say the same of its dims for stages \"0\" and \"1\" in [layout]");
  EXPECT_EQ(compiled({"layout.0.vocab=", "layout.1.vocab="}), "no error");
  EXPECT_EQ(compiled({"layout.0.haeds=tensor"}),
            concat("layout.0.haeds = \"tensor\": model \"gpt\" has no dim \"haeds\"\n", kGptDims, "\n  hint: did you mean \"heads\"?"));
  EXPECT_EQ(compiled({}, "[layout.0]\nvocab = \"tenso\"\n"), "run.toml:2:9: unknown axis \"tenso\"\n  hint: did you mean \"tensor\"?");
  EXPECT_EQ(compiled({}, "[layout.0]\nvocab = 2\n"),
            "run.toml:2:9: layout.0.vocab needs a text, this is a whole number\n  hint: as in layout.0.vocab = \"\"");
}

// Two axes want one dim of a value, or one axis two dims of it: the value, who makes it and the rule.
TEST(Mesh, BadLayoutsOfAValue) {
  const auto compiled = [](const std::vector<std::string>& settings, std::string_view mesh) {
    return message_of([&] {
      const Config config = parse("", settings, mesh);
      compile_gradients(config, prepare(config, builtin_models()));
    });
  };
  const std::string rule = "\n  hint: give one of them another axis in [layout]";
  EXPECT_EQ(compiled({"layout.embed=tensor"}, "tensor=2"),
            "axis \"tensor\" is asked to split two dims of \"wte.weight\", f32[256,128]\n  \"vocab\" and \"embed\"" + rule);
  EXPECT_EQ(
      compiled({"layout.sequence=tensor", "layout.embed=tensor", "layout.heads=", "layout.mlp=", "layout.vocab="}, "pipe=1,tensor=2"),
      "axis \"tensor\" is asked to split two dims of f32[2,128,128]\n  \"sequence\" and \"embed\"\n  constrained in stage \"0\"" + rule);
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
  EXPECT_EQ(parsed("[layout]\nheads = 2\n"),
            "run.toml:2:9: layout.heads needs a text, this is a whole number\n  hint: as in layout.heads = \"tensor\"");
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

// JaxPP's meshes name their axes as users like.
constexpr const char* kNamed = "[axes]\nmodel = \"tensor\"\nstages = \"pipe\"\nbatch = \"data\"\nring = \"context\"\n";

Config parse_named(const std::string& mesh, const std::vector<std::string>& settings = {}, const std::string& toml = kNamed) {
  std::vector<Override> overrides{mesh_override(mesh)};
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return parse_config(toml, "run.toml", overrides, builtin_models());
}

TEST(Mesh, AxesHaveTheUsersNames) {
  const Config config = parse_named("stages=2,batch=2,ring=2,model=2");
  EXPECT_EQ(axes(config), "ring 2 {sequence} model 2 {heads, mlp, vocab}");
  EXPECT_EQ(config.pipeline.table.actors, 2);
  EXPECT_EQ(config.pipeline.data, 2);
  EXPECT_EQ(config.pipeline.axes, (std::vector<std::string>{"expert", "ring", "model"}));
  EXPECT_EQ(axes(parse_named("model=2,ring=2", {"layout.sequence=model", "layout.mlp=ring"})),
            "model 2 {heads, sequence, vocab} ring 2 {mlp}");
  EXPECT_EQ(axes(parse_named("data=2,tensor=2", {}, "")), "tensor 2 {heads, mlp, vocab}");
  EXPECT_EQ(axes(parse_named("model=2", {"axes.model=tensor"}, "")), "model 2 {heads, mlp, vocab}");
  EXPECT_EQ(axes(parse("[mesh]\nmodel = 2\nring = 4\n[axes]\nmodel = \"tensor\"\nring = \"context\"\n")),
            "ring 4 {sequence} model 2 {heads, mlp, vocab}");
  EXPECT_EQ(parse("mesh = { data = 2, pipe = 3 }\n").pipeline.data, 2);
  for (const auto& [mesh, outside] : {std::pair("shard=2,replica=3", false), std::pair("replica=3,shard=2", true)}) {
    const Config sharded = parse_named(mesh, {"axes.shard=data", "axes.replica=local", "batch=48"}, "");
    EXPECT_EQ(std::pair(sharded.pipeline.data, sharded.pipeline.program.local), std::pair(2, 3));
    EXPECT_EQ(sharded.pipeline.program.local_outside, outside);
  }
  EXPECT_EQ(axes(parse("[mesh]\nmodel = 4\n[axes]\nmodel = \"tensor\"\n", {"mesh.model=2"})), "model 2 {heads, mlp, vocab}");
}

TEST(Mesh, NamesOfAxesAreKeptWithTheConfiguration) {
  const Config config = parse_named("stages=2,ring=2,model=2", {"layout.embed=ring"});
  const std::string text = print(config);
  EXPECT_NE(text.find("[axes]\nbatch = \"data\"\nmodel = \"tensor\"\nring = \"context\"\nstages = \"pipe\"\n"), std::string::npos) << text;
  const Config again = parse(explained(config, builtin_models()));
  EXPECT_EQ(print(again), text);
  EXPECT_EQ(axes(again), axes(config));
}

TEST(Mesh, NamesOfAxesThatCannotBe) {
  const auto refused = [](const std::string& mesh, const std::vector<std::string>& settings, const std::string& toml = kNamed) {
    return message_of([&] { axes(parse_named(mesh, settings, toml)); });
  };
  EXPECT_EQ(refused("modle=2", {}),
            "--mesh modle=2: there is no axis \"modle\"\n"
            "  there are pipe (actors), data (devices of each actor, or its hosts) and local (devices of each host)\n"
            "  and inside of these tensor, context and expert, over which [layout] splits tensors\n"
            "  [axes] names data \"batch\", tensor \"model\", context \"ring\", pipe \"stages\"\n"
            "  hint: did you mean model?");
  EXPECT_EQ(refused("model=2", {"axes.rows=tensor"}),
            "axes.model and axes.rows are both \"tensor\"\n"
            "  there is one axis tensor, as a dim that is split over it lies along one axis\n"
            "  hint: name another of tensor, context and expert, which differ in nothing but what [layout] splits over them");
  EXPECT_NE(refused("shard=2", {"axes.replica=data", "axes.shard=data"}, "").find("let one of them be local"), std::string::npos);
  EXPECT_NE(refused("model=2", {"axes.data=tensor"}, "").find("data is the name of another axis"), std::string::npos);
  EXPECT_NE(refused("x=2", {"axes.x=tensr"}, "").find("unknown axis \"tensr\""), std::string::npos);
  EXPECT_NE(refused("model=2", {"layout.mlp=modle"}).find("unknown axis \"modle\""), std::string::npos);
  EXPECT_NE(refused("model=999", {}).find("mesh.model = 999: \"heads\" has 4 in "), std::string::npos);
  EXPECT_NE(refused("model=2,batch=2", {}).find("batch stands behind model"), std::string::npos);
  EXPECT_EQ(message_of([] { parse("[mesh]\nmodel = 2\n"); }).substr(0, 43), "run.toml:2:1: [mesh]: there is no axis \"mod");
  EXPECT_EQ(message_of([] { parse("", {"mesh.modle=2"}); }).substr(0, 42), "--set mesh.modle: there is no axis \"modle\"");
  EXPECT_NE(message_of([] { parse("[mesh]\ntensor = 2\n[pipeline]\ntensor = 2\n"); }).find("both say how many members an axis has"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock
