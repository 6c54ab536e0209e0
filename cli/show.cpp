// SPDX-License-Identifier: Apache-2.0
// penstock show: draws timelines.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/convert_svg.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "penstock/error.h"
#include "penstock/plan_file.h"
#include "report/plan_page.h"
#include "report/plan_svg.h"
#include "report/progress.h"
#include "report/timeline_html.h"
#include "report/timeline_json.h"
#include "report/timeline_svg.h"
#include "report/timeline_text.h"

namespace penstock {
namespace {

struct ShowArguments {
  std::vector<std::string> files, sections;
  std::string out, title;
  int columns = 100;
  bool json = false;
};

// A run's folder stands for the timeline that the run measured.
std::string file_of(const std::string& given) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(given, ignored)) return given;
  const std::filesystem::path file = std::filesystem::path(given) / "timeline.json";
  if (!std::filesystem::exists(file, ignored))
    throw Error(concat(given, " has no timeline.json: it is no run's folder, or its run has not ended"), {},
                "name the folder that penstock train --out wrote");
  return file.string();
}

Timeline read_timeline(const std::string& file) {
  const std::string text = read_file(file);
  if (file.ends_with(".csv") || text.starts_with("penstock "))
    throw Error(concat(file, ": a table or a program, not a timeline"), {},
                concat("make a timeline of it: penstock simulate ", file, " --timeline OUT.json"));
  return parse_timeline(text, file);
}

const Timeline& only(const std::vector<Timeline>& timelines, const std::string& extension) {
  if (timelines.size() > 1)
    throw Error(concat(extension, " holds one timeline, not ", timelines.size()), {}, ".svg, .html and .txt draw several");
  return timelines.front();
}

// Reads "HEADING=FILE" and the file's text.
PageSection read_section(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) throw Error(concat("--section ", text, ": which file?"), {}, "--section HEADING=FILE");
  return {text.substr(0, equals), read_file(text.substr(equals + 1))};
}

std::string page(const std::vector<Timeline>& timelines, const ShowArguments& arguments) {
  std::vector<PageSection> sections;
  for (const std::string& section : arguments.sections) sections.push_back(read_section(section));
  const std::string titles = join(timelines, ", ", [](const Timeline& t) { return t.title; });
  return timeline_html({arguments.title.empty() ? titles : arguments.title, timelines, std::move(sections)});
}

std::string svg(const std::vector<Timeline>& timelines) {
  return timelines.size() == 1 ? timeline_svg(timelines[0]) : timelines_svg(timelines);
}

// The picture in the format that the extension names.
std::string picture(const std::vector<Timeline>& timelines, const ShowArguments& arguments) {
  const std::string& out = arguments.out;
  const std::string extension = std::filesystem::path(out).extension().string();
  if (extension == ".html") return page(timelines, arguments);
  if (extension == ".txt") return timeline_text(timelines, {arguments.columns, false});
  if (extension == ".svg") return svg(timelines);
  if (extension == ".json") return timeline_json(only(timelines, extension));
  throw Error(concat("--out ", out, ": unknown format ", quote(extension)), {},
              "the extensions are .svg, .pdf, .png, .html, .json and .txt");
}

bool is_converted(const std::string& file) {
  return file.ends_with(".pdf") || file.ends_with(".png");
}

// Writes the picture; of .pdf and .png another program makes it of the SVG.
void write_picture(const std::vector<Timeline>& timelines, const ShowArguments& arguments) {
  if (is_converted(arguments.out)) return convert_svg(svg(timelines), arguments.out);
  write_file(arguments.out, picture(timelines, arguments));
}

nlohmann::ordered_json summary(const Timeline& timeline) {
  return {{"title", timeline.title},
          {"devices", timeline.devices.size()},
          {"activities", timeline.activities.size()},
          {"makespan", timeline.makespan},
          {"unit", timeline.seconds ? nlohmann::ordered_json("seconds") : nlohmann::ordered_json()}};
}

void print_summaries(const std::vector<Timeline>& timelines, const std::string& out) {
  nlohmann::ordered_json object = summary(timelines.front());
  if (!out.empty()) object["out"] = out;
  for (std::size_t i = 1; i < timelines.size(); ++i) object["beside"].push_back(summary(timelines[i]));
  print_json(object);
}

// Draws a plan's stages, and its step below where the file has one.
std::string plan_picture(const PlanFile& plan, const std::optional<Timeline>& timeline, const ShowArguments& arguments) {
  const std::string extension = std::filesystem::path(arguments.out).extension().string();
  if (extension == ".svg") return timeline ? plan_svg(plan, *timeline) : plan_svg(plan);
  if (extension == ".txt" || arguments.out.empty()) {
    const TimelineTextOptions options{arguments.columns, arguments.out.empty() && terminal_of(stdout).colour};
    return timeline ? concat(plan_text(plan), "\n", timeline_text({*timeline}, options)) : plan_text(plan);
  }
  if (extension != ".html")
    throw Error(concat("--out ", arguments.out, ": a plan cannot be drawn as ", quote(extension)), {},
                "the extensions are .svg, .html and .txt");
  std::vector<PageSection> sections;
  for (const std::string& section : arguments.sections) sections.push_back(read_section(section));
  return plan_page(plan, arguments.title, sections);
}

void show_plan(const PlanFile& plan, const ShowArguments& arguments) {
  std::optional<Timeline> timeline;
  if (!plan.timeline.empty()) timeline = parse_timeline(plan.timeline, plan.file);
  if (is_converted(arguments.out)) {
    convert_svg(timeline ? plan_svg(plan, *timeline) : plan_svg(plan), arguments.out);
    std::cout << "drawn in " << arguments.out << "\n";
    return;
  }
  const std::string drawn = plan_picture(plan, timeline, arguments);
  if (!arguments.out.empty()) write_file(arguments.out, drawn);
  if (arguments.json)
    print_json(nlohmann::ordered_json::parse(print(plan, false)));
  else
    std::cout << (arguments.out.empty() ? drawn : concat("drawn in ", arguments.out, "\n"));
}

void show(ShowArguments arguments) {
  for (std::string& file : arguments.files) file = file_of(file);
  if (!arguments.out.ends_with(".html") && (!arguments.sections.empty() || !arguments.title.empty()))
    throw Error("--title and --section are for pages", {}, "--out FILE.html");
  if (const std::string text = arguments.files.size() == 1 ? read_file(arguments.files[0]) : ""; is_plan(text))
    return show_plan(parse_plan(text, arguments.files[0]), arguments);
  std::vector<Timeline> timelines;
  for (const std::string& file : arguments.files) timelines.push_back(read_timeline(file));
  for (std::size_t i = 1; i < timelines.size(); ++i)
    if (timelines[i].seconds != timelines[0].seconds)
      throw Error(concat(arguments.files[0], " and ", arguments.files[i], " have no common scale: one is in seconds, the other is not"));
  if (!arguments.out.empty()) write_picture(timelines, arguments);
  if (arguments.json) return print_summaries(timelines, arguments.out);
  if (arguments.out.empty())
    std::cout << timeline_text(timelines, {arguments.columns, terminal_of(stdout).colour});
  else
    std::cout << "drawn in " << arguments.out << "\n";
}

}  // namespace

void add_show(CLI::App& app) {
  CLI::App* command = app.add_subcommand("show", "Draws simulated and measured timelines, several on one scale, or a plan");
  const auto arguments = std::make_shared<ShowArguments>();
  begin_group(*command, groups::kWhat);
  command->add_option("TIMELINE", arguments->files, "Timelines: runs' folders, or what simulate --timeline wrote; or what plan --out wrote")
      ->required();
  begin_group(*command, groups::kOutput);
  command
      ->add_option("--out", arguments->out,
                   "FILE.svg, .html, .txt, .json (Perfetto, chrome://tracing), .pdf or .png [text on the terminal]")
      ->type_name("FILE");
  command->add_option("--columns", arguments->columns, "Width of the time in text, in characters")
      ->capture_default_str()
      ->check(CLI::Range(10, 10000));
  command->add_option("--title", arguments->title, "Title of a page [the timelines' titles]");
  command->add_option("--section", arguments->sections, "Text below the timelines of a page")
      ->type_name("HEADING=FILE")
      ->take_all()
      ->expected(1, -1);
  add_json_flag(*command, arguments->json);
  command->footer(
      "Example:\n  penstock show runs/gpt --out step.svg\n"
      "  penstock show predicted.json runs/gpt --out both.svg");
  command->callback([arguments] { show(*arguments); });
}

}  // namespace penstock
