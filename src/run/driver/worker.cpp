// SPDX-License-Identifier: Apache-2.0
#include "driver/worker.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/invariant.h"
#include "base/text.h"
#include "formats/safetensors.h"
#include "program/piece.h"
#include "program/snapshot_name.h"
#include "state/state_source.h"

namespace penstock {

Worker::Worker(int device, std::unique_ptr<Executor> executor, std::unique_ptr<Transport> transport, std::shared_ptr<const DataSource> data,
               std::shared_ptr<Commit> commit, std::chrono::nanoseconds deadline, Connect connect)
    : device_(device),
      executor_(std::move(executor)),
      transport_(std::move(transport)),
      data_(std::move(data)),
      commit_(std::move(commit)),
      deadline_(deadline),
      connect_(std::move(connect)) {}

Reply Worker::obey(const Command& command) {
  Reply reply;
  try {
    obey(command, reply);
  } catch (const Aborted& error) {
    reply.aborted = true;
    reply.error = error.what();
  } catch (const PeerLost& error) {
    reply.lost = error.peers();
    reply.error = error.what();
  } catch (const std::bad_alloc&) {
    reply.error =
        concat("device ", device_, " found no memory left\n  hint: a smaller model or batch, more micro-batches, or --recompute inputs");
  } catch (const std::exception& error) {
    reply.error = error.what();
  }
  if (command.kind == Command::Kind::step) reply.wrote = commit_->begun();
  return reply;
}

void Worker::obey(const Command& command, Reply& reply) {
  switch (command.kind) {
    case Command::Kind::load:
      if (static_cast<std::size_t>(device_) >= command.body->devices.size()) return;
      if (programs_.emplace(command.program, command.body).second) order_.push_back(command.program);
      return bind(command.program);
    case Command::Kind::unload:
      runners_.erase(command.program);
      programs_.erase(command.program);
      std::erase(order_, command.program);
      if (bound_ == command.program) is_bound_ = false;  // its equal may be loaded next, whose instructions lie elsewhere
      return;
    case Command::Kind::set_state:
      return set_state(command.source);
    case Command::Kind::step:
      return step(command, reply);
    case Command::Kind::save_state:
      return save_state(command.text, reply);
    case Command::Kind::persist:
      return persist(command, reply);
    case Command::Kind::persisted:
      if (persisted_.valid() && !persists()) reply.file = persisted_.get();
      return;
    case Command::Kind::state:
      reply.state = find_state(command.text);
      return;
    case Command::Kind::share_state:
      reply.shared = share_state();
      return;
    case Command::Kind::forget:
      executor_->forget(command.names);
      is_bound_ = false;
      return;
    case Command::Kind::disconnect:
      runners_.clear();
      transport_.reset();
      stopped_ = true;
      return;
    case Command::Kind::reconnect:
      return reconnect(command);
    case Command::Kind::begin_call:
    case Command::Kind::end_call:
    case Command::Kind::stop:
      return;
  }
}

// Under another number the device has other parts of programs: it forgets those that it has, and keeps its state.
void Worker::reconnect(const Command& command) {
  runners_.clear();
  transport_.reset();
  if (command.device >= 0) {
    device_ = command.device;
    programs_.clear();
    order_.clear();
    is_bound_ = false;
  }
  transport_ = connect_(command);
  stopped_ = executor_->lanes() && !executor_->lanes()->goes_on();
}

void Worker::bind(std::uint64_t program) {
  if (is_bound_ && bound_ == program) return;
  is_bound_ = false;
  executor_->load(programs_.at(program), device_);
  // Only what an asynchronous device has recorded is worth being kept.
  if (const std::uint64_t placement = executor_->placement();
      std::exchange(placement_, placement) != placement || !executor_->asynchronous())
    runners_.clear();
  bound_ = program;
  is_bound_ = true;
}

void Worker::step(const Command& command, Reply& reply) {
  const auto program = programs_.find(command.program);
  if (program == programs_.end()) return;
  if (stopped_) throw Error("the device stopped after an earlier failure");
  bind(command.program);
  std::unique_ptr<DeviceRunner>& runner = runners_[command.program];
  if (!runner) runner = std::make_unique<DeviceRunner>(program->second, device_, *executor_, *transport_, *data_, *commit_, deadline_);
  try {
    reply.report = runner->step(command.input, command.record_spans);
  } catch (const NotRecorded&) {
    throw;
  } catch (...) {
    runners_.clear();
    stopped_ = executor_->lanes() && !executor_->lanes()->goes_on();
    throw;
  }
  for (const DeviceRunner::Output& output : runner->outputs())
    reply.outputs[program->second->outputs[output.port].name].assign(output.bytes.begin(), output.bytes.end());
}

std::vector<Worker::Part> Worker::state_parts() const {
  std::vector<Part> parts;
  const std::vector<Slot>& slots = programs_.at(bound_)->devices[device_].slots;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    if (!holds_state(slots[s].kind)) continue;
    for (std::size_t p = 0; p < slots[s].parts.size(); ++p)
      parts.push_back({slots[s].names[p], slots[s].parts[p], slots[s].kind == SlotClass::state, SlotId(s),
                       static_cast<std::size_t>(part_offset(slots[s], p))});
  }
  return parts;
}

void Worker::complete(Event event) {
  if (event != kNoEvent && !executor_->wait(event, std::chrono::steady_clock::now() + deadline_))
    throw Error(concat("device ", device_, " waited longer than the deadline of ", std::chrono::duration<double>(deadline_).count(),
                       " s for a copy of its state"),
                {}, "raise the deadline if a copy may take that long");
}

std::vector<std::byte> Worker::bytes_of(const Part& part) {
  std::vector<std::byte> bytes(part.type.bytes());
  complete(executor_->read(part.slot, part.offset, bytes));
  return bytes;
}

// A name that several programs share is set once: the executor carries it from one to the other.
void Worker::set_state(const StateSource& source) {
  StateReader reader(source);
  std::set<std::string> set;
  std::vector<std::byte> bytes;
  for (std::uint64_t program : order_) {
    bind(program);
    for (const Part& part : state_parts()) {
      if (!reader.has(part.name) || !set.insert(part.name).second) continue;
      bytes.resize(part.type.bytes());
      reader.read(part.name, part.type, bytes);
      complete(executor_->write(part.slot, part.offset, bytes));
    }
  }
}

std::set<std::string> Worker::owned_names(std::uint64_t program) const {
  std::set<std::string> names;
  for (const Slot& slot : programs_.at(program)->devices[device_].slots)
    if (slot.kind == SlotClass::state) names.insert(slot.names.begin(), slot.names.end());
  return names;
}

// Written tensor by tensor from the memory of the program that owns most; what only others own is copied out first.
void Worker::save_state(const std::string& folder, Reply& reply) {
  std::uint64_t main = 0;
  std::set<std::string> written;
  for (std::uint64_t program : order_)
    if (std::set<std::string> names = owned_names(program); names.size() > written.size()) main = program, written = std::move(names);
  if (written.empty()) return;

  std::vector<std::pair<Part, std::vector<std::byte>>> copies;
  for (std::uint64_t program : order_) {
    const std::set<std::string> names = owned_names(program);
    if (std::includes(written.begin(), written.end(), names.begin(), names.end())) continue;
    bind(program);
    for (const Part& part : state_parts())
      if (part.owned && written.insert(part.name).second) copies.emplace_back(part, bytes_of(part));
  }
  std::ranges::sort(copies, {}, [](const auto& copy) -> const std::string& { return copy.first.name; });
  bind(main);
  std::vector<std::pair<std::string, TensorType>> tensors;
  std::vector<Part> parts = state_parts();
  std::erase_if(parts, [](const Part& part) { return !part.owned; });
  for (const Part& part : parts) tensors.emplace_back(part.name, part.type);
  for (const auto& [part, bytes] : copies) tensors.emplace_back(part.name, part.type);
  reply.file = concat("device-", device_, ".safetensors");
  std::vector<std::byte> bytes;
  write_safetensors(concat(folder, "/", reply.file), tensors, [&](std::size_t t) -> std::span<const std::byte> {
    if (t >= parts.size()) return copies[t - parts.size()].second;
    return bytes = bytes_of(parts[t]);
  });
}

bool Worker::persists() const {
  return persisted_.valid() && persisted_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

// The thread holds the memory that it reads, wherever a load puts the snapshot meanwhile. No other waits for it: the disk may be stuck.
void Worker::persist(const Command& command, Reply& reply) {
  if (persists()) throw Error(concat("device ", device_, " still writes an earlier checkpoint"), {}, "see whether its disk answers");
  persisted_ = {};
  std::vector<std::pair<std::string, SharedTensor>> kept;
  for (const std::string& name : command.names) {
    const auto part = parse_snapshot_name(name);
    SharedTensor tensor = part ? executor_->state(name) : SharedTensor();
    if (!tensor.memory) throw Error(concat("device ", device_, " keeps no snapshot ", quote(name)));
    kept.emplace_back(part->state, std::move(tensor));
  }
  if (kept.empty()) return;
  reply.file = concat("device-", device_, ".safetensors");
  persisted_ = std::async(std::launch::async, [folder = command.text, file = reply.file, kept = std::move(kept)] {
    std::vector<std::pair<std::string, StoredTensor>> tensors;
    for (const auto& [name, tensor] : kept)
      tensors.emplace_back(name, StoredTensor{tensor.type, {tensor.memory.get(), static_cast<std::size_t>(tensor.type.bytes())}});
    write_safetensors(concat(folder, "/", file), tensors);
    return file;
  });
}

std::map<std::string, SharedTensor> Worker::share_state() const {
  std::map<std::string, SharedTensor> out;
  for (std::uint64_t program : order_)
    for (const std::string& name : owned_names(program))
      if (SharedTensor tensor = executor_->state(name); tensor.memory && parse_piece(name).whole()) out.emplace(name, std::move(tensor));
  return out;
}

// Copies of the state of this name and of all pieces of the tensor.
std::vector<OwnedState> Worker::find_state(const std::string& name) {
  std::map<std::string, std::uint64_t> parts;  // a program that owns each
  for (std::uint64_t program : order_)
    for (const std::string& owned : owned_names(program))
      if (owned.starts_with(name) && (owned == name || parse_piece(owned).tensor == name)) parts.emplace(owned, program);
  std::vector<OwnedState> found;
  for (const auto& [part, program] : parts) found.push_back(copy_of(part, program));
  return found;
}

OwnedState Worker::copy_of(const std::string& name, std::uint64_t program) {
  bind(program);
  const std::vector<Part> parts = state_parts();
  const auto part = std::ranges::find(parts, name, &Part::name);
  invariant(part != parts.end(), "a program owns a state that it has no part for");
  return {name, bytes_of(*part), part->type.dtype};
}

}  // namespace penstock
