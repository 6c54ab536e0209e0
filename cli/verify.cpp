// SPDX-License-Identifier: Apache-2.0
// penstock verify: checks a program's text, in both channel models; a schedule's table; or the checkpoints of a run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "base/words.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "cli/table_options.h"
#include "cli/verify_checkpoints.h"
#include "cli/window_text.h"
#include "penstock/error.h"
#include "penstock/schedule.h"
#include "program/memory_plan.h"
#include "program/verify.h"
#include "report/table.h"
#include "schedule/versions.h"

namespace penstock {
namespace {

struct VerifyArguments {
  std::string file;
  std::int64_t memory_limit = -1;
  std::int32_t staleness = -1;  // -1: any
  std::int32_t distance = -1;   // of workers, in waves; -1: there are none
  bool json = false;
};

struct DeviceSummary {
  std::size_t instructions = 0, runs = 0, transfers = 0;
  std::int64_t state = 0, step = 0, scratch = 0, host = 0;
  std::int64_t peak() const { return state + step + scratch; }
};

DeviceSummary summarise(const DeviceProgram& device) {
  const auto count = [&](auto... opcodes) {
    return static_cast<std::size_t>(std::count_if(device.instructions.begin(), device.instructions.end(),
                                                  [=](const Instruction& i) { return ((i.opcode == opcodes) || ...); }));
  };
  return {device.instructions.size(), count(Opcode::run),    count(Opcode::send, Opcode::recv), device.state_bytes, device.step_bytes,
          device.scratch_bytes,       device.bytes_on_host()};
}

nlohmann::json json_of(const Program& program, const std::string& serial_error) {
  nlohmann::json out = {{"kind", "program"},
                        {"name", program.name},
                        {"microbatches", program.microbatches},
                        {"finishes", {{"tagged", true}, {"serial", serial_error.empty()}}},
                        {"memory_plan", has_memory_plan(program)},
                        {"devices", nlohmann::json::array()}};
  if (!serial_error.empty()) out["serial_error"] = serial_error;
  for (const DeviceProgram& device : program.devices) {
    const DeviceSummary s = summarise(device);
    out["devices"].push_back({{"instructions", s.instructions},
                              {"runs", s.runs},
                              {"transfers", s.transfers},
                              {"state_bytes", s.state},
                              {"step_bytes", s.step},
                              {"scratch_bytes", s.scratch},
                              {"peak_bytes", s.peak()},
                              {"host_bytes", s.host}});
  }
  return out;
}

std::string text_of(const Program& program, const std::string& serial_error) {
  std::vector<std::vector<std::string>> rows;
  const auto bytes = [](std::int64_t value) { return bytes_text(static_cast<double>(value)); };
  std::vector<std::string> titles = {"device", "instructions", "runs", "transfers", "state", "step", "scratch", "peak"};
  const bool with_host = std::any_of(program.devices.begin(), program.devices.end(), [](const auto& d) { return d.bytes_on_host() > 0; });
  if (with_host) titles.push_back("host");
  for (const DeviceProgram& device : program.devices) {
    const DeviceSummary s = summarise(device);
    rows.push_back({std::to_string(rows.size()), std::to_string(s.instructions), std::to_string(s.runs), std::to_string(s.transfers),
                    bytes(s.state), bytes(s.step), bytes(s.scratch), bytes(s.peak())});
    if (with_host) rows.back().push_back(bytes(s.host));
  }
  return concat("program @", program.name, ": every device finishes, without any buffering\n\n", table(titles, rows),
                "\nindependent transfers (threads, Gloo): finishes\none serial channel per pair (NCCL): ",
                serial_error.empty() ? "finishes" : serial_error, "\n",
                has_memory_plan(program) ? "" : "no memory plan: its slots have no places, so it cannot run\n");
}

// The error of the program with one serial channel per pair; empty: none.
std::string serial_error_of(const Program& program) {
  try {
    verify(program, {ChannelModel::serial, -1});
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

void verify_program(const VerifyArguments& arguments, std::string_view content) {
  if (arguments.staleness >= 0)
    throw Error(concat(arguments.file, " is a program, whose versions its table said"), {}, "leave out --staleness");
  if (arguments.distance >= 0)
    throw Error(concat(arguments.file, " is a program, and --distance is of a table"), {}, "leave out --distance");
  const Program program = parse_program(content, arguments.file);
  verify(program, {ChannelModel::tagged, arguments.memory_limit});
  const std::string serial_error = serial_error_of(program);
  if (arguments.json) return print_json(json_of(program, serial_error));
  std::cout << text_of(program, serial_error);
}

// Checks a table against a chain of its stages; other shapes are checked where there is a model.
void verify_table(const VerifyArguments& arguments, std::string_view content) {
  if (arguments.memory_limit >= 0)
    throw Error(concat(arguments.file, " is a table, which says nothing of bytes"), {}, "leave out --memory-limit");
  const Schedule schedule = parse_schedule(content, arguments.file);
  validate(schedule, shape_of(schedule));
  if (arguments.staleness >= 0) check_staleness(schedule, arguments.staleness);
  if (schedule.steps == 1 && arguments.distance >= 0)
    throw Error(concat(arguments.file, " is a table of one step, after which no worker misses an update"), {}, "leave out --distance");
  const bool in_waves = arguments.distance >= 0;
  const std::int32_t missing = in_waves ? missing_of_others(schedule, arguments.distance) : 0;
  if (arguments.json) {
    nlohmann::json actors = nlohmann::json::array();
    for (std::int32_t actor = 0; const auto& row : schedule.actors) {
      actors.push_back({{"actions", row.size()}, {"versions", versions_held(schedule, actor)}, {"staleness", staleness(schedule, actor)}});
      ++actor;
    }
    nlohmann::json out{{"kind", "schedule"},
                       {"actors", actors},
                       {"stages", schedule.whole_stages()},
                       {"slices", schedule.slices},
                       {"microbatches", schedule.microbatches()},
                       {"steps", schedule.steps},
                       {"finishes", true}};
    if (in_waves) out["missing_of_others"] = missing;
    return print_json(out);
  }
  std::cout << concat(
      arguments.file, ": every action once, no cycle: ", counted(static_cast<std::int64_t>(schedule.actors.size()), "actor"),
      ", a chain of ", stages_in_words(schedule), ", ", counted(schedule.microbatches(), "micro-batch"), "\n", window_text(schedule),
      in_waves ? concat("waves of ", counted(steps_of_wave(schedule), "step"), ": at most ", counted(missing, "update"),
                        " of another worker missing\n")
               : "");
}

}  // namespace

void add_verify(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("verify", "Proves that a program or a schedule finishes, or names the cycle; says whether checkpoints are intact");
  const auto arguments = std::make_shared<VerifyArguments>();
  begin_group(*command, groups::kWhat);
  command
      ->add_option("FILE", arguments->file,
                   "A schedule (FILE.csv), a program (penstock compile --emit program), or the folder of a run or of a checkpoint")
      ->required();
  add_positive_option(
      *command, "--memory-limit,--memory", Quantity::bytes,
      [arguments](double bytes) { arguments->memory_limit = static_cast<std::int64_t>(bytes); },
      "Of a program: memory that a device may use [unlimited]");
  command->add_option("--staleness", arguments->staleness, "Of a table: by how many updates parameters that are read may be late [any]")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--distance", arguments->distance,
                   "Of a table for workers (pipeline.distance): how many of another's updates are missing at most [any]")
      ->check(CLI::NonNegativeNumber);
  add_json_flag(*command, arguments->json);
  command->footer(
      "Example:\n  penstock compile --emit program > gpt.txt && penstock verify gpt.txt --memory-limit 2GB\n"
      "  penstock verify runs/mine");
  command->callback([command, arguments] {
    std::error_code ignored;
    if (std::filesystem::is_directory(arguments->file, ignored)) {
      check_beside(*command, {{{"--memory-limit", "--staleness", "--distance"}, false, "a program or a table: this is a folder"}});
      if (!verify_checkpoints(arguments->file, arguments->json)) end_with_failure();
      return;
    }
    const std::string content = read_file(arguments->file);
    if (arguments->file.ends_with(".csv")) return verify_table(*arguments, content);
    verify_program(*arguments, content);
  });
}

}  // namespace penstock
