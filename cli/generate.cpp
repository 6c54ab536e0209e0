// penstock generate
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/clusters.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/output.h"
#include "driver/generation.h"
#include "penstock/error.h"
#include "report/table.h"

namespace penstock {
namespace {

struct GenerateFlags {
  std::string folder, prompt;
  GenerationOptions generation;
  bool json = false;
};

void check(const GenerateFlags& options) {
  if (options.generation.tokens < 1) throw Error(concat("--tokens is ", options.generation.tokens, "; it must be at least 1"));
  if (!(options.generation.temperature >= 0))
    throw Error(concat("--temperature is ", options.generation.temperature, "; it must be at least 0"));
  if (options.generation.top_k < 0) throw Error(concat("--top-k is ", options.generation.top_k, "; it must be at least 0"));
}

void generate(const GenerateFlags& options, const ModelRegistry& models) {
  check(options);
  const Checkpoint checkpoint = find_intact(options.folder);
  const Config config = parse_config(checkpoint.config, checkpoint.folder + "/manifest.json", {}, models);
  StateSource state;
  state.kind = StateSource::Kind::checkpoint;
  state.path = checkpoint.folder;
  const std::string text = generate(config, models, state, options.prompt, options.generation,
                                    [&](std::shared_ptr<const DataSource> data) { return local_cluster(1, config, std::move(data)); });
  if (options.json)
    return print_json(nlohmann::ordered_json{{"prompt", options.prompt}, {"text", text}, {"checkpoint", checkpoint.folder}});
  std::printf("%s\n", printable(options.prompt + text).c_str());
}

}  // namespace

void add_generate(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command = program.add_subcommand("generate", "Continues a text with a trained run.");
  command->footer("Example:\n  penstock generate runs/mine --prompt 'int main(' --tokens 200");
  const auto options = std::make_shared<GenerateFlags>();
  command->add_option("DIR", options->folder, "a run's or a checkpoint's folder")->required();
  command->add_option("--prompt", options->prompt, "the text to continue");
  command->add_option("--tokens", options->generation.tokens, "how many to add (200)");
  command->add_option("--temperature", options->generation.temperature, "0: always the likeliest (0.8)");
  command->add_option("--top-k", options->generation.top_k, "choose among so many; 0: all (40)");
  command->add_option("--seed", options->generation.seed, "of the draws (0)");
  command->add_flag("--json", options->json, "one JSON object on standard output");
  command->callback([options, &models] { generate(*options, models); });
}

}  // namespace penstock
