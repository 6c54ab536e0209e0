// SPDX-License-Identifier: Apache-2.0
//   device 0 holds w[0:6]    device 1 holds w[6:12]     wanted: "w" on device 0, w[4:12] on device 2
//
//   0: run @pack2(%w[0:6]) -> store %to2      1: run @pack0(%w[6:12]) -> store %to0       2:
//                                                run @pack2(%w[6:12]) -> store %to2
//      send %to2 to 2, recv %from1 from 1        send %to0 to 0, send %to2 to 2              recv %from0, recv %from1
//      run @make(%w[0:6], %from1) -> update %w                                              run @make(%from0, %from1) -> update %w[4:12]
//
// Each such round has one message at most for a pair of devices and direction, and moves so many bytes that what is on its way, or lies
// packed, is little beside a model. All devices start a round's transfers in one order, behind what they pack for it.
#include "lower/move_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "lower/gather_elements.h"
#include "penstock/error.h"
#include "penstock/trace.h"
#include "program/memory_plan.h"
#include "program/piece.h"
#include "program/state_parts.h"
#include "program/verify.h"

namespace penstock {
namespace {

constexpr std::int64_t kRoundBytes = std::int64_t{64} << 20;  // that a device makes or sends in a round, and one part more

// A held part that elements of a tensor are taken from.
struct Source {
  std::int32_t device = 0;
  const HeldPiece* part = nullptr;
  Piece piece;
};
using Sources = std::map<std::string, std::vector<Source>>;  // by tensor, in the order of the devices

// Which held part is a source of which tensor.
Sources sources_of(const std::vector<std::vector<HeldPiece>>& held) {
  Sources out;
  for (std::size_t d = 0; d < held.size(); ++d)
    for (const HeldPiece& part : held[d]) {
      Piece piece = parse_piece(part.name);
      out[piece.tensor].push_back({static_cast<std::int32_t>(d), &part, std::move(piece)});
    }
  return out;
}

// A part that a device gets.
struct MadePart {
  std::int32_t device = 0;
  SlotId slot;
  const checks::StatePart* wanted = nullptr;
  const std::vector<Source>* sources = nullptr;  // of its tensor
  std::vector<PieceCopy> copies{};               // all of it, in order, from these
};

void check_sources(const std::vector<Source>& sources, const checks::StatePart& owner, std::int64_t elements) {
  for (const Source& source : sources) {
    const TensorType& type = source.part->type;
    const bool same = source.piece.whole() && owner.piece.whole()
                          ? type == *owner.type
                          : type.dtype == owner.type->dtype && fits(source.piece, elements, type.elements());
    if (!same)
      throw Error(concat("state ", quote(owner.piece.tensor), " cannot go on from one program to the other"),
                  {concat("device ", source.device, " holds ", source.part->name, " as ", type.text()),
                   concat("the next program has ", *owner.name, " as ", owner.type->text(), ", of ", elements, " elements")},
                  "both programs must be of one model");
  }
}

// The tensor's sources as a device prefers them: its own, then those of devices that have sent less.
std::vector<std::size_t> in_order(const std::vector<Source>& sources, std::int32_t device, const std::vector<std::int64_t>& sent) {
  std::vector<std::size_t> order(sources.size());
  for (std::size_t s = 0; s < order.size(); ++s) order[s] = s;
  std::ranges::stable_sort(order, {}, [&](std::size_t s) {
    const std::int32_t from = sources[s].device;
    return from == device ? std::tuple(false, std::int64_t{0}, from) : std::tuple(true, sent[from], from);
  });
  return order;
}

// The next elements of a run of what is wanted: from the first of the sources that has them, as many as it has in a row, but none that a
// source on the device itself has. `count` is 0: nobody has the first of them.
PieceCopy next_copy(const MadePart& made, const std::vector<std::size_t>& order, const PieceRun& run, std::int64_t elements) {
  std::int64_t end = run.end;
  for (const std::size_t s : order) {
    const Source& source = (*made.sources)[s];
    const PieceRun held = run_from(source.piece, elements, run.begin);
    if (held.size() > 0 && held.begin == run.begin) return {s, held.at, run.at, std::min(held.end, end) - run.begin};
    if (held.size() > 0 && source.device == made.device) end = std::min(end, held.begin);
  }
  return {};
}

[[noreturn]] void fail_gap(const MadePart& made, PieceRun run, std::int64_t elements) {
  for (const Source& source : *made.sources) run.end = std::min(run.end, run_from(source.piece, elements, run.begin).begin);
  throw Error(concat("no device holds the elements ", piece_name("", run.begin, run.end), " of state ", quote(made.wanted->piece.tensor)),
              {concat("device ", made.device, " is to have them, in ", *made.wanted->name)}, "begin again from a checkpoint");
}

void choose_sources(MadePart& made, std::int64_t elements, std::vector<std::int64_t>& sent) {
  const std::vector<std::size_t> order = in_order(*made.sources, made.device, sent);
  for_each_run(made.wanted->piece, elements, [&](PieceRun run) {
    while (run.size() > 0) {
      const PieceCopy copy = next_copy(made, order, run, elements);
      if (copy.count == 0) fail_gap(made, run, elements);
      made.copies.push_back(copy);
      run.begin += copy.count;
      run.at += copy.count;
      if (const std::int32_t from = (*made.sources)[copy.piece].device; from != made.device)
        sent[from] += copy.count * byte_size(made.wanted->type->dtype);
    }
  });
}

// A run in the making: for each part of its results elements of its operands' parts.
struct Gathering {
  std::vector<SlotId> operands{};
  std::vector<TensorType> inputs{};                // the operands' parts
  std::map<SlotId, std::size_t> first{};           // of each operand, its first part among these
  std::vector<std::vector<PieceCopy>> gathered{};  // from these
  std::vector<TensorType> types{};                 // of what is gathered

  std::size_t input_of(const DeviceProgram& device, SlotId slot) {
    const auto [known, is_new] = first.try_emplace(slot, inputs.size());
    if (is_new) {
      operands.push_back(slot);
      inputs.insert(inputs.end(), device.slots[slot].parts.begin(), device.slots[slot].parts.end());
    }
    return known->second;
  }
  void begin(const TensorType& type) {
    types.push_back(type);
    gathered.emplace_back();
  }
  void take(std::size_t input, std::int64_t from, std::int64_t count) {
    std::vector<PieceCopy>& copies = gathered.back();
    if (!copies.empty() && copies.back().piece == input && copies.back().from + copies.back().count == from)
      copies.back().count += count;
    else
      copies.push_back({input, from, 0, count});
  }
};

// The program in the making.
class Move {
 public:
  explicit Move(std::size_t devices) : slots_(devices) {
    program_.name = "move_state";
    program_.devices.resize(devices);
  }

  // The slot of a state on a device, which is added the first time.
  SlotId state(std::int32_t device, const std::string& name, const TensorType& type, SlotClass kind) {
    const auto [known, is_new] = slots_[device].try_emplace(name);
    if (!is_new) return known->second;
    known->second = add_slot(device, name, {type});
    Slot& slot = program_.devices[device].slots.back();
    slot.kind = kind;
    slot.names = {name};
    return known->second;
  }
  void add_round(const std::vector<MadePart>& parts);
  Program finish() {
    plan_memory(program_);
    verify(program_, {ChannelModel::serial, -1});
    return std::move(program_);
  }

 private:
  struct Message {
    Gathering packed{};
    SlotId sent, received;
    std::size_t begun = 0;  // of its parts, of those that are unpacked
  };
  using Messages = std::map<std::pair<std::int32_t, std::int32_t>, Message>;  // by sender and receiver

  SlotId add_slot(std::int32_t device, const std::string& name, std::vector<TensorType> parts) {
    Slot& slot = program_.devices[device].slots.emplace_back();
    slot.name = name;
    slot.parts = std::move(parts);
    return SlotId(program_.devices[device].slots.size() - 1);
  }
  SlotId source_slot(const Source& source) { return state(source.device, source.part->name, source.part->type, SlotClass::copy); }
  void pack(const MadePart& part, Messages& messages);
  void unpack(const MadePart& part, Messages& messages, Gathering& out);
  void start(Messages& messages);
  void add_run(std::int32_t device, const std::string& name, const Gathering& gathering, const std::vector<Result>& results);
  void add(std::int32_t device, const Instruction& instruction) { program_.devices[device].instructions.push_back(instruction); }

  Program program_;
  std::vector<std::map<std::string, SlotId>> slots_;                    // of states, by device
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> tags_;  // of the next message
};

// A part in a message has all that one part takes of the sender's.
void Move::pack(const MadePart& part, Messages& messages) {
  std::map<std::int32_t, std::int64_t> counts;  // by sender
  for (const PieceCopy& copy : part.copies)
    if (const std::int32_t from = (*part.sources)[copy.piece].device; from != part.device) counts[from] += copy.count;
  for (const auto& [from, count] : counts) messages[{from, part.device}].packed.begin({part.wanted->type->dtype, {count}});
  for (const PieceCopy& copy : part.copies) {
    const Source& source = (*part.sources)[copy.piece];
    if (source.device == part.device) continue;
    Gathering& packed = messages.at({source.device, part.device}).packed;
    packed.take(packed.input_of(program_.devices[source.device], source_slot(source)), copy.from, copy.count);
  }
}

void Move::start(Messages& messages) {
  for (auto& [pair, message] : messages) {
    const auto [from, to] = pair;
    const std::int32_t tag = tags_[pair]++;
    message.sent = add_slot(from, concat("to", to, "#", tag), message.packed.types);
    message.received = add_slot(to, concat("from", from, "#", tag), message.packed.types);
    add_run(from, concat("pack.", from, ".", to, ".", tag), message.packed, {{message.sent}});
  }
  for (const auto& [pair, message] : messages) {
    const std::int32_t tag = tags_.at(pair) - 1;
    add(pair.first, {.opcode = Opcode::send, .slot = message.sent, .peer = pair.second, .tag = tag});
    add(pair.second, {.opcode = Opcode::recv, .slot = message.received, .peer = pair.first, .tag = tag});
  }
}

// Parts are unpacked in the order in which they were packed.
void Move::unpack(const MadePart& part, Messages& messages, Gathering& out) {
  std::map<std::int32_t, std::pair<std::size_t, std::int64_t>> arrived;  // by sender: the input of the run, and how much of it is taken
  const DeviceProgram& device = program_.devices[part.device];
  out.begin(*part.wanted->type);
  for (const PieceCopy& copy : part.copies) {
    const Source& source = (*part.sources)[copy.piece];
    if (source.device == part.device) {
      out.take(out.input_of(device, source_slot(source)), copy.from, copy.count);
      continue;
    }
    const auto [at, is_new] = arrived.try_emplace(source.device);
    Message& message = messages.at({source.device, part.device});
    auto& [input, taken] = at->second;
    if (is_new) input = out.input_of(device, message.received) + message.begun++;
    out.take(input, taken, copy.count);
    taken += copy.count;
  }
}

void Move::add_run(std::int32_t device, const std::string& name, const Gathering& gathering, const std::vector<Result>& results) {
  std::vector<std::pair<std::string, TensorType>> inputs;
  for (const TensorType& type : gathering.inputs) inputs.emplace_back(concat("x", inputs.size()), type);
  Graph graph = trace(name, inputs, [&](const std::vector<Tensor>& tensors) {
    std::vector<Tensor> outputs;
    for (std::size_t g = 0; g < gathering.gathered.size(); ++g)
      outputs.push_back(gather_elements(tensors, gathering.gathered[g], gathering.types[g].shape));
    return outputs;
  });
  DeviceProgram& of = program_.devices[device];
  add(device, {.task = TaskId(program_.tasks.size()),
               .first_operand = static_cast<std::uint32_t>(of.operands.size()),
               .operands = static_cast<std::uint32_t>(gathering.operands.size()),
               .first_result = static_cast<std::uint32_t>(of.results.size()),
               .results = static_cast<std::uint32_t>(results.size())});
  of.operands.insert(of.operands.end(), gathering.operands.begin(), gathering.operands.end());
  of.results.insert(of.results.end(), results.begin(), results.end());
  program_.tasks.push_back({name, std::move(graph)});
}

void Move::add_round(const std::vector<MadePart>& parts) {
  Messages messages;
  for (const MadePart& part : parts) pack(part, messages);
  start(messages);
  std::map<std::int32_t, Gathering> made;  // by device
  std::map<std::int32_t, std::vector<Result>> results;
  for (const MadePart& part : parts) {
    unpack(part, messages, made[part.device]);
    results[part.device].push_back({part.slot, ResultMode::update});
  }
  for (const auto& [device, gathering] : made) add_run(device, concat("make.", program_.tasks.size()), gathering, results.at(device));
  for (const auto& [pair, message] : messages) {
    add(pair.first, {.opcode = Opcode::free, .slot = message.sent});
    add(pair.second, {.opcode = Opcode::free, .slot = message.received});
  }
}

// Collects parts for the next round until a device has enough to do.
class Rounds {
 public:
  Rounds(Move& move, std::size_t devices) : move_(move), bytes_(devices) {}

  void add(MadePart part) {
    std::int64_t most = bytes_[part.device] += part.wanted->type->bytes();
    for (const PieceCopy& copy : part.copies)
      if (const std::int32_t from = (*part.sources)[copy.piece].device; from != part.device)
        most = std::max(most, bytes_[from] += copy.count * byte_size(part.wanted->type->dtype));
    parts_.push_back(std::move(part));
    if (most >= kRoundBytes) flush();
  }
  void flush() {
    if (!parts_.empty()) move_.add_round(parts_);
    parts_.clear();
    std::ranges::fill(bytes_, 0);
  }

 private:
  Move& move_;
  std::vector<MadePart> parts_;
  std::vector<std::int64_t> bytes_;  // by device, of the round
};

// The wanted parts of a tensor that are not where they are to be, owned ones first.
std::vector<const checks::StatePart*> missing_parts(const std::vector<std::set<std::string_view>>& held,
                                                    const std::vector<checks::StatePart>& owners,
                                                    const std::vector<checks::StatePart>& copies) {
  std::vector<const checks::StatePart*> out;
  for (const auto* parts : {&owners, &copies})
    for (const checks::StatePart& part : *parts)
      if (part.type->elements() > 0 && !held[part.device].contains(*part.name)) out.push_back(&part);
  return out;
}

}  // namespace

std::vector<std::vector<HeldPiece>> held_by(const Program& program) {
  std::vector<std::vector<HeldPiece>> out(program.devices.size());
  for (std::size_t d = 0; d < out.size(); ++d)
    for (const Slot& slot : program.devices[d].slots)
      if (holds_state(slot.kind))
        for (std::size_t p = 0; p < slot.names.size(); ++p) out[d].push_back({slot.names[p], slot.parts[p], slot.kind});
  return out;
}

Program move_state(const std::vector<std::vector<HeldPiece>>& held, const Program& wanted) {
  const std::size_t devices = std::max(held.size(), wanted.devices.size());
  std::vector<std::set<std::string_view>> names(devices);
  for (std::size_t d = 0; d < held.size(); ++d)
    for (const HeldPiece& part : held[d]) names[d].insert(part.name);
  Sources sources = sources_of(held);
  const checks::StateParts all_owners = checks::state_parts(wanted, SlotClass::state);
  checks::StateParts all_copies = checks::state_parts(wanted, SlotClass::copy);
  Move move(devices);
  Rounds rounds(move, devices);
  std::vector<std::int64_t> sent(devices);
  bool moves = false;
  for (const auto& [tensor, owners] : all_owners) {
    const std::vector<const checks::StatePart*> missing = missing_parts(names, owners, all_copies[tensor]);
    if (missing.empty()) continue;
    moves = true;
    const std::int64_t elements = checks::whole_elements(owners);
    check_sources(sources[tensor], owners.front(), elements);
    const auto slot_of = [&](const checks::StatePart& part) {
      const SlotClass kind = wanted.devices[part.device].slots[part.slot].kind;
      return move.state(static_cast<std::int32_t>(part.device), *part.name, *part.type, kind);
    };
    for (const checks::StatePart& owner : owners) slot_of(owner);
    for (const checks::StatePart* part : missing) {
      MadePart made{static_cast<std::int32_t>(part->device), slot_of(*part), part, &sources[tensor]};
      choose_sources(made, elements, sent);
      rounds.add(std::move(made));
    }
  }
  rounds.flush();
  return moves ? move.finish() : Program();
}

}  // namespace penstock
