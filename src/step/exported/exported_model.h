// SPDX-License-Identifier: Apache-2.0
// An exported module as a model: everything that works with models trains it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "exported/exported.h"
#include "exported/joint_step.h"
#include "penstock/trace.h"

namespace penstock {

struct ExportedModelOptions {
  // Sizes of the symbols with which data() declares the module's inputs and stages are cut; none: those of the export's example.
  Sizes sizes = {};
  // Where stages begin: paths of modules, for the second and all that follow; or, where there are none, into how many equal stages it is
  // cut.
  std::vector<std::string> begins = {};
  int stages = 1;
  // The modules of the export that `begins` was chosen for, in the order in which they ran; none: this one (stage_marks.h).
  std::vector<std::string> order = {};
  // By input the dim along which its tokens lie, which slices of a sequence are cut along.
  std::map<std::string, int> sequence = {};
  std::vector<int> groups = {};  // of the optimiser, one for each input that is a trained parameter; empty: all are of one
  bool in_f64 = false;           // whether what the module has in f32 is in f64
  // Whether a step's micro-batches have sizes of their own (BatchCount::port). Where the loss divides by a number that the data says,
  // data() then has a port more for each: "count.0", ..., the whole step's divisor over its samples, which counting_step()
  // (counting_step.h) finds.
  bool in_classes = false;
};

// The module's joint graph is its loss and its gradients (Model::sums). Micro-batches may have any sizes that the export allows: they are
// read from the tensors, and the graph for them is made when they first come. The loss of a batch is the mean of its micro-batches' losses,
// or their sum where the header says so. Validation and generation draw nothing (without_draws in randomness.h); batch norms take their
// micro-batch's statistics there too.
class ExportedModel : public Model {
 public:
  // Throws Error: sizes that are missing, a graph that does not fit the header, ops that no plan can run alike, stages that are not there.
  ExportedModel(Exported exported, ExportedModelOptions options);

  std::vector<ParameterSpec> parameters() const override { return parameters_; }
  // The module's own inputs, which the caller gives, and what `in_classes` adds.
  std::vector<DataPort> data(std::int64_t context) const override;
  // These throw Error for a micro-batch whose tensors are of other types than the module was exported for.
  Tensor loss(const Parameters& parameters, const Batch& batch) const override;
  StepSums sums(const Parameters& parameters, const Batch& batch) const override;
  // The tensors that the module gives beside its loss, those that have the samples in front.
  Parameters outputs(const Parameters& parameters, const Batch& batch) const override;
  Parameters shared(const Parameters& parameters, const Batch& whole, int microbatches) const override;
  // The module's result "logits". Where it was exported for more rows than there are, rows come several times.
  Tensor logits(const Parameters& parameters, const Batch& batch) const override;
  std::vector<Carried> carried() const override { return usual_->carried; }
  Tensor count(const Batch& batch) const override;
  bool equal_batches() const override { return !options_.in_classes; }
  // Whether it reads text and returns logits.
  bool generates() const override;

  std::int64_t samples() const { return usual_->samples; }  // of a micro-batch of the sizes in the options
  Graph graph() const;                                      // the joint graph of such a micro-batch as it is run
  const JointStep& step() const { return *usual_; }         // likewise
  std::vector<DataPort> own_data() const;                   // data() without what `in_classes` adds
  const std::vector<std::string>& begins() const { return options_.begins; }

 protected:
  const Exported& exported() const { return exported_; }
  // The type of the module's input of this name in a micro-batch of the sizes in the options; only of split and whole ones.
  const TensorType& type_of(const std::string& input) const { return types_.at(input); }
  // The tensors that the module's inputs read of a batch, or of a micro-batch, by the inputs' names.
  virtual Parameters inputs(const Batch& batch) const { return batch.ports; }

 private:
  // The joint graph for micro-batches of these sizes, with the stages' marks. Any thread may ask for it.
  const JointStep& step_for(const Sizes& sizes) const;
  Sizes sizes_of(const Parameters& inputs) const;
  // A part of the step's graph that makes some of its outputs, without random ops.
  Tensor forward(const JointStep& step, std::size_t output, const Parameters& parameters, const Parameters& given, Builder& builder) const;
  // The tensors of the state and of what else is given that the graph reads, by the names of its inputs.
  std::vector<Tensor> operands(const Graph& graph, const Parameters& parameters, const Parameters& given) const;

  const Exported exported_;
  ExportedModelOptions options_;
  mutable std::mutex mutex_;                  // of:
  mutable std::map<Sizes, JointStep> steps_;  // by sizes; they stay where they are
  const JointStep* usual_ = nullptr;          // that of the sizes in the options
  std::vector<ParameterSpec> parameters_;
  std::set<std::string, std::less<>> state_;  // the parameters' names
  std::map<std::string, TensorType> types_;   // of the other inputs
};

}  // namespace penstock
