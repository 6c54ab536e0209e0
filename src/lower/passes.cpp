#include "lower/passes.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>

#include "base/text.h"
#include "base/words.h"
#include "lower/members.h"
#include "lower/window.h"
#include "lower/workers.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::array kPasses = {
    LowerPass{"blocks", "Which gradients, moments and parameters devices can hold in shares follows from what is computed of a gradient.",
              find_blocks},
    LowerPass{"actions", "Each action of the table is its stage's task for a micro-batch; here it becomes a run on instances.",
              lower_actions},
    LowerPass{"offload",
              "What a stage leaves to its own backward alone can wait in the host's memory, which is known once all readers are.",
              offload_residuals},
    LowerPass{"reduce", "Devices that share an actor's micro-batches have terms of its sums, which become sums while other stages run.",
              reduce_over_groups},
    LowerPass{"before", "What the loop reads and each micro-batch would make anew is made once, on every actor that reads it.",
              build_before},
    LowerPass{"after", "What depends on the loop's sums runs where it moves the fewest bytes, and decides where state lives.", build_after},
    LowerPass{"refresh", "Copies of a state that its owner alone updates are out of date when the step ends.", refresh_copies},
    LowerPass{"devices", "Up to here an actor is one device; now each of its devices gets its part of the micro-batches and its shares.",
              spread_groups},
    LowerPass{"transfers", "What is read elsewhere than where it was made is sent as soon as it is there, once to each reader.",
              make_transfers},
    LowerPass{"order", "Both ends of a pair must start its transfers in one order, or a link with one queue would deadlock.",
              order_transfers},
    LowerPass{"frees", "A slot is freed when nothing can need it, and late enough that no device waits at its free.", place_frees},
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

std::span<const LowerPass> lower_passes() {
  return kPasses;
}

std::size_t find_pass(std::string_view name) {
  const auto found = std::ranges::find(kPasses, name, &LowerPass::name);
  if (found != kPasses.end()) return static_cast<std::size_t>(found - kPasses.begin());
  std::vector<std::string> names;
  for (const LowerPass& pass : kPasses) names.emplace_back(pass.name);
  throw Error(concat("lowering has no pass ", quote(name)), {"its passes: " + join(names, ", ")}, did_you_mean(name, names));
}

void run_passes(const LowerInput& input, Draft& draft, std::string_view last, const PassWatch& watch) {
  const std::size_t begin = draft.after.empty() ? 0 : find_pass(draft.after) + 1;
  const std::size_t end = last.empty() ? kPasses.size() : find_pass(last) + 1;
  for (std::size_t p = begin; p < end; ++p) {
    const auto start = std::chrono::steady_clock::now();
    kPasses[p].run(input, draft);
    const double seconds = seconds_since(start);
    draft.after = kPasses[p].name;
    if (watch) watch(kPasses[p], draft, seconds);
  }
}

Program lower(const LowerInput& input, TaskPool* pool) {
  Draft draft;
  run_passes(input, draft);
  return program_of(input, std::move(draft), pool);
}

namespace {

// Lowers up to the pass `devices` and returns the drafts with the input of the passes that follow.
JoinedSteps up_to_devices(LowerInput input) {
  std::vector<Draft> drafts(input.schedule.steps);
  if (drafts.size() == 1) {
    run_passes(input, drafts[0], "devices");
    return {std::move(input), std::move(drafts[0])};
  }
  for (std::int32_t step = 0; step < std::ssize(drafts); ++step) run_passes(step_input(input, step), drafts[step], "devices");
  return join_steps(input, drafts);
}

// The rest of lowering, from the members' drafts after the pass `devices` on.
Program joined_program(const std::vector<LowerInput>& inputs, std::vector<Draft> drafts, TaskPool* pool) {
  Draft draft = inputs.size() == 1 ? std::move(drafts[0]) : join_members(inputs, std::move(drafts));
  run_passes(inputs[0], draft);
  return program_of(inputs[0], std::move(draft), pool);
}

}  // namespace

Program lower(const std::vector<LowerInput>& members, TaskPool* pool) {
  if (members.size() == 1 && members[0].schedule.steps == 1) return lower(members[0], pool);
  std::vector<LowerInput> inputs;
  std::vector<Draft> drafts;
  for (const LowerInput& member : members) {
    JoinedSteps joined = up_to_devices(member);
    inputs.push_back(std::move(joined.input));
    drafts.push_back(std::move(joined.draft));
  }
  return joined_program(inputs, std::move(drafts), pool);
}

Program lower(const Graph& traced, const Schedule& schedule, const LowerOptions& options) {
  check_workers(schedule, options);
  std::vector<LowerInput> inputs;
  std::vector<std::vector<Draft>> drafts;  // of each member, by worker whose table is another
  const auto take = [&](const Schedule& table, bool is_first) {
    std::size_t member = 0;
    take_members(traced, table, options, [&](LowerInput input) {
      check_table(input);
      JoinedSteps joined = up_to_devices(std::move(input));
      if (is_first) {
        if (!inputs.empty()) {  // joined, they only have to say which member each is
          joined.input.step = {};
          joined.input.dag = {};
        }
        inputs.push_back(std::move(joined.input));
        drafts.emplace_back();
      }
      drafts[member++].push_back(std::move(joined.draft));
    });
  };
  take(schedule, true);
  for (const Schedule& other : options.others) take(other, false);
  std::vector<Draft> of_members;
  for (std::vector<Draft>& of_workers : drafts)
    of_members.push_back(of_workers.size() == 1 ? std::move(of_workers[0]) : join_workers(schedule, options, std::move(of_workers)));
  return joined_program(inputs, std::move(of_members), nullptr);
}

Program lower_rest(const LowerInput& input, Draft draft) {
  verify(input, draft);
  run_passes(input, draft);
  return program_of(input, std::move(draft));
}

void dump_passes(const LowerInput& input, const std::string& folder) {
  std::filesystem::create_directories(folder);
  Draft empty;
  std::string before;
  int number = 0;
  run_passes(input, empty, {}, [&](const LowerPass& pass, const Draft& draft, double seconds) {
    // Behind its first two lines, the form and the pass, a draft says what it is.
    const std::string text = print(draft), said = text.substr(text.find('\n', text.find('\n') + 1) + 1);
    const std::string digits = concat(++number < 10 ? "0" : "", number);
    const std::string comment = concat("// ", pass.reason, "\n// ", short_decimal(1000 * seconds, 3), " ms",
                                       said == before ? ", unchanged: the draft is that of the pass before\n" : "\n");
    write_file(concat(folder, "/", digits, "-", pass.name, ".txt"), comment + text);
    before = said;
  });
}

}  // namespace penstock
