// The passes of lowering, as a list: each takes a draft and leaves a draft, which can be printed, read back and continued from.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "lower/draft.h"
#include "lower/task_pool.h"

namespace penstock {

struct LowerPass {
  std::string_view name;
  std::string_view reason;  // one sentence
  void (*run)(const LowerInput& input, Draft& draft);
};

// In the order in which they run.
std::span<const LowerPass> lower_passes();
// Position in lower_passes(). Throws Error for an unknown name (nearest named, all listed).
std::size_t find_pass(std::string_view name);

// Called after each pass with the draft that it left and the seconds that it took.
using PassWatch = std::function<void(const LowerPass& pass, const Draft& draft, double seconds)>;
// The passes behind the one that the draft names, up to `last` or to the end.
void run_passes(const LowerInput& input, Draft& draft, std::string_view last = {}, const PassWatch& watch = {});

// The program that a draft after the last pass says, planned and verified. `pool`: tasks of earlier programs, which it takes instead of its
// own where they are the same; null: none.
Program program_of(const LowerInput& input, Draft draft, TaskPool* pool = nullptr);
// All of lowering: of one input, or of all members' (lower/members.h).
Program lower(const LowerInput& input, TaskPool* pool = nullptr);
Program lower(const std::vector<LowerInput>& members, TaskPool* pool = nullptr);
// Is shown each program that lowering has made, on the thread that made it: tests say here what all programs are. Null: nobody looks.
inline void (*program_watch)(const Program& program) = nullptr;
// The rest of lowering. Throws Error unless the draft is one of this input, as verify() of it does.
Program lower_rest(const LowerInput& input, Draft draft);

// Writes each pass's draft to DIR/NN-name.txt, with what it took as a comment; one that changed nothing says so instead. Makes the folder.
void dump_passes(const LowerInput& input, const std::string& folder);

void find_blocks(const LowerInput& input, Draft& draft);
void lower_actions(const LowerInput& input, Draft& draft);
void offload_residuals(const LowerInput& input, Draft& draft);
void reduce_over_groups(const LowerInput& input, Draft& draft);
void build_before(const LowerInput& input, Draft& draft);
void build_after(const LowerInput& input, Draft& draft);
void refresh_copies(const LowerInput& input, Draft& draft);
void spread_groups(const LowerInput& input, Draft& draft);
void make_transfers(const LowerInput& input, Draft& draft);
void order_transfers(const LowerInput& input, Draft& draft);
void place_frees(const LowerInput& input, Draft& draft);

}  // namespace penstock
