#include "data/dataset.h"

#include "base/text.h"
#include "config/compile.h"
#include "data/byte_dataset.h"
#include "data/sequence_dataset.h"
#include "data/synthetic.h"
#include "penstock/error.h"

namespace penstock {

std::int64_t sample_in_row(const StepInput& input, std::int64_t row) {
  if (row < 0 || row >= std::ssize(input.samples))
    throw Error(concat("step ", input.step, " has a batch of ", input.samples.size(), ", its row ", row, " was asked for"));
  return input.samples[row];
}

std::string counted(const Dataset& data) {
  return data.tokens() > 0 ? "tokens" : "samples";
}

std::shared_ptr<const Dataset> make_dataset(const Config& config, const Model& model) {
  const std::vector<DataPort> ports = data_of(config, model);
  if (!reads_text(ports)) {
    if (!config.data.text.empty())
      throw Error(concat("model ", quote(config.model.name), " reads no text, but data.text names ", join(config.data.text, ", ")), {},
                  "leave out data.text (--text): its data is synthetic");
    return std::make_shared<SyntheticDataset>(ports, config.train.batch, config.train.seed);
  }
  for (const DataPort& port : ports)
    if (!port.is_text())
      throw Error(concat("data port ", quote(port.name), " is not text; a model reads text or synthetic data, not both"));
  if (!config.data.documents.empty()) {
    if (!config.data.text.empty())
      throw Error("both data.text and data.documents are set", {}, "documents have lengths of their own; leave out one of them");
    return std::make_shared<SequenceDataset>(config.data.documents, context_of(config), config.train.batch, config.data.validation,
                                             config.train.seed);
  }
  return std::make_shared<ByteDataset>(config.data.text.empty() ? default_text() : config.data.text, context_of(config), config.train.batch,
                                       config.data.validation, config.train.seed);
}

}  // namespace penstock
