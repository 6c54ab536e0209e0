// SPDX-License-Identifier: Apache-2.0
// The passes of lowering, as a list: each takes drafts and leaves drafts, which can be printed, read back and continued from. First there
// is a draft for each step of a window, of each worker's table, on each member of the mesh's axes; most passes change each of them by
// itself, and three make one of several. A member's input may be large, so lower() takes one table after the other up to the pass
// `workers`; only where all drafts are shown does pass follow pass.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lower/draft.h"
#include "lower/task_pool.h"

namespace penstock {

// The drafts of one worker's table on one member of the mesh's axes.
struct TableDrafts {
  LowerInput input;          // of the table; of a window's steps each has its own (lower/window.h)
  std::vector<Draft> steps;  // from the pass `steps` on one
};
// All drafts of a program, by member, then by worker. From the pass `workers` on there is one for each member, from `axes` on one.
using Lowering = std::vector<TableDrafts>;

struct LowerPass {
  std::string_view name;
  std::string_view reason;  // one sentence
  // One of both: what it does to each draft by itself, or how it makes one of several.
  void (*change)(const LowerInput& input, Draft& draft) = nullptr;
  void (*join)(Lowering& lowering) = nullptr;
};

// In the order in which they run.
std::span<const LowerPass> lower_passes();
// Position in lower_passes(). Throws Error for an unknown name (nearest named, all listed).
std::size_t find_pass(std::string_view name);

// A table on one member, of whose input no draft is made yet.
TableDrafts begin_table(LowerInput input, std::int32_t member = 0, std::int32_t worker = 0);
// Returns what lowering begins with: the inputs of all tables and members, and drafts of no pass yet. Throws Error as lower() does.
Lowering begin_lowering(const Graph& traced, const Schedule& schedule, const CompileOptions& options = {});
// The same for compile(step, schedule, options).
Lowering compile_lowering(const Graph& step, const Schedule& schedule, const CompileOptions& options);
// Returns what begin_lowering() gave, with drafts that some pass has left (parse_drafts). Throws Error unless they are all that there are
// after it, each as verify() wants it.
Lowering with_drafts(Lowering begun, std::vector<Draft> drafts);
std::string print(const Lowering& lowering);

// Called after each pass with the drafts that it left and the seconds that it took.
using PassWatch = std::function<void(const LowerPass& pass, const Lowering& lowering, double seconds)>;
// The passes behind the one that the drafts name, up to `last` or to the end; and those that change a draft by itself.
void run_passes(Lowering& lowering, std::string_view last = {}, const PassWatch& watch = {});
void run_passes(const LowerInput& input, Draft& draft, std::string_view last = {});

// The program that a draft after the last pass says, planned and verified. `pool`: tasks of earlier programs, which it takes instead of its
// own where they are the same; null: none.
Program program_of(const LowerInput& input, Draft draft, TaskPool* pool = nullptr);
// The rest of lowering. Besides lower() of a graph: where the inputs of all members are there.
Program lower(Lowering lowering, TaskPool* pool = nullptr);
Program lower(std::vector<LowerInput> members, TaskPool* pool = nullptr);
// Is shown each program that lowering has made, on the thread that made it: tests say here what all programs are. Null: nobody looks.
inline void (*program_watch)(const Program& program) = nullptr;

// Writes each pass's drafts to DIR/NN-name.txt, with what it took as a comment; one that changed nothing says so instead. Makes the folder.
void dump_passes(Lowering lowering, const std::string& folder);

// Throws Error unless each of CompileOptions::others is a table for as many actors, steps and micro-batches as the first worker's, with
// waves as long, and each actor has a device for each; or where devices hold shares, or look rows up ahead, together. Nor do workers that
// update by themselves (CompileOptions::distance) look rows up ahead, or have slices along an axis that splits more than sequences.
void check_workers(const Schedule& schedule, const CompileOptions& options);

void find_blocks(const LowerInput& input, Draft& draft);
void lower_actions(const LowerInput& input, Draft& draft);
void offload_residuals(const LowerInput& input, Draft& draft);
void reduce_over_groups(const LowerInput& input, Draft& draft);
void build_before(const LowerInput& input, Draft& draft);
void build_after(const LowerInput& input, Draft& draft);
void refresh_copies(const LowerInput& input, Draft& draft);
void spread_groups(const LowerInput& input, Draft& draft);
void join_steps(Lowering& lowering);
void exchange_waves(const LowerInput& input, Draft& draft);
void read_table_versions(const LowerInput& input, Draft& draft);
void look_up_rows(const LowerInput& input, Draft& draft);
// Throws Error where workers do not sum the same of each stage where they have its forward: a W is elsewhere, or one's actor has added up
// terms of several stages that lie on several actors of another.
void join_workers(Lowering& lowering);
void join_axes(Lowering& lowering);
void make_transfers(const LowerInput& input, Draft& draft);
void order_transfers(const LowerInput& input, Draft& draft);
void place_frees(const LowerInput& input, Draft& draft);

}  // namespace penstock
