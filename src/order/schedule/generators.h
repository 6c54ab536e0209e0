// SPDX-License-Identifier: Apache-2.0
// One generator per published schedule. Each expects actors, chunks and microbatches >= 1 (make_schedule checks) and gives
// stage c * actors + r to actor r as its chunk c.
#pragma once

#include <algorithm>
#include <functional>
#include <string>

#include "penstock/schedule.h"
#include "schedule/engine.h"

namespace penstock {

Schedule sequential(const ScheduleOptions& options);
Schedule gpipe(const ScheduleOptions& options);
Schedule breadth_first(const ScheduleOptions& options);
Schedule one_forward_one_backward(const ScheduleOptions& options);
Schedule eager_one_forward_one_backward(const ScheduleOptions& options);
Schedule interleaved_one_forward_one_backward(const ScheduleOptions& options);
Schedule interleaved_zero_bubble(const ScheduleOptions& options);
Schedule zero_bubble_h1(const ScheduleOptions& options);
Schedule zero_bubble_h2(const ScheduleOptions& options);
Schedule k_forward_k_backward(const ScheduleOptions& options);
Schedule crosspipe(const ScheduleOptions& options);
Schedule graphpipe_chain(const ScheduleOptions& options);
Schedule zeropp(const ScheduleOptions& options);
Schedule terapipe(const ScheduleOptions& options);
Schedule seq1f1b(const ScheduleOptions& options);
Schedule slimpipe(const ScheduleOptions& options);
Schedule slimpipe_exchange(const ScheduleOptions& options);
Schedule helixpipe(const ScheduleOptions& options);
// The table of sliced stages with the parts of the vocabulary behind them (slimpipe.cpp), and how many slices are on their way through
// these while the last actor goes on with others.
Schedule with_head(Schedule trunk, const ScheduleOptions& options);
int slices_in_head(const ScheduleOptions& options);
Schedule pipedream(const ScheduleOptions& options);
// For a window of steps, each drained before the next begins.
Schedule nestpipe(const ScheduleOptions& options);
// The table of a step, without updates, so many times: a window of which each step ends on an actor before the next begins there.
Schedule repeated(Schedule step, int steps);
// The table of a window in which all F of a step read the version that lacks these many of the updates before it.
Schedule with_missing_updates(Schedule schedule, int updates);
// The table of a generator for a window of options.window steps, drained at its end alone: each stage is updated behind its last B of a
// step.
Schedule never_drained(const ScheduleOptions& options, Schedule (*generator)(const ScheduleOptions&));
Schedule pipedream_2bw(const ScheduleOptions& options);
Schedule hetpipe(const ScheduleOptions& options);
Schedule xpipe(const ScheduleOptions& options);
Schedule layerpipe(const ScheduleOptions& options);
Schedule pipeoptim(const ScheduleOptions& options);

// The table of one stage per actor, for a step of 1 or more micro-batches, with self-conditioning: stages p to 2p-1 are its own.
Schedule self_conditioned(Schedule schedule);

// The table of a step, without updates, with frozen stages in front of its own: for `steps` steps, each with the next one's frozen forwards
// where its actors wait. `times`: of each frozen stage's forward, where another stage's takes 1. Work: times actors and gaps for each of
// them.
Schedule with_frozen_stages(Schedule step, const std::vector<double>& times, int steps);

// Throws Error unless --balance gives `count` times, one `each`: of "actors", each "actor's stage".
void require_balance(std::string_view name, const ScheduleOptions& options, int count, std::string_view of, std::string_view each);

// Each chunk runs all micro-batches before the next one, and back: in the same order or the reverse.
Schedule chunk_by_chunk(const ScheduleOptions& options, bool reverse_backwards);

// One stage per actor: actor i runs warm_up(i) forwards (at most options.in_flight), then a backward and a forward in turn, then the
// remaining backwards. Slices count each for itself, warm_up's too; a micro-batch's go back from the last to the first.
Schedule alternating(const ScheduleOptions& options, const std::function<int(int actor)>& warm_up);

// The order of most published schedules: push(kind, k) for `ahead` F, then for the k-th B and the next F in turn, then for the remaining B.
template <class Push>
void take_turns(int pieces, int ahead, Push&& push) {
  ahead = std::min(ahead, pieces);
  for (int k = 0; k < ahead; ++k) push(Kind::F, k);
  for (int k = 0; k < pieces; ++k) {
    push(Kind::B, k);
    if (k + ahead < pieces) push(Kind::F, k + ahead);
  }
}
// The same with the k-th I and the W of k-delay in the place of the k-th B; then the remaining W.
template <class Push>
void take_turns(int pieces, int ahead, int delay, Push&& push) {
  delay = std::min(delay, pieces);
  take_turns(pieces, ahead, [&](Kind kind, int k) {
    push(kind == Kind::B ? Kind::I : kind, k);
    if (kind == Kind::B && k >= delay) push(Kind::W, k - delay);
  });
  for (int k = pieces - delay; k < pieces; ++k) push(Kind::W, k);
}

// One stage per actor, which takes turns with this delay.
struct ZeroBubbleActor {
  int ahead, delay;
};
Schedule zero_bubble(const ScheduleOptions& options, const std::function<ZeroBubbleActor(int actor)>& turns);

// Chunks in bunches of micro-batches (--group), a forward and a backward in turn; `split`: I and, as many turns later as the actor's
// number, W.
Schedule interleaved(const ScheduleOptions& options, bool split);

// Throws Error that names the schedule for a table of so many chunks that is too large.
void check_size(const std::string& name, const ScheduleOptions& options, int chunks);

// Stage c * actors + r on actor r as its chunk c, as the engine's work: every action takes 1.
EngineWork chunked_work(const ScheduleOptions& options);

// options.transfers for each of the actors-1 links; 0 where it is empty.
std::vector<double> link_transfers(const ScheduleOptions& options);

}  // namespace penstock
