// SPDX-License-Identifier: Apache-2.0
// VGG and ResNet against what is published of them.
#include <gtest/gtest.h>

#include <set>

#include "base/text.h"
#include "models/support.h"
#include "ops/definition.h"
#include "ops/verify.h"
#include "penstock/step.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;
using test::model;

const Graph& body_of(const Graph& graph) {
  for (const Op& op : graph.ops)
    if (op.body) return *op.body;
  throw std::runtime_error("no loop");
}

std::unique_ptr<Model> resnet(const std::string& blocks, std::map<std::string, double> numbers = {}, int stages = 1) {
  return make_model(builtin_models(), "resnet",
                    {.numbers = std::move(numbers), .words = {{"blocks", blocks}}, .stages = stages, .compute = DType::f32});
}

std::int64_t elements_of(const Model& model) {
  std::int64_t elements = 0;
  for (const ParameterSpec& spec : model.parameters()) elements += spec.type.elements();
  return elements;
}

std::string names_of(const Model& model) {
  return join(model.parameters(), " ", [](const ParameterSpec& spec) { return spec.name; });
}

// Multiplications of one image's forward pass in convolutions and linear layers, as such tables count.
double products_of(const Model& model) {
  const Graph step = evaluation_step(model, {1, 0, 1});
  double flops = 0;
  for (const Op& op : body_of(step).ops)
    if (op.name == "convolution" || op.name == "linear") flops += cost(body_of(step), op).flops;
  return flops / 2;
}

void expect_stages(const Model& model, int stages) {
  const Graph graph = gradient_step(model, {4, 0, 2});
  verify(graph);
  std::set<std::string> found;
  for (const Op& op : body_of(graph).ops)
    if (!op.stage.empty()) found.insert(op.stage);
  EXPECT_EQ(found.size(), static_cast<std::size_t>(stages));
}

// Counts of parameters and multiplications: torchvision's tables of vgg11, vgg13, vgg16 and resnet50.
TEST(Vgg, HasThePublishedSizes) {
  const auto full = [](double depth) { return model("vgg", {{"depth", depth}, {"width", 64}, {"image", 224}, {"classes", 1000}}); };
  EXPECT_EQ(elements_of(*full(11)), 132863336);
  EXPECT_EQ(elements_of(*full(13)), 133047848);
  EXPECT_EQ(elements_of(*full(16)), 138357544);
  EXPECT_NEAR(products_of(*full(16)), 15.470e9, 0.001e9);
}

TEST(Vgg, HasTorchvisionsNames) {
  EXPECT_EQ(names_of(*model("vgg")),
            "features.0.weight features.0.bias features.3.weight features.3.bias features.6.weight features.6.bias features.8.weight "
            "features.8.bias features.11.weight features.11.bias features.13.weight features.13.bias features.16.weight features.16.bias "
            "features.18.weight features.18.bias classifier.0.weight classifier.0.bias classifier.3.weight classifier.3.bias "
            "classifier.6.weight classifier.6.bias");
}

TEST(Vgg, MarksAsManyStagesAsAsked) {
  for (int stages = 1; stages <= 11; ++stages) expect_stages(*model("vgg", {{"width", 1}}, stages), stages);
}

TEST(Vgg, RefusesWhatItCannotDo) {
  EXPECT_EQ(message_of([] { model("vgg", {{"depth", 12}}); }), "model option \"depth\" is 12\n  hint: use 11, 13 or 16");
  EXPECT_EQ(message_of([] { model("vgg", {{"image", 40}}); }), "image size 40 is not divisible by 32\n  hint: five poolings halve it");
  EXPECT_EQ(message_of([] { model("vgg", {}, 12); }),
            "model \"vgg\" with 11 layers cannot be cut into 12 stages\n  hint: use 1 to 11 stages (actors times chunks)");
}

TEST(Resnet, HasThePublishedSizes) {
  const auto full = resnet("3,4,6,3", {{"width", 64}, {"image", 224}, {"classes", 1000}});
  EXPECT_EQ(elements_of(*full), 25557032);
  EXPECT_NEAR(products_of(*full), 4.089e9, 0.001e9);
}

TEST(Resnet, HasTorchvisionsNames) {
  EXPECT_EQ(names_of(*resnet("2")),
            "conv1.weight bn1.weight bn1.bias "
            "layer1.0.conv1.weight layer1.0.bn1.weight layer1.0.bn1.bias layer1.0.conv2.weight layer1.0.bn2.weight layer1.0.bn2.bias "
            "layer1.0.conv3.weight layer1.0.bn3.weight layer1.0.bn3.bias "
            "layer1.0.downsample.0.weight layer1.0.downsample.1.weight layer1.0.downsample.1.bias "
            "layer1.1.conv1.weight layer1.1.bn1.weight layer1.1.bn1.bias layer1.1.conv2.weight layer1.1.bn2.weight layer1.1.bn2.bias "
            "layer1.1.conv3.weight layer1.1.bn3.weight layer1.1.bn3.bias fc.weight fc.bias");
}

TEST(Resnet, MarksAsManyStagesAsAsked) {
  for (int stages = 1; stages <= 8; ++stages) expect_stages(*resnet("2,2,2,2", {{"width", 1}}, stages), stages);
}

TEST(Resnet, RefusesWhatItCannotDo) {
  for (const char* blocks : {"", "3,", "3,x", "0,1", "3;4"})
    EXPECT_EQ(message_of([&] { resnet(blocks); }),
              concat("model option \"blocks\" is ", quote(blocks), "\n  hint: give the blocks of each group, as in 3,4,6,3 (ResNet-50)"));
  EXPECT_EQ(message_of([] { resnet("1,1", {}, 3); }),
            "model \"resnet\" with 2 blocks cannot be cut into 3 stages\n  hint: use 1 to 2 stages (actors times chunks)");
  // The last maps of images this small have one place.
  EXPECT_EQ(message_of([] { gradient_step(*resnet("1,1,1,1", {{"image", 32}}), {2, 0, 2}); }).substr(0, 61),
            "native_batch_norm: each channel needs more than one value\n  o");
}

// A batch norm ties the samples of a micro-batch together.
TEST(ImageModels, TellWhetherMicrobatchesMustBeEqual) {
  EXPECT_TRUE(resnet("1")->equal_batches());
  EXPECT_FALSE(model("vgg")->equal_batches());
}

}  // namespace
}  // namespace penstock
