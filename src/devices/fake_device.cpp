#include "devices/fake_device.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t mix(std::uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::uint64_t word_at(std::span<const std::byte> bytes, std::size_t index) {
  std::uint64_t word;
  std::memcpy(&word, bytes.data() + 8 * index, 8);
  return word;
}

std::chrono::microseconds draw(std::mt19937_64& random, std::chrono::microseconds longest) {
  return std::chrono::microseconds(
      longest.count() == 0 ? 0 : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(longest.count() + 1)));
}

}  // namespace

void fake_run(const Instruction& instruction, std::span<const std::span<const std::byte>> operands,
              std::span<const std::span<std::byte>> results, std::span<const Result> modes) {
  if (instruction.opcode != Opcode::run) {
    std::memmove(results[0].data(), operands[0].data(), results[0].size());
    return;
  }
  std::uint64_t hash = static_cast<std::uint64_t>(instruction.task.value) + 1;
  for (const std::span<const std::byte> operand : operands)
    for (std::size_t i = 0; i < operand.size() / 8; ++i) hash = mix(hash + word_at(operand, i));
  for (std::size_t r = 0; r < results.size(); ++r) {
    for (std::size_t i = 0; i < results[r].size() / 8; ++i) {
      std::uint64_t word = mix(hash + (r << 32) + i);
      if (modes[r].mode == ResultMode::add) word += word_at(results[r], i);
      std::memcpy(results[r].data() + 8 * i, &word, 8);
    }
  }
}

namespace {

// Does what it is given in that order, on a thread of its own, each after a random time.
class FakeLane {
 public:
  using Execute = std::function<void(const Instruction&)>;

  FakeLane(const FakeOptions& options, Execute execute)
      : longest_(options.longest), execute_(std::move(execute)), random_(options.seed), thread_([this] { serve(); }) {}
  ~FakeLane();

  std::int64_t issue(const Instruction& instruction);  // its number on this lane
  bool done(std::int64_t number);
  bool wait(std::int64_t number, Deadline deadline);

 private:
  void serve();

  std::chrono::microseconds longest_;
  Execute execute_;
  std::mutex mutex_;
  std::condition_variable issued_, finished_;
  std::deque<const Instruction*> queue_;
  std::int64_t next_ = 0;         // number of the next issue
  std::int64_t finished_to_ = 0;  // those below are done
  bool stop_ = false;
  std::mt19937_64 random_;
  std::thread thread_;  // last: it uses the rest
};

FakeLane::~FakeLane() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    issued_.notify_all();
  }
  thread_.join();
}

std::int64_t FakeLane::issue(const Instruction& instruction) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(&instruction);
  issued_.notify_one();
  return next_++;
}

bool FakeLane::done(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  return number < finished_to_;
}

bool FakeLane::wait(std::int64_t number, Deadline deadline) {
  std::unique_lock lock(mutex_);
  return finished_.wait_until(lock, deadline, [&] { return number < finished_to_; });
}

void FakeLane::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    issued_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const Instruction* instruction = queue_.front();
    queue_.pop_front();
    const auto time = draw(random_, longest_);
    lock.unlock();
    std::this_thread::sleep_for(time);
    execute_(*instruction);
    lock.lock();
    ++finished_to_;
    finished_.notify_all();
  }
}

class FakeExecutor : public Executor {
 public:
  explicit FakeExecutor(const FakeOptions& options)
      : options_(options),
        lanes_{{{options, [this](const Instruction& i) { execute(i); }},
                {{options.seed + 1, options.longest}, [this](const Instruction& i) { execute(i); }}}} {}

  void load(std::shared_ptr<const Program> program, int device) override;
  std::span<std::byte> memory(SlotId slot) override { return memory_[slot.index()]; }
  Event issue(const Instruction& instruction) override;
  bool done(Event event) override { return lane_of(event).done(event / 2); }
  bool wait(Event event, Deadline deadline) override { return lane_of(event).wait(event / 2, deadline); }

 private:
  struct Part {
    std::string name;
    std::span<std::byte> bytes;
  };

  void keep_state();
  std::vector<Part> state_parts();
  void place(std::vector<std::byte>& arena, const Slot& slot, std::size_t& next);
  void execute(const Instruction& instruction);
  FakeLane& lane_of(Event event) { return lanes_[static_cast<std::size_t>(event % 2)]; }

  FakeOptions options_;
  std::shared_ptr<const Program> program_;
  const DeviceProgram* own_ = nullptr;
  std::vector<std::byte> state_arena_, step_arena_, host_arena_;
  std::vector<std::span<std::byte>> memory_;
  std::map<std::string, std::vector<std::byte>> states_;  // of names, as of the last load
  // Compute, host copies. An event is 2 * number + lane.
  std::array<FakeLane, 2> lanes_;  // last: their threads use the rest
};

std::vector<FakeExecutor::Part> FakeExecutor::state_parts() {
  std::vector<Part> parts;
  for (std::size_t s = 0; own_ && s < own_->slots.size(); ++s) {
    const Slot& slot = own_->slots[s];
    for (std::size_t p = 0; p < slot.names.size(); ++p)
      parts.push_back({slot.names[p], memory_[s].subspan(static_cast<std::size_t>(part_offset(slot, p)),
                                                         static_cast<std::size_t>(slot.parts[p].bytes()))});
  }
  return parts;
}

void FakeExecutor::keep_state() {
  for (const Part& part : state_parts()) states_[part.name].assign(part.bytes.begin(), part.bytes.end());
}

// At the planned offset; without a plan behind what was placed before.
void FakeExecutor::place(std::vector<std::byte>& arena, const Slot& slot, std::size_t& next) {
  const auto bytes = static_cast<std::size_t>(slot_bytes(slot));
  const std::size_t offset = slot.offset >= 0 ? static_cast<std::size_t>(slot.offset) : next;
  next = std::max(next, offset + bytes);
  memory_.push_back({arena.data() + offset, bytes});
}

void FakeExecutor::load(std::shared_ptr<const Program> program, int device) {
  keep_state();
  program_ = std::move(program);
  own_ = &program_->devices[static_cast<std::size_t>(device)];
  const auto arena_of = [](const Slot& slot) { return slot.kind == SlotClass::step ? 0 : slot.kind == SlotClass::host ? 1 : 2; };
  std::int64_t bytes[] = {own_->step_bytes, own_->host_bytes, own_->state_bytes};
  for (const Slot& slot : own_->slots)
    if (slot.offset < 0) bytes[arena_of(slot)] += slot_bytes(slot);
  std::vector<std::byte>* arenas[] = {&step_arena_, &host_arena_, &state_arena_};
  for (int a = 0; a < 3; ++a) arenas[a]->assign(static_cast<std::size_t>(bytes[a]), a < 2 ? std::byte{0xA5} : std::byte{0});
  memory_.clear();
  std::size_t next[] = {0, 0, 0};
  for (const Slot& slot : own_->slots) place(*arenas[arena_of(slot)], slot, next[arena_of(slot)]);
  for (const Part& part : state_parts())
    if (const auto old = states_.find(part.name); old != states_.end())
      std::copy(old->second.begin(), old->second.end(), part.bytes.begin());
}

Event FakeExecutor::issue(const Instruction& instruction) {
  if (options_.longest.count() == 0) {
    execute(instruction);
    return kNoEvent;
  }
  const Event lane = is_host_copy(instruction.opcode) ? 1 : 0;
  return 2 * lane_of(lane).issue(instruction) + lane;
}

void FakeExecutor::execute(const Instruction& instruction) {
  std::vector<std::span<const std::byte>> operands;
  std::vector<std::span<std::byte>> results;
  for (SlotId slot : own_->operands_of(instruction)) operands.push_back(memory_[slot.index()]);
  for (const Result& result : own_->results_of(instruction)) results.push_back(memory_[result.slot.index()]);
  fake_run(instruction, operands, results, own_->results_of(instruction));
}

class FakeTransport : public Transport {
 public:
  FakeTransport(std::unique_ptr<Transport> inner, const FakeOptions& options)
      : inner_(std::move(inner)), options_(options), random_(options.seed) {}

  void begin_step(const Program& program, int device) override {
    transfers_.clear();
    inner_->begin_step(program, device);
  }
  Event send(int peer, int tag, std::span<const std::byte> bytes) override { return delay(inner_->send(peer, tag, bytes)); }
  Event receive(int peer, int tag, std::span<std::byte> bytes) override { return delay(inner_->receive(peer, tag, bytes)); }
  Event collective(const CollectiveCall& call) override { return delay(inner_->collective(call)); }
  bool done(Event event) override;
  bool wait(Event event, Deadline deadline) override;

 private:
  struct Transfer {
    Event inner;
    Clock::time_point earliest;
  };

  Event delay(Event inner) {
    transfers_.push_back({inner, Clock::now() + draw(random_, options_.longest)});
    return static_cast<Event>(transfers_.size()) - 1;
  }

  std::unique_ptr<Transport> inner_;
  FakeOptions options_;
  std::mt19937_64 random_;
  std::vector<Transfer> transfers_;  // this step's, by event
};

bool FakeTransport::done(Event event) {
  const Transfer& transfer = transfers_[static_cast<std::size_t>(event)];
  return Clock::now() >= transfer.earliest && (transfer.inner == kNoEvent || inner_->done(transfer.inner));
}

bool FakeTransport::wait(Event event, Deadline deadline) {
  const Transfer transfer = transfers_[static_cast<std::size_t>(event)];
  if (transfer.inner != kNoEvent && !inner_->wait(transfer.inner, deadline)) return false;
  std::this_thread::sleep_until(std::min(transfer.earliest, deadline));
  return transfer.earliest <= deadline;
}

}  // namespace

std::unique_ptr<Executor> make_fake_executor(const FakeOptions& options) {
  return std::make_unique<FakeExecutor>(options);
}

std::unique_ptr<Transport> make_fake_transport(std::unique_ptr<Transport> inner, const FakeOptions& options) {
  return std::make_unique<FakeTransport>(std::move(inner), options);
}

}  // namespace penstock
