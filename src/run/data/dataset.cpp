// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "config/compile.h"
#include "data/class_images_dataset.h"
#include "data/image_text_dataset.h"
#include "data/sequence_dataset.h"
#include "data/synthetic.h"
#include "data/text_dataset.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The keys of [data] that name something to read, with what they name.
std::vector<std::pair<std::string, std::vector<std::string>>> named_in(const Config::Data& data) {
  std::vector<std::pair<std::string, std::vector<std::string>>> out;
  if (!data.text.empty()) out.emplace_back("data.text", data.text);
  if (!data.documents.empty()) out.emplace_back("data.documents", data.documents);
  if (!data.pairs.empty()) out.emplace_back("data.pairs", data.pairs);
  return out;
}

std::shared_ptr<const Dataset> text_data(const Config& config, const Tokenizer& tokenizer, bool reads_pairs) {
  const Config::Data& data = config.data;
  const std::int64_t context = context_of(config);
  const SampleDraw draw{config.train.batch, data.validation, config.train.seed};
  const auto of = [&](Sequences all, const std::vector<std::string>& paths) {
    return std::make_shared<SequenceDataset>(std::move(all), join(paths, ", "), context, draw, reads_pairs);
  };
  if (!data.documents.empty()) return of(Sequences::of_documents(data.documents, tokenizer), data.documents);
  if (!data.pairs.empty()) return of(Sequences::of_pairs(data.pairs, tokenizer), data.pairs);
  return std::make_shared<TextDataset>(data.text.empty() ? default_text() : data.text, tokenizer, context, draw);
}

}  // namespace

std::vector<std::int64_t> samples_from(std::int64_t first, std::int64_t batch) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(batch));
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::int64_t sample_in_row(const StepInput& input, std::int64_t row) {
  if (row < 0 || row >= std::ssize(input.samples))
    throw Error(concat("step ", input.step, " has a batch of ", input.samples.size(), ", its row ", row, " was asked for"));
  return input.samples[row];
}

std::int64_t row_in_step(const StepInput& input, std::int64_t row) {
  return input.steps <= 1 ? row : row % std::max<std::int64_t>(1, std::ssize(input.samples) / input.steps);
}

std::span<const std::int64_t> samples_in_row(const StepInput& input, std::int64_t row) {
  if (input.begins.empty()) {
    sample_in_row(input, row);
    return std::span(input.samples).subspan(static_cast<std::size_t>(row), 1);
  }
  if (row < 0 || row >= std::ssize(input.begins))
    throw Error(concat("step ", input.step, " has a batch of ", input.begins.size(), " rows, its row ", row, " was asked for"));
  const std::int64_t begin = input.begins[row],
                     end = row + 1 < std::ssize(input.begins) ? input.begins[row + 1] : std::ssize(input.samples);
  return std::span(input.samples).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

std::string counted(const Dataset& data) {
  return data.tokens() > 0 ? "tokens" : "samples";
}

std::shared_ptr<const Dataset> make_dataset(const Config& config, const Model& model) {
  const std::vector<DataPort> ports = data_of(config, model);
  const auto named = named_in(config.data);
  const auto has_port = [&](const char* name) { return std::ranges::find(ports, name, &DataPort::name) != ports.end(); };
  if (!reads_text(ports) && has_port("image") && has_port("label") && named.size() == 1 && !config.data.documents.empty())
    return std::make_shared<ClassImagesDataset>(config.data.documents, ports,
                                                SampleDraw{config.train.batch, config.data.validation, config.train.seed});
  if (!reads_text(ports)) {
    if (!named.empty())
      throw Error(
          concat("model ", quote(config.model.name), " reads no text, but ", named[0].first, " names ", join(named[0].second, ", ")), {},
          concat("leave out ", named[0].first, ": its data is synthetic"));
    return std::make_shared<SyntheticDataset>(ports, config.train.batch, config.train.seed);
  }
  if (reads_images(ports)) {
    if (!config.data.text.empty())
      throw Error(
          concat("model ", quote(config.model.name), " reads texts with images, but data.text names ", join(config.data.text, ", ")), {},
          "name .jsonl files in data.documents, or leave out both: its data is drawn then");
    if (config.data.documents.empty())
      return std::make_shared<DrawnImagesDataset>(image_ports_of(ports), config.train.batch, config.train.seed);
    return std::make_shared<ImageFilesDataset>(config.data.documents, image_ports_of(ports),
                                               SampleDraw{config.train.batch, config.data.validation, config.train.seed});
  }
  for (const DataPort& port : ports)
    if (!port.is_text())
      throw Error(concat("data port ", quote(port.name), " is not text; a model reads text or synthetic data, not both"));
  if (named.size() > 1)
    throw Error(concat("both ", named[0].first, " and ", named[1].first, " are set"), {},
                "documents and pairs have lengths of their own; leave out one of them");
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(config.data.tokenizer);
  if (vocabulary_of(config) < tokenizer->size())
    throw Error(
        concat("model.vocabulary is ", vocabulary_of(config), "; tokenizer ", config.data.tokenizer, " has ", tokenizer->size(), " tokens"),
        {}, concat("--set vocabulary=", tokenizer->size()));
  return text_data(config, *tokenizer, rows_of(config, model).inputs > 0);
}

}  // namespace penstock
