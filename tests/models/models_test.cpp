// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "base/text.h"
#include "models/support.h"
#include "ops/verify.h"
#include "penstock/step.h"
#include "support/errors.h"
#include "support/golden.h"

namespace penstock {
namespace {

using test::message_of;
using test::model;

Graph body_of(const Graph& graph) {
  for (const Op& op : graph.ops) {
    if (op.body) return *op.body;
  }
  throw std::runtime_error("no loop");
}

std::string parameter_list(const Model& model) {
  std::string out;
  for (const ParameterSpec& spec : model.parameters()) {
    const std::string start = spec.initial.kind == Initialiser::Kind::normal ? concat("normal ", number(spec.initial.deviation))
                              : spec.initial.kind == Initialiser::Kind::ones ? "ones"
                                                                             : "zeros";
    out += concat(spec.name, ": ", spec.type.text(), " ", start, spec.decay ? ", decay\n" : "\n");
  }
  return out;
}

// The marks in the body, in order of first use.
std::vector<std::string> stages_of(const Graph& graph) {
  std::vector<std::string> found;
  for (const Op& op : body_of(graph).ops) {
    if (!op.stage.empty() && std::find(found.begin(), found.end(), op.stage) == found.end()) found.push_back(op.stage);
  }
  return found;
}

// Which stages' values each stage reads.
std::map<std::string, std::set<std::string>> reads_of(const Graph& graph) {
  const Graph body = body_of(graph);
  const std::vector<OpId> producer = producers(body);
  std::map<std::string, std::set<std::string>> reads;
  for (const Op& op : body.ops) {
    for (const ValueId operand : op.operands) {
      const OpId from = producer[operand.index()];
      if (from && body.ops[from.index()].stage != op.stage) reads[op.stage].insert(body.ops[from.index()].stage);
    }
  }
  return reads;
}

// Names and layouts as the file of the published "gpt2" has them, with its sizes replaced.
TEST(Gpt, HasThePublishedCheckpointsParameters) {
  EXPECT_EQ(parameter_list(*model("gpt", {{"layers", 2}, {"width", 8}, {"context", 16}, {"heads", 2}})),
            "wte.weight: f32[256,8] normal 0.02, decay\n"
            "wpe.weight: f32[16,8] normal 0.02, decay\n"
            "h.0.ln_1.weight: f32[8] ones\n"
            "h.0.ln_1.bias: f32[8] zeros\n"
            "h.0.attn.c_attn.weight: f32[8,24] normal 0.02, decay\n"
            "h.0.attn.c_attn.bias: f32[24] zeros\n"
            "h.0.attn.c_proj.weight: f32[8,8] normal 0.01, decay\n"
            "h.0.attn.c_proj.bias: f32[8] zeros\n"
            "h.0.ln_2.weight: f32[8] ones\n"
            "h.0.ln_2.bias: f32[8] zeros\n"
            "h.0.mlp.c_fc.weight: f32[8,32] normal 0.02, decay\n"
            "h.0.mlp.c_fc.bias: f32[32] zeros\n"
            "h.0.mlp.c_proj.weight: f32[32,8] normal 0.01, decay\n"
            "h.0.mlp.c_proj.bias: f32[8] zeros\n"
            "h.1.ln_1.weight: f32[8] ones\n"
            "h.1.ln_1.bias: f32[8] zeros\n"
            "h.1.attn.c_attn.weight: f32[8,24] normal 0.02, decay\n"
            "h.1.attn.c_attn.bias: f32[24] zeros\n"
            "h.1.attn.c_proj.weight: f32[8,8] normal 0.01, decay\n"
            "h.1.attn.c_proj.bias: f32[8] zeros\n"
            "h.1.ln_2.weight: f32[8] ones\n"
            "h.1.ln_2.bias: f32[8] zeros\n"
            "h.1.mlp.c_fc.weight: f32[8,32] normal 0.02, decay\n"
            "h.1.mlp.c_fc.bias: f32[32] zeros\n"
            "h.1.mlp.c_proj.weight: f32[32,8] normal 0.01, decay\n"
            "h.1.mlp.c_proj.bias: f32[8] zeros\n"
            "ln_f.weight: f32[8] ones\n"
            "ln_f.bias: f32[8] zeros\n");
}

TEST(Gpt, HasAHeadOfItsOwnWhenNotTied) {
  const auto untied = model("gpt", {{"layers", 1}, {"width", 8}, {"heads", 2}, {"tied", 0}});
  EXPECT_EQ(untied->parameters().back().name, "lm_head.weight");
  EXPECT_EQ(untied->parameters().back().type, (TensorType{DType::f32, {256, 8}}));
  verify(training_step(*untied, {2, 8, 1}, {}));
}

TEST(Gpt, HasItsVocabularyInPartsBehindTheLayers) {
  const std::map<std::string, double> sizes = {{"layers", 2}, {"width", 8}, {"heads", 2}, {"head_shards", 3}};
  const auto stages_of = [](const Graph& step) {
    std::vector<std::string> stages;
    for (const Op& op : body_of(step).ops)
      if (op.phase == Phase::forward && !op.stage.empty() && (stages.empty() || stages.back() != op.stage)) stages.push_back(op.stage);
    return join(stages, " ");
  };
  EXPECT_EQ(stages_of(gradient_step(*model("gpt", sizes, 6), {2, 8, 1})), "0 1 2 3 4 5");
  EXPECT_EQ(stages_of(evaluation_step(*model("gpt", sizes, 6), {2, 8, 1})), "0 1 2 3 4 5");
  EXPECT_EQ(stages_of(generation_step(*model("gpt", sizes, 6), 8)), "0 1 2 3 4 5");
  EXPECT_EQ(stages_of(gradient_step(*model("gpt", sizes, 1), {2, 8, 1})), "0");
  std::map<std::string, double> untied = sizes;
  untied["tied"] = 0;
  const std::vector<ParameterSpec> parameters = model("gpt", untied, 6)->parameters();
  for (const auto& [k, rows] : {std::pair{0, 85}, {1, 85}, {2, 86}}) {
    const ParameterSpec& part = parameters[parameters.size() - 3 + static_cast<std::size_t>(k)];
    EXPECT_EQ(part.name, concat("lm_head.", k, ".weight"));
    EXPECT_EQ(part.type, (TensorType{DType::f32, {rows, 8}}));
  }
}

TEST(Gpt, DropsOutOnlyInTraining) {
  const auto gpt = model("gpt", {{"layers", 2}, {"width", 8}, {"heads", 2}, {"dropout", 0.1}});
  const auto count = [](const Graph& graph) {
    int found = 0;
    for (const Op& op : body_of(graph).ops) found += op.name == "dropout";
    return found;
  };
  const Graph training = gradient_step(*gpt, {2, 8, 1});
  verify(training);
  EXPECT_GE(count(training), 5);  // the embedding's and two of each layer
  EXPECT_EQ(count(evaluation_step(*gpt, {2, 8, 1})), 0);
}

TEST(Gpt, GrowsLinearlyWithItsLayers) {
  const auto ops = [](double layers) {
    return static_cast<std::int64_t>(
        body_of(gradient_step(*model("gpt", {{"layers", layers}, {"width", 8}, {"heads", 2}}), {2, 8, 1})).ops.size());
  };
  const std::int64_t one = ops(1), two = ops(2), four = ops(4), twelve = ops(12);
  EXPECT_EQ(four - two, 2 * (two - one));
  EXPECT_EQ(twelve - four, 8 * (two - one));
}

std::unique_ptr<Model> gpt_with_positions(const std::string& positions, const std::map<std::string, double>& numbers) {
  return make_model(builtin_models(), "gpt", {.numbers = numbers, .words = {{"positions", positions}}, .stages = 1, .compute = DType::f32});
}

TEST(Gpt, LearnsNoPositionsWhereTheyTurn) {
  const std::string with = parameter_list(*gpt_with_positions("learned", {})), row = "wpe.weight: f32[128,128] normal 0.02, decay\n";
  std::string without = with;
  ASSERT_NE(without.find(row), std::string::npos);
  without.erase(without.find(row), row.size());
  EXPECT_EQ(parameter_list(*gpt_with_positions("rotary", {})), without);
}

TEST(Gpt, RefusesWhatItCannotDo) {
  EXPECT_EQ(message_of([] { model("gpt", {{"width", 10}, {"heads", 4}}); }),
            "width 10 is not divisible by 4 heads\n  hint: use a width of 12, or a number of heads that divides 10");
  EXPECT_EQ(message_of([] { model("gpt", {{"layers", 4}}, 5); }),
            "model \"gpt\" with 4 layers cannot be cut into 5 stages\n"
            "  hint: use 1 to 4 stages (actors times chunks); a schedule that sets attentions apart, as helixpipe, takes 9");
  EXPECT_EQ(message_of([] { model("gpt", {{"dropout", 1}}); }), "dropout is 1.0\n  hint: give a probability from 0 to below 1");
  EXPECT_EQ(message_of([] { model("gpt", {{"layers", 2.5}}); }), "model option \"layers\" is 2.5\n  hint: give a whole number from 1 on");
  EXPECT_EQ(message_of([] { model("gpt", {{"head_shards", 2}}, 3); }),
            "model \"gpt\" with head_shards = 2 cannot be cut into 3 stages\n"
            "  the last 3 are the parts of its vocabulary and what joins them\n"
            "  hint: use 1 stage, or 4 and more: --schedule slimpipe has them for any number of actors, a table may");
  EXPECT_EQ(message_of([] { model("gpt", {{"head_shards", 257}}, 1); }),
            "head_shards is 257 for a vocabulary of 256\n  hint: use 1 to 256");
  EXPECT_EQ(message_of([] { gradient_step(*model("gpt", {{"context", 16}}), {2, 32, 1}); }),
            "gpt has 16 positions, but the batch is 32 tokens long\n  hint: raise the model's context, or shorten the sequences");
  EXPECT_EQ(message_of([] {
              make_model(builtin_models(), "gpt", {.numbers = {}, .words = {{"gelu", "tan"}}, .stages = 1, .compute = DType::f32});
            }),
            "model option \"gelu\" is \"tan\"\n  hint: use tanh or none");
  EXPECT_EQ(message_of([] { gpt_with_positions("none", {}); }), "model option \"positions\" is \"none\"\n  hint: use learned or rotary");
  EXPECT_EQ(message_of([] { gpt_with_positions("rotary", {{"width", 12}, {"heads", 4}}); }),
            "heads of 3 cannot be turned in pairs (positions = \"rotary\")\n  hint: give a width that is a multiple of 8");
}

TEST(Moe, HasAMixtureInPlaceOfEverySecondMlp) {
  const std::string list = parameter_list(*model("moe", {{"layers", 2}, {"width", 8}, {"context", 16}, {"heads", 2}, {"experts", 3}}));
  EXPECT_EQ(list.substr(list.find("h.0.mlp")),
            "h.0.mlp.c_fc.weight: f32[8,32] normal 0.02, decay\n"
            "h.0.mlp.c_fc.bias: f32[32] zeros\n"
            "h.0.mlp.c_proj.weight: f32[32,8] normal 0.01, decay\n"
            "h.0.mlp.c_proj.bias: f32[8] zeros\n"
            "h.1.ln_1.weight: f32[8] ones\n"
            "h.1.ln_1.bias: f32[8] zeros\n"
            "h.1.attn.c_attn.weight: f32[8,24] normal 0.02, decay\n"
            "h.1.attn.c_attn.bias: f32[24] zeros\n"
            "h.1.attn.c_proj.weight: f32[8,8] normal 0.01, decay\n"
            "h.1.attn.c_proj.bias: f32[8] zeros\n"
            "h.1.ln_2.weight: f32[8] ones\n"
            "h.1.ln_2.bias: f32[8] zeros\n"
            "h.1.mlp.gate.weight: f32[3,8] normal 0.02, decay\n"
            "h.1.mlp.experts.c_fc.weight: f32[3,8,32] normal 0.02, decay\n"
            "h.1.mlp.experts.c_fc.bias: f32[3,32] zeros\n"
            "h.1.mlp.experts.c_proj.weight: f32[3,32,8] normal 0.01, decay\n"
            "h.1.mlp.experts.c_proj.bias: f32[3,8] zeros\n"
            "ln_f.weight: f32[8] ones\n"
            "ln_f.bias: f32[8] zeros\n");
}

TEST(Moe, MixesAsOftenAsAsked) {
  const auto mixtures = [](double layers, double every) {
    std::int64_t found = 0;
    for (const ParameterSpec& spec : model("moe", {{"layers", layers}, {"every", every}, {"width", 8}, {"heads", 2}})->parameters())
      found += spec.name.find("gate.weight") != std::string::npos;
    return found;
  };
  EXPECT_EQ(mixtures(5, 1), 5);
  EXPECT_EQ(mixtures(5, 2), 2);
  EXPECT_EQ(mixtures(5, 6), 0);
}

// Room for ceil(1.25 * 2 * 8 / 3) = 7 of the 8 tokens in training; in generation all are computed, without places.
TEST(Moe, HasRoomForAsManyTokensAsItsFactorSays) {
  const auto moe = model("moe", {{"layers", 1}, {"every", 1}, {"width", 4}, {"heads", 1}, {"experts", 3}, {"context", 16}, {"groups", 2}});
  const auto rooms = [](const Graph& graph) {
    std::vector<std::int64_t> out;
    for (const Op& op : graph.ops)
      if (op.name == "arange" && op.stage == "0") out.push_back(attribute<std::int64_t>(op, "end"));
    return out;
  };
  EXPECT_EQ(rooms(body_of(gradient_step(*moe, {2, 16, 1}))), (std::vector<std::int64_t>{7}));
  EXPECT_EQ(rooms(body_of(evaluation_step(*moe, {2, 16, 1}))), (std::vector<std::int64_t>{7}));
  EXPECT_EQ(rooms(body_of(generation_step(*moe, 16))), std::vector<std::int64_t>());
}

TEST(Moe, RefusesWhatItCannotDo) {
  EXPECT_EQ(message_of([] { model("moe", {{"experts", 1}}); }),
            "a mixture of 1 expert\n  each token goes to two experts\n  hint: use 2 experts or more, or model \"gpt\"");
  EXPECT_EQ(message_of([] { model("moe", {{"capacity_factor", 0}}); }),
            "capacity_factor is 0.0\n  1.0 is room for all tokens if they spread equally\n  hint: give a number above 0");
  EXPECT_EQ(message_of([] { model("moe", {{"balance", -1}}); }), "balance is -1.0\n  hint: give a number from 0 on");
  EXPECT_EQ(message_of([] { gradient_step(*model("moe", {{"groups", 3}}), {2, 32, 1}); }),
            "32 tokens are not divisible by 3 groups\n  each group of a sample's tokens routes by itself\n"
            "  hint: use a number of groups that divides the context");
  EXPECT_EQ(message_of([] { gradient_step(*model("moe", {{"context", 16}}), {2, 32, 1}); }),
            "moe has 16 positions, but the batch is 32 tokens long\n  hint: raise the model's context, or shorten the sequences");
  EXPECT_EQ(message_of([] { model("moe", {{"layers", 4}}, 5); }),
            "model \"moe\" with 4 layers cannot be cut into 5 stages\n"
            "  hint: use 1 to 4 stages (actors times chunks); a schedule that sets attentions apart, as helixpipe, takes 9");
}

TEST(Reference, HasTheSizesOfTheComparison) {
  std::int64_t elements = 0;
  for (const ParameterSpec& spec : model("reference")->parameters()) elements += spec.type.elements();
  const std::int64_t width = 256, block = 12 * width * width + 13 * width;
  EXPECT_EQ(elements, 2048 * width + 8 * block + 2048 * width + 2048);
}

TEST(Models, MarkAsManyStagesAsAsked) {
  for (const std::string name : {"gpt", "moe", "reference", "two-branch"}) {
    for (int stages = 1; stages <= 8; ++stages) {
      std::map<std::string, double> numbers = {{"width", 8}, {"heads", 2}};
      if (name != "two-branch") numbers["layers"] = 8;
      const Graph graph = gradient_step(*model(name, numbers, stages), {4, 8, 2});
      verify(graph);
      const std::vector<std::string> found = stages_of(graph);
      ASSERT_EQ(found.size(), static_cast<std::size_t>(stages)) << name;
      for (int i = 0; i < stages; ++i) EXPECT_EQ(found[i], std::to_string(i)) << name;
    }
  }
}

TEST(Models, OfBranchesMarkAsManyStagesAsAsked) {
  const std::map<std::string, std::map<std::string, double>> models = {
      {"candle-uno", {{"branches", 3}, {"layers", 3}, {"width", 4}}},
      {"dlrm", {{"branches", 3}, {"layers", 3}, {"width", 4}}},
      {"multimodal", {{"branches", 3}, {"layers", 3}, {"width", 4}, {"context", 8}}},
      {"t5", {{"layers", 5}, {"width", 4}, {"heads", 2}, {"context", 8}}}};
  for (const auto& [name, numbers] : models) {
    for (int stages = 1; stages <= 10; ++stages) {
      const Graph graph = gradient_step(*model(name, numbers, stages), {4, 8, 2});
      verify(graph);
      std::vector<std::string> expected;
      for (int i = 0; i < stages; ++i) expected.push_back(std::to_string(i));
      EXPECT_EQ(stages_of(graph), expected) << name;
    }
    EXPECT_NE(message_of([&, &name = name, &numbers = numbers] { model(name, numbers, 11); }).find("cannot be cut into 11 stages"),
              std::string::npos);
  }
}

// One of an encoder's layer, two of a decoder's; `qkv_in_attention` moves no more than products.
TEST(T5, HasItsAttentionsInStagesOfTheirOwn) {
  const auto ops_of = [](double product) {
    const std::map<std::string, double> sizes = {{"layers", 2},  {"decoder_layers", 1}, {"width", 8},     {"heads", 2},
                                                 {"context", 8}, {"buckets", 8},        {"distance", 12}, {"qkv_in_attention", product}};
    std::map<std::string, std::map<std::string, int>> ops;  // by stage and name
    for (const Op& op : body_of(evaluation_step(*model("t5", sizes, 9), {2, 8, 1})).ops) ++ops[op.stage][op.name];
    return ops;
  };
  const auto apart = ops_of(0), with_product = ops_of(1);
  for (int attention = 0; attention < 4; ++attention) {
    const std::string stage = std::to_string(2 * attention + 1);
    EXPECT_FALSE(apart.at(stage).contains("linear")) << stage;
    EXPECT_EQ(with_product.at(stage).at("linear"), 3) << stage;
    EXPECT_EQ(apart.at(stage).contains("softmax"), attention < 2) << stage;
    EXPECT_EQ(apart.at(stage).contains("attention_in_ranges"), attention == 2) << stage;
    EXPECT_EQ(apart.at(stage).contains("scaled_dot_product_attention"), attention == 3) << stage;
  }
  EXPECT_EQ(apart.at("0").at("linear"), 3);
  EXPECT_EQ(apart.at("2").at("linear"), 6);
  EXPECT_EQ(apart.at("8").at("linear"), 4);  // o, two of the MLP, and the logits'
  EXPECT_NE(message_of([] { model("t5", {{"layers", 2}, {"decoder_layers", 1}}, 7); })
                .find("model \"t5\" with 2 encoder and 1 decoder layers cannot be cut into 7 stages\n"
                      "  hint: use 1 to 3 stages (actors times chunks); a schedule that sets attentions apart, as helixpipe, takes 9"),
            std::string::npos);
}

TEST(Models, BranchesAreParallelStages) {
  for (const std::string name : {"candle-uno", "dlrm", "multimodal"}) {
    std::map<std::string, double> numbers = {{"branches", 2}, {"layers", 2}, {"width", 4}};
    if (name == "multimodal") numbers["context"] = 6;
    const auto reads = reads_of(evaluation_step(*model(name, numbers, 5), {4, 6, 2}));
    EXPECT_FALSE(reads.contains("0")) << name;
    EXPECT_EQ(reads.at("1"), (std::set<std::string>{"0"})) << name;
    EXPECT_FALSE(reads.contains("2")) << name;
    EXPECT_EQ(reads.at("3"), (std::set<std::string>{"2"})) << name;
  }
}

// With the sizes of the evaluation of GraphPipe (Jeon et al., ASPLOS 2025), as counted from its published description.
TEST(Models, HaveTheSizesOfGraphPipesEvaluation) {
  const auto elements = [](const Model& model, bool matrices_only) {
    std::int64_t out = 0;
    for (const ParameterSpec& spec : model.parameters())
      if (!matrices_only || spec.name.find(".layer.") != std::string::npos) out += spec.decay ? spec.type.elements() : 0;
    return out;
  };
  EXPECT_EQ(elements(*model("candle-uno", {{"width", 4096}}), false), 469790720);
  EXPECT_EQ(elements(*model("dlrm", {{"width", 4096}, {"rows", 1e6}, {"embedding", 64}, {"bag", 100}}), false), 1269039104);
  EXPECT_EQ(elements(*model("multimodal", {{"layers", 8}, {"width", 1024}, {"heads", 16}, {"context", 1280}}), true), 402653184);
}

// Names and layouts as the file of the published "t5-small" has them, with its sizes replaced.
TEST(T5, HasThePublishedCheckpointsParameters) {
  EXPECT_EQ(parameter_list(*model("t5", {{"layers", 1}, {"width", 4}, {"heads", 2}, {"buckets", 8}})),
            "shared.weight: f32[256,4] normal 1.0, decay\n"
            "encoder.block.0.layer.0.SelfAttention.q.weight: f32[4,4] normal 0.35355339059327373, decay\n"
            "encoder.block.0.layer.0.SelfAttention.k.weight: f32[4,4] normal 0.5, decay\n"
            "encoder.block.0.layer.0.SelfAttention.v.weight: f32[4,4] normal 0.5, decay\n"
            "encoder.block.0.layer.0.SelfAttention.o.weight: f32[4,4] normal 0.5, decay\n"
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight: f32[8,2] normal 0.5, decay\n"
            "encoder.block.0.layer.0.layer_norm.weight: f32[4] ones\n"
            "encoder.block.0.layer.1.DenseReluDense.wi.weight: f32[16,4] normal 0.5, decay\n"
            "encoder.block.0.layer.1.DenseReluDense.wo.weight: f32[4,16] normal 0.25, decay\n"
            "encoder.block.0.layer.1.layer_norm.weight: f32[4] ones\n"
            "encoder.final_layer_norm.weight: f32[4] ones\n"
            "decoder.block.0.layer.0.SelfAttention.q.weight: f32[4,4] normal 0.35355339059327373, decay\n"
            "decoder.block.0.layer.0.SelfAttention.k.weight: f32[4,4] normal 0.5, decay\n"
            "decoder.block.0.layer.0.SelfAttention.v.weight: f32[4,4] normal 0.5, decay\n"
            "decoder.block.0.layer.0.SelfAttention.o.weight: f32[4,4] normal 0.5, decay\n"
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight: f32[8,2] normal 0.5, decay\n"
            "decoder.block.0.layer.0.layer_norm.weight: f32[4] ones\n"
            "decoder.block.0.layer.1.EncDecAttention.q.weight: f32[4,4] normal 0.35355339059327373, decay\n"
            "decoder.block.0.layer.1.EncDecAttention.k.weight: f32[4,4] normal 0.5, decay\n"
            "decoder.block.0.layer.1.EncDecAttention.v.weight: f32[4,4] normal 0.5, decay\n"
            "decoder.block.0.layer.1.EncDecAttention.o.weight: f32[4,4] normal 0.5, decay\n"
            "decoder.block.0.layer.1.layer_norm.weight: f32[4] ones\n"
            "decoder.block.0.layer.2.DenseReluDense.wi.weight: f32[16,4] normal 0.5, decay\n"
            "decoder.block.0.layer.2.DenseReluDense.wo.weight: f32[4,16] normal 0.25, decay\n"
            "decoder.block.0.layer.2.layer_norm.weight: f32[4] ones\n"
            "decoder.final_layer_norm.weight: f32[4] ones\n");
}

// Also of what a word or a number makes another model.
TEST(Models, TraceInEveryDtype) {
  using Numbers = std::map<std::string, double>;
  using Words = std::map<std::string, std::string>;
  std::vector<std::tuple<std::string, Numbers, Words>> variants = {{"multimodal", {{"context", 112}}, {{"input", "images"}}},
                                                                   {"gpt", {}, {{"positions", "rotary"}, {"gelu", "none"}}},
                                                                   {"gpt", {{"tied", 0}, {"dropout", 0.1}}, {}},
                                                                   {"gpt", {{"lora", 4}}, {}},
                                                                   {"moe", {{"lora", 4}}, {}},
                                                                   {"t5", {{"lora", 4}}, {}}};
  for (const auto& [name, entry] : builtin_models())
    if (name != "exported") variants.push_back({name, {}, {}});
  for (const auto& [name, numbers, words] : variants)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const ModelEntry& entry = builtin_models().at(name);
      const auto model = make_model(builtin_models(), name, {.numbers = numbers, .words = words, .stages = 1, .compute = dtype});
      const auto of_entry = entry.numbers.find("context");
      const double context = numbers.contains("context") ? numbers.at("context") : of_entry != entry.numbers.end() ? of_entry->second : 0;
      EXPECT_EQ(message_of([&] { verify(training_step(*model, {4, static_cast<int>(context), 2}, {})); }), "no error")
          << name << " in " << penstock::name(dtype);
    }
}

TEST(Models, RefuseSizesThatDoNotFit) {
  EXPECT_EQ(message_of([] { model("t5", {{"context", 15}}); }), "context 15 has no two halves\n  hint: use a context of 16");
  EXPECT_EQ(message_of([] { model("t5", {{"buckets", 6}}); }),
            "6 buckets for distances up to 128\n"
            "  hint: use a number of buckets divisible by 4, and a distance of more than half of it");
  EXPECT_EQ(message_of([] { model("multimodal", {{"context", 16}}); }),
            "context 16 is not divisible by 5\n  each branch reads an equal stretch, the head predicts one\n  hint: use a context of 20");
  EXPECT_EQ(message_of([] { generation_step(*model("candle-uno"), 0); }),
            "this model does not continue a text\n  it has no logits of a next token\n"
            "  hint: generate with gpt, moe, reference, mlp or two-branch");
}

TEST(Models, MarkLinearStages) {
  for (int stages = 1; stages <= 3; ++stages) {
    const Graph graph = evaluation_step(*model("mlp", {{"layers", 3}, {"width", 8}}, stages), {4, 8, 2});
    int marks = 0;
    for (const Op& op : body_of(graph).ops) marks += op.name == "stage_boundary";
    EXPECT_EQ(marks, stages - 1);
  }
}

TEST(TwoBranch, HasParallelBranchesAndASkipEdge) {
  const auto reads = reads_of(evaluation_step(*model("two-branch", {{"width", 8}, {"heads", 2}}, 4), {4, 8, 2}));
  EXPECT_EQ(reads.at("1"), (std::set<std::string>{"0"}));
  EXPECT_EQ(reads.at("2"), (std::set<std::string>{"0"}));
  EXPECT_EQ(reads.at("3"), (std::set<std::string>{"0", "1", "2"}));
}

TEST(TwoBranch, GivesEveryParameterAGradient) {
  const Graph body = body_of(gradient_step(*model("two-branch", {{"width", 8}, {"heads", 2}}, 8), {4, 8, 2}));
  const std::vector<OpId> producer = producers(body);
  for (const ValueId sum : body.outputs) EXPECT_NE(body.ops[producer[sum.index()].index()].name, "full");
}

TEST(Registry, NamesTheNearest) {
  EXPECT_EQ(message_of([] { model("gtp"); }),
            "no model \"gtp\"\n  known: candle-uno, dlrm, exported, gpt, latent_diffusion, mlp, moe, multimodal, reference, resnet, t5, "
            "two-branch, vgg\n  "
            "hint: did you "
            "mean \"gpt\"?");
  EXPECT_EQ(message_of([] { model("mlp", {{"widht", 8}}); }),
            "model \"mlp\" has no option \"widht\"\n  known: context, layers, vocabulary, width\n  hint: did you mean \"width\"?");
}

TEST(Registry, FillsInDefaults) {
  ModelRegistry registry;
  registry["probe"] = {.summary = "", .numbers = {{"a", 1}, {"b", 2}}, .words = {{"c", "d"}}, .make = [](const ModelOptions& options) {
                         EXPECT_EQ(options.number("a"), 5);
                         EXPECT_EQ(options.size("b"), 2);
                         EXPECT_EQ(options.word("c"), "d");
                         EXPECT_EQ(message_of([&] { options.number("bb"); }),
                                   "the model has no option \"bb\"\n  hint: did you mean \"b\"?");
                         return std::unique_ptr<Model>();
                       }};
  make_model(registry, "probe", {.numbers = {{"a", 5}}, .words = {}, .stages = 1, .compute = DType::f32});
}

}  // namespace
}  // namespace penstock
