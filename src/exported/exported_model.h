// An exported module as a model: everything that works with models trains it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exported/exported.h"
#include "penstock/trace.h"

namespace penstock {

struct ExportedModelOptions {
  Sizes sizes;  // of the symbols; of a micro-batch's samples too
  // Where stages begin: paths of modules, for the second and all that follow; or, where there are none, into how many equal stages it is
  // cut.
  std::vector<std::string> begins = {};
  int stages = 1;
  std::vector<int> groups = {};  // of the optimiser, one for each input that is a trained parameter; empty: all are of one
};

// The module's joint graph is its loss and its gradients (Model::sums). The micro-batches of a step have the samples for which the graph
// was instantiated. The loss of a batch is the mean of its micro-batches' losses, or their sum where the header says so.
class ExportedModel : public Model {
 public:
  // Throws Error: sizes that are missing, a graph that does not fit the header, ops that no plan can run alike, stages that are not there.
  ExportedModel(const Exported& exported, const ExportedModelOptions& options);

  std::vector<ParameterSpec> parameters() const override { return parameters_; }
  std::vector<DataPort> data(std::int64_t context) const override;
  Tensor loss(const Parameters& parameters, const Batch& batch) const override;
  StepSums sums(const Parameters& parameters, const Batch& batch) const override;
  // The tensors that the module gives beside its loss, those that have the samples in front.
  Parameters outputs(const Parameters& parameters, const Batch& batch) const override;
  std::vector<Carried> carried() const override { return carried_; }
  Parameters shared(const Parameters& parameters, const Batch& whole, int microbatches) const override;
  Tensor count(const Batch& batch) const override;
  bool equal_batches() const override { return true; }
  bool generates() const override { return false; }

  std::int64_t samples() const { return samples_; }  // of a micro-batch
  const Graph& graph() const { return graph_; }      // the joint graph of one micro-batch as it is run
  const std::vector<std::string>& begins() const { return begins_; }

 private:
  void divide_by_batch(const Exported& exported);
  void carry_buffers(const Exported& exported);
  // An output of the joint graph, by the part of it that it needs.
  Tensor forward(std::size_t output, const Parameters& parameters, const Batch& batch) const;
  // The graph's operands, by the names of its inputs, from state and batch.
  std::vector<Tensor> operands(const Graph& graph, const Parameters& parameters, const Batch& batch) const;

  bool loss_is_sum_ = false;
  std::int64_t samples_ = 1;
  Graph graph_, counts_, divisors_;                             // batch_counts.h says what the latter two are
  std::size_t loss_ = 0;                                        // which output of the graph
  std::vector<std::pair<std::string, std::size_t>> gradients_;  // by parameter, which outputs
  std::vector<std::pair<std::string, std::size_t>> results_;    // what else the module gives, which outputs
  std::vector<std::optional<std::size_t>> added_;               // to each of what is carried, which output; none: nothing
  std::vector<Carried> carried_;
  std::vector<ParameterSpec> parameters_;
  std::vector<DataPort> ports_;
  std::vector<std::string> begins_;
};

}  // namespace penstock
