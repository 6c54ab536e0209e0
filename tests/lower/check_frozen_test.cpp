// SPDX-License-Identifier: Apache-2.0
// A value that a frozen stage may not read.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "penstock/compile.h"
#include "penstock/step.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

// Two layers h <- tanh(h W) in a stage each. `trained`: whether the first one's W is. `compares`: the first one also compares with the
// second one's, which is trained; no gradient goes through that.
class TwoStages : public Model {
 public:
  TwoStages(bool trained, bool compares) : trained_(trained), compares_(compares) {}

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> out;
    for (const char* name : {"w0", "w1"}) {
      ParameterSpec& spec = out.emplace_back();
      spec.name = name;
      spec.type = {DType::f64, {2, 2}};
      spec.trained = trained_ || out.size() > 1;
    }
    return out;
  }
  std::vector<DataPort> data(std::int64_t) const override {
    return {{"x", {DType::f64, {2}}, DataPort::Kind::given, 0, {}}, {"y", {DType::f64, {2}}, DataPort::Kind::given, 0, {}}};
  }
  Tensor loss(const Parameters& p, const Batch& batch) const override {
    Tensor h = batch["x"];
    {
      const Stage stage("0");
      const Origin origin("encoder");
      h = tanh(matmul(h, p["w0"]));
      if (compares_) h = where(lt(p["w1"], 0.5), h, h * 2.0);
    }
    const Stage stage("1");
    h = tanh(matmul(h, p["w1"])) - batch["y"];
    return sum(h * h, {0, 1});
  }

 private:
  bool trained_, compares_;
};

Schedule table_of(int window) {
  return make_schedule("1f1b", {.actors = 1, .microbatches = 2, .window = window, .frozen = {1}});
}

std::string compiled(const Graph& step, int window) {
  return message_of([&] { compile(step, table_of(window)); });
}

std::string trained(bool is_trained, bool compares, int window) {
  return compiled(training_step(TwoStages(is_trained, compares), {4, 0, 2}, {.clip = 0}), window);
}

TEST(CheckFrozen, AStageThatReadsWhatIsTrainedIsRefused) {
  const std::string rest =
      ", which is trained\n  a frozen stage's forwards for the next step run before this step has updated its parameters\n"
      "  hint: let pipeline.frozen have a time for each of the model's frozen stages, which are in front, and for no other; or let "
      "ParameterSpec::trained be false";
  EXPECT_EQ(trained(false, false, 1), "no error");
  EXPECT_EQ(trained(false, false, 2), "no error");
  for (const int window : {1, 2})
    EXPECT_EQ(trained(true, false, window),
              "schedule 1f1b: stage 0 is frozen, and its \"matmul\" of \"encoder\" reads parameter \"w0\"" + rest);
  // In its own step nothing is late; a step ahead the first stage would compare with what the step has not updated yet.
  EXPECT_EQ(trained(false, true, 1), "no error");
  EXPECT_EQ(trained(false, true, 2), "no error");
  Schedule ahead = table_of(2);
  const auto next = std::ranges::find_if(ahead.actors[0], [](const Action& action) { return action.stage == 0 && action.microbatch == 2; });
  std::rotate(ahead.actors[0].begin(), next, next + 1);
  EXPECT_EQ(message_of([&] { compile(training_step(TwoStages(false, true), {4, 0, 2}, {.clip = 0}), ahead); }),
            "schedule 1f1b: stage 0 is frozen, and its \"lt\" of \"encoder\" reads parameter \"w1\"" + rest);
  EXPECT_EQ(compiled(gradient_step(TwoStages(true, false), {4, 0, 2}), 1),
            "schedule 1f1b: stage 0 is frozen, and its \"matmul\" of "
            "\"encoder\" reads parameter \"w0\"" +
                rest);
}

}  // namespace
}  // namespace penstock
