// SPDX-License-Identifier: Apache-2.0
#include "search/prove.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>

namespace penstock {
namespace {

struct Work {
  const Legs& legs;
  const HeadsAndTails& ends;
  std::vector<bool> scarce;  // of each actor: whether memory can hold back a forward
};

Work work_of(const Legs& legs, const HeadsAndTails& ends) {
  Work work{legs, ends, {}};
  for (const auto& here : legs.of_actor) {
    std::int64_t all = 0;
    for (const std::int32_t l : here) all += legs[l].count() * legs[l].live;
    work.scarce.push_back(all > legs.limit);
  }
  return work;
}

// Rows as far as they have run, with the next step of each actor that waits for others.
class PartialRows {
 public:
  explicit PartialRows(const Legs& legs) : legs_(legs), run_(legs), decided_(legs.of_actor.size()) {}

  const PartialRun& run() const { return run_; }
  const std::optional<Step>& decided(std::int32_t actor) const { return decided_[at(actor)]; }
  bool any_decided() const {
    return std::any_of(decided_.begin(), decided_.end(), [](const auto& decided) { return decided.has_value(); });
  }

  // Decides the actor's next step, and runs all decided steps that can run. Returns how many.
  int decide(std::int32_t actor, const Step& step) {
    decided_[at(actor)] = step;
    int ran = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& decided : decided_) {
        if (!decided || run_.ready(*decided) == kInfinity) continue;
        run_.append(*decided);
        log_.push_back(*decided);
        decided.reset();
        moved = true;
        ++ran;
      }
    }
    return ran;
  }
  // The last decision, by which so many steps ran.
  void take_back(std::int32_t actor, int ran) {
    for (; ran > 0; --ran) {
      const Step step = log_.back();
      log_.pop_back();
      run_.undo();
      decided_[at(legs_[step.leg].actor)] = step;
    }
    decided_[at(actor)].reset();
  }

  // The actor that is free first and has steps left that are not decided; -1: none.
  std::int32_t actor_to_extend() const {
    std::int32_t best = -1;
    for (std::int32_t a = 0; a < legs_.actors(); ++a) {
      if (decided(a) || (best >= 0 && run_.free(a) >= run_.free(best))) continue;
      if (has_steps_left(a)) best = a;
    }
    return best;
  }

  Rows rows() const {
    Rows rows(decided_.size());
    for (const Step& step : log_) rows[at(legs_[step.leg].actor)].push_back(step);
    return rows;
  }

 private:
  bool has_steps_left(std::int32_t a) const {
    return std::any_of(legs_.of_actor[at(a)].begin(), legs_.of_actor[at(a)].end(), [&](std::int32_t l) {
      return run_.forwards(l) < legs_[l].count() || (legs_[l].has_backward && run_.finished(l) < legs_[l].count());
    });
  }

  const Legs& legs_;
  PartialRun run_;
  std::vector<std::optional<Step>> decided_;
  std::vector<Step> log_;  // all that has run
};

int part_of(Kind kind) {
  return kind == Kind::F ? 0 : kind == Kind::W ? 2 : 1;
}

std::int32_t number_of(const PartialRun& run, const Step& step) {
  if (step.kind == Kind::F) return run.forwards(step.leg);
  return step.kind == Kind::W ? run.finished(step.leg) : run.backwards(step.leg);
}

// The heads of what is left, with what is decided.
void find_heads(const Work& work, const PartialRows& rows, std::vector<double>& heads) {
  std::vector<HeadsAndTails::Choice> choices(work.legs.of_actor.size());
  for (std::size_t a = 0; a < choices.size(); ++a) choices[a].after = rows.run().free(static_cast<std::int32_t>(a));
  heads.resize(at(work.legs.size() * 3 * work.legs.microbatches));
  work.ends.heads_after(rows.run(), choices, heads);
  if (!rows.any_decided()) return;
  for (std::size_t a = 0; a < choices.size(); ++a) {
    const std::optional<Step>& step = rows.decided(static_cast<std::int32_t>(a));
    if (!step) continue;
    const int part = part_of(step->kind);
    choices[a] = {step->leg, part, heads[work.ends.index(step->leg, part, number_of(rows.run(), *step))] + work.ends.time(step->leg, part)};
  }
  work.ends.heads_after(rows.run(), choices, heads);
}

// No order of what is left to the actor ends sooner.
double actor_bound(const Work& work, const PartialRun& run, const std::vector<double>& heads, std::int32_t a,
                   std::vector<MachineTask>& tasks) {
  tasks.clear();
  const auto add = [&](std::int32_t l, int part, std::int32_t first) {
    for (std::int32_t k = first; k < work.legs[l].count(); ++k)
      tasks.push_back({heads[work.ends.index(l, part, k)], work.ends.time(l, part), work.ends.tail(l, part, k)});
  };
  for (const std::int32_t l : work.legs.of_actor[at(a)]) {
    add(l, 0, run.forwards(l));
    if (!work.legs[l].has_backward) continue;
    add(l, 1, run.backwards(l));
    if (work.legs[l].has_weight || work.legs.whole) add(l, 2, run.finished(l));
  }
  return one_machine_bound(tasks);
}

// Whether the actor could run something else before this step, whatever others do, and delay nothing by it.
bool leaves_room(const Work& work, const PartialRun& run, const std::vector<double>& heads, const Step& step, std::int32_t actor) {
  const double start = std::max(run.free(actor), heads[work.ends.index(step.leg, part_of(step.kind), number_of(run, step))]);
  if (start == run.free(actor)) return false;
  const auto fits = [&](const Step& other) {
    if (other == step || !run.is_next(other)) return false;
    if (other.kind != Kind::W && work.legs.limited_links) return false;  // its transfer may be in the way of another
    if (other.kind == Kind::F && (work.scarce[at(actor)] || !run.fits(other))) return false;
    if (other.kind == Kind::B || (other.kind == Kind::I && !work.legs.split)) return false;
    return std::max(run.free(actor), run.ready(other)) + work.legs[other.leg].time(other.kind) <= start;
  };
  return std::any_of(work.legs.of_actor[at(actor)].begin(), work.legs.of_actor[at(actor)].end(), [&](std::int32_t l) {
    const std::int16_t leg = static_cast<std::int16_t>(l);
    return fits({leg, Kind::W}) || fits({leg, Kind::I}) || fits({leg, Kind::F});
  });
}

// The rows that were come to, by what had run and was decided: the times on which the rest depends.
class Seen {
 public:
  // Whether the same steps had been run before, none of them later. Else it notes them.
  bool is_dominated(const Legs& legs, const PartialRows& rows) {
    times_.clear();
    std::vector<std::vector<double>>& seen = seen_[read(legs, rows)];
    for (const std::vector<double>& before : seen) {
      if (std::equal(before.begin(), before.end(), times_.begin(), [](double x, double y) { return x <= y; })) return true;
    }
    std::erase_if(seen, [&](const std::vector<double>& before) {
      return std::equal(before.begin(), before.end(), times_.begin(), [](double x, double y) { return x >= y; });
    });
    if (seen.size() < kMostSeen) seen.push_back(times_);
    return false;
  }

 private:
  static constexpr std::size_t kMostSeen = 64;  // of the same steps: comparing with all of them would be slower than what it saves

  // Returns what has run and is decided; adds the times.
  std::string read(const Legs& legs, const PartialRows& rows) {
    const PartialRun& run = rows.run();
    std::string key;
    const auto put = [&](std::int32_t value) { key.append(reinterpret_cast<const char*>(&value), 2); };
    for (std::int32_t l = 0; l < legs.size(); ++l) {
      put(run.forwards(l));
      put(run.backwards(l));
      put(run.finished(l));
      if (legs.whole && legs.split) put(run.pending_weights(l));
    }
    for (std::int32_t a = 0; a < legs.actors(); ++a) {
      const std::optional<Step>& step = rows.decided(a);
      put(step ? 4 * step->leg + static_cast<int>(step->kind) : -1);
      times_.push_back(run.free(a));
    }
    for (std::int32_t l = 0; l < legs.size(); ++l) {
      put_arrivals(run, legs[l].forward_needs, run.forwards(l), true);
      put_arrivals(run, legs[l].backward_needs, run.backwards(l), false);
    }
    if (legs.limited_links)
      for (std::int32_t c = 0; c < legs.channels; ++c) times_.push_back(run.channel(c));
    return key;
  }

  // Adds what has been sent and not yet been taken.
  void put_arrivals(const PartialRun& run, const std::vector<LegNeed>& needs, std::int32_t taken, bool forward) {
    for (const LegNeed& need : needs) {
      if (need.slot < 0) continue;
      const std::int32_t sent = forward ? run.forwards(need.leg) : run.backwards(need.leg);
      for (std::int32_t k = taken; k < sent; ++k) times_.push_back(run.arrival(need.slot, k));
    }
  }

  std::vector<double> times_;  // of the rows that are being asked for
  std::unordered_map<std::string, std::vector<std::vector<double>>> seen_;
};

class ProofSearch {
 public:
  ProofSearch(const Legs& legs, const HeadsAndTails& ends, double beat, std::int64_t nodes, const std::function<bool()>& is_late)
      : legs_(legs), work_(work_of(legs, ends)), most_nodes_(nodes), is_late_(is_late), beat_(beat), rows_(legs) {}

  Proof result() {
    proof_.complete = extend();
    return std::move(proof_);
  }

 private:
  struct Child {
    Step step;
    double bound;
    int rank;
  };

  // No way to go on is faster.
  double bound() {
    find_heads(work_, rows_, heads_);
    double bound = rows_.run().makespan();
    for (std::int32_t a = 0; a < legs_.actors() && bound < beat_; ++a)
      bound = std::max(bound, actor_bound(work_, rows_.run(), heads_, a, tasks_));
    return bound;
  }

  std::vector<Child> children(std::int32_t actor) {
    std::vector<Child> out;
    find_heads(work_, rows_, heads_);
    for (const std::int32_t l : legs_.of_actor[at(actor)]) {
      for (const Kind kind : {Kind::I, Kind::B, Kind::F, Kind::W}) {
        const Step step{static_cast<std::int16_t>(l), kind};
        if (!rows_.run().is_next(step) || !rows_.run().fits(step)) continue;
        if (kind == Kind::I && !legs_.split) continue;
        // Running I and then W is no slower.
        if (kind == Kind::B && (!legs_.whole || (legs_.split && legs_[l].whole >= legs_[l].input + legs_[l].weight))) continue;
        if (leaves_room(work_, rows_.run(), heads_, step, actor)) continue;
        out.push_back({step, 0, kind == Kind::W});
      }
    }
    for (Child& child : out) {
      const int ran = rows_.decide(actor, child.step);
      child.bound = bound();
      rows_.take_back(actor, ran);
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Child& x, const Child& y) { return x.bound != y.bound ? x.bound < y.bound : x.rank < y.rank; });
    return out;
  }

  // Whether the subtree was looked at completely.
  bool extend() {
    const std::int32_t actor = rows_.actor_to_extend();
    if (actor < 0) {
      if (!rows_.any_decided() && rows_.run().makespan() < beat_ * (1 - 1e-9)) {
        proof_.makespan = beat_ = rows_.run().makespan();
        proof_.rows = rows_.rows();
      }
      return true;
    }
    if (++proof_.nodes > most_nodes_ || (proof_.nodes % 256 == 0 && is_late_())) return false;
    for (const Child& child : children(actor)) {
      if (child.bound >= beat_ * (1 - 1e-9)) break;
      const int ran = rows_.decide(actor, child.step);
      const bool complete = seen_.is_dominated(legs_, rows_) || extend();
      rows_.take_back(actor, ran);
      if (!complete) return false;
    }
    return true;
  }

  const Legs& legs_;
  const Work work_;
  const std::int64_t most_nodes_;
  const std::function<bool()>& is_late_;
  double beat_;
  PartialRows rows_;
  Seen seen_;
  Proof proof_;
  std::vector<double> heads_;       // of the rows that were looked at last
  std::vector<MachineTask> tasks_;  // and of one of their actors
};

}  // namespace

Proof prove(const Legs& legs, const HeadsAndTails& ends, double beat, std::int64_t nodes, const std::function<bool()>& is_late) {
  return ProofSearch(legs, ends, beat, nodes, is_late).result();
}

}  // namespace penstock
