// SPDX-License-Identifier: Apache-2.0
// A module of PyTorch in the file that its exporter wrote (docs/pytorch.md), on the data that the program has.
#include "exported/exported.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>

#include "base/text.h"
#include "base/words.h"
#include "exported/exported_model.h"
#include "formats/safetensors.h"
#include "models/registry.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Batch = Model::Batch;
using Words = std::map<std::string, std::string>;

// Whether a target counts, i64 [batch, context].
Tensor counts(const Batch& batch) {
  return to(ne(batch.targets, static_cast<double>(kIgnored)), DType::i64);
}

// The targets of the places themselves, of which a module leaves out the first: so modules of Hugging Face take them.
Tensor labels(const Batch& batch) {
  const Tensor first = full(batch.targets, {batch.targets.size(0), 1}, static_cast<double>(kIgnored), DType::i64);
  return cat({first, slice(batch.targets, 1, 0, -1)}, 1);
}

// 1 up to the last token whose target counts, so that padding has 0, and always for the first.
Tensor mask(const Batch& batch) {
  const Tensor counted = counts(batch), before = cumsum(counted, 1);
  const Tensor left = slice(before, 1, -1, before.size(1)) - before + counted;
  return cat({full(left, {left.size(0), 1}, 1, DType::i64), to(gt(slice(left, 1, 1, left.size(1)), 0), DType::i64)}, 1);
}

Tensor positions(const Batch& batch) {
  return full_like(batch.tokens, 0) + arange(batch.tokens, batch.tokens.size(1), DType::i64);
}

// A kind of tensor that an input of a module may read: of a text (`make`), or drawn.
struct Source {
  std::string name, meaning;
  Tensor (*make)(const Batch&) = nullptr;
  DataPort::Kind drawn = DataPort::Kind::given;
};
const std::vector<Source>& sources() {
  static const std::vector<Source> known = {
      {"tokens", "of a text", [](const Batch& batch) { return batch.tokens; }},
      {"targets", "the token behind each, -100 where it is not learnt", [](const Batch& batch) { return batch.targets; }},
      {"labels", "the targets one place further, as modules that shift them themselves take them", labels},
      {"mask", "1 for a token, 0 for padding", mask},
      {"ones", "1 for every place", [](const Batch& batch) { return full_like(batch.tokens, 1); }},
      {"positions", "0, 1, 2, ...", positions},
      {"classes", "drawn below model.vocabulary", nullptr, DataPort::Kind::indices},
      {"normal", "drawn, with a pattern of the sample's class where there is one", nullptr, DataPort::Kind::normal},
      {"uniform", "drawn from 0 to 1", nullptr, DataPort::Kind::uniform},
  };
  return known;
}

const Source& source_named(const std::string& name) {
  const auto found = std::ranges::find(sources(), name, &Source::name);
  if (found != sources().end()) return *found;
  std::vector<std::string> names;
  for (const Source& source : sources()) names.push_back(source.name);
  throw Error(concat("model.inputs: there is no data ", quote(name)), {concat("known: ", join(names, ", "))}, did_you_mean(name, names));
}

// Inputs of these names read this where the configuration does not say it: in modules that read text, and in others.
const Words& usual_sources(bool text) {
  static const Words of_text = {{"input_ids", "tokens"},       {"tokens", "tokens"},  {"labels", "labels"},  {"attention_mask", "mask"},
                                {"position_ids", "positions"}, {"target", "targets"}, {"targets", "targets"}};
  static const Words of_images = {{"pixel_values", "normal"}, {"image", "normal"},   {"images", "normal"},  {"labels", "classes"},
                                  {"label", "classes"},       {"target", "classes"}, {"targets", "classes"}};
  return text ? of_text : of_images;
}

// Reads "input_ids=tokens,labels=targets". Throws Error for a name that is no input of the module, and for what is no such list.
Words read_inputs(const std::string& text, const Exported& exported) {
  std::vector<std::string> names;
  for (const ExportedInput& input : exported.inputs)
    if (input.is_data()) names.push_back(input.name);
  Words out;
  if (trim(text).empty()) return out;
  for (const std::string& part : split(text, ',')) {
    const std::size_t equal = part.find('=');
    if (equal == std::string::npos)
      throw Error(concat("model.inputs: ", quote(part), " is no input and what it reads"), {},
                  "--set inputs=input_ids=tokens,labels=labels");
    const std::string name(trim(std::string_view(part).substr(0, equal)));
    if (std::ranges::find(names, name) == names.end())
      throw Error(concat("model.inputs: ", exported.model, " has no input ", quote(name)), {concat("known: ", join(names, ", "))},
                  did_you_mean(name, names));
    out[name] = trim(std::string_view(part).substr(equal + 1));
  }
  return out;
}

// Finds what each input of the module reads. Throws Error where nothing is known for one.
std::map<std::string, Source> sources_of(const Exported& exported, const std::string& given) {
  const Words said = read_inputs(given, exported);
  std::map<std::string, Source> out;
  for (const auto& [input, source] : said) out[input] = source_named(source);
  const auto is_text = [&](const ExportedInput& input) {
    if (!input.is_data()) return false;
    const auto known = out.find(input.name);
    return known != out.end() ? known->second.make != nullptr : input.name == "input_ids" || input.name == "tokens";
  };
  const Words& usual = usual_sources(std::ranges::any_of(exported.inputs, is_text));
  for (const ExportedInput& input : exported.inputs) {
    if (!input.is_data() || out.contains(input.name)) continue;
    const auto found = usual.find(input.name);
    if (found == usual.end() || input.role == ExportedInput::Role::whole)
      throw Error(
          concat("input ", quote(input.name), " of ", exported.model, " is none that the program has data for"),
          {concat("known: ", join(sources(), ", ", [](const Source& source) { return concat(source.name, " (", source.meaning, ")"); }))},
          concat("say what it reads, --set inputs=", input.name, "=ones, or export the module without it"));
    out[input.name] = source_named(found->second);
  }
  const auto is_drawn = [](const auto& entry) { return entry.second.make == nullptr; };
  if (const auto drawn = std::ranges::find_if(out, is_drawn); drawn != out.end() && !std::ranges::all_of(out, is_drawn))
    throw Error(concat("input ", quote(drawn->first), " of ", exported.model, " reads ", quote(drawn->second.name), ", which is drawn"),
                {"others read a text, and a model reads a text or what is drawn, not both"}, "export the module without it");
  return out;
}

class ExportedFile : public ExportedModel {
 public:
  ExportedFile(Exported exported, const ModelOptions& options, std::map<std::string, Source> sources, ExportedModelOptions how)
      : ExportedModel(std::move(exported), std::move(how)),
        file_(options.word("file")),
        sources_(std::move(sources)),
        classes_(options.size("vocabulary")) {}

  std::string initial_values() const override { return file_; }

  std::vector<DataPort> data(std::int64_t context) const override {
    if (std::ranges::any_of(sources_, [](const auto& entry) { return entry.second.make != nullptr; })) return text_ports(context);
    std::vector<DataPort> out = ExportedModel::data(context);
    std::vector<std::string> classes;
    for (DataPort& port : out) {
      port.kind = sources_.at(port.name).drawn;
      if (port.kind != DataPort::Kind::indices) continue;
      port.below = classes_;
      classes = {port.name};
    }
    for (DataPort& port : out)
      if (port.kind == DataPort::Kind::normal) port.of = classes;
    std::ranges::stable_partition(out, [](const DataPort& port) { return port.of.empty(); });
    return out;
  }

 protected:
  Parameters inputs(const Batch& given) const override {
    Batch batch = given;
    if (!batch.targets) batch.targets = batch.tokens;  // for a generation, which reads no loss
    Parameters out;
    for (const auto& [name, source] : sources_) {
      const Tensor read = source.make ? source.make(batch) : batch[name];
      out.set(name, to(read, type_of(name).dtype));
    }
    return out;
  }

 private:
  std::string file_;
  std::map<std::string, Source> sources_;  // by input
  std::int64_t classes_;
};

bool is_archive(const std::string& path) {
  std::array<char, 2> begin = {};
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  return begin == std::array{'P', 'K'};
}

Exported read_file_of(const std::string& path) {
  if (path.empty()) throw Error("model.file names no file", {}, "--set model.file=FILE, which exported.save(FILE) wrote in Python");
  if (is_archive(path))
    throw Error(concat(path, " is an archive, as torch.export.save writes it: it has no backward"), {},
                "penstock.export(module, ...).save(FILE) writes a module with its backward in Python");
  const SafetensorsFile file = SafetensorsFile::open(path);
  const auto& metadata = file.metadata();
  if (!metadata.contains("header") || !metadata.contains("graph"))
    throw Error(concat(path, " is no exported module"), {},
                concat("penstock.export(...).save(FILE) writes one in Python; a file of parameters is taken by --init ", path));
  return read_exported(metadata.at("header"), metadata.at("graph"), path);
}

std::vector<std::string> begins_of(const ModelOptions& options) {
  const std::string& text = options.word("split");
  if (options.stages == 1 || trim(text).empty()) return {};
  std::vector<std::string> out;
  for (const std::string& part : split(text, ',')) out.emplace_back(trim(part));
  if (std::ssize(out) + 1 != options.stages)
    throw Error(concat("model.split names where ", counted(std::ssize(out) + 1, "stage"), " begin, there are ", options.stages), {},
                "name the modules at which the second and each further one begins, or none");
  return out;
}

std::unique_ptr<Model> make(const ModelOptions& options) {
  Exported exported = read_file_of(options.word("file"));
  std::map<std::string, Source> sources = sources_of(exported, options.word("inputs"));
  ExportedModelOptions how{.begins = begins_of(options), .stages = options.stages, .in_f64 = options.compute == DType::f64};
  for (const auto& [input, source] : sources)
    if (source.name == "tokens") how.sequence[input] = 1;
  auto out = std::make_unique<ExportedFile>(std::move(exported), options, std::move(sources), std::move(how));
  const std::vector<ParameterSpec> parameters = out->parameters();
  const auto first = std::ranges::find(parameters, true, &ParameterSpec::trained);
  if (first != parameters.end() && first->type.dtype != options.compute)
    throw Error(
        concat(quote(first->name), " is ", first->type.text(), " in ", options.word("file"), ", train.dtype is ", name(options.compute)),
        {"an exported module computes in its own dtype; one of f32 in f64 too"}, concat("--dtype ", name(first->type.dtype)));
  return out;
}

// The length of the text that the module was exported with, and how many tokens its logits tell apart.
std::map<std::string, double> numbers_of(const Words& words) {
  if (words.at("file").empty()) return {};
  const Exported exported = read_file_of(words.at("file"));
  const Graph graph = parse_graph(with_sizes(exported.text, example_sizes(exported)), exported.model);
  std::map<std::string, double> out;
  for (std::size_t i = 0; i < exported.inputs.size(); ++i)
    if (const Shape& shape = graph.type(graph.inputs[i]).shape; exported.inputs[i].role == ExportedInput::Role::split && shape.size() == 2)
      out.try_emplace("context", static_cast<double>(shape[1]));
  for (std::size_t i = 0; i < exported.outputs.size(); ++i)
    if (const Shape& shape = graph.type(graph.outputs[i]).shape; exported.outputs[i].name == "logits" && !shape.empty())
      out["vocabulary"] = static_cast<double>(shape.back());
  return out;
}

}  // namespace

ModelEntry exported_model() {
  return {.summary = "a module of PyTorch in a file that was exported from Python",
          .numbers = {{"context", 128}, {"vocabulary", 256}},
          .words = {{"file", ""}, {"inputs", ""}, {"split", ""}},
          .make = make,
          .suffixes = {".safetensors", ".pt2"},
          .numbers_of = numbers_of};
}

}  // namespace penstock
