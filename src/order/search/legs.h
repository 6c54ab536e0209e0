// SPDX-License-Identifier: Apache-2.0
// The search's view of the work: which order each actor runs it in, and what that order takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/numbers.h"
#include "penstock/search.h"

namespace penstock {

// The next micro-batch of a leg, in one kind of work: F, B, I or W.
struct Step {
  std::int16_t leg = 0;
  Kind kind = Kind::F;
  bool operator==(const Step&) const = default;
};
using Rows = std::vector<std::vector<Step>>;  // of each actor

// The k-th piece of work needs the k-th of another leg: from a transfer, or, where slot is -1, on the same actor.
struct LegNeed {
  std::int32_t leg, slot;
};
struct LegSend {
  std::int32_t slot, channel;
  double seconds, latency;  // for which the channel is occupied; until it is there after that
};

// A stage on one route.
struct StageLeg {
  std::int32_t stage, actor, route;
  std::vector<std::int32_t> microbatches;
  bool has_backward, has_weight;
  double forward, whole, input, weight;  // times; weight 0 where there is none
  std::int64_t live;                     // in parts (Legs::limit)
  std::vector<LegNeed> forward_needs, backward_needs;
  std::vector<LegSend> forward_sends, backward_sends;

  std::int32_t count() const { return static_cast<std::int32_t>(microbatches.size()); }
  double time(Kind kind) const { return kind == Kind::F ? forward : kind == Kind::B ? whole : kind == Kind::I ? input : weight; }
};

struct Legs {
  std::vector<StageLeg> legs;  // each after those that feed it
  std::vector<std::vector<std::int32_t>> of_actor;
  std::int32_t microbatches = 0, slots = 0, channels = 0;
  std::int32_t of_step = 0, staleness = 0;  // micro-batches of a step, which is all of them or else a leg's, too; SearchProblem's
  std::int64_t limit = 0;                   // activations, in whole parts of the largest
  bool whole = true, split = true;
  bool limited_links = false;  // a transfer may have to wait for another
  bool shared_links = false;   // and that for another actor's

  const StageLeg& operator[](std::int32_t leg) const { return legs[static_cast<std::size_t>(leg)]; }
  std::int32_t size() const { return static_cast<std::int32_t>(legs.size()); }
  std::int32_t actors() const { return static_cast<std::int32_t>(of_actor.size()); }
  // Activations that one micro-batch's end of the step frees on the leg's actor (0: none).
  bool frees(const Step& step) const;
  // Returns how many gradients of a leg are summed before its k-th F may run, or its k-th gradient is.
  std::int32_t summed_before(Kind kind, std::int32_t k) const {
    return std::max(k / of_step - (kind == Kind::F ? staleness : 0), 0) * of_step;
  }
  std::int32_t slots_of_all() const { return slots * microbatches; }
};
// `placement` gives every micro-batch one route.
Legs legs_of(const SearchProblem& problem, const Placement& placement);
// Returns the activations that one micro-batch needs on the actor where it needs most.
double smallest_limit(const SearchProblem& problem, const Placement& placement);

Schedule schedule_of(const Legs& legs, const Rows& rows);
// Nothing where the table holds more than the search's kinds, or W elsewhere. Updates, which follow from the order, are left out.
std::optional<Rows> rows_of(const Legs& legs, const Schedule& schedule);

// Rows as far as they have run. It is the table's clock (time_table) for rows that a search puts together and takes apart, step by step and
// without numbers of micro-batches; tests hold both equal. Steps are appended in any order in which they can run; the last ones may be
// taken back.
class PartialRun {
 public:
  explicit PartialRun(const Legs& legs);
  void clear();

  // When all that the leg's next step of this kind needs will be there; infinity where some of that has not been appended.
  double ready(Step step) const;
  // Whether the row may go on with it as far as the leg's own counts go. B and I follow F, W follows I.
  bool is_next(Step step) const;
  bool fits(Step step) const;  // in memory, and as far as steps go that a forward may be ahead of updates
  // Returns its end. Of a step that is_next and has a finite ready().
  double append(Step step);
  void undo();  // the last append

  double free(std::int32_t actor) const { return free_[actor]; }
  std::int64_t live(std::int32_t actor) const { return live_[actor]; }
  std::int32_t forwards(std::int32_t leg) const { return counts_[at(leg)].f; }
  std::int32_t backwards(std::int32_t leg) const { return counts_[at(leg)].b + counts_[at(leg)].i; }
  std::int32_t pending_weights(std::int32_t leg) const { return legs_[leg].has_weight ? counts_[at(leg)].i - counts_[at(leg)].w : 0; }
  // Micro-batches whose activations are gone.
  std::int32_t finished(std::int32_t leg) const { return legs_[leg].has_weight ? counts_[at(leg)].b + counts_[at(leg)].w : backwards(leg); }
  double channel(std::int32_t channel) const { return channel_free_[channel]; }
  double arrival(std::int32_t slot, std::int32_t k) const { return arrivals_[slot * legs_.microbatches + k]; }
  std::int64_t steps() const { return static_cast<std::int64_t>(log_.size()); }
  double makespan() const;

 private:
  struct Counts {
    std::int32_t f = 0, b = 0, i = 0, w = 0;
    std::int32_t& of(Kind kind) { return kind == Kind::F ? f : kind == Kind::B ? b : kind == Kind::I ? i : w; }
  };
  struct Entry {
    Step step;
    double free;
    std::size_t channels;  // size of log_channels_ before it
  };
  const std::vector<LegSend>& sends(Step step) const;

  const Legs& legs_;
  std::vector<Counts> counts_;
  std::vector<double> free_, channel_free_, arrivals_;
  std::vector<std::int64_t> live_;
  std::vector<Entry> log_;
  std::vector<double> log_channels_;
};

// Whether each row keeps Legs::summed_before.
bool keep_steps(const Legs& legs, const Rows& rows);
bool keeps_steps(const Legs& legs, const std::vector<Step>& row);

// When each step of complete rows runs.
struct RowTimes {
  double makespan = 0;  // infinity: they can never run
  std::vector<std::vector<double>> start, end;
};
// `run` is cleared first.
RowTimes time_rows(const Legs& legs, const Rows& rows, PartialRun& run);

}  // namespace penstock
