// SPDX-License-Identifier: Apache-2.0
// Steps whose sequences are cut into slices against the sequential step (transform/slices.h).
#include <gtest/gtest.h>

#include <filesystem>

#include "base/text.h"
#include "config/compile.h"
#include "driver/check.h"
#include "models/registry.h"
#include "state/initialise.h"
#include "support/errors.h"
#include "torch/run_step.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

using test::sequential_step;
using test::step_of;

// 5 slices of 12 tokens are unequal.
Config small(const std::vector<std::string>& settings) {
  std::vector<Override> overrides;
  for (const char* setting : {"model.name=gpt", "layers=4", "width=16", "heads=2", "model.context=12", "vocabulary=32", "batch=8",
                              "microbatches=4", "dtype=f64", "actors=2"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

void expect_equal(const std::vector<std::string>& settings, const StepGradients& expected, double tolerance = 1e-10) {
  SCOPED_TRACE(join(settings, ", "));
  const Config config = small(settings);
  const Prepared prepared = prepare(config, builtin_models());
  const Comparison comparison = compare(step_of(config, prepared, compile_gradients(config, prepared)), expected);
  EXPECT_LE(comparison.loss_difference, tolerance);
  EXPECT_LE(comparison.gradient_difference, tolerance) << comparison.worst;
}

TEST(SlicedSteps, EqualTheSequentialStepInF64) {
  const StepGradients expected = sequential_step(small({}));
  for (const int slices : {1, 2, 4, 5, 12})
    for (const int actors : {1, 2, 4}) expect_equal({concat("slices=", slices), concat("actors=", actors)}, expected);
}

// HelixPipe's stages are what attention leaves between layers, and attention: each layer in two, and one more.
TEST(SlicedSteps, GoThroughEverySchedule) {
  const StepGradients expected = sequential_step(small({}));
  for (const int actors : {1, 2, 4})
    for (const char* schedule : {"slimpipe", "terapipe", "gpipe", "zb-h1", "chimera"})
      for (const int slices : {2, 3})
        if (actors % 2 == 0 || std::string(schedule) != "chimera")
          expect_equal({concat("schedule=", schedule), concat("slices=", slices), concat("actors=", actors)}, expected);
  for (const char* schedule : {"interleaved-1f1b", "zb-v"}) expect_equal({concat("schedule=", schedule), "slices=3", "chunks=2"}, expected);
}

TEST(SlicedSteps, MayBeOfUnequalLength) {
  const StepGradients expected = sequential_step(small({}));
  for (const char* lengths : {"[7, 4, 1]", "[3, 2, 1]"}) expect_equal({concat("slices=", lengths), "schedule=terapipe"}, expected);
}

TEST(SlicedSteps, AttentionInStagesOfItsOwn) {
  const StepGradients expected = sequential_step(small({}));
  for (const char* settings : {"group=1", "group=2"}) expect_equal({"schedule=helixpipe", "chunks=2", settings}, expected);
  expect_equal({"schedule=helixpipe", "chunks=1", "actors=4"}, expected);
  for (const char* more : {"group=1", "group=2", "pipeline.data=2", "recompute=inputs", "update=stage"})
    expect_equal({"schedule=helixpipe", "chunks=2", "qkv_in_attention=1", more}, expected);
}

// Each of an encoder's layers has one attention, each of a decoder's two.
TEST(SlicedSteps, AttentionOfTwoStacksInStagesOfItsOwn) {
  const std::vector<std::string> t5 = {"model.name=t5", "buckets=8", "distance=12", "schedule=helixpipe", "layers=2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), t5.begin(), t5.end());
    return more;
  };
  const StepGradients expected = sequential_step(small(with({})));
  for (const char* product : {"qkv_in_attention=0", "qkv_in_attention=1"})
    for (const std::vector<std::string>& more : {std::vector<std::string>{"group=2"},
                                                 {"recompute=inputs"},
                                                 {"slices=3"},
                                                 {"pipeline.data=2", "zero=3"},
                                                 {"pipeline.tensor=2"},
                                                 {"pipeline.context=2", "update=stage"}}) {
      std::vector<std::string> settings = with({"chunks=3", product});
      settings.insert(settings.end(), more.begin(), more.end());
      expect_equal(settings, expected);
    }
  for (const auto& [layers, decoder_layers] : {std::pair(2, 1), std::pair(4, 2)}) {
    const std::vector<std::string> stacks = with({concat("layers=", layers), concat("decoder_layers=", decoder_layers)});
    const StepGradients unequal = sequential_step(small(stacks));
    for (const int actors : {2, 4}) {
      std::vector<std::string> settings = stacks;
      settings.insert(settings.end(), {concat("actors=", actors), concat("chunks=", (layers + 2 * decoder_layers) / actors)});
      expect_equal(settings, unequal);
    }
  }
}

// Other actors do whole blocks of the attention of later slices: of 4 actors and 8 slices 18 of 112 blocks of each layer.
TEST(SlicedSteps, ExchangeBlocksOfAttention) {
  const StepGradients two_layers = sequential_step(small({"layers=2"})), expected = sequential_step(small({}));
  expect_equal({"layers=2", "schedule=slimpipe-exchange", "slices=4"}, two_layers);
  for (const char* slices : {"slices=4", "slices=8", "slices=[7, 4, 1]"}) {
    expect_equal({"schedule=slimpipe-exchange", slices, "chunks=2"}, expected);
    expect_equal({"schedule=slimpipe-exchange", slices, "actors=4"}, expected);
  }
  expect_equal({"schedule=slimpipe-exchange", "slices=8", "actors=4", "split_backward=true"}, expected);
  expect_equal({"schedule=slimpipe-exchange", "slices=8", "chunks=4", "actors=1"}, expected);
  expect_equal({"schedule=slimpipe-exchange", "slices=4", "chunks=2", "pipeline.data=2", "zero=1"}, expected);
  expect_equal({"schedule=slimpipe-exchange", "slices=8", "actors=4", "dropout=0.2", "recompute=inputs"},
               sequential_step(small({"dropout=0.2"})));
  EXPECT_EQ(prepare(small({"schedule=slimpipe-exchange", "slices=8", "actors=4"}), builtin_models()).schedule.blocks.size(), 18U);
}

TEST(SlicedSteps, ExchangeBlocksOfAttentionBesideTheVocabularyInParts) {
  const StepGradients expected = sequential_step(small({"head_shards=3"}));
  expect_equal({"head_shards=3", "schedule=slimpipe-exchange", "slices=4", "chunks=2"}, expected);
  expect_equal({"head_shards=3", "schedule=slimpipe-exchange", "slices=8", "actors=4", "recompute=inputs"}, expected);
  expect_equal({"head_shards=3", "schedule=slimpipe-exchange", "slices=4", "chunks=2", "pipeline.data=2", "zero=1"}, expected);
  const StepGradients untied = sequential_step(small({"head_shards=2", "tied=0"}));
  expect_equal({"head_shards=2", "tied=0", "schedule=slimpipe-exchange", "slices=[7, 4, 1]", "chunks=2"}, untied);
}

TEST(SlicedSteps, ExchangeBlocksOfAttentionInF32) {
  expect_equal({"dtype=f32", "schedule=slimpipe-exchange", "slices=8", "actors=4"}, sequential_step(small({"dtype=f32"})), 1e-6);
}

// A run's other programs.
TEST(SlicedSteps, TrainAndEvaluate) {
  for (const char* schedule : {"1f1b", "slimpipe", "zb-h1", "slimpipe-exchange"})
    for (const char* zero : {"zero=0", "zero=3"}) {
      const char* chunks = std::string(schedule) == "slimpipe-exchange" ? "chunks=2" : "chunks=1";
      const Config config = small({"slices=3", concat("schedule=", schedule), "pipeline.data=2", zero, chunks});
      const Prepared prepared = prepare(config, builtin_models());
      EXPECT_FALSE(compile_training(config, prepared).devices.empty());
      EXPECT_FALSE(compile_evaluation(config, prepared).devices.empty());
    }
  const Config config = small({"slices=3", "schedule=slimpipe", "head_shards=2"});
  const Prepared prepared = prepare(config, builtin_models());
  for (const auto compiled : {compile_training, compile_evaluation}) EXPECT_EQ(compiled(config, prepared).devices.size(), 2u);
}

// A slice's positions are those of its tokens in the whole sequence, on each device of an axis that splits it further too.
TEST(SlicedSteps, RotaryPositionsAreThoseOfTheWholeSequence) {
  const StepGradients expected = sequential_step(small({"positions=rotary"}));
  for (const std::vector<std::string>& more : {std::vector<std::string>{"slices=5"},
                                               {"slices=3", "schedule=slimpipe", "recompute=inputs"},
                                               {"slices=8", "schedule=slimpipe-exchange", "actors=4"},
                                               {"schedule=helixpipe", "chunks=2"},
                                               {"schedule=helixpipe", "chunks=2", "qkv_in_attention=1"},
                                               {"slices=3", "pipeline.context=2"},
                                               {"pipeline.context=4", "pipeline.data=2"},
                                               {"pipeline.tensor=2", "layout.heads=tensor"}}) {
    std::vector<std::string> settings = {"positions=rotary"};
    settings.insert(settings.end(), more.begin(), more.end());
    expect_equal(settings, expected);
  }
}

TEST(SlicedSteps, DropTheSameActivations) {
  const StepGradients expected = sequential_step(small({"dropout=0.2"}));
  for (const int slices : {2, 5}) expect_equal({"dropout=0.2", concat("slices=", slices)}, expected);
  expect_equal({"dropout=0.2", "slices=4", "recompute=inputs"}, expected);
}

TEST(SlicedSteps, OnMeshes) {
  const StepGradients expected = sequential_step(small({}));
  expect_equal({"slices=3", "pipeline.data=2"}, expected);
  expect_equal({"slices=3", "pipeline.tensor=2"}, expected);
  expect_equal({"slices=2", "pipeline.context=2"}, expected);
  expect_equal({"slices=3", "pipeline.data=2", "zero=1"}, expected);
}

// A stage's parameters and gradients are shared by all its slices. Chunks are gathered in turns.
TEST(SlicedSteps, WithParametersInShares) {
  const StepGradients expected = sequential_step(small({}));
  for (const char* zero : {"zero=2", "zero=3"}) {
    for (const char* schedule : {"1f1b", "slimpipe", "zb-h1", "zeropp"})
      for (const char* slices : {"slices=2", "slices=4", "slices=[7, 4, 1]"})
        expect_equal({zero, concat("schedule=", schedule), slices, "pipeline.data=2"}, expected);
    for (const char* schedule : {"interleaved-1f1b", "zeropp", "zb-v"})
      expect_equal({zero, concat("schedule=", schedule), "slices=3", "chunks=2", "pipeline.data=2"}, expected);
    expect_equal({zero, "slices=2", "pipeline.data=2", "pipeline.tensor=2"}, expected);
    expect_equal({zero, "slices=2", "pipeline.data=2", "pipeline.context=2"}, expected);
  }
  expect_equal({"zero=3", "slices=2", "pipeline.data=2", "pipeline.local=2", "microbatches=2"}, expected);
  expect_equal({"zero=3", "slices=3", "pipeline.data=2", "recompute=inputs"}, expected);
}

// A cast commutes with a gather, of slices' parameters as well.
TEST(SlicedSteps, GatherInBf16ToTheBit) {
  const auto step = [](const char* zero) {
    const Config config = small({"dtype=bf16", "width=32", "slices=3", "pipeline.data=2", zero});
    const Prepared prepared = prepare(config, builtin_models());
    return step_of(config, prepared, compile_gradients(config, prepared));
  };
  const StepGradients whole = step("zero=0"), gathered = step("zero=3");
  EXPECT_EQ(gathered.loss, whole.loss);
  for (std::size_t p = 0; p < whole.gradients.size(); ++p)
    EXPECT_TRUE(gathered.gradients[p].second == whole.gradients[p].second) << whole.gradients[p].first;
}

TEST(SlicedSteps, OfUntiedModels) {
  expect_equal({"tied=0", "slices=4"}, sequential_step(small({"tied=0"})));
}

std::vector<std::string> joined(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// With room for all tokens of a group at every expert, slices may end inside of groups. The balance is over a group whatever the slices.
TEST(SlicedSteps, OfMixturesThatDropNoToken) {
  for (const char* groups : {"groups=1", "groups=2"}) {
    const std::vector<std::string> mixture = {"model.name=moe", "capacity_factor=2", "balance=0.5", groups};
    const StepGradients expected = sequential_step(small(mixture));
    for (const char* slices : {"slices=2", "slices=5", "slices=[7, 4, 1]"})
      for (const char* schedule : {"schedule=1f1b", "schedule=slimpipe", "schedule=zb-h1"})
        expect_equal(joined(mixture, {slices, schedule}), expected);
    expect_equal(joined(mixture, {"slices=3", "pipeline.data=2", "zero=3"}), expected);
    expect_equal(joined(mixture, {"slices=3", "pipeline.expert=2"}), expected);
  }
}

// Tokens are dropped: of 3 of a group an expert takes 2.
TEST(SlicedSteps, OfMixturesWhoseGroupsNoSliceCuts) {
  const std::vector<std::string> mixture = {"model.name=moe", "capacity_factor=0.75", "balance=0.5", "groups=4"};
  const StepGradients expected = sequential_step(small(mixture));
  for (const char* slices : {"slices=2", "slices=4", "slices=[3, 1]", "slices=[2, 6]"})
    for (const char* schedule : {"schedule=1f1b", "schedule=slimpipe", "schedule=zb-h1"})
      expect_equal(joined(mixture, {slices, schedule}), expected);
  expect_equal(joined(mixture, {"slices=2", "pipeline.data=2", "zero=3"}), expected);
}

// A decoder of 6 tokens in slices, behind an encoder that is whole: of its stages only the first slices have anything to do. They all read
// one embedding, also as their head.
const std::vector<std::string> kT5 = {"model.name=t5", "layers=2", "buckets=8", "distance=12"};

TEST(SlicedSteps, OfDecodersBehindEncoders) {
  const StepGradients expected = sequential_step(small(kT5));
  for (const char* slices : {"slices=1", "slices=2", "slices=4", "slices=[3, 2, 1]"})
    for (const char* schedule : {"schedule=1f1b", "schedule=zb-h1", "schedule=slimpipe", "schedule=terapipe"})
      for (const char* actors : {"actors=1", "actors=2"}) expect_equal(joined(kT5, {slices, schedule, actors}), expected);
  for (const char* schedule : {"schedule=1f1b", "schedule=zb-h1", "schedule=slimpipe"})
    expect_equal(joined(kT5, {"slices=3", "actors=4", schedule}), expected);
  expect_equal(joined(kT5, {"slices=6", "actors=3"}), expected);
  for (const char* schedule : {"schedule=interleaved-1f1b", "schedule=zb-v"})
    expect_equal(joined(kT5, {"slices=2", "chunks=2", schedule}), expected);
}

TEST(SlicedSteps, OfDecodersBehindEncodersInF32) {
  const std::vector<std::string> settings = joined(kT5, {"dtype=f32", "model.context=160", "layers=1"});
  const StepGradients expected = sequential_step(small(settings));
  for (const char* slices : {"slices=2", "slices=[5, 2, 1]"}) expect_equal(joined(settings, {slices}), expected, 1e-5);
}

TEST(SlicedSteps, OfDecodersBehindEncodersOnMeshes) {
  const StepGradients expected = sequential_step(small(kT5));
  for (const char* mesh : {"pipeline.data=2", "pipeline.tensor=2", "pipeline.context=2"})
    for (const char* schedule : {"schedule=1f1b", "schedule=slimpipe"}) expect_equal(joined(kT5, {"slices=3", mesh, schedule}), expected);
  for (const char* zero : {"zero=1", "zero=2", "zero=3"})
    for (const char* schedule : {"schedule=1f1b", "schedule=zb-h1"})
      expect_equal(joined(kT5, {"slices=2", "pipeline.data=2", zero, schedule}), expected);
}

TEST(SlicedSteps, OfDecodersBehindEncodersRecomputeAndUpdate) {
  const StepGradients expected = sequential_step(small(kT5));
  for (const char* slices : {"slices=2", "slices=[3, 2, 1]"})
    for (const char* actors : {"actors=1", "actors=2", "actors=4"})
      for (const char* more : {"recompute=inputs", "update=stage"}) expect_equal(joined(kT5, {slices, actors, more}), expected);
}

// In the program, too, an encoder is computed once: two stages of four have it, and do nothing in their later slices.
TEST(SlicedSteps, OfDecodersBehindEncodersComputeWhatIsWholeOnce) {
  const Config config = small(joined(kT5, {"slices=3", "actors=4", "schedule=zb-h1"}));
  const Prepared prepared = prepare(config, builtin_models());
  const Program program = compile_training(config, prepared);
  std::map<std::int32_t, int> runs;  // by slice: stage * 3 + slice
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& instruction : device.instructions)
      if (instruction.opcode == Opcode::run && instruction.action) ++runs[instruction.stage];
  for (const std::int32_t none : {1, 2, 4, 5}) EXPECT_EQ(runs[none], 0) << none;
  for (const std::int32_t some : {0, 3, 6, 7, 8, 9, 10, 11}) EXPECT_GE(runs[some], 8) << some;
  EXPECT_FALSE(compile_evaluation(config, prepared).devices.empty());
}

// The vocabulary's parts, stages of their own on the actors in turn, and what joins them: 32 bytes in 3 parts are unequal.
TEST(SlicedSteps, WithTheVocabularyInParts) {
  const StepGradients tied = sequential_step(small({}));
  for (const char* head : {"head_shards=2", "head_shards=3"})
    for (const char* slices : {"slices=1", "slices=3", "slices=[7, 4, 1]"})
      for (const char* actors : {"actors=1", "actors=2", "actors=4"}) expect_equal({"schedule=slimpipe", head, slices, actors}, tied);
  expect_equal({"schedule=slimpipe", "head_shards=2", "slices=3", "recompute=inputs"}, tied);
  expect_equal({"schedule=slimpipe", "head_shards=2", "slices=3", "pipeline.data=2"}, tied);
  expect_equal({"schedule=slimpipe", "head_shards=2", "slices=3", "pipeline.tensor=2"}, tied);
  expect_equal({"schedule=slimpipe", "head_shards=2", "slices=3", "update=stage"}, tied);
}

// One step of the configuration on one device, from the drawn state but for these values.
StepGradients step_from(const Config& config, std::map<std::string, std::vector<std::byte>> values) {
  const Prepared prepared = prepare_sequential(config, builtin_models());
  const Program program = compile_gradients(config, prepared);
  const auto data = std::make_shared<RandomBatch>(data_of(config, *prepared.model), vocabulary_of(config));
  const auto cluster = test::make_test_cluster(1, data);
  cluster->load(program);
  StateSource drawn, given;
  drawn.seed = config.train.seed;
  drawn.parameters = prepared.parameters;
  cluster->set_state(drawn);
  given.kind = StateSource::Kind::values;
  given.values = std::move(values);
  cluster->set_state(given);
  return step_gradients(program, *cluster, prepared.parameters, config.train.seed);
}

// A model whose head is no embedding has a matrix for each part, which are the rows of the whole one.
TEST(SlicedSteps, WithTheVocabularyInMatrices) {
  for (const char* head : {"head_shards=2", "head_shards=3"}) {
    SCOPED_TRACE(head);
    const Config config = small({"tied=0", "slices=3", "schedule=slimpipe", head});
    const Prepared prepared = prepare(config, builtin_models());
    StepGradients found = step_of(config, prepared, compile_gradients(config, prepared));
    std::vector<std::byte> matrix;
    for (const ParameterSpec& spec : prepared.parameters) {
      if (!spec.name.starts_with("lm_head.")) continue;
      std::vector<std::byte> rows(static_cast<std::size_t>(spec.type.bytes()));
      initialise(spec, config.train.seed, rows);
      matrix.insert(matrix.end(), rows.begin(), rows.end());
    }
    const StepGradients expected = step_from(small({"tied=0"}), {{"lm_head.weight", matrix}});
    std::vector<double> gradient;
    for (const auto& [name, part] : found.gradients)
      if (name.starts_with("lm_head.")) gradient.insert(gradient.end(), part.begin(), part.end());
    std::erase_if(found.gradients, [](const auto& entry) { return entry.first.starts_with("lm_head."); });
    found.gradients.emplace_back("lm_head.weight", gradient);
    const Comparison comparison = compare(found, expected);
    EXPECT_LE(comparison.loss_difference, 1e-10);
    EXPECT_LE(comparison.gradient_difference, 1e-10) << comparison.worst;
  }
}

std::string refusal(const std::vector<std::string>& settings) {
  return test::message_of([&] {
    const Config config = small(settings);
    compile_gradients(config, prepare(config, builtin_models()));
  });
}

// The encoder's tokens are as many, and stay whole.
TEST(SlicedSteps, RefuseDecodersOfFewerTokensThanSlices) {
  EXPECT_EQ(refusal(joined(kT5, {"slices=7"})),
            "pipeline.slices = 7: no tensor has a dim \"sequence\" of as many tokens\n"
            "  hint: slices are for models that name this dim and sequences of more tokens than slices");
  EXPECT_EQ(refusal(joined(kT5, {"slices=[3, 1]"})),
            "slices of unequal length: a sequence of 6 tokens is not a multiple of 4 parts\n"
            "  the slices end at 3, 4\n  constrained in stage \"1\"\n"
            "  hint: give pipeline.slices lengths whose sum divides 6");
}

TEST(SlicedSteps, RefuseMixturesWhoseTokensCompeteAcrossSlices) {
  const std::vector<std::pair<const char*, const char*>> cutting = {
      {"slices=2", "groups=1"}, {"slices=3", "groups=4"}, {"slices=[4, 2]", "groups=2"}, {"slices=[7, 4, 1]", "groups=4"}};
  for (const auto& [slices, groups] : cutting) {
    SCOPED_TRACE(concat(slices, ", ", groups));
    const std::string message = refusal({"model.name=moe", "capacity_factor=0.75", slices, groups});
    EXPECT_NE(message.find("of h.1 in stage 0"), message.npos) << message;
    EXPECT_NE(message.find("a mixture of experts has whole groups in each slice, or a capacity_factor (experts / 2)"), message.npos)
        << message;
  }
}

// A table may name any blocks, where the model has stages of attention alone.
TEST(SlicedSteps, BlocksAreOfStagesOfAttention) {
  const auto refused = [](const std::string& csv) {
    const std::string file = (std::filesystem::path(testing::TempDir()) / "blocks.csv").string();
    write_file(file, csv);
    return refusal({"layers=2", "microbatches=1", concat("schedule=", file)});
  };
  EXPECT_EQ(refused("0.0F0,0.1F0,0.1B0,0.0B0\n1.0F0,0.1.0F0,1.1F0,1.1B0,0.1.0B0,1.0B0\n"),
            "blocks of attention are apart from stage \"0\", which is more than attention\n"
            "  it has scaled_dot_product_attention of h.0 and what this reads, or what reads its results\n"
            "  hint: cut the model so that attention has stages of its own: of a gpt of L layers 2L + k stages, where k divides L");
  const char* const kHelix =
      "0.0F0,0.1F0,1.0F0,1.1F0,2.0F0,2.1F0,2.1B0,2.0B0,1.1B0,1.0B0,0.1B0,0.0B0\n"
      "3.0F0,3.1F0,4.0F0,BLOCKF0,4.1F0,4.1B0,BLOCKB0,4.0B0,3.1B0,3.0B0\n";
  const auto with_block = [&](const std::string& block) {
    std::string csv = kHelix;
    for (std::size_t at; (at = csv.find("BLOCK")) != std::string::npos;) csv.replace(at, 5, block);
    return csv;
  };
  EXPECT_EQ(refused(with_block("2.1.0")),
            "block 0 of slice 1 is apart from stage \"2\", which has no causal attention\n"
            "  stages with attention: 1, 3\n"
            "  hint: name blocks of these stages only");
  EXPECT_EQ(refused(with_block("3.1.0")), "no error");
}

TEST(SlicedSteps, RefuseTheOtherBadNumbers) {
  EXPECT_EQ(refusal({"slices=13"}),
            "pipeline.slices = 13: no tensor has a dim \"sequence\" of as many tokens\n"
            "  hint: slices are for models that name this dim and sequences of more tokens than slices");
  EXPECT_EQ(refusal({"slices=[5, 2]"}),
            "slices of unequal length: a sequence of 12 tokens is not a multiple of 7 parts\n"
            "  the slices end at 5, 7\n  constrained in stage \"0\"\n"
            "  hint: give pipeline.slices lengths whose sum divides 12");
  EXPECT_EQ(refusal({"slices=2.5"}),
            "pipeline.slices has 2.5\n  it is how many slices there are, or the length of each\n"
            "  hint: give whole numbers: slices = 8, or slices = [5, 3, 2]");
  EXPECT_EQ(refusal({"slices=2", "planner=balanced"}),
            "pipeline.slices = 2 cuts sequences of one length; batch.planner = \"balanced\" plans batches of several\n"
            "  hint: leave out pipeline.slices, or set batch.planner = \"pad\"");
  EXPECT_EQ(refusal({"head_shards=2"}),
            "1f1b takes no --head-shards\n  it takes --in-flight, --self-conditioning\n  hint: schedules that "
            "do: slimpipe, slimpipe-exchange");
  EXPECT_EQ(refusal({"head_shards=33", "schedule=slimpipe"}), "head_shards is 33 for a vocabulary of 32\n  hint: use 1 to 32");
}

}  // namespace
}  // namespace penstock
