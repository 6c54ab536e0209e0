// SPDX-License-Identifier: Apache-2.0
// Steps that are recorded and replayed on the stand-in, and what may not be recorded.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "base/text.h"
#include "devices/forwarding_executor.h"
#include "devices/forwarding_transport.h"
#include "driver/check.h"
#include "driver/thread_cluster.h"
#include "driver/training.h"
#include "models/registry.h"
#include "support/random_schedule.h"
#include "support/seed.h"
#include "torch/arena.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/launches.h"
#include "torch/stream_hub.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

using T = at::Tensor;

// This transport has the same lanes, but no recorder.
class Unrecorded : public test::ForwardingTransport {
 public:
  Unrecorded(DeviceLanes* lanes, std::unique_ptr<Transport> inner) : ForwardingTransport(std::move(inner)), lanes_(lanes) {}
  DeviceLanes* lanes() const override { return lanes_; }

 private:
  DeviceLanes* lanes_;
};

// Counts what a device issues.
class Counting : public ForwardingExecutor {
 public:
  Counting(std::unique_ptr<Executor> inner, std::atomic<int>& issued) : ForwardingExecutor(std::move(inner)), issued_(issued) {}
  Event issue(const Instruction& instruction) override { return ++issued_, ForwardingExecutor::issue(instruction); }

 private:
  std::atomic<int>& issued_;
};

constexpr int kSteps = 5;

// A small GPT on the stand-in.
struct Small {
  Config config;
  Prepared prepared;
  Program program;
  std::atomic<int> issued = 0;
  std::unique_ptr<Cluster> cluster;
  std::uint64_t key = 0;

  Small(const std::vector<std::string>& settings, bool records, bool offloads = false)
      : config(configured(settings)), prepared(prepare(config, builtin_models())) {
    test::Random random(1);
    if (offloads) prepared.schedule = test::with_host_copies(random, prepared.schedule, 0.5);
    program = compile_training(config, prepared);
    const auto data = std::make_shared<RandomBatch>(text_ports(context_of(config)), vocabulary_of(config));
    ClusterOptions options;
    options.hub = [] { return make_stream_hub(open_device("standin")); };
    if (!records)
      options.wrap = [](int, std::unique_ptr<Transport> inner) {
        DeviceLanes* const lanes = inner->lanes();
        return std::make_unique<Unrecorded>(lanes, std::move(inner));
      };
    const ExecutorFactory executors = [this, standin = open_device("standin")](int) -> std::unique_ptr<Executor> {
      return std::make_unique<Counting>(make_torch_executor(1, standin), issued);
    };
    cluster = make_thread_cluster(static_cast<int>(program.devices.size()), executors, data, options);
    key = cluster->load(program);
    begin();
  }
  static Config configured(const std::vector<std::string>& settings) {
    std::vector<Override> overrides;
    for (const char* setting :
         {"width=16", "heads=2", "context=8", "vocabulary=32", "batch=8", "microbatches=4", "clip=0.1", "dropout=0.1"})
      overrides.push_back(parse_override(setting));
    for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
    return load_config("", overrides, builtin_models());
  }
  void begin() { cluster->set_state(fresh_start(config, prepared).state); }
  auto step(std::int64_t number) { return cluster->step(key, {number, 0, false, {}}).outputs; }
  auto state() { return test::state_of(*cluster, program); }
};

struct Trained {
  std::vector<std::map<std::string, std::vector<std::byte>>> outputs;  // of each step
  std::map<std::string, std::vector<std::byte>> state;
  std::vector<int> issued;  // by each step
};

Trained train(const std::vector<std::string>& settings, bool records) {
  Small small(settings, records);
  Trained out;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const int before = small.issued;
    out.outputs.push_back(small.step(step));
    out.issued.push_back(small.issued - before);
  }
  out.state = small.state();
  return out;
}

TEST(StreamRecorder, ReplayedStepsHaveTheBitsOfIssuedOnes) {
  for (const std::vector<std::string>& settings :
       std::vector<std::vector<std::string>>{{"schedule=1f1b"},
                                             {"schedule=zb-h1", "actors=3", "layers=3"},
                                             {"schedule=interleaved-1f1b", "chunks=2", "layers=4"},
                                             {"schedule=zb-v", "chunks=2", "layers=4", "update=validated"},
                                             {"schedule=zeropp", "pipeline.data=2", "zero=3", "chunks=2", "layers=4"},
                                             {"schedule=1f1b", "pipeline.data=2", "zero=1", "dtype=bf16"},
                                             {"schedule=helixpipe", "layers=4", "chunks=2", "microbatches=4"}}) {
    SCOPED_TRACE(join(settings, ", "));
    const Trained issued = train(settings, false);
    const auto own = [] { return test::launches("cross_entropy") + test::launches("cross_entropy_backward"); };
    const std::int64_t before = own();
    const Trained replayed = train(settings, true);
    EXPECT_GT(own(), before);  // kernels of our own are recorded, too
    EXPECT_EQ(replayed.outputs, issued.outputs);
    EXPECT_EQ(replayed.state, issued.state);
    const int whole = issued.issued[0];
    EXPECT_EQ(issued.issued, (std::vector<int>(kSteps, whole)));
    EXPECT_EQ(replayed.issued, (std::vector<int>{whole, whole, 0, 0, 0}));  // issued, recorded, and then replayed
  }
}

// --- waits that are left out

class LeftOutWaits {
 public:
  LeftOutWaits(const std::vector<std::string>& settings, bool offloads) : small_(settings, true, offloads) {
    for (std::int64_t step = 1; step <= 3; ++step) small_.step(step);
    count_ = leave_out_(kNone, 0);
    right_ = outcome(kNone);
  }
  ~LeftOutWaits() { leave_out_(kNone, 0); }
  std::size_t size() const { return count_; }
  // Whether a step without that wait ends in another way than with it, in one of five runs.
  bool is_seen(std::size_t wait) {
    for (std::size_t attempt = 0; attempt < 5; ++attempt)
      if (outcome(wait, attempt) != right_) return true;
    return false;
  }

 private:
  using Outcome = std::vector<std::map<std::string, std::vector<std::byte>>>;
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  // Another step comes before it, so that what lies in memory is not what the step is to find there.
  Outcome outcome(std::size_t left_out, std::size_t attempt = 0) {
    small_.step(6), small_.step(7);
    small_.begin();
    const int before = small_.issued;
    leave_out_(left_out, attempt);
    Outcome out;
    try {
      out.push_back(small_.step(3));
      leave_out_(kNone, 0);
      out.push_back(small_.state());
      out.push_back(small_.step(4));  // reads what lies in more than one place from all of them
    } catch (const Error&) {          // numbers from elsewhere may be no indices
    }
    EXPECT_EQ(small_.issued, before) << "the step was not replayed";
    leave_out_(kNone, 0);
    small_.begin();
    if (out.empty()) small_.step(1), small_.step(2);  // they are recorded anew
    return out;
  }
  static void* function(const char* name) {
    Dl_info library{};
    dladdr(reinterpret_cast<const void*>(functions_of(open_device("standin"))->launch), &library);
    return dlsym(dlopen(library.dli_fname, RTLD_NOW), name);
  }

  std::size_t (*leave_out_)(std::size_t, std::size_t) =
      reinterpret_cast<std::size_t (*)(std::size_t, std::size_t)>(function("penstock_standin_leave_out"));
  Small small_;
  std::size_t count_ = 0;
  Outcome right_;
};

// At least 95 of 100: the others keep what is read from bytes that are the same already, such as weights that were gathered before.
TEST(StreamRecorder, AWaitThatIsLeftOutIsMissed) {
  const std::size_t of_each = test::is_soak() ? 25 : 4;
  constexpr unsigned kSeed = 5;
  std::size_t tried = 0;
  std::string unseen;
  for (const std::vector<std::string>& settings :
       std::vector<std::vector<std::string>>{{"schedule=1f1b"},
                                             {"schedule=1f1b", "actors=3", "layers=3", "recompute=inputs"},
                                             {"schedule=zb-h1", "actors=3", "layers=3"},
                                             {"schedule=interleaved-1f1b", "chunks=2", "layers=4"},
                                             {"schedule=zb-v", "chunks=2", "layers=4", "update=validated"},
                                             {"schedule=dualpipe-v", "chunks=2", "layers=4"},
                                             {"schedule=zeropp", "pipeline.data=2", "zero=3", "chunks=2", "layers=4"},
                                             {"schedule=1f1b", "pipeline.data=2", "zero=1", "dtype=bf16"},
                                             {"schedule=1f1b", "pipeline.tensor=2"}}) {
    SCOPED_TRACE(join(settings, ", "));
    LeftOutWaits waits(settings, settings.size() == 1);
    std::vector<std::size_t> drawn(waits.size());
    std::iota(drawn.begin(), drawn.end(), std::size_t{0});
    std::shuffle(drawn.begin(), drawn.end(), std::mt19937(kSeed));
    drawn.resize(std::min(drawn.size(), of_each));
    tried += drawn.size();
    for (const std::size_t wait : drawn)
      if (!waits.is_seen(wait)) unseen += concat("\n", join(settings, ", "), ": wait ", wait, " of ", waits.size());
  }
  EXPECT_GE(tried, 8 * of_each);
  EXPECT_LE(20 * std::ranges::count(unseen, '\n'), static_cast<std::ptrdiff_t>(tried)) << "of " << tried << " not seen: " << unseen;
}

// --- what may not be recorded, by the rules of CUDA

class Captures : public testing::Test {
 protected:
  c10::Stream new_stream() const { return guard_.getNewStream(device_); }
  T ones() const { return at::ones({4}, at::TensorOptions(at::kFloat).device(device_)); }
  c10::Event recorded(const c10::Stream& stream) const {
    c10::Event event(device_.type());
    event.record(stream);
    return event;
  }
  // The failure with which a capture of this work ends.
  template <class F>
  std::string failure_of(F work) const {
    const c10::Stream root = new_stream();
    const DeviceFunctions& graphs = *functions_of(device_);
    graphs.begin(root);
    std::string said;
    try {
      const c10::StreamGuard current(root);
      work(root);
    } catch (const c10::Error& error) {
      said = error.what_without_backtrace();
    }
    try {
      graphs.destroy(graphs.end(root));
    } catch (const c10::Error& error) {
      return said.empty() ? error.what_without_backtrace() : said;
    }
    return said.empty() ? "no error" : concat("the capture ended well after: ", said);
  }

  const c10::Device device_ = open_device("standin");
  const c10::impl::VirtualGuardImpl guard_{device_.type()};
};

TEST_F(Captures, AreReplayedAnyNumberOfTimes) {
  const c10::Stream root = new_stream(), other = new_stream();
  const T x = ones(), y = ones();
  guard_.synchronizeDevice(0);
  const DeviceFunctions& graphs = *functions_of(device_);
  graphs.begin(root);
  {
    const c10::StreamGuard current(root);
    x.add_(x);
    const c10::Event fork = recorded(root);
    fork.block(other);
    {
      const c10::StreamGuard beside(other);
      y.add_(x);
    }
    const c10::Event join = recorded(other);
    join.block(root);
    x.add_(y);
  }
  void* const graph = graphs.end(root);
  EXPECT_EQ(x.cpu()[0].item().toDouble(), 1);  // nothing was done
  for (int i = 0; i < 3; ++i) graphs.launch(graph, root);
  guard_.synchronizeStream(root);
  double a = 1, b = 1;
  for (int i = 0; i < 3; ++i) a += a, b += a, a += b;
  EXPECT_EQ(x.cpu()[3].item().toDouble(), a);
  EXPECT_EQ(y.cpu()[3].item().toDouble(), b);
  graphs.destroy(graph);
}

TEST_F(Captures, OfAStreamThatIsNotJoined) {
  const T x = ones();
  const c10::Stream other = new_stream();
  EXPECT_EQ(failure_of([&](const c10::Stream& root) {
              recorded(root).block(other);
              const c10::StreamGuard beside(other);
              x.add_(x);
            }),
            "stand-in: a captured stream was not joined to the one that the capture began on");
}

TEST_F(Captures, InWhichTheHostWaits) {
  const T x = ones();
  EXPECT_EQ(failure_of([&](const c10::Stream&) { x.sum().item(); }), "stand-in: the host waits for a stream that is captured");
  EXPECT_EQ(failure_of([&](const c10::Stream&) { x.nonzero(); }), "stand-in: the host waits for a stream that is captured");
}

TEST_F(Captures, OfCopiesOfMemoryThatIsNotPinned) {
  const T x = ones();
  const Memory there = {static_cast<std::byte*>(x.mutable_data_ptr()), device_};
  const auto failure_with = [&](std::byte* on_host) {
    const Memory here = {on_host, c10::DeviceType::CPU};
    return std::pair(failure_of([&](const c10::Stream&) { copy_bytes(there, here, x.nbytes()); }),
                     failure_of([&](const c10::Stream&) { copy_bytes(here, there, x.nbytes()); }));
  };
  std::vector<std::byte> plain(x.nbytes());
  const Arena pinned = Arena::beside(static_cast<std::int64_t>(x.nbytes()), device_);
  const std::string refused =
      "the capture ended well after: stand-in: a captured stream is to copy from or to memory of the host that is not pinned";
  EXPECT_EQ(failure_with(plain.data()), std::pair(refused, refused));
  EXPECT_EQ(failure_with(pinned.data()), std::pair(std::string("no error"), std::string("no error")));
}

TEST_F(Captures, WhoseEventTheHostAsksFor) {
  const auto failure_where = [&](const auto& asks) {
    return failure_of([&](const c10::Stream& root) {
      const c10::Event event = recorded(root);
      asks(event);
    });
  };
  const std::string refused = "the capture ended well after: stand-in: the host asks for an event of a capture";
  EXPECT_EQ(failure_where([](const c10::Event& event) { event.query(); }), refused);
  EXPECT_EQ(failure_where([](const c10::Event& event) { event.synchronize(); }), refused);
}

TEST_F(Captures, ThatWaitForAnEventFromOutside) {
  const c10::Event outside = recorded(new_stream());
  EXPECT_EQ(failure_of([&](const c10::Stream& root) { outside.block(root); }),
            "stand-in: a captured stream is to wait for an event that is not of its capture");
}

}  // namespace
}  // namespace penstock
