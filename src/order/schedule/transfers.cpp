// SPDX-License-Identifier: Apache-2.0
// Tables that say where transfers start: CrossPipe's order of communication (2507.00217).
#include "schedule/transfers.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/validate.h"

namespace penstock {
namespace {

struct Ends {
  Kind send, receive;
};
// The two ends of a transfer of what an action makes for others.
Ends ends_of(Kind made) {
  return made == Kind::F ? Ends{Kind::SEND_F, Kind::RECV_F} : Ends{Kind::SEND_B, Kind::RECV_B};
}

bool is_output(Kind kind) {
  return kind == Kind::F || kind == Kind::B || kind == Kind::I;
}

// Calls visit(Position, stage, micro-batch) for what needs the output of the action on other actors.
template <class Visit>
void for_each_receiver(const WorkIndex& work, Position here, Visit&& visit) {
  if (!is_output(work.at(here).kind)) return;
  for_each_use(work, work.at(here), [&](Position use, std::int32_t, std::int32_t m) {
    if (use.actor != here.actor) visit(use, work.at(use).stage, m);
  });
}

// Whether the table's actions have names for all their transfers.
bool has_names(const WorkIndex& work, Position here) {
  const Action& action = work.at(here);
  if (action.kind == Kind::W && work.backward[work.unit(action.stage, action.microbatch)].actor != here.actor) return false;
  return action.count == 1;
}

// By actor: the parcels of which one end is there, as the actor starts them.
std::vector<std::vector<std::int32_t>> started(const std::vector<Parcel>& parcels, std::size_t actors) {
  std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> ends(actors);  // place in the row, parcel
  for (std::int32_t p = 0; const Parcel& parcel : parcels) {
    for (const Position end : {parcel.send, parcel.receive}) ends[at(end.actor)].emplace_back(end.index, p);
    ++p;
  }
  std::vector<std::vector<std::int32_t>> out;
  for (auto& row : ends) {
    std::ranges::sort(row);
    std::vector<std::int32_t>& numbers = out.emplace_back();
    for (const auto& [index, parcel] : row) numbers.push_back(parcel);
  }
  return out;
}

// Checks that a send is behind what it sends, and a receive ahead of what needs it.
void check_place(const WorkIndex& work, Position here) {
  const Schedule& schedule = *work.schedule;
  const bool sends = is_send(work.at(here).kind);
  const Position user = work.user_of(work.at(here));
  if (!user)
    throw Error(concat(named(schedule, here), sends ? " sends what nothing makes" : " receives what nothing needs"),
                {"SEND_F and RECV_F are of a stage's F, SEND_B and RECV_B of its B or I"}, "leave it out");
  const std::string of = concat(text_at(schedule, user), " stands at ", place(schedule, user));
  if (user.actor != here.actor)
    throw Error(concat(named(schedule, here), " is on actor ", here.actor, ", ", text_at(schedule, user), " on actor ", user.actor), {of},
                concat("move it to row ", user.actor + 1));
  if (sends == (here.index < user.index))
    throw Error(concat(named(schedule, here), sends ? " sends what is not there yet" : " receives what was needed before"), {of},
                concat("move it ", sends ? "behind " : "ahead of ", text_at(schedule, user)));
}

// Checks that all is sent and received that has to be, and nothing else.
void check_needed(const WorkIndex& work) {
  const Schedule& schedule = *work.schedule;
  std::array<std::vector<Position>, 4> needed;  // as WorkIndex::transfers: where it is sent or received, an actor that needs or sends it
  for (std::vector<Position>& of : needed) of.resize(work.forward.size());
  for_each_action(schedule, [&](const Action& action, Position here) {
    for_each_receiver(work, here, [&](Position use, std::int32_t stage, std::int32_t m) {
      const auto [send, receive] = ends_of(action.kind);
      needed[transfer_place(send)][work.unit(action.stage, m)] = {use.actor, 0};
      needed[transfer_place(receive)][work.unit(stage, m)] = {here.actor, 0};
    });
  });
  for_each_action(schedule, [&](const Action& action, Position here) {
    if (is_transfer(action.kind) && !needed[transfer_place(action.kind)][work.unit(action.stage, action.microbatch)])
      throw Error(concat(named(schedule, here), is_send(action.kind) ? " sends what no other actor needs" : " receives nothing"),
                  {concat("actor ", here.actor, is_send(action.kind) ? " alone has what needs it" : " makes all that is needed itself")},
                  "leave it out");
    if (!is_output(action.kind)) return;
    const auto [send, receive] = ends_of(action.kind);
    const std::size_t unit = work.unit(action.stage, action.microbatch);
    for (const Kind kind : {send, receive}) {
      const Position other = needed[transfer_place(kind)][unit];
      if (!other || work.transfers[transfer_place(kind)][unit]) continue;
      throw Error(concat(named(schedule, here), is_send(kind) ? " makes what actor " : " needs what actor ", other.actor,
                         is_send(kind) ? " needs, and " : " makes, and ", unit_text(schedule, action.stage, kind, action.microbatch),
                         " is missing"),
                  {"a table has the sends and receives of all its transfers, or none"},
                  concat("add it ", is_send(kind) ? "behind " : "ahead of ", text_at(schedule, here), ", or leave all of them out"));
    }
  });
}

// Checks that both ends of each pair start its transfers in one order.
void check_pairs(const WorkIndex& work) {
  const Schedule& schedule = *work.schedule;
  const std::vector<Parcel> parcels = parcels_of(work);
  std::map<std::pair<std::int32_t, std::int32_t>, std::array<std::vector<std::int32_t>, 2>> pairs;
  for (std::int32_t actor = 0; const std::vector<std::int32_t>& row : started(parcels, schedule.actors.size())) {
    for (const std::int32_t p : row) {
      const auto [low, high] = std::minmax(parcels[at(p)].send.actor, parcels[at(p)].to);
      pairs[{low, high}][actor == high].push_back(p);
    }
    ++actor;
  }
  const auto end_at = [&](std::int32_t p, std::int32_t actor) {
    return parcels[at(p)].to == actor ? parcels[at(p)].receive : parcels[at(p)].send;
  };
  for (const auto& [pair, orders] : pairs) {
    const auto [low, high] = pair;
    const auto [first, second] = std::ranges::mismatch(orders[0], orders[1]);
    if (first == orders[0].end()) continue;
    const Position here = end_at(*first, low), there = end_at(*second, high);
    throw Error(concat(named(schedule, here), ": actors ", low, " and ", high, " start their transfers in two orders"),
                {concat("at the same turn actor ", high, " has ", text_at(schedule, there), ", at ", place(schedule, there)),
                 "both ends start a pair's transfers, of both directions, in one order: over one queue each would wait for the other"},
                concat("move ", text_at(schedule, end_at(*first, high)), " ahead of ", text_at(schedule, there), " in row ", high + 1,
                       ", or ", text_at(schedule, here), " behind ", text_at(schedule, end_at(*second, low)), " in row ", low + 1));
  }
}

// When each action ends by the order of its row: what runs beside is as far as the row has come.
std::vector<std::vector<double>> row_ends(const Schedule& schedule, const TableTime& time) {
  std::vector<std::vector<double>> out = time.end;
  for (std::size_t a = 0; a < out.size(); ++a)
    for (std::size_t i = 0; i < out[a].size(); ++i)
      if (const Kind kind = schedule.actors[a][i].kind; is_host_copy(kind) || is_collective(kind)) out[a][i] = i > 0 ? out[a][i - 1] : 0;
  return out;
}

}  // namespace

std::vector<Parcel> parcels_of(const WorkIndex& work) {
  std::vector<Parcel> out;
  for_each_action(*work.schedule, [&](const Action& action, Position here) {
    if (!is_send(action.kind)) return;
    std::map<std::int32_t, Position> receives;  // by actor: the first
    const Position made = work.user_of(action);
    for_each_receiver(work, made, [&](Position use, std::int32_t stage, std::int32_t m) {
      const Position receive = work.transfers[transfer_place(ends_of(work.at(made).kind).receive)][work.unit(stage, m)];
      Position& first = receives.try_emplace(use.actor, receive).first->second;
      if (receive.index < first.index) first = receive;
    });
    for (const auto& [to, receive] : receives) out.push_back({here, receive, to});
  });
  return out;
}

Schedule without_transfers(Schedule schedule) {
  schedule.cells.clear();
  for (std::vector<Action>& row : schedule.actors) std::erase_if(row, [](const Action& action) { return is_transfer(action.kind); });
  return schedule;
}

Schedule with_sends(const Schedule& schedule, const StageShape& shape) {
  const WorkIndex work = index_work(schedule, shape, schedule.microbatches());
  Schedule out = schedule;
  out.cells.clear();
  bool has_all = schedule.steps == 1;
  for (std::int32_t actor = 0; std::vector<Action> & row : out.actors) {
    row.clear();
    for (std::int32_t i = 0; const Action& action : schedule.actors[at(actor)]) {
      const Position here{actor, i++};
      row.push_back(action);
      has_all = has_all && !action.fused_with_next && has_names(work, here);
      bool is_sent = false;
      for_each_receiver(work, here, [&](Position, std::int32_t, std::int32_t) { is_sent = true; });
      if (is_sent) row.push_back({action.stage, ends_of(action.kind).send, action.microbatch});
    }
    ++actor;
  }
  return has_all ? out : schedule;
}

Schedule with_receives(const Schedule& schedule, const StageShape& shape, const TableTime& time) {
  const WorkIndex work = index_work(schedule, shape, schedule.microbatches());
  const std::vector<std::vector<double>> ends = row_ends(schedule, time);
  std::vector<Position> order = time.order;
  std::ranges::stable_sort(order, {}, [&](Position p) { return ends[at(p.actor)][at(p.index)]; });
  Schedule out = schedule;
  out.cells.clear();
  for (std::vector<Action>& row : out.actors) row.clear();
  for (const Position here : order) {
    const Action& action = work.at(here);
    out.actors[at(here.actor)].push_back(action);
    if (!is_send(action.kind)) continue;
    const Position made = work.user_of(action);
    for_each_receiver(work, made, [&](Position use, std::int32_t stage, std::int32_t m) {
      out.actors[at(use.actor)].push_back({stage, ends_of(work.at(made).kind).receive, m});
    });
  }
  return out;
}

void check_transfers(const WorkIndex& work) {
  if (!work.has_transfers()) return;
  const Schedule& schedule = *work.schedule;
  if (schedule.steps > 1)
    throw Error(concat(title(schedule), ": a table for ", schedule.steps, " steps has sends and receives"),
                {"where transfers start is said in tables of one step"}, "leave them out");
  for_each_action(schedule, [&](const Action& action, Position here) {
    if (needs_microbatch(action.kind) && !has_names(work, here))
      throw Error(concat(named(schedule, here), " has transfers that no send names"),
                  {"in a table with sends and receives each action is of one micro-batch, and a W is where its I is"},
                  "leave out all sends and receives, or change it");
    if (is_transfer(action.kind)) check_place(work, here);
  });
  check_needed(work);
  check_pairs(work);
}

}  // namespace penstock
