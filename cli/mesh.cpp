// SPDX-License-Identifier: Apache-2.0
// penstock mesh: draws who holds what of a value, and what the axes of a mesh send over a cluster's links.
#include "cli/mesh.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "config/mesh_view.h"
#include "lower/member_inputs.h"
#include "penstock/error.h"
#include "report/layout_costs.h"
#include "report/mesh_picture.h"
#include "report/timeline_html.h"

namespace penstock {
namespace {

struct MeshFlags {
  ConfigOptions config;
  std::vector<std::string> values;
  std::string cluster, out;
  bool json = false;
};

nlohmann::ordered_json json_of(const HeldValue& value) {
  nlohmann::ordered_json out = {{"name", value.name}, {"what", value.what}, {"rows", value.all_rows()}, {"columns", value.columns}};
  for (const HeldPart& part : value.parts) {
    nlohmann::ordered_json boxes = nlohmann::ordered_json::array();
    for (const HeldBox& box : part.boxes)
      boxes.push_back({{"rows", {box.row_begin, box.row_end}}, {"columns", {box.column_begin, box.column_end}}});
    out["parts"].push_back({{"terms", part.terms}, {"boxes", boxes}});
  }
  return out;
}

nlohmann::ordered_json json_of(const MeshPicture& picture) {
  nlohmann::ordered_json out = {{"devices", picture.mesh.devices.size()},
                                {"mesh", nlohmann::ordered_json::object()},
                                {"axes", nlohmann::ordered_json::array()},
                                {"values", nlohmann::ordered_json::array()}};
  for (const MeshShape::Axis& axis : picture.mesh.axes) out["mesh"][axis.name] = axis.size;
  for (const AxisTraffic& axis : picture.traffic) out["axes"].push_back(json_of(axis));
  for (const HeldValue& value : picture.values) out["values"].push_back(json_of(value));
  return out;
}

std::string drawn(const MeshPicture& picture, const std::vector<AxisConversions>& conversions, const std::string& out) {
  const std::string extension = std::filesystem::path(out).extension().string();
  if (out.empty() || extension == ".txt") return mesh_text(picture);
  if (extension == ".svg") return mesh_svg(picture);
  if (extension == ".html")
    return timeline_html({picture.title, {}, {{"Conversions between layouts", text_of(conversions)}}, mesh_svg(picture)});
  throw Error(concat("--out ", out, ": unknown format ", quote(extension)), {}, "the extensions are .svg, .html and .txt");
}

void show_mesh(const MeshFlags& options, const ModelRegistry& models) {
  const Config config = load_config(options.config, models);
  const Prepared prepared = prepare(config, models);
  const Program program = compile_training(config, prepared);
  MeshPicture picture{
      concat(config.model.name, ": a step of ", config.train.batch, " samples in ", step_microbatches(prepared), " micro-batches"),
      mesh_of(config, prepared),
      {},
      {},
      {}};
  picture.cluster = options.cluster.empty() ? uniform_cluster(static_cast<int>(picture.mesh.devices.size()), ClusterLink().bandwidth)
                                            : parse_cluster(read_file(options.cluster), options.cluster);
  picture.traffic = traffic_of(program, picture.mesh, picture.cluster);
  for (const std::string& value : options.values) picture.values.push_back(held_value(config, prepared, program, value));
  const std::string picture_text = drawn(picture, layout_costs(training_layouts(config, prepared)), options.out);
  if (!options.out.empty()) write_file(options.out, picture_text);
  if (options.json) return print_json(json_of(picture));
  std::cout << (options.out.empty() ? picture_text : concat("drawn in ", options.out, "\n"));
}

}  // namespace

nlohmann::ordered_json json_of(const AxisTraffic& axis) {
  nlohmann::ordered_json out = {{"axis", axis.axis}, {"groups", axis.groups}, {"levels", nlohmann::ordered_json::array()}};
  for (const LevelTraffic& level : axis.levels) {
    nlohmann::ordered_json counts = nlohmann::ordered_json::object();
    for (const auto& [opcode, count] : level.counts) counts[std::string(name(opcode))] = count;
    out["levels"].push_back({{"busiest_device_bytes", level.most}, {"all_devices_bytes", level.all}, {"counts", counts}});
  }
  return out;
}

void add_mesh(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command =
      program.add_subcommand("mesh", "Draws who holds what of a value, and what each axis of a mesh sends over which links in a step");
  command->footer(
      "Example:\n  penstock mesh --mesh pipe=2,data=2,tensor=2 --value h.0.mlp --value wte.weight --out mesh.svg\n"
      "  penstock mesh --mesh pipe=2,tensor=2 --value wte.weight");
  const auto options = std::make_shared<MeshFlags>();
  add_config_options(*command, options->config);
  command->get_option("--out")->description("FILE.svg, .html or .txt [text on the terminal]")->type_name("FILE")->default_str("");
  begin_group(*command, groups::kWhat);
  command
      ->add_option(
          "--value", options->values,
          "A parameter, a module (its last value), or %N of each micro-batch as compile --emit layouts numbers it; may be repeated")
      ->type_name("NAME")
      ->take_all()
      ->expected(1, -1);
  begin_group(*command, groups::kWhere);
  command->add_option("--cluster", options->cluster, "Levels and links of the devices, as penstock plan takes them [equal links]")
      ->type_name("FILE.toml");
  add_json_flag(*command, options->json);
  command->callback([options, &models] {
    const auto out = options->config.flags.extract("--out");  // the picture's, not the run's
    if (out) options->out = out.mapped();
    show_mesh(*options, models);
  });
}

}  // namespace penstock
