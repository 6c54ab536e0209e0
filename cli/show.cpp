// SPDX-License-Identifier: Apache-2.0
// penstock show: draws timelines.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "base/toml.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/convert_svg.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "penstock/error.h"
#include "penstock/plan_file.h"
#include "report/metrics_svg.h"
#include "report/plan_page.h"
#include "report/plan_svg.h"
#include "report/progress.h"
#include "report/table.h"
#include "report/timeline_difference.h"
#include "report/timeline_html.h"
#include "report/timeline_json.h"
#include "report/timeline_svg.h"
#include "report/timeline_text.h"

namespace penstock {
namespace {

struct ShowArguments {
  std::vector<std::string> files, sections;
  std::string against, out, title;
  int columns = 100;
  bool json = false;
};

// A run whose folder was given: its metrics and the size of its batches.
struct ShownRun {
  std::string folder;              // "": the timeline is no run's
  std::vector<StepMetrics> steps;  // none where it has no metrics.jsonl
  std::string batch;               // "train.batch = 16, model.context = 128"; "": not known
};

// The timelines with what is said of them.
struct Shown {
  std::vector<Timeline> timelines;
  std::vector<ShownRun> runs;  // of each timeline
  std::string warning;         // that they do not compare; "": none
  std::optional<TimelineDifference> difference;
};

// A run's folder stands for the timeline that the run measured.
std::string file_of(const std::string& given) {
  std::error_code ignored;
  return std::filesystem::is_directory(given, ignored) ? timeline_of_run(given) : given;
}

std::string batch_of(const std::string& file) {
  const toml::table config = parse_toml(read_file(file), file);
  const auto batch = config["train"]["batch"].value<std::int64_t>(), context = config["model"]["context"].value<std::int64_t>();
  std::vector<std::string> parts;
  if (batch) parts.push_back(concat("train.batch = ", *batch));
  if (context) parts.push_back(concat("model.context = ", *context));
  return join(parts, ", ");
}

// The run that was given by its folder; none where a file was given.
ShownRun read_run(const std::string& given) {
  std::error_code ignored;
  ShownRun out;
  if (!std::filesystem::is_directory(given, ignored)) return out;
  out.folder = given;
  const std::filesystem::path folder = given, metrics = folder / "metrics.jsonl", config = folder / "config.toml";
  if (std::filesystem::exists(metrics, ignored)) out.steps = parse_metrics(read_file(metrics.string()), metrics.string());
  if (std::filesystem::exists(config, ignored)) out.batch = batch_of(config.string());
  return out;
}

std::string rate_text(const std::vector<StepMetrics>& steps) {
  return concat(short_number(median_of(steps, &StepMetrics::rate)), " ", steps.back().counted, "/s");
}

// Says of several timelines which runs they are, and how fast these were.
void name_runs(Shown& shown) {
  for (std::size_t i = 0; i < shown.runs.size(); ++i)
    if (const ShownRun& run = shown.runs[i]; !run.folder.empty())
      shown.timelines[i].title =
          concat(run.folder, ": ", shown.timelines[i].title, run.steps.empty() ? "" : concat(", ", rate_text(run.steps)));
}

// A sentence where two runs have other batches, so that neither their steps nor their rates compare.
std::string other_batches(const std::vector<ShownRun>& runs) {
  const ShownRun* first = nullptr;
  for (const ShownRun& run : runs) {
    if (run.batch.empty()) continue;
    if (first == nullptr) first = &run;
    if (run.batch != first->batch)
      return concat(first->folder, " and ", run.folder, " have other batches, so their steps' times do not compare: ", first->batch,
                    "; and ", run.batch);
  }
  return "";
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

std::string page(const Shown& shown, const ShowArguments& arguments) {
  std::vector<PageSection> sections;
  if (shown.difference) sections.push_back({"Difference", difference_text(*shown.difference)});
  for (const ShownRun& run : shown.runs)
    if (!run.steps.empty())
      sections.push_back({concat("Loss and ", run.steps.back().counted, "/s of ", run.folder), metrics_svg(run.steps)});
  for (const std::string& section : arguments.sections) sections.push_back(read_section(section));
  const std::string titles = join(shown.timelines, ", ", [](const Timeline& t) { return t.title; });
  Page page{arguments.title.empty() ? titles : arguments.title, shown.timelines, std::move(sections)};
  page.warning = shown.warning;
  return timeline_html(page);
}

std::string shown_text(const Shown& shown, const TimelineTextOptions& options) {
  const std::string drawn = timeline_text(shown.timelines, options);
  return shown.difference ? concat(drawn, "\n", difference_text(*shown.difference)) : drawn;
}

// The picture in the format that the extension names.
std::string picture(const Shown& shown, const ShowArguments& arguments) {
  const std::string& out = arguments.out;
  const std::string extension = std::filesystem::path(out).extension().string();
  if (extension == ".html") return page(shown, arguments);
  if (extension == ".txt") return shown_text(shown, {arguments.columns, false});
  if (extension == ".svg") return timelines_svg(shown.timelines);
  if (extension == ".json") return timeline_json(only(shown.timelines, extension));
  throw Error(concat("--out ", out, ": unknown format ", quote(extension)), {},
              "the extensions are .svg, .pdf, .png, .html, .json and .txt");
}

bool is_converted(const std::string& file) {
  return file.ends_with(".pdf") || file.ends_with(".png");
}

// Writes the picture; of .pdf and .png another program makes it of the SVG.
void write_picture(const Shown& shown, const ShowArguments& arguments) {
  if (is_converted(arguments.out)) return convert_svg(timelines_svg(shown.timelines), arguments.out);
  write_file(arguments.out, picture(shown, arguments));
}

nlohmann::ordered_json summary(const Timeline& timeline) {
  return {{"title", timeline.title},
          {"devices", timeline.devices.size()},
          {"activities", timeline.activities.size()},
          {"makespan", timeline.makespan},
          {"unit", timeline.seconds ? nlohmann::ordered_json("seconds") : nlohmann::ordered_json()}};
}

nlohmann::ordered_json json_of(const BothFigures& figures) {
  return {{"a", figures.first}, {"b", figures.second}};
}

nlohmann::ordered_json json_of(const TimelineDifference& difference) {
  nlohmann::ordered_json out = {{"makespan", json_of(difference.makespan)}, {"bubble", json_of(difference.bubble)}};
  for (const KindDifference& kind : difference.kinds)
    out["times"].push_back({{"kind", kind.kind}, {"stage", kind.stage}, {"a", kind.time.first}, {"b", kind.time.second}});
  for (const PeakDifference& peak : difference.peaks)
    out["peaks"].push_back({{"device", peak.device}, {"a", peak.peak.first}, {"b", peak.peak.second}});
  return out;
}

void print_summaries(const Shown& shown, const std::string& out) {
  nlohmann::ordered_json object = summary(shown.timelines.front());
  if (!out.empty()) object["out"] = out;
  for (std::size_t i = 1; i < shown.timelines.size(); ++i) object["beside"].push_back(summary(shown.timelines[i]));
  if (shown.difference) object["difference"] = json_of(*shown.difference);
  print_json(object);
}

// Draws a plan's stages, and its step below where the file has one.
std::string plan_picture(const PlanFile& plan, const std::optional<Timeline>& timeline, const ShowArguments& arguments) {
  const std::string extension = std::filesystem::path(arguments.out).extension().string();
  if (extension == ".svg") return plan_svg(plan, timeline);
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
  const std::optional<Timeline> timeline = timeline_in(plan);
  if (is_converted(arguments.out)) {
    convert_svg(plan_svg(plan, timeline), arguments.out);
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

void check_against(const ShowArguments& arguments) {
  if (arguments.against.empty()) return;
  if (arguments.files.size() > 1)
    throw Error(concat("--against compares one timeline, not ", arguments.files.size()), {}, "penstock show A --against B");
  if (!arguments.out.empty() && !arguments.out.ends_with(".html") && !arguments.out.ends_with(".txt"))
    throw Error(concat("--out ", arguments.out, ": a difference is text"), {}, "--against is for pages (.html), .txt and the terminal");
}

Shown read_shown(const ShowArguments& arguments) {
  std::vector<std::string> given = arguments.files;
  if (!arguments.against.empty()) given.push_back(arguments.against);
  Shown out;
  for (const std::string& each : given) {
    out.timelines.push_back(read_timeline(file_of(each)));
    out.runs.push_back(read_run(each));
    if (out.timelines.back().seconds != out.timelines[0].seconds)
      throw Error(concat(given[0], " and ", each, " have no common scale: one is in seconds, the other is not"));
  }
  if (out.timelines.size() > 1) name_runs(out);
  if (!arguments.against.empty()) out.difference = difference(out.timelines[0], out.timelines[1]);
  out.warning = other_batches(out.runs);
  return out;
}

void show(const ShowArguments& arguments) {
  if (!arguments.out.ends_with(".html") && (!arguments.sections.empty() || !arguments.title.empty()))
    throw Error("--title and --section are for pages", {}, "--out FILE.html");
  check_against(arguments);
  if (const std::string first = file_of(arguments.files[0]), read = arguments.files.size() == 1 ? read_file(first) : ""; is_plan(read)) {
    if (!arguments.against.empty()) throw Error(concat(first, " is a plan: --against compares timelines"));
    return show_plan(parse_plan(read, first), arguments);
  }
  const Shown shown = read_shown(arguments);
  if (!shown.warning.empty()) std::cerr << "warning: " << shown.warning << "\n";
  if (!arguments.out.empty()) write_picture(shown, arguments);
  if (arguments.json) return print_summaries(shown, arguments.out);
  if (arguments.out.empty())
    std::cout << shown_text(shown, {arguments.columns, terminal_of(stdout).colour});
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
  command->add_option("--against", arguments->against, "Another timeline: says the difference of the two by kind and stage, below both")
      ->type_name("TIMELINE");
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
      "  penstock show predicted.json runs/gpt --out both.svg\n"
      "  penstock show runs/before --against runs/after --out both.html");
  command->callback([command, arguments] {
    const bool is_text = (arguments->out.empty() && !arguments->json) || arguments->out.ends_with(".txt");
    check_beside(*command, {{{"--columns"}, is_text, "--out FILE.txt or the terminal"}});
    show(*arguments);
  });
}

}  // namespace penstock
