// SPDX-License-Identifier: Apache-2.0
#include "driver/controller.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/machine.h"
#include "base/text.h"
#include "base/words.h"
#include "driver/holders.h"
#include "driver/memory_check.h"
#include "lower/move_state.h"
#include "lower/restore_state.h"
#include "penstock/error.h"
#include "program/memory_plan.h"
#include "program/piece.h"
#include "program/snapshot_name.h"
#include "program/verify.h"
#include "state/state_source.h"

namespace penstock {
namespace {

// An error that says no more than that another device failed, or none.
bool is_silent(const Reply& reply) {
  return reply.error.empty() || reply.aborted;
}

// Following who blames whom from `first` on: the one that blames nobody, else the first that blames a silent one; `first` in a circle.
const Reply* last_blamed(const std::vector<Reply>& replies, const Reply& first) {
  std::vector<const Reply*> reached{&first};
  const Reply* blames_silent = nullptr;
  for (std::size_t next = 0; next < reached.size(); ++next) {
    const Reply& one = *reached[next];
    bool blames = false;
    for (const std::int32_t peer : one.lost) {
      const Reply& other = replies.at(peer);
      if (&other == &one) continue;
      blames = true;
      if (is_silent(other)) {
        if (!blames_silent) blames_silent = &one;
      } else if (std::find(reached.begin(), reached.end(), &other) == reached.end()) {
        reached.push_back(&other);
      }
    }
    if (!blames) return &one;
  }
  return blames_silent ? blames_silent : &first;
}

// Whether it would be half done without the devices that were lost.
bool needs_all(Command::Kind kind) {
  using Kind = Command::Kind;
  return kind == Kind::load || kind == Kind::set_state || kind == Kind::step || kind == Kind::save_state || kind == Kind::persist;
}

// The error nearest to the cause: not that another device failed, and rather a lost device's own words than those of who lost it.
const Reply* cause(const std::vector<Reply>& replies) {
  const Reply* found = nullptr;
  for (const Reply& reply : replies)
    if (!reply.error.empty() && (!found || (found->aborted && !reply.aborted))) found = &reply;
  return found ? last_blamed(replies, *found) : nullptr;
}

// Where one of several is to blame: what is known of those that did not answer.
std::string silent_members(const std::vector<Reply>& replies, const Reply& failed) {
  std::string out;
  for (const std::int32_t peer : failed.lost)
    if (const Reply& other = replies.at(peer); failed.lost.size() > 1 && other.aborted && !other.lost.empty()) out += "\n  " + other.error;
  return out;
}

// The parts that hold state by their names, by tensor: whole or pieces, owned or copied.
using HeldState = std::map<std::string, std::map<std::string, HeldPiece>>;

HeldState state_of(const std::vector<HeldPiece>& parts) {
  HeldState out;
  for (const HeldPiece& part : parts) out[parse_piece(part.name).tensor].emplace(part.name, part);
  return out;
}

// A part goes on by its name: it must be the same.
void check_carried(std::size_t device, const HeldState& held, const HeldState& wanted) {
  for (const auto& [tensor, parts] : wanted) {
    const auto before = held.find(tensor);
    if (before == held.end()) continue;
    for (const auto& [name, part] : parts)
      if (const auto same = before->second.find(name); same != before->second.end() && same->second.type != part.type)
        throw Error(concat("device ", device, ": state ", quote(name), " is held as ", same->second.type.text(), ", the program wants ",
                           part.type.text()),
                    {}, "both programs must be of one model");
  }
}

// The fewest elements that a tensor can have of which devices hold parts.
std::int64_t held_elements(const std::vector<HeldState>& held, const std::string& tensor) {
  std::int64_t elements = 0;
  for (const HeldState& device : held)
    if (const auto parts = device.find(tensor); parts != device.end())
      for (const auto& [name, part] : parts->second) elements = std::max(elements, least_elements(parse_piece(name), part.type.elements()));
  return elements;
}

// From pieces in any order, of a tensor of at least so many elements.
std::vector<std::byte> put_together(const std::vector<OwnedState>& owned, std::int64_t elements) {
  std::vector<Piece> pieces;
  const std::int64_t size = byte_size(owned.front().dtype);
  for (const OwnedState& part : owned) {
    pieces.push_back(parse_piece(part.name));
    elements = std::max(elements, least_elements(pieces.back(), std::ssize(part.bytes) / size));
  }
  if (const std::string gap = gap_in(pieces, elements); !gap.empty())
    throw Error(concat("no device gave the elements ", gap, " of state ", quote(pieces.front().tensor)));
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (std::ssize(owned[i].bytes) != size * elements_of(pieces[i], elements))
      throw Error(concat("state ", quote(owned[i].name), " came with ", owned[i].bytes.size(), " bytes"));
  std::vector<std::byte> out;
  for (const PieceCopy& copy : cover(pieces, {}, elements)) {
    const auto from = owned[copy.piece].bytes.begin() + copy.from * size;
    out.insert(out.end(), from, from + copy.count * size);
  }
  return out;
}

std::vector<std::string> files_in(std::vector<Reply> replies) {
  std::vector<std::string> out;
  for (Reply& reply : replies)
    if (!reply.file.empty()) out.push_back(std::move(reply.file));
  return out;
}

constexpr std::int32_t kCome = -1, kGone = -2;  // in place of an old number

// The generation that these parts by device are of; none: there are none.
std::optional<int> generation_of(const std::vector<std::vector<HeldPiece>>& snapshot) {
  const auto any = std::ranges::find_if(snapshot, [](const auto& parts) { return !parts.empty(); });
  return any == snapshot.end() ? std::nullopt : std::optional(parse_snapshot_name(any->front().name)->generation);
}

class Controller : public Cluster {
 public:
  explicit Controller(std::unique_ptr<Carrier> carrier) : carrier_(std::move(carrier)) {}

  int devices() const override { return carrier_->devices(); }
  bool is_elastic() const override { return carrier_->is_elastic(); }
  bool has_failed() const override { return failed_ || stopped_; }
  int waiting() override { return carrier_->waiting(); }
  std::vector<std::int32_t> regroup() override;
  void restore(int generation) override;
  using Cluster::load;
  std::uint64_t load(std::shared_ptr<const Program> body) override;
  void unload(std::uint64_t program) override;
  void set_state(const StateSource& source) override;
  StepResult step(std::uint64_t program, const StepInput& input, bool record_spans) override;
  std::vector<std::string> save_state(const std::string& folder) override;
  std::vector<std::string> persist(int generation, const std::string& folder) override;
  std::vector<std::string> persisted() override;
  std::vector<std::byte> state(const std::string& name) override;
  std::map<std::string, SharedTensor> share_state() override;
  void check_state() const override;
  void begin_call(const std::string& call) override;
  void end_call(const Shared& results, const std::string& error) override;

 private:
  std::vector<Reply> exchange(const Command& command) { return exchange(std::vector<const Command*>(devices(), &command)); }
  std::vector<Reply> exchange(const std::vector<const Command*>& commands);
  void set_values(const StateSource& source);
  void make_ready();
  void move_to(std::uint64_t program);
  void move_to_all();
  void run_once(const std::shared_ptr<const Program>& move);
  void forget_replaced(std::uint64_t program);
  void forget(const std::vector<std::vector<std::string>>& names);
  void note_snapshot(std::vector<std::vector<HeldPiece>> kept);
  void after_failed_step(std::uint64_t program, const std::vector<Reply>& replies);

  std::unique_ptr<Carrier> carrier_;
  std::map<std::uint64_t, std::shared_ptr<const Program>> loaded_;      // by hash
  std::map<std::uint64_t, std::vector<std::vector<HeldPiece>>> keeps_;  // of those that keep a snapshot: its parts, by device
  std::vector<HeldState> held_;  // by device, of all programs that were loaded, but for what is forgotten
  // By generation and device, what was kept of a snapshot that is whole.
  std::array<std::vector<std::vector<HeldPiece>>, kGenerations> snapshots_;
  std::array<bool, kGenerations> is_whole_{};  // false: none was taken, or a step that failed had begun to write another over it
  Holders holders_;                            // which parts have the present value of what
  PlannedBytes held_bytes_;                    // that the devices here have
  bool failed_ = false;                        // the last step: devices are to be made ready for another
  bool stopped_ = false;                       // a device was lost, or could not be made ready: no more steps
  std::set<std::string> torn_;                 // what a step that failed had begun to write, and nobody has set since
};

std::vector<Reply> Controller::exchange(const std::vector<const Command*>& commands) {
  const bool is_step = commands.front() && commands.front()->kind == Command::Kind::step;
  if (stopped_ && std::ranges::any_of(commands, [](const Command* command) { return command && needs_all(command->kind); }))
    throw Error("the devices stopped after an earlier failure", {"one of them was lost"},
                "the state of those that are left can be read; begin again from a state that was kept");
  std::vector<Reply> replies = carrier_->exchange(commands);
  if (const Reply* failed = cause(replies)) {
    for (std::size_t d = 0; d < replies.size(); ++d) stopped_ = stopped_ || is_gone(replies[d], d);
    if (is_step) after_failed_step(commands.front()->program, replies);
    throw Error(failed->error + silent_members(replies, *failed));
  }
  return replies;
}

// Where no device had begun to write state, all of it is as it was before the step. A move writes only what has no value yet.
void Controller::after_failed_step(std::uint64_t program, const std::vector<Reply>& replies) {
  if (loaded_.contains(program) && std::ranges::any_of(replies, &Reply::wrote)) torn_ = holders_.updated(program);
  if (const auto kept = keeps_.find(program); kept != keeps_.end()) is_whole_[*generation_of(kept->second)] = false;
  failed_ = true;
}

void Controller::check_state() const {
  if (torn_.empty()) return;
  throw Error("a step failed after it had begun to write the state, so what the devices hold is of no step",
              {concat(counted(std::ssize(torn_), "tensor"), " that it updates, such as ", quote(*torn_.begin()))},
              "set all of them from a state that was kept, or begin again from it");
}

// Gives each device what it had under its old number, and leaves in `of_device` what those had that are gone.
template <class T>
std::vector<T> renumbered(std::vector<T>& of_device, const std::vector<std::int32_t>& from) {
  std::vector<T> out(from.size());
  for (std::size_t d = 0; d < from.size(); ++d)
    if (from[d] >= 0 && static_cast<std::size_t>(from[d]) < of_device.size()) out[d] = std::exchange(of_device[from[d]], {});
  return out;
}

std::vector<std::int32_t> Controller::regroup() {
  const std::vector<std::int32_t> from = carrier_->regroup();
  std::vector<HeldState> held = renumbered(held_, from);
  for (const HeldState& lost : held_)
    for (const auto& [tensor, names] : lost) torn_.insert(tensor);
  held_ = std::move(held);
  for (auto& snapshot : snapshots_) snapshot = renumbered(snapshot, from);
  loaded_.clear();
  keeps_.clear();
  holders_.regroup(from);
  failed_ = stopped_ = false;
  return from;
}

std::uint64_t Controller::load(std::shared_ptr<const Program> body) {
  const Program& program = *body;
  const std::uint64_t key = hash(program);
  if (loaded_.contains(key)) return key;
  if (program.devices.size() > static_cast<std::size_t>(devices()))
    throw Error(concat("program ", program.name, " needs ", program.devices.size(), " devices, there are ", devices()), {},
                concat("start ", program.devices.size(), " processes, or take a schedule of ", devices(), " actors"));
  verify(program);
  if (!has_memory_plan(program))
    throw Error(concat("program ", program.name, " has no memory plan, so it cannot run"), {"its slots have no places"},
                "lower it again: penstock compile --emit program plans its memory");
  const std::size_t here = carrier_->devices_here();
  check_room(program, here, held_bytes_, {memory_room(), carrier_->device_room()});
  held_.resize(devices());
  std::vector<HeldState> wanted;
  for (const std::vector<HeldPiece>& parts : held_by(program)) {
    wanted.push_back(state_of(parts));
    check_carried(wanted.size() - 1, held_[wanted.size() - 1], wanted.back());
  }
  exchange({.kind = Command::Kind::load, .program = key, .body = body});
  const PlannedBytes planned = planned_bytes(program, here);  // one program after the other has the same memory
  held_bytes_ = {std::max(held_bytes_.devices, planned.devices), std::max(held_bytes_.host, planned.host)};
  loaded_[key] = body;
  if (std::vector<std::vector<HeldPiece>> kept = snapshot_of(program); generation_of(kept)) keeps_[key] = std::move(kept);
  for (std::size_t d = 0; d < wanted.size(); ++d)
    for (auto& [tensor, parts] : wanted[d]) held_[d][tensor].merge(parts);
  holders_.load(key, program);
  return key;
}

void Controller::unload(std::uint64_t program) {
  if (loaded_.erase(program) == 0) return;
  keeps_.erase(program);
  holders_.unload(program);
  exchange({.kind = Command::Kind::unload, .program = program});
}

void Controller::set_state(const StateSource& source) {
  if (source.kind == StateSource::Kind::values) return set_values(source);
  exchange({.kind = Command::Kind::set_state, .source = source});
  holders_.set_all();
  torn_.clear();
  for (const auto& [key, wanted] : loaded_) forget_replaced(key);
}

// One device after the other, so that no more than one device's values lie here beside the source.
void Controller::set_values(const StateSource& source) {
  StateReader reader(source);
  for (std::size_t d = 0; d < held_.size(); ++d) {
    Command command{.kind = Command::Kind::set_state, .source = {.kind = source.kind}};
    for (const auto& [tensor, parts] : held_[d]) {
      if (const auto stored = source.files.find(tensor); stored != source.files.end()) command.source.files.insert(*stored);
      if (!source.values.contains(tensor)) continue;
      for (const auto& [name, part] : parts) {
        std::vector<std::byte>& bytes = command.source.values[name];
        bytes.resize(part.type.bytes());
        reader.read(name, part.type, bytes);
      }
    }
    std::vector<const Command*> commands(devices());
    commands[d] = &command;
    exchange(commands);
  }
  const auto is_set = [&](const std::string& tensor) {
    holders_.set(tensor);
    torn_.erase(tensor);
  };
  for (const auto& entry : source.values) is_set(entry.first);
  for (const auto& entry : source.files) is_set(entry.first);
}

// Gives the program the present value of all that it has.
void Controller::move_to(std::uint64_t program) {
  if (holders_.outdated(program).empty()) return;
  std::vector<std::vector<HeldPiece>> present(held_.size());
  for (std::size_t d = 0; d < held_.size(); ++d)
    for (const auto& [tensor, parts] : held_[d])
      for (const auto& [name, part] : parts)
        if (!holders_.is_behind(tensor, {d, name})) present[d].push_back(part);
  if (Program move = move_state(present, *loaded_.at(program)); !move.devices.empty())
    run_once(std::make_shared<const Program>(std::move(move)));
  holders_.moved(program);
  forget_replaced(program);
}

// A program that does not stay, whatever comes of it.
void Controller::run_once(const std::shared_ptr<const Program>& move) {
  check_room(*move, carrier_->devices_here(), held_bytes_, {memory_room(), carrier_->device_room()});
  make_ready();
  const std::uint64_t key = hash(*move);
  const Command unload{.kind = Command::Kind::unload, .program = key};
  exchange({.kind = Command::Kind::load, .program = key, .body = move});
  try {
    exchange({.kind = Command::Kind::step, .program = key});
  } catch (...) {
    carrier_->exchange(std::vector<const Command*>(devices(), &unload));
    throw;
  }
  exchange(unload);
}

void Controller::move_to_all() {
  for (const auto& [program, body] : loaded_) move_to(program);
}

// Parts that no loaded program has, of tensors that this one has in others, with their present values.
void Controller::forget_replaced(std::uint64_t program) {
  std::vector<std::vector<std::string>> replaced(held_.size());
  for (std::size_t d = 0; d < held_.size(); ++d)
    for (auto& [tensor, parts] : held_[d]) {
      if (!holders_.has(program, tensor)) continue;
      std::erase_if(parts, [&](const auto& held) {
        if (holders_.any_has(tensor, {d, held.first})) return false;
        replaced[d].push_back(held.first);
        holders_.forget(tensor, {d, held.first});
        return true;
      });
    }
  forget(replaced);
}

void Controller::forget(const std::vector<std::vector<std::string>>& names) {
  std::vector<Command> forgets;
  for (const std::vector<std::string>& of_device : names) forgets.push_back({.kind = Command::Kind::forget, .names = of_device});
  std::vector<const Command*> commands;
  for (const Command& forget : forgets) commands.push_back(forget.names.empty() ? nullptr : &forget);
  if (std::ranges::any_of(commands, [](const Command* command) { return command != nullptr; })) exchange(commands);
}

// Parts of an older one of its generation, which lay otherwise, are forgotten.
void Controller::note_snapshot(std::vector<std::vector<HeldPiece>> kept) {
  kept.resize(static_cast<std::size_t>(devices()));
  const int generation = *generation_of(kept);
  is_whole_[generation] = true;
  auto& before = snapshots_[generation];
  std::vector<std::vector<std::string>> left(kept.size());
  for (std::size_t d = 0; d < before.size(); ++d) {
    std::set<std::string_view> names;
    for (const HeldPiece& part : kept[d]) names.insert(part.name);
    for (const HeldPiece& part : before[d])
      if (!names.contains(part.name)) left[d].push_back(part.name);
  }
  before = std::move(kept);
  forget(left);
}

// The snapshot is written into the state as it lay then, and moved from there.
void Controller::restore(int generation) {
  const auto& snapshot = snapshots_[generation];
  if (!is_whole_[generation]) throw Error(concat("there is no whole snapshot of generation ", generation));
  std::vector<std::vector<HeldPiece>> present;
  for (const auto& [key, wanted] : loaded_) {
    if (present.empty()) {
      const auto reload = std::make_shared<const Program>(restore_state(snapshot, *wanted));
      run_once(reload);
      present = held_by(*reload);
    }
    if (Program move = move_state(present, *wanted); !move.devices.empty()) run_once(std::make_shared<const Program>(std::move(move)));
    holders_.moved(key);
    const std::vector<std::vector<HeldPiece>> made = held_by(*wanted);
    for (std::size_t d = 0; d < made.size(); ++d)
      for (const HeldPiece& part : made[d])
        if (std::ranges::find(present[d], part.name, &HeldPiece::name) == present[d].end()) present[d].push_back(part);
  }
  for (std::size_t d = 0; d < present.size(); ++d)
    for (const HeldPiece& part : present[d]) held_[d][parse_piece(part.name).tensor].emplace(part.name, part);
  torn_.clear();
  for (const auto& [key, wanted] : loaded_) forget_replaced(key);
}

void Controller::begin_call(const std::string& call) {
  exchange({.kind = Command::Kind::begin_call, .text = call});
}

void Controller::end_call(const Shared& results, const std::string& error) {
  carrier_->tell({.kind = Command::Kind::end_call, .results = results, .error = error});
}

void Controller::make_ready() {
  if (failed_ && !stopped_) stopped_ = carrier_->is_elastic() || !carrier_->recover();
  failed_ = false;
}

StepResult Controller::step(std::uint64_t program, const StepInput& input, bool record_spans) {
  const auto loaded = loaded_.find(program);
  if (loaded == loaded_.end()) throw Error("a step of a program that was never loaded");
  check_state();
  make_ready();
  move_to(program);
  const Command command{.kind = Command::Kind::step, .program = program, .input = input, .record_spans = record_spans};
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Reply> replies = exchange(command);
  holders_.stepped(program);
  if (const auto kept = keeps_.find(program); kept != keeps_.end()) note_snapshot(kept->second);
  StepResult result;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const Reply& reply : replies) result.stopping = result.stopping || reply.stopping;
  for (std::size_t device = 0; device < loaded->second->devices.size(); ++device) {
    const std::size_t instructions = loaded->second->devices[device].instructions.size();
    for (const Span& span : replies[device].report.spans)
      if (span.instruction >= instructions)
        throw Error(concat("device ", device, " reports on instruction ", span.instruction, " of ", instructions));
    result.outputs.merge(replies[device].outputs);
    result.devices.push_back(std::move(replies[device].report));
  }
  return result;
}

std::vector<std::string> Controller::save_state(const std::string& folder) {
  check_state();
  move_to_all();
  return files_in(exchange({.kind = Command::Kind::save_state, .text = folder}));
}

std::vector<std::string> Controller::persist(int generation, const std::string& folder) {
  std::vector<Command> commands(static_cast<std::size_t>(devices()), {.kind = Command::Kind::persist, .text = folder});
  for (std::size_t d = 0; d < snapshots_[generation].size(); ++d)
    for (const HeldPiece& part : snapshots_[generation][d])
      if (part.kind == SlotClass::state) commands[d].names.push_back(part.name);
  std::vector<const Command*> each;
  for (const Command& command : commands) each.push_back(&command);
  return files_in(exchange(each));
}

std::vector<std::string> Controller::persisted() {
  return files_in(exchange({.kind = Command::Kind::persisted}));
}

std::vector<std::byte> Controller::state(const std::string& name) {
  check_state();
  const std::string tensor = parse_piece(name).tensor;
  if (const auto program = holders_.outdated_in_all(tensor); program && !stopped_) move_to(*program);
  const Command command{.kind = Command::Kind::state, .text = name};
  std::vector<OwnedState> owned;
  std::size_t device = 0;
  for (Reply& reply : exchange(command)) {
    for (OwnedState& state : reply.state) {
      if (holders_.is_behind(tensor, {device, state.name})) continue;
      if (state.name == name) return std::move(state.bytes);
      owned.push_back(std::move(state));
    }
    ++device;
  }
  if (!owned.empty()) return put_together(owned, held_elements(held_, tensor));
  throw Error(concat(stopped_ ? "no device that is left" : "no device", " has a state named ", quote(name)));
}

std::map<std::string, SharedTensor> Controller::share_state() {
  if (torn_.empty()) move_to_all();
  std::map<std::string, SharedTensor> out;
  for (Reply& reply : exchange({.kind = Command::Kind::share_state})) out.merge(reply.shared);
  return out;
}

}  // namespace

bool is_gone(const Reply& reply, std::size_t device) {
  return std::ranges::find(reply.lost, static_cast<std::int32_t>(device)) != reply.lost.end();
}

std::vector<std::int32_t> numbered_anew(std::size_t devices, const std::set<std::size_t>& gone, std::size_t come) {
  std::vector<std::int32_t> out;
  for (std::size_t d = 0; d < devices; ++d) out.push_back(gone.contains(d) ? kGone : static_cast<std::int32_t>(d));
  out.insert(out.end(), come, kCome);
  for (std::size_t d = 0; d < out.size(); ++d) {
    while (!out.empty() && out.back() == kGone) out.pop_back();
    if (d >= out.size() || out[d] != kGone) continue;
    out[d] = out.back();
    out.pop_back();
  }
  return out;
}

std::unique_ptr<Cluster> make_cluster(std::unique_ptr<Carrier> carrier) {
  return std::make_unique<Controller>(std::move(carrier));
}

}  // namespace penstock
