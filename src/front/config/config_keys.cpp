// SPDX-License-Identifier: Apache-2.0
#include "config/config_keys.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <limits>
#include <map>

#include "base/device_name.h"
#include "base/text.h"
#include "batch/batch_planners.h"
#include "config/mesh.h"
#include "config/other_words.h"
#include "penstock/optimiser.h"
#include "program/backends.h"
#include "schedule/options.h"
#include "trace/decays.h"

namespace penstock {
namespace {

constexpr double kMany = 1e9;
constexpr double kLargest = std::numeric_limits<float>::max();  // steps compute in f32: what is larger is infinite there

// The unit and the meaning of a key of Penstock's own models; name and default are in the registry.
std::pair<std::string, std::string> unit_and_meaning(const std::string& name) {
  static const std::map<std::string, std::pair<std::string, std::string>> known = {
      {"bag", {"indices", "looked up together in an embedding bag"}},
      {"branches", {"", "branches that run beside each other"}},
      {"buckets", {"", "relative positions that are told apart"}},
      {"classes", {"", "classes of images"}},
      {"context", {"tokens", "of a sequence"}},
      {"decoder_layers", {"", "layers of the decoder; 0: as many as the encoder has, which are layers"}},
      {"distance", {"tokens", "beyond it all relative positions are one"}},
      {"dropout", {"share", "of the activations that a step drops"}},
      {"embedding", {"channels", "width of an embedding"}},
      {"file", {"", "of the model, in which it was exported"}},
      {"gelu", {"", "how GELU is computed: tanh, or none: by erf"}},
      {"head_shards", {"parts", "of the vocabulary, each a stage behind the others (see --schedule slimpipe); 1: in the last stage"}},
      {"heads", {"", "heads of attention; they divide the width"}},
      {"image_size", {"pixels", "of an image, in each direction"}},
      {"image_tokens", {"tokens", "that an image is in the text"}},
      {"images", {"images", "of a text, at most"}},
      {"input", {"", "stretches of a text, or images in front of one"}},
      {"inputs", {"", "what inputs read where their names do not say it: input_ids=tokens,labels=targets"}},
      {"layers", {"", "layers, of each branch where there are several"}},
      {"patch", {"pixels", "of a patch of an image, in each direction"}},
      {"positions", {"", "learned: a table of them is added to the embedding; rotary: queries and keys turn with them"}},
      {"post", {"", "layers behind the branches"}},
      {"rows", {"", "entries of an embedding's table"}},
      {"self_conditioning", {"share", "of the samples of which the backbone reads its own estimate; 0: it never does"}},
      {"split", {"", "modules at which stages begin, the second and all further ones; none: evenly"}},
      {"tied", {"", "1: the output reads the embedding's matrix, 0: one of its own"}},
      {"vocabulary", {"tokens", "that there are: at least the tokenizer's, 256 of bytes"}},
      {"vision_layers", {"", "layers of the encoder of images"}},
      {"vision_stages", {"stages", "of the encoder of images; 0: half of all"}},
      {"width", {"channels", "of the activations between layers"}},
  };
  const auto found = known.find(name);
  return found == known.end() ? std::pair<std::string, std::string>("", "the model's own") : found->second;
}

// A basic string of TOML. toml++ would write a text with a line break as '''...''', which loses the first break when it is read again.
std::string toml_text(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
      continue;
    }
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\u%04X", static_cast<unsigned>(byte));
    out += escaped;
  }
  return out + '"';
}

struct ValueText {
  const ConfigKey& key;

  std::string operator()(const ConfigKey::Choice& choice) const { return toml_text(key.words[choice.chosen()]); }
  std::string operator()(const int* whole) const { return std::to_string(*whole); }
  std::string operator()(const std::int64_t* whole) const { return std::to_string(*whole); }
  std::string operator()(const double* real) const { return number(*real); }
  std::string operator()(const bool* flag) const { return *flag ? "true" : "false"; }
  std::string operator()(const std::string* text) const { return toml_text(*text); }
  std::string operator()(const std::vector<std::string>* list) const { return "[" + join(*list, ", ", toml_text) + "]"; }
  std::string operator()(const std::vector<double>* list) const { return "[" + join(*list, ", ", number) + "]"; }
  std::string operator()(const std::vector<std::vector<double>>* lists) const {
    return "[" + join(*lists, ", ", [this](const std::vector<double>& list) { return (*this)(&list); }) + "]";
  }
};

ConfigKey choice(const char* section, const char* name, const char* meaning, std::string* target, std::vector<std::string> words) {
  ConfigKey key{section, name, "", meaning, target};
  key.words = std::move(words);
  return key;
}

// A key of an enumeration, or of false and true: `words` say its values in their order.
template <class Value>
ConfigKey choice(const char* section, const char* name, const char* meaning, Value* target, std::vector<std::string> words) {
  ConfigKey key{
      section, name, "", meaning,
      ConfigKey::Choice{[=] { return static_cast<std::size_t>(*target); }, [=](std::size_t word) { *target = static_cast<Value>(word); }}};
  key.words = std::move(words);
  return key;
}

ConfigKey below(ConfigKey key) {
  key.is_below = true;
  return key;
}

ConfigKey by_path(ConfigKey key) {
  key.by_path = true;
  return key;
}

ConfigKey optimiser_key(std::string* target) {
  ConfigKey key{"train", "optimiser", "", "", target};
  for (const OptimiserInfo& row : optimisers()) key.words.push_back(row.name);
  key.meaning = concat("what makes an update of gradients: ", join(key.words, ", "));
  return key;
}

ConfigKey decay_key(std::string* target) {
  ConfigKey key{"train", "decay", "", "", target};
  for (const DecayInfo& row : decays())
    if (!row.given) key.words.push_back(row.name);
  key.meaning = concat("how the learning rate falls: ", join(key.words, ", "));
  return key;
}

ConfigKey backend_key(std::string* target) {
  ConfigKey key{"pipeline", "backend", "", "", target};
  key.words = backend_names();
  key.meaning = join(backends(), "; ", [](const BackendInfo& row) { return concat(row.name, ": ", row.summary); });
  return key;
}

ConfigKey batch_planner_key(std::string* target) {
  ConfigKey key{"batch", "planner", "", "", target};
  for (const BatchPlannerInfo& row : batch_planners()) key.words.push_back(row.name);
  key.meaning = concat("what plans batches (penstock batch --help): ", join(key.words, ", "));
  return key;
}

ConfigKey device_key(std::string* target) {
  ConfigKey key = choice("run", "device", "where stages compute: cpu; cuda, or one card, cuda:1; or standin, which behaves as a GPU does",
                         target, device_kinds());
  key.is_like_words = [](const std::string& text) { return parse_device_name(text).has_value(); };
  return key;
}

// The axes of layouts, by the configuration's names.
std::vector<std::string> axis_words(const Config& config) {
  std::vector<std::string> out = layout_axes();
  for (std::string& axis : out) axis = axis_named(config, axis);
  return out;
}

ConfigKey axes_key(Config& config) {
  ConfigKey key{"pipeline", "axes", "", "order of these axes; members of the last are neighbours", &config.pipeline.axes};
  key.words = axis_words(config);
  return key;
}

ConfigKey choose_key(Config& config) {
  ConfigKey key{"layout", "choose", "", "axes along which Penstock itself finds what is split, so that the least is sent",
                &config.chosen_axes};
  key.words = axis_words(config);
  key.by_path = true;
  return key;
}

// The key that says where dims of this name lie in one stage, or, where `stage` is "", in all.
ConfigKey layout_key(const Config& config, const std::string& stage, const std::string& dim, std::string* target) {
  const std::string where = stage.empty() ? "" : concat(" of stage ", quote(stage));
  ConfigKey key{stage.empty() ? "layout" : concat("layout.", stage), dim, "",
                concat("axis over which dims of the name ", quote(dim), where, " are split; \"\": none"), target};
  key.words = axis_words(config);
  return by_path(std::move(key));
}

std::vector<ConfigKey> data_keys(Config::Data& d) {
  return {
      {"data", "text", "", "files and folders; none: Penstock's own sources and the compiler's headers, or Python's modules", &d.text},
      {"data", "documents", "",
       "files and folders of sequences with lengths of their own; each line of a .jsonl file is one, each document of a .bin; of a model "
       "of "
       "images and classes, CIFAR-10's binary files",
       &d.documents},
      {"data", "pairs", "", ".jsonl files, and .bin files of tokens, whose lines or documents are an input and a target", &d.pairs},
      {"data", "tokenizer", "", "bytes, or a file: a Hugging Face tokenizer.json or a SentencePiece .model", &d.tokenizer},
      {"data", "validation", "share", "of the samples, kept for validation", &d.validation, 0, 0.9},
  };
}

std::vector<ConfigKey> batch_keys(Config::Batch& b) {
  return {
      batch_planner_key(&b.planner),
      by_path(choice("batch", "rows",
                     "of searched: padded: one for each sequence; ragged: those of a micro-batch one after the other in one", &b.ragged,
                     {"padded", "ragged"})),
      by_path({"batch", "slices", "slices", "into which infinipipe and terapipe may cut a text, at most", &b.slices, 1, 1024}),
      by_path({"batch", "costs", "",
               "file of penstock profile with such a planner: what stages take; \"\": fixed, linear and quadratic say it", &b.costs}),
      by_path({"batch", "candidates", "tables", "that searched tries for a batch", &b.candidates, 1, kMany}),
      by_path(choice("batch", "recompute",
                     "what a batch's backwards may compute again for memory: none; selective: what costs little for its bytes, or all, "
                     "under dynapipe; inputs: all but these",
                     &b.recompute, recompute_words())),
      {"batch", "round", "tokens", "to multiples of which lengths are rounded up; 0: 8, or 64 for ragged rows", &b.round, 0, 1 << 20},
      {"batch", "fixed", "ms", "that every micro-batch takes on a stage", &b.fixed, 0, 1e9},
      {"batch", "linear", "tokens/ms", "that a stage works on, apart from attention", &b.linear, 1e-9, 1e18},
      {"batch", "quadratic", "tokens^2/ms", "that a stage's attention works on", &b.quadratic, 1e-9, 1e18},
      {"batch", "memory", "tokens", "that live on a stage at once; 0: no limit", &b.memory, 0, 1e18},
      {"batch", "memory_limit", "bytes", "that a batch's program may plan on a device; 0: no limit", &b.memory_limit, 0, 1e18},
      {"batch", "ahead", "steps", "planned while the one before them runs; 0: each when the one before it is over", &b.ahead, 0, 1000},
      by_path(
          {"batch", "classes", "shapes", "of micro-batches whose tasks are kept for later batches: those used last", &b.classes, 1, 1e6}),
      {"batch", "part", "images", "that the encoder works on at once; 0: the least with nearly the best throughput", &b.part, 0, 1e6},
      {"batch", "image_fixed", "ms", "that every part of the images takes on a stage", &b.image_fixed, 0, 1e9},
      {"batch", "image_linear", "images/ms", "that a stage works on", &b.image_linear, 1e-9, 1e18},
      {"batch", "live", "parts", "of images, and texts, that live on an actor at once; 0: no limit", &b.live, 0, 1e6},
      {"batch", "rollouts", "tables", "that the search of dip tries", &b.rollouts, 1, 1e9},
      {"batch", "nodes", "nodes", "of its proof", &b.nodes, 0, 1e12},
  };
}

std::vector<ConfigKey> train_keys(Config::Train& t) {
  return {
      {"train", "steps", "steps", "of the whole run", &t.steps, 1, kMany},
      {"train", "batch", "sequences", "of a step, over all micro-batches", &t.batch, 1, kMany},
      optimiser_key(&t.optimiser),
      {"train", "learning_rate", "", "after the warm-up", &t.learning_rate, 0, kLargest},
      {"train", "final_fraction", "share", "of the learning rate that is left at the last step", &t.final_fraction, 0, 1},
      {"train", "warmup", "steps", "in which the learning rate rises", &t.warmup, 0, kMany},
      decay_key(&t.decay),
      {"train", "decay_end", "steps", "after which it has fallen; 0: the last", &t.decay_end, 0, kMany},
      {"train", "decay_steps", "steps", "that the fall takes; 0: all after the warm-up, of wsd a tenth", &t.decay_steps, 0, kMany},
      {"train", "clip", "", "greatest global norm of the gradients; 0: any", &t.clip, 0, kLargest},
      below({"train", "beta1", "", "decay of the gradients' mean, of adam's kin, lion and muon", &t.beta1, 0, 1}),
      below({"train", "beta2", "", "decay of their squares' mean", &t.beta2, 0, 1}),
      {"train", "eps", "", "of adam's kin, beside the root of that", &t.eps, 0, kLargest},
      {"train", "weight_decay", "", "of matrices, times the learning rate", &t.weight_decay, 0, kLargest},
      {"train", "momentum", "", "of sgd, nesterov and muon", &t.momentum, 0, 1},
      {"train", "lazy_rows", "",
       "a step leaves the rows of embeddings that none of its samples names, and what is kept of them, as they are", &t.lazy_rows},
      choice("train", "dtype", "of the computation: f32, f64 or bf16", &t.dtype, {"f32", "f64", "bf16"}),
      {"train", "seed", "", "of parameters, data order and dropout", &t.seed},
      {"train", "validation_every", "steps", "between validations; 0: only after the last", &t.validation_every, 0, kMany},
      {"train", "validation_batches", "batches", "of a validation", &t.validation_batches, 1, 10'000},
  };
}

// The options that shape a table have one list, which the command line reads too.
void add_table_keys(std::vector<ConfigKey>& out, ScheduleOptions& table) {
  for (const ScheduleOption& option : schedule_options()) {
    if (option.configured != ScheduleOption::Configured::here) continue;
    const ConfigKey::Target target = std::visit([&](const auto member) { return ConfigKey::Target(&(table.*member)); }, option.member);
    out.push_back(
        {"pipeline", std::string(option.name), std::string(option.unit), std::string(option.meaning), target, option.least, option.most});
  }
}

std::vector<ConfigKey> pipeline_keys(Config& config) {
  Config::Pipeline& p = config.pipeline;
  std::vector<ConfigKey> out = {
      {"pipeline", "plan", "", "file of penstock plan: stages, actors, micro-batches and schedule", &p.plan},
      {"pipeline", "schedule", "", "a name (penstock schedule list), FILE.csv or FILE.rules", &p.schedule},
  };
  add_table_keys(out, p.table);
  const std::vector<ConfigKey> own = {
      {"pipeline", "slices", "slices", "of a sequence, which stages work on one after the other: how many, or the length of each",
       &p.slices, 1, 1e6},
      by_path({"pipeline", "workers", "stages",
               "of the model that each stage of the schedule has, of each worker: [[6, 2], [4, 4]]; []: one each", &p.workers, 1, 4096}),
      {"pipeline", "data", "devices", "of each actor, or its hosts where local says so", &p.data, 1, 4096},
      {"pipeline", "local", "devices", "of each host of an actor", &p.program.local, 1, 4096},
      {"pipeline", "local_outside", "", "local is outside of data: --mesh local=L,data=D", &p.program.local_outside},
      {"pipeline", "expert", "members", "of axis expert, over which [layout] splits tensors", &p.expert, 1, 4096},
      by_path({"pipeline", "context", "members", "of axis context, likewise", &p.context, 1, 4096}),
      {"pipeline", "tensor", "members", "of axis tensor, likewise", &p.tensor, 1, 4096},
      axes_key(config),
      choice("pipeline", "attention", "over a split sequence: heads, parts, or auto: parts where there are too few heads",
             &p.program.attention, {"auto", "heads", "parts"}),
      {"pipeline", "zero", "",
       "what an actor's devices hold in shares: 1 optimiser state, 2 and gradients, 3 and parameters; -1: by schedule", &p.program.zero, -1,
       3},
      by_path({"pipeline", "distance", "waves",
               "that the devices of an actor, as HetPipe's workers, may lack of each other's updates; -1: they sum gradients",
               &p.program.distance, -1, 4096}),
      by_path(
          {"pipeline", "prefetch", "", "rows of embeddings are looked up in the step before, in a window of steps", &p.program.prefetch}),
      choice("pipeline", "recompute",
             "none; selective: keep no result that costs little for its bytes; or inputs: only what enters each stage",
             &p.program.recompute, recompute_words()),
      choice("pipeline", "update", "at the end of a step; by stage; or by stage and validated", &p.update, {"end", "stage", "validated"}),
      backend_key(&p.backend),
      {"pipeline", "deadline", "seconds", "that a device may wait for one thing", &p.deadline, 0.001, 1e6},
  };
  out.insert(out.end(), own.begin(), own.end());
  return out;
}

std::vector<ConfigKey> run_keys(Config::Run& run) {
  return {
      {"run", "out", "", "folder of the run", &run.out},
      {"run", "checkpoint_every", "steps", "between checkpoints; 0: only at the end", &run.checkpoint_every, 0, kMany},
      {"run", "keep", "checkpoints", "that stay", &run.keep, 1, kMany},
      device_key(&run.device),
      {"run", "replay", "", "steps are recorded and replayed, where the device can; false: each is issued", &run.replay},
      {"run", "fuse", "", "chains of elementwise ops, sums and casts are one generated kernel each, on a device: not on cpu", &run.fuse},
      {"run", "straggler", "", "actors, or devices of them, that are held back, and by which factor, to try unequal devices: 1=2,3.0=1.5",
       &run.straggler},
      {"run", "kernels", "", "of f32 matrix products: own, or a file of the library fastest here for each", &run.kernels},
  };
}

std::vector<ConfigKey> faults_keys(Config::Faults& faults) {
  return {
      {"faults", "snapshot_every", "steps", "between snapshots of an elastic run's state in memory; 0: it goes back to checkpoints",
       &faults.snapshot_every, 0, kMany},
      {"faults", "devices_per_host", "devices", "that may be lost together, one after the other; 0: all are on one host",
       &faults.devices_per_host, 0, kMany},
  };
}

}  // namespace

std::vector<ConfigKey> fixed_keys(Config& c) {
  std::vector<ConfigKey> keys = {{"model", "name", "", "from the registry of models", &c.model.name}};
  for (const std::vector<ConfigKey>& more :
       {data_keys(c.data), batch_keys(c.batch), train_keys(c.train), pipeline_keys(c), run_keys(c.run), faults_keys(c.faults)})
    keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

std::vector<ConfigKey> axis_name_keys(Config& c) {
  std::vector<ConfigKey> out;
  for (auto& [name, axis] : c.axis_names) {
    ConfigKey key{"axes", name, "", "axis that has this name", &axis};
    key.words = all_axes();
    out.push_back(by_path(std::move(key)));
  }
  return out;
}

std::vector<ConfigKey> all_keys(Config& c) {
  std::vector<ConfigKey> keys = fixed_keys(c), own;
  const auto add = [&](const std::string& name, ConfigKey::Target target) {
    const auto [unit, meaning] = unit_and_meaning(name);
    own.push_back({"model", name, unit, meaning, target});
  };
  for (auto& [name, value] : c.model.numbers) add(name, &value);
  for (auto& [name, value] : c.model.words) add(name, &value);
  const auto insert_before = [&](const char* section, const std::vector<ConfigKey>& more) {
    const auto place = std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& key) { return key.section == section; });
    keys.insert(place, more.begin(), more.end());
  };
  insert_before("data", own);
  insert_before("run", axis_name_keys(c));
  std::vector<ConfigKey> layout{choose_key(c)};
  for (auto& [dim, axis] : c.layout) layout.push_back(layout_key(c, "", dim, &axis));
  for (auto& [stage, dims] : c.stage_layout)
    for (auto& [dim, axis] : dims) layout.push_back(layout_key(c, stage, dim, &axis));
  insert_before("run", layout);
  return keys;
}

std::string toml_name(std::string_view name) {
  const auto is_bare = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; };
  return !name.empty() && std::all_of(name.begin(), name.end(), is_bare) ? std::string(name) : toml_text(name);
}

std::string toml_section(std::string_view section) {
  const std::size_t dot = section.find('.');
  if (dot == std::string_view::npos) return std::string(section);
  return concat(section.substr(0, dot), ".", toml_name(section.substr(dot + 1)));
}

std::string value_text(const ConfigKey& key) {
  return std::visit(ValueText{key}, key.target);
}

std::string key_named(std::string name, const ModelRegistry& models) {
  std::replace(name.begin(), name.end(), '-', '_');
  Config config;
  for (const auto& [model, entry] : models) {
    config.model.numbers.insert(entry.numbers.begin(), entry.numbers.end());
    config.model.words.insert(entry.words.begin(), entry.words.end());
  }
  for (const ConfigKey& key : all_keys(config))
    if (name == key.name || name == key.path()) return key.path();
  const std::string meant = key_called_elsewhere(name);
  return meant.empty() ? "" : key_named(meant, models);
}

}  // namespace penstock
