// SPDX-License-Identifier: Apache-2.0
// penstock generate
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/backend.h"
#include "cli/clusters.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "config/compile.h"
#include "driver/generation.h"
#include "driver/pictures.h"
#include "penstock/error.h"
#include "report/png.h"
#include "report/table.h"

namespace penstock {
namespace {

struct GenerateFlags {
  std::string folder, out;
  GenerationOptions generation;
  PictureOptions picture;
  Log log;
  bool json = false;
  std::vector<std::string> of_text, of_pictures;  // the flags that were given and only texts or only pictures take
};

void check(const GenerateFlags& options) {
  if (options.generation.tokens < 1) throw Error(concat("--tokens is ", options.generation.tokens, "; it must be at least 1"));
  if (!(options.generation.temperature >= 0))
    throw Error(concat("--temperature is ", options.generation.temperature, "; it must be at least 0"));
  if (options.generation.top_k < 0) throw Error(concat("--top-k is ", options.generation.top_k, "; it must be at least 0"));
  if (!(options.picture.guidance >= 0 && std::isfinite(options.picture.guidance)))
    throw Error(concat("--guidance is ", options.picture.guidance, "; it must be at least 0"));
}

// A trained run's model, and where its state lies.
struct Trained {
  Checkpoint checkpoint;
  Config config;
  StateSource state;
  OneDevice device() const {
    return [this](std::shared_ptr<const DataSource> data) { return local_cluster(1, config, std::move(data)); };
  }
};

void continue_text(const GenerateFlags& options, const Trained& trained, const ModelRegistry& models) {
  if (!options.of_pictures.empty())
    throw Error(concat("model ", quote(trained.config.model.name), " makes no pictures"),
                {concat("only a picture takes ", join(options.of_pictures, ", "))}, "--prompt TEXT gives a text to continue");
  const std::string text = generate(trained.config, models, trained.state, options.generation, trained.device());
  if (options.json)
    return print_json(
        nlohmann::ordered_json{{"prompt", options.generation.prompt}, {"text", text}, {"checkpoint", trained.checkpoint.folder}});
  std::printf("%s\n", printable(options.generation.prompt + text).c_str());
}

void draw_picture(const GenerateFlags& options, const Trained& trained, const ModelRegistry& models) {
  const std::string model = concat("model ", quote(trained.config.model.name));
  if (!options.of_text.empty())
    throw Error(concat(model, " makes pictures and continues no text"), {concat("only a text takes ", join(options.of_text, ", "))},
                "--class says what the picture shows");
  if (options.out.empty()) throw Error(concat(model, " makes pictures, and nothing says where"), {}, "--out picture.png");
  const Picture picture = make_picture(trained.config, models, trained.state, options.picture, trained.device());
  write_file(options.out, png(picture.size, picture.size, picture.pixels));
  if (options.json)
    return print_json(nlohmann::ordered_json{
        {"picture", options.out}, {"size", picture.size}, {"class", options.picture.label}, {"checkpoint", trained.checkpoint.folder}});
  std::printf("picture  %s\n", options.out.c_str());
}

void generate(const GenerateFlags& options, const ModelRegistry& models) {
  check(options);
  Trained trained;
  trained.checkpoint = find_intact(options.folder, options.log);
  trained.config = parse_config(trained.checkpoint.config, trained.checkpoint.folder + "/manifest.json", {}, models);
  const std::future<void> loading = load_backend();
  trained.state = {.kind = StateSource::Kind::checkpoint, .path = trained.checkpoint.folder};
  const bool makes_pictures = prepare_sequential(trained.config, models).model->picture_steps().has_value();
  (makes_pictures ? draw_picture : continue_text)(options, trained, models);
}

// The names of those options that were given.
std::vector<std::string> given(const std::vector<CLI::Option*>& options) {
  std::vector<std::string> out;
  for (const CLI::Option* option : options)
    if (option->count() > 0) out.push_back(option->get_name());
  return out;
}

}  // namespace

void add_generate(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command = program.add_subcommand("generate", "Continues a text with a trained run, or makes a picture with one");
  command->footer(
      "Example:\n  penstock generate runs/mine --prompt 'int main(' --tokens 200\n"
      "  penstock generate runs/pictures --class 2 --out picture.png");
  const auto options = std::make_shared<GenerateFlags>();
  begin_group(*command, groups::kWhat);
  command->add_option("DIR", options->folder, "A run's or a checkpoint's folder")->required();
  command->option_defaults()->group("Text");
  const std::vector<CLI::Option*> text = {command->add_option("--prompt", options->generation.prompt, "The text to continue [none]"),
                                          command->add_option("--tokens", options->generation.tokens, "Tokens to add [200]"),
                                          command->add_option("--temperature", options->generation.temperature,
                                                              "How freely the next token is drawn; 0: always the likeliest [0.8]"),
                                          command->add_option("--top-k", options->generation.top_k, "Tokens to choose among; 0: all [40]")};
  command->option_defaults()->group("Picture");
  const std::vector<CLI::Option*> pictures = {
      command->add_option("--out", options->out, "The picture's file")->type_name("FILE.png"),
      command->add_option("--class", options->picture.label, "Number of the class that the picture shows [0]"),
      command->add_option("--steps", options->picture.steps, "Steps in which noise is taken away [50]"),
      command->add_option("--guidance", options->picture.guidance, "How much it follows the class; 1: as in training [2]")};
  begin_group(*command, groups::kModel);
  command->add_option("--seed", options->generation.seed, "Seed of the draws [0]");
  add_log_options(*command, options->log);
  add_json_flag(*command, options->json);
  command->callback([options, text, pictures, &models] {
    options->of_text = given(text);
    options->of_pictures = given(pictures);
    options->picture.seed = options->generation.seed;
    generate(*options, models);
  });
}

}  // namespace penstock
