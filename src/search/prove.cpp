#include "search/prove.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace penstock {
namespace {

class Search {
 public:
  Search(const Lanes& lanes, const HeadsAndTails& ends, double beat, std::int64_t nodes, const std::function<bool()>& is_late)
      : lanes_(lanes),
        ends_(ends),
        most_nodes_(nodes),
        is_late_(is_late),
        run_(lanes),
        decided_(lanes.of_actor.size()),
        rows_(lanes.of_actor.size()) {
    beat_ = beat;
    for (const auto& here : lanes.of_actor) {
      std::int64_t all = 0;
      for (const std::int32_t l : here) all += lanes[l].count() * lanes[l].live;
      scarce_.push_back(all > lanes.limit);
    }
  }

  Proof result() {
    proof_.complete = extend();
    return std::move(proof_);
  }

 private:
  struct Decided {
    bool is = false;
    Step step;
  };
  struct Child {
    Step step;
    double bound;
    int rank;
  };

  // Runs all decided steps that can run. Returns how many.
  int settle() {
    int ran = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t a = 0; a < decided_.size(); ++a) {
        if (!decided_[a].is || run_.ready(decided_[a].step) == kInfinity) continue;
        run_.append(decided_[a].step);
        decided_[a].is = false;
        log_.push_back(decided_[a].step);
        moved = true;
        ++ran;
      }
    }
    return ran;
  }
  void unsettle(int ran) {
    for (; ran > 0; --ran) {
      const Step step = log_.back();
      log_.pop_back();
      run_.undo();
      decided_[at(lanes_[step.lane].actor)] = {true, step};
    }
  }

  // The actor that is free first and has steps left that are not decided.
  std::int32_t actor_to_extend() const {
    std::int32_t best = -1;
    for (std::int32_t a = 0; a < lanes_.actors(); ++a) {
      if (decided_[at(a)].is || (best >= 0 && run_.free(a) >= run_.free(best))) continue;
      if (has_steps_left(a)) best = a;
    }
    return best;
  }
  bool has_steps_left(std::int32_t a) const {
    return std::any_of(lanes_.of_actor[at(a)].begin(), lanes_.of_actor[at(a)].end(), [&](std::int32_t l) {
      return run_.forwards(l) < lanes_[l].count() || (lanes_[l].has_backward && run_.finished(l) < lanes_[l].count());
    });
  }

  static int part_of(Kind kind) { return kind == Kind::F ? 0 : kind == Kind::W ? 2 : 1; }
  std::int32_t number_of(const Step& step) const {
    if (step.kind == Kind::F) return run_.forwards(step.lane);
    return step.kind == Kind::W ? run_.finished(step.lane) : run_.backwards(step.lane);
  }

  // Of any way to go on; fills heads_.
  double bound() {
    std::vector<HeadsAndTails::Choice> choices(decided_.size());
    bool waits = false;
    for (std::size_t a = 0; a < decided_.size(); ++a) {
      choices[a].after = run_.free(static_cast<std::int32_t>(a));
      waits = waits || decided_[a].is;
    }
    heads_.resize(at(lanes_.size() * 3 * lanes_.microbatches));
    ends_.heads_after(run_, choices, heads_);
    if (waits) {
      for (std::size_t a = 0; a < decided_.size(); ++a) {
        if (!decided_[a].is) continue;
        const Step step = decided_[a].step;
        const int part = part_of(step.kind);
        choices[a] = {step.lane, part, heads_[ends_.index(step.lane, part, number_of(step))] + ends_.time(step.lane, part)};
      }
      ends_.heads_after(run_, choices, heads_);
    }
    double bound = run_.makespan();
    for (std::int32_t a = 0; a < lanes_.actors() && bound < beat_; ++a) bound = std::max(bound, actor_bound(a));
    return bound;
  }

  double actor_bound(std::int32_t a) {
    tasks_.clear();
    const auto add = [&](std::int32_t l, int part, std::int32_t first) {
      for (std::int32_t k = first; k < lanes_[l].count(); ++k)
        tasks_.push_back({heads_[ends_.index(l, part, k)], ends_.time(l, part), ends_.tail(l, part, k)});
    };
    for (const std::int32_t l : lanes_.of_actor[at(a)]) {
      add(l, 0, run_.forwards(l));
      if (!lanes_[l].has_backward) continue;
      add(l, 1, run_.backwards(l));
      if (lanes_[l].has_weight || lanes_.whole) add(l, 2, run_.finished(l));
    }
    return one_machine_bound(tasks_);
  }

  // Whether the actor could run something else before this step, whatever others do, and delay nothing by it.
  bool leaves_room(const Step& step, std::int32_t actor) const {
    const double start = std::max(run_.free(actor), heads_[ends_.index(step.lane, part_of(step.kind), number_of(step))]);
    if (start == run_.free(actor)) return false;
    const auto fits = [&](const Step& other) {
      if (other == step || !run_.is_next(other)) return false;
      if (other.kind != Kind::W && lanes_.limited_links) return false;  // its transfer may be in the way of another
      if (other.kind == Kind::F && (scarce_[at(actor)] || !run_.fits(other))) return false;
      if (other.kind == Kind::B || (other.kind == Kind::I && !lanes_.split)) return false;
      return std::max(run_.free(actor), run_.ready(other)) + lanes_[other.lane].time(other.kind) <= start;
    };
    return std::any_of(lanes_.of_actor[at(actor)].begin(), lanes_.of_actor[at(actor)].end(), [&](std::int32_t l) {
      const std::int16_t lane = static_cast<std::int16_t>(l);
      return fits({lane, Kind::W}) || fits({lane, Kind::I}) || fits({lane, Kind::F});
    });
  }

  std::vector<Child> children(std::int32_t actor) {
    std::vector<Child> out;
    for (const std::int32_t l : lanes_.of_actor[at(actor)]) {
      for (const Kind kind : {Kind::I, Kind::B, Kind::F, Kind::W}) {
        const Step step{static_cast<std::int16_t>(l), kind};
        if (!run_.is_next(step) || !run_.fits(step)) continue;
        if (kind == Kind::I && !lanes_.split) continue;
        // Running I and then W is no slower.
        if (kind == Kind::B && (!lanes_.whole || (lanes_.split && lanes_[l].whole >= lanes_[l].input + lanes_[l].weight))) continue;
        if (leaves_room(step, actor)) continue;
        out.push_back({step, 0, kind == Kind::W});
      }
    }
    for (Child& child : out) {
      decided_[at(actor)] = {true, child.step};
      const int ran = settle();
      child.bound = bound();
      unsettle(ran);
    }
    decided_[at(actor)].is = false;
    std::stable_sort(out.begin(), out.end(),
                     [](const Child& x, const Child& y) { return x.bound != y.bound ? x.bound < y.bound : x.rank < y.rank; });
    return out;
  }

  // Whether the subtree was looked at completely.
  bool extend() {
    const std::int32_t actor = actor_to_extend();
    if (actor < 0) {
      const bool stuck = std::any_of(decided_.begin(), decided_.end(), [](const Decided& decided) { return decided.is; });
      if (!stuck && run_.makespan() < beat_ * (1 - 1e-9)) keep();
      return true;
    }
    if (++proof_.nodes > most_nodes_ || (proof_.nodes % 256 == 0 && is_late_())) return false;
    bound();
    for (const Child& child : children(actor)) {
      if (child.bound >= beat_ * (1 - 1e-9)) break;
      decided_[at(actor)] = {true, child.step};
      const int ran = settle();
      const bool complete = is_dominated() || extend();
      unsettle(ran);
      decided_[at(actor)].is = false;
      if (!complete) return false;
    }
    return true;
  }

  void keep() {
    proof_.makespan = beat_ = run_.makespan();
    proof_.rows.assign(rows_.size(), {});
    for (const Step& step : log_) proof_.rows[at(lanes_[step.lane].actor)].push_back(step);
  }

  // What has run and is decided, and then all times on which the rest depends.
  bool is_dominated() {
    std::string key;
    times_.clear();
    const auto put = [&](std::int32_t value) { key.append(reinterpret_cast<const char*>(&value), 2); };
    for (std::int32_t l = 0; l < lanes_.size(); ++l) {
      put(run_.forwards(l));
      put(run_.backwards(l));
      put(run_.finished(l));
      if (lanes_.whole && lanes_.split) put(run_.pending_weights(l));
    }
    for (std::int32_t a = 0; a < lanes_.actors(); ++a) {
      put(decided_[at(a)].is ? 4 * decided_[at(a)].step.lane + static_cast<int>(decided_[at(a)].step.kind) : -1);
      times_.push_back(run_.free(a));
    }
    put_arrivals();
    if (lanes_.limited_links)
      for (std::int32_t c = 0; c < lanes_.channels; ++c) times_.push_back(run_.channel(c));
    std::vector<std::vector<double>>& seen = seen_[key];
    for (const std::vector<double>& before : seen) {
      if (std::equal(before.begin(), before.end(), times_.begin(), [](double x, double y) { return x <= y; })) return true;
    }
    std::erase_if(seen, [&](const std::vector<double>& before) {
      return std::equal(before.begin(), before.end(), times_.begin(), [](double x, double y) { return x >= y; });
    });
    if (seen.size() < kMostSeen) seen.push_back(times_);
    return false;
  }

  // Of what has been sent and not yet been taken.
  void put_arrivals() {
    const auto put = [&](const std::vector<LaneNeed>& needs, std::int32_t taken, bool forward) {
      for (const LaneNeed& need : needs) {
        if (need.slot < 0) continue;
        const std::int32_t sent = forward ? run_.forwards(need.lane) : run_.backwards(need.lane);
        for (std::int32_t k = taken; k < sent; ++k) times_.push_back(run_.arrival(need.slot, k));
      }
    };
    for (std::int32_t l = 0; l < lanes_.size(); ++l) {
      put(lanes_[l].forward_needs, run_.forwards(l), true);
      put(lanes_[l].backward_needs, run_.backwards(l), false);
    }
  }

  static constexpr std::size_t kMostSeen = 64;  // of the same steps: comparing with all of them would be slower than what it saves

  const Lanes& lanes_;
  const HeadsAndTails& ends_;
  std::int64_t most_nodes_;
  const std::function<bool()>& is_late_;
  double beat_ = 0;
  PartialRun run_;
  std::vector<Decided> decided_;  // of each actor: its next step, where it waits for others
  Rows rows_;
  std::vector<Step> log_;     // all that has run
  std::vector<bool> scarce_;  // of each actor: whether memory can hold back a forward
  std::vector<double> heads_, times_;
  std::vector<MachineTask> tasks_;
  std::unordered_map<std::string, std::vector<std::vector<double>>> seen_;
  Proof proof_;
};

}  // namespace

Proof prove(const Lanes& lanes, const HeadsAndTails& ends, double beat, std::int64_t nodes, const std::function<bool()>& is_late) {
  return Search(lanes, ends, beat, nodes, is_late).result();
}

}  // namespace penstock
