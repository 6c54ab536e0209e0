#include "runtime/fake_device.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
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
  if (instruction.opcode == Opcode::copy) {
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

class FakeExecutor : public Executor {
 public:
  explicit FakeExecutor(const FakeOptions& options) : options_(options), random_(options.seed), lane_([this] { serve(); }) {}
  ~FakeExecutor() override;

  void load(std::shared_ptr<const Program> program, int device) override;
  std::span<std::byte> memory(SlotId slot) override { return memory_[slot.index()]; }
  Event issue(const Instruction& instruction) override;
  bool done(Event event) override;
  bool wait(Event event, Deadline deadline) override;

 private:
  struct Part {
    std::string name;
    std::span<std::byte> bytes;
  };

  void keep_state();
  std::vector<Part> state_parts();
  void place(std::vector<std::byte>& arena, const Slot& slot, std::size_t& next);
  void execute(const Instruction& instruction);
  void serve();

  FakeOptions options_;
  std::shared_ptr<const Program> program_;
  const DeviceProgram* own_ = nullptr;
  std::vector<std::byte> state_arena_, step_arena_;
  std::vector<std::span<std::byte>> memory_;
  std::map<std::string, std::vector<std::byte>> states_;  // of names, as of the last load
  std::vector<std::span<const std::byte>> operands_;
  std::vector<std::span<std::byte>> results_;

  std::mutex mutex_;
  std::condition_variable issued_, finished_;
  std::deque<const Instruction*> queue_;
  Event next_ = 0;         // event of the next issue
  Event finished_to_ = 0;  // events below are done
  bool stop_ = false;
  std::mt19937_64 random_;
  std::thread lane_;  // last: it uses the rest
};

FakeExecutor::~FakeExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    issued_.notify_all();
  }
  lane_.join();
}

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
  std::size_t step_bytes = static_cast<std::size_t>(own_->step_bytes), state_bytes = static_cast<std::size_t>(own_->state_bytes);
  for (const Slot& slot : own_->slots)
    if (slot.offset < 0) (slot.kind == SlotClass::step ? step_bytes : state_bytes) += static_cast<std::size_t>(slot_bytes(slot));
  step_arena_.assign(step_bytes, std::byte{0xA5});
  state_arena_.assign(state_bytes, std::byte{0});
  memory_.clear();
  std::size_t step_next = 0, state_next = 0;
  for (const Slot& slot : own_->slots)
    slot.kind == SlotClass::step ? place(step_arena_, slot, step_next) : place(state_arena_, slot, state_next);
  for (const Part& part : state_parts())
    if (const auto old = states_.find(part.name); old != states_.end())
      std::copy(old->second.begin(), old->second.end(), part.bytes.begin());
}

Event FakeExecutor::issue(const Instruction& instruction) {
  if (options_.longest.count() == 0) {
    execute(instruction);
    return kNoEvent;
  }
  const std::lock_guard lock(mutex_);
  queue_.push_back(&instruction);
  issued_.notify_one();
  return next_++;
}

bool FakeExecutor::done(Event event) {
  const std::lock_guard lock(mutex_);
  return event < finished_to_;
}

bool FakeExecutor::wait(Event event, Deadline deadline) {
  std::unique_lock lock(mutex_);
  return finished_.wait_until(lock, deadline, [&] { return event < finished_to_; });
}

void FakeExecutor::execute(const Instruction& instruction) {
  operands_.clear();
  results_.clear();
  for (SlotId slot : own_->operands_of(instruction)) operands_.push_back(memory_[slot.index()]);
  for (const Result& result : own_->results_of(instruction)) results_.push_back(memory_[result.slot.index()]);
  fake_run(instruction, operands_, results_, own_->results_of(instruction));
}

void FakeExecutor::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    issued_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const Instruction* instruction = queue_.front();
    queue_.pop_front();
    const auto time = draw(random_, options_.longest);
    lock.unlock();
    std::this_thread::sleep_for(time);
    execute(*instruction);
    lock.lock();
    ++finished_to_;
    finished_.notify_all();
  }
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
