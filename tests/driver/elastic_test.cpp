// SPDX-License-Identifier: Apache-2.0
// Devices die at any instruction of a training run, and the others go on: what they end with is what a run ends with that is left alone and
// changes its programs at the step to which this one went back.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iostream>
#include <random>

#include "base/text.h"
#include "config/elastic.h"
#include "devices/forwarding_executor.h"
#include "devices/forwarding_transport.h"
#include "driver/controller.h"
#include "driver/outputs.h"
#include "driver/thread_cluster.h"
#include "driver/training.h"
#include "lower/move_state.h"
#include "models/registry.h"
#include "program/piece.h"
#include "state/state_source.h"
#include "support/errors.h"
#include "support/fake_device.h"
#include "support/rounds.h"
#include "support/seed.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using test::message_of;

// A fake device whose values are finite as f64, as the training loop and checkpoints want them: below 2. What lies between a slot's parts,
// which runs read too, is zero wherever the state came from.
class FiniteExecutor : public ForwardingExecutor {
 public:
  FiniteExecutor() : ForwardingExecutor(make_fake_executor({})) {}
  void load(std::shared_ptr<const Program> program, int device) override {
    program_ = program;
    own_ = &program_->devices[device];
    ForwardingExecutor::load(std::move(program), device);
  }
  Event issue(const Instruction& instruction) override {
    const bool runs = instruction.opcode == Opcode::run;
    for (const SlotId slot : own_->operands_of(instruction))
      if (runs) clear_gaps(slot);
    const Event event = ForwardingExecutor::issue(instruction);
    for (const Result& result : own_->results_of(instruction)) {
      clear_gaps(result.slot);
      if (runs) make_small(result.slot);
    }
    return event;
  }

 private:
  void clear_gaps(SlotId slot) {
    std::size_t end = 0;
    const std::span<std::byte> bytes = address(slot);
    const auto clear = [&](std::size_t until) {
      for (; end < until; ++end)
        if (bytes[end] != std::byte{0}) bytes[end] = std::byte{0};  // others may read what is zero already
    };
    const Slot& of = own_->slots[slot];
    for (std::size_t p = 0; p < of.parts.size(); ++p) {
      clear(static_cast<std::size_t>(part_offset(of, p)));
      end += static_cast<std::size_t>(of.parts[p].bytes());
    }
    clear(bytes.size());
  }
  void make_small(SlotId slot) {
    const Slot& of = own_->slots[slot];
    for (std::size_t p = 0; p < of.parts.size(); ++p) {
      const std::span<std::byte> part = address(slot).subspan(static_cast<std::size_t>(part_offset(of, p)));
      for (std::int64_t word = 7; of.parts[p].dtype == DType::f64 && word < of.parts[p].bytes(); word += 8)
        part[static_cast<std::size_t>(word)] &= std::byte{0xBF};
    }
  }

  std::shared_ptr<const Program> program_;
  const DeviceProgram* own_ = nullptr;
};

// How long a device lives: so many things that it is told to do, from the death of another one on.
struct Life {
  std::int64_t left = -1;       // negative: for ever
  const Life* after = nullptr;  // null: from the begin on
  int number = 0;               // the device's, at present
  std::int64_t done = 0;
  std::atomic<bool> dead = false;

  // Whether it is dead, now that it is told to do one thing more.
  bool dies() {
    ++done;
    if (!dead && left >= 0 && (!after || after->dead) && left-- == 0) dead = true;
    return dead;
  }
  void act() {
    if (dies()) throw PeerLost({number}, concat("device ", number, " died"), {});
  }
};

class MortalExecutor : public ForwardingExecutor {
 public:
  explicit MortalExecutor(Life& life) : ForwardingExecutor(std::make_unique<FiniteExecutor>()), life_(life) {}
  void load(std::shared_ptr<const Program> program, int device) override {
    life_.act();
    ForwardingExecutor::load(std::move(program), device);
  }
  void forget(const std::vector<std::string>& names) override {
    life_.act();
    ForwardingExecutor::forget(names);
  }
  Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) override {
    life_.act();
    return ForwardingExecutor::write(slot, offset, bytes);
  }
  Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) override {
    life_.act();
    return ForwardingExecutor::read(slot, offset, bytes);
  }
  Event issue(const Instruction& instruction) override {
    life_.act();
    return ForwardingExecutor::issue(instruction);
  }

 private:
  Life& life_;
};

// What dies in a transfer says no more than that it failed: that the device is gone is found out when it is used again.
class MortalTransport : public test::ForwardingTransport {
 public:
  MortalTransport(std::unique_ptr<Transport> inner, Life& life) : ForwardingTransport(std::move(inner)), life_(life) {}
  Event send(int peer, int tag, std::span<const std::byte> bytes) override {
    act();
    return ForwardingTransport::send(peer, tag, bytes);
  }
  Event receive(int peer, int tag, std::span<std::byte> bytes) override {
    act();
    return ForwardingTransport::receive(peer, tag, bytes);
  }
  Event collective(const CollectiveCall& call) override {
    act();
    return ForwardingTransport::collective(call);
  }

 private:
  void act() {
    if (life_.dies()) throw Error(concat("device ", life_.number, " failed in a transfer"));
  }
  Life& life_;
};

thread_local Life* life_here = nullptr;  // of the device whose thread this is

std::unique_ptr<Cluster> mortal_cluster(std::vector<Life>& lives, std::shared_ptr<const DataSource> data) {
  ClusterOptions options;
  options.elastic = true;
  options.spin = 0;
  options.wrap = [](int device, std::unique_ptr<Transport> inner) -> std::unique_ptr<Transport> {
    life_here->number = device;
    return std::make_unique<MortalTransport>(std::move(inner), *life_here);
  };
  const auto executor = [&lives](int device) {
    life_here = &lives[static_cast<std::size_t>(device)];
    return std::make_unique<MortalExecutor>(*life_here);
  };
  return make_thread_cluster(static_cast<int>(lives.size()), executor, std::move(data), options);
}

using State = std::map<std::string, std::vector<std::byte>>;  // by tensor

std::string tensors_that_differ(const State& one, const State& other) {
  std::string out;
  for (const auto& [tensor, bytes] : other)
    if (const auto same = one.find(tensor); same == one.end() || same->second != bytes) out += tensor + " ";
  return out;
}

// From `step` on the run has programs for so many devices.
struct Phase {
  std::int64_t step;
  int devices;
  auto operator<=>(const Phase&) const = default;
};
struct Outcome {
  std::vector<Phase> phases;
  std::vector<Phase> from_disk;  // the same, where the step that it went back to last was a checkpoint's too
  State state;
  std::map<std::int64_t, std::pair<double, double>> losses;  // with the norms of gradients, by step
  std::string checkpoint;                                    // the last one's name
};

State state_of(Cluster& cluster, const Program& program) {
  State out;
  for (const std::vector<HeldPiece>& parts : held_by(program))
    for (const HeldPiece& part : parts)
      if (const std::string tensor = parse_piece(part.name).tensor; !out.contains(tensor)) out[tensor] = cluster.state(tensor);
  return out;
}

// One run with its devices' deaths.
class Elastic {
 public:
  explicit Elastic(const std::vector<std::string>& settings, bool last_layout = false) : last_layout_(last_layout) {
    std::ofstream(folder_.file("text")) << text();
    std::vector<Override> overrides;
    for (const char* setting : {"width=8", "heads=2", "layers=2", "context=4", "batch=4", "microbatches=2", "dtype=f64", "steps=6",
                                "snapshot_every=2", "checkpoint_every=4", "validation_every=3", "validation_batches=1", "schedule=1f1b"})
      overrides.push_back(parse_override(setting));
    overrides.push_back(parse_override(concat("text=[\"", folder_.file("text"), "\"]")));
    for (const Override& axis : parse_mesh("pipe=2,data=2")) overrides.push_back(axis);
    for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
    config_ = load_config("", overrides, builtin_models());
    prepared_.emplace(prepare(config_, builtin_models()));
    data_ = make_dataset(config_, *prepared_->model);
    start_ = fresh_start(config_, *prepared_);
  }

  const Config& config() const { return config_; }
  // As penstock train: on `lives.size()` devices.
  Outcome run(std::vector<Life>& lives);
  // The run that is left alone.
  const Outcome& undisturbed(const std::vector<Phase>& phases);
  // Runs, and compares. Each death may have lost its snapshot with it where there were several.
  std::vector<Phase> expect_goes_on(std::vector<Life>& lives);

  bool stop_at_death = false;  // the user asks the run to stop

 private:
  static std::string text() {
    std::string out;
    for (int i = 0; i < 400; ++i) out += static_cast<char>('a' + i * i % 26);
    return out;
  }
  const TrainingPrograms& programs_on(int devices);
  void go_through(const std::vector<Phase>& phases, Outcome& out);
  void note(const std::string& event, int devices, std::vector<Phase>& phases, std::size_t dead) const;

  test::TemporaryFolder folder_;
  bool last_layout_;
  Config config_;
  std::optional<Prepared> prepared_;
  std::shared_ptr<const Dataset> data_;
  TrainingStart start_;
  std::map<int, TrainingPrograms> programs_;
  std::map<std::vector<Phase>, Outcome> undisturbed_;
};

const TrainingPrograms& Elastic::programs_on(int devices) {
  const int used = std::min(devices, 4);
  if (const auto known = programs_.find(used); known != programs_.end()) return known->second;
  std::vector<RunLayout> layouts = layouts_on(config_, used);
  if (last_layout_) std::ranges::reverse(layouts);
  TrainingPrograms programs = training_programs(layouts[0].config, prepare(layouts[0], builtin_models()), *data_, 0);
  programs.layout = text_of(layouts[0]);
  return programs_.emplace(used, std::move(programs)).first->second;
}

std::size_t dead_in(const std::vector<Life>& lives) {
  return static_cast<std::size_t>(std::ranges::count_if(lives, [](const Life& life) { return life.dead.load(); }));
}

// "in step 4: ...; 3 devices go on from step 2 as ...".
void Elastic::note(const std::string& event, int devices, std::vector<Phase>& phases, std::size_t dead) const {
  const std::int64_t failed = std::stoll(event.substr(event.find("in step ") + 8));
  const std::int64_t from = std::stoll(event.substr(event.find(" on from step ") + 14));
  const std::int64_t interval = config_.faults.snapshot_every > 0 ? config_.faults.snapshot_every : config_.run.checkpoint_every;
  const std::int64_t done = failed - 1, every = config_.run.checkpoint_every;
  const std::int64_t on_disk = ((done - 1) / every - (config_.faults.snapshot_every > 0 ? 1 : 0)) * every;
  // A death while a checkpoint is written, which those from snapshots are beside the next steps, leaves the one before it.
  EXPECT_TRUE((from <= done && done - from <= interval) || (dead > 1 && from >= on_disk)) << event;
  std::erase_if(phases, [&](const Phase& phase) { return phase.step >= from; });
  phases.push_back({from, std::min(devices, 4)});
}

Outcome Elastic::run(std::vector<Life>& lives) {
  const test::TemporaryFolder folder;
  Config config = config_;
  config.run.out = folder.file("run");
  const std::unique_ptr<Cluster> cluster = mortal_cluster(lives, data_);
  Outcome out;
  out.phases = {{0, 4}};
  int devices = static_cast<int>(lives.size());
  TrainingHooks hooks;
  std::map<std::int64_t, std::vector<Phase>> saved;  // by step, those that led to its checkpoint, if it was written
  hooks.step = [&](const StepMetrics& metrics) {
    out.losses[metrics.step] = {metrics.loss, metrics.gradient_norm};
    const std::vector<std::int64_t> written = checkpoint_steps(config.run.out);
    if (!std::ranges::binary_search(written, metrics.step)) saved[metrics.step] = out.phases;
  };
  hooks.event = [&](const std::string& event) {
    if (!event.starts_with("in step ")) return;  // of a snapshot or a checkpoint
    note(event, devices, out.phases, dead_in(lives));
    const Phase last = out.phases.back();
    out.from_disk = saved[last.step];
    out.from_disk.push_back(last);
  };
  hooks.stop = [&] { return stop_at_death && dead_in(lives) > 0; };
  hooks.programs_on = [&](int count, const Pace&) { return programs_on(devices = count); };
  const TrainingResult result = penstock::train({config, programs_on(devices), start_, *cluster, *data_, hooks});
  for (Life& life : lives) life.left = -1;
  const Program& program = programs_on(devices).training;
  out.state = state_of(*cluster, program);
  out.checkpoint = std::filesystem::path(result.checkpoint).filename();
  const StateSource stored{.kind = StateSource::Kind::checkpoint, .path = result.checkpoint};
  StateReader reader(stored);
  for (const std::vector<HeldPiece>& parts : held_by(program))
    for (const HeldPiece& part : parts)
      if (parse_piece(part.name).whole()) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(part.type.bytes()));
        reader.read(part.name, part.type, bytes);
        EXPECT_EQ(bytes, out.state.at(part.name)) << part.name << " in " << result.checkpoint;
      }
  return out;
}

// Devices are made anew for each phase, and are given what those before them had.
void Elastic::go_through(const std::vector<Phase>& phases, Outcome& out) {
  StateSource source = start_.state;
  for (std::size_t p = 0; p < phases.size(); ++p) {
    const std::int64_t end = p + 1 < phases.size() ? phases[p + 1].step : config_.train.steps;
    const Program& program = programs_on(phases[p].devices).training;
    const auto executor = [](int) { return std::make_unique<FiniteExecutor>(); };
    const std::unique_ptr<Cluster> cluster = make_thread_cluster(phases[p].devices, executor, data_);
    const std::uint64_t key = cluster->load(program);
    cluster->set_state(source);
    for (std::int64_t step = phases[p].step; step < end; ++step) {
      const StepResult result = cluster->step(
          key, {.step = step + 1, .seed = config_.train.seed, .samples = data_->training_samples(step * config_.train.batch)});
      out.losses[step + 1] = {scalar_output(program, result, "loss"), scalar_output(program, result, "gradient_norm")};
    }
    out.state = state_of(*cluster, program);
    source = {.kind = StateSource::Kind::values, .values = out.state};
  }
}

const Outcome& Elastic::undisturbed(const std::vector<Phase>& phases) {
  const auto [known, is_new] = undisturbed_.try_emplace(phases);
  if (is_new) go_through(phases, known->second);
  return known->second;
}

std::vector<Phase> Elastic::expect_goes_on(std::vector<Life>& lives) {
  const Outcome outcome = run(lives);
  // A snapshot that is lost may leave the checkpoint of a step that was done on more devices.
  const bool is_from_disk = dead_in(lives) > 1 && outcome.losses != undisturbed(outcome.phases).losses;
  const Outcome& expected = undisturbed(is_from_disk ? outcome.from_disk : outcome.phases);
  const std::string how = join(outcome.phases, ", ", [](const Phase& phase) { return concat(phase.devices, " from ", phase.step); });
  EXPECT_EQ(outcome.losses, expected.losses) << how;
  EXPECT_EQ(tensors_that_differ(outcome.state, expected.state), "") << how;
  return outcome.phases;
}

// How much each device does in a run in which none dies.
std::vector<std::int64_t> longest_lives(Elastic& elastic, std::size_t devices) {
  std::vector<Life> lives(devices);
  elastic.expect_goes_on(lives);
  std::vector<std::int64_t> out;
  for (const Life& life : lives) out.push_back(life.done);
  return out;
}

void expect_goes_on_without(Elastic& elastic, std::size_t device, std::int64_t left) {
  SCOPED_TRACE(concat("device ", device, " dies after ", left));
  std::vector<Life> lives(4);
  lives[device].left = left;
  elastic.expect_goes_on(lives);
}

// The second one dies while the run goes back, or soon after.
void expect_goes_on_without_two(Elastic& elastic, const std::vector<std::int64_t>& longest, std::mt19937_64& draws) {
  const std::size_t first = draws() % 4, second = (first + 1 + draws() % 3) % 4;
  std::vector<Life> lives(4);
  lives[first].left = static_cast<std::int64_t>(draws() % static_cast<std::uint64_t>(longest[first]));
  lives[second].left = static_cast<std::int64_t>(draws() % (draws() % 2 ? 20 : 200));
  lives[second].after = &lives[first];
  SCOPED_TRACE(concat("device ", first, " dies after ", lives[first].left, ", then ", second, " after ", lives[second].left));
  elastic.expect_goes_on(lives);
}

// Layouts on fewer devices, the first or the last of those that there are, and snapshots: in each step, or none, where the run goes back to
// checkpoints.
struct Kind {
  std::vector<std::string> settings;
  bool last_layout = false;
};
const std::vector<Kind> kKinds = {{{}}, {{"snapshot_every=1", "steps=5"}, true}, {{"snapshot_every=0", "checkpoint_every=2"}}};

TEST(Elastic, OneDeviceDies) {
  const std::uint64_t seed = test::drawn_seed();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 draws(seed);
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(join(kind.settings, " "));
    Elastic elastic(kind.settings, kind.last_layout);
    const std::vector<std::int64_t> longest = longest_lives(elastic, 4);
    for (std::size_t device = 0; device < 4; ++device)
      for (std::int64_t n = 0, points = test::is_soak() ? longest[device] : test::rounds(3); n < points; ++n)
        expect_goes_on_without(elastic, device, test::is_soak() ? n : static_cast<std::int64_t>(draws() % longest[device]));
  }
}

TEST(Elastic, AnotherDeviceDiesWhileTheRunGoesBack) {
  const std::uint64_t seed = test::drawn_seed();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 draws(seed);
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(join(kind.settings, " "));
    Elastic elastic(kind.settings, kind.last_layout);
    const std::vector<std::int64_t> longest = longest_lives(elastic, 4);
    for (int n = 0; n < (test::is_soak() ? 100 : test::rounds(7)); ++n) expect_goes_on_without_two(elastic, longest, draws);
  }
}

// The run has the same programs again. What fake devices hold twice is not the same twice where different tasks have made it, so it is
// compared with a run that has one of these from there on.
TEST(Elastic, ASpareTakesTheDeadOnesPlace) {
  Elastic elastic({});
  const std::vector<std::int64_t> longest = longest_lives(elastic, 5);
  for (std::size_t device = 0; device < 4; ++device) {
    std::vector<Life> lives(5);
    SCOPED_TRACE(device);
    lives[device].left = longest[device] / 2;
    EXPECT_EQ(elastic.expect_goes_on(lives).back().devices, 4);
  }
}

// It is found to be dead when it should do something.
TEST(Elastic, ADeadSpareTakesNoPlace) {
  Elastic elastic({});
  std::vector<Life> lives(5);
  lives[4].dead = true;
  EXPECT_EQ(elastic.expect_goes_on(lives), (std::vector<Phase>{{0, 4}}));
  lives[1].left = 0;
  EXPECT_EQ(elastic.expect_goes_on(lives), (std::vector<Phase>{{0, 3}}));
}

// Each dies some time after the one before it, so that several die in the same step.
TEST(Elastic, OneDeviceIsLeft) {
  Elastic elastic({});
  for (const std::int64_t left : {0, 30, 60, 100}) {
    std::vector<Life> lives(7);
    for (std::size_t device = 0; device < 6; ++device) {
      lives[device].left = left;
      if (device > 0) lives[device].after = &lives[device - 1];
    }
    EXPECT_EQ(elastic.expect_goes_on(lives).back().devices, 1) << left;
  }
}

TEST(Elastic, NoDeviceIsLeft) {
  Elastic elastic({});
  std::vector<Life> lives(2);
  for (Life& life : lives) life.left = 0;
  EXPECT_EQ(message_of([&] { elastic.run(lives); }), "no device is left");
}

// A run that is stopped where it goes back keeps what it has gone back to.
TEST(Elastic, AStoppedRunKeepsASnapshot) {
  Elastic elastic({});
  std::vector<Life> lives(4);
  lives[2].left = longest_lives(elastic, 4)[2] / 2;
  elastic.stop_at_death = true;
  const Outcome outcome = elastic.run(lives);
  EXPECT_EQ(outcome.checkpoint, "checkpoint-2");
}

}  // namespace
}  // namespace penstock
