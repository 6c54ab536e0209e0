// Steps that are recorded and replayed on the stand-in, and what may not be recorded.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "base/text.h"
#include "devices/forwarding_executor.h"
#include "devices/forwarding_transport.h"
#include "driver/check.h"
#include "driver/thread_cluster.h"
#include "driver/training.h"
#include "models/registry.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/stream_hub.h"
#include "torch/test_cluster.h"

namespace penstock {
namespace {

using T = at::Tensor;

// Of the same lanes, but without a recorder.
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

struct Trained {
  std::vector<std::map<std::string, std::vector<std::byte>>> outputs;  // of each step
  std::map<std::string, std::vector<std::byte>> state;
  std::vector<int> issued;  // by each step
};

constexpr int kSteps = 5;

Trained train(const std::vector<std::string>& settings, bool records) {
  std::vector<Override> overrides;
  for (const char* setting : {"width=16", "heads=2", "context=8", "vocabulary=32", "batch=8", "microbatches=4", "clip=0.1", "dropout=0.1"})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : settings) overrides.push_back(parse_override(setting));
  const Config config = load_config("", overrides, builtin_models());
  const Prepared prepared = prepare(config, builtin_models());
  const Program program = compile_training(config, prepared);
  const auto data = std::make_shared<RandomBatch>(text_ports(context_of(config)), vocabulary_of(config));
  ClusterOptions options;
  options.hub = make_stream_hub;
  if (!records)
    options.wrap = [](int, std::unique_ptr<Transport> inner) {
      DeviceLanes* const lanes = inner->lanes();
      return std::make_unique<Unrecorded>(lanes, std::move(inner));
    };
  std::atomic<int> issued = 0;
  const ExecutorFactory executors = [&, standin = open_device("standin")](int) -> std::unique_ptr<Executor> {
    return std::make_unique<Counting>(make_torch_executor(1, standin), issued);
  };
  const auto cluster = make_thread_cluster(static_cast<int>(program.devices.size()), executors, data, options);
  const std::uint64_t key = cluster->load(program);
  cluster->set_state(fresh_start(config, prepared).state);
  Trained out;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const int before = issued;
    out.outputs.push_back(cluster->step(key, {step, 0, false, {}}).outputs);
    out.issued.push_back(issued - before);
  }
  out.state = test::state_of(*cluster, program);
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
    const Trained issued = train(settings, false), replayed = train(settings, true);
    EXPECT_EQ(replayed.outputs, issued.outputs);
    EXPECT_EQ(replayed.state, issued.state);
    const int whole = issued.issued[0];
    EXPECT_EQ(issued.issued, (std::vector<int>(kSteps, whole)));
    EXPECT_EQ(replayed.issued, (std::vector<int>{whole, whole, 0, 0, 0}));  // issued, recorded, and then replayed
  }
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
  // What ends a capture of this work with.
  template <class F>
  std::string failure_of(F work) const {
    const c10::Stream root = new_stream();
    const GraphFunctions& graphs = *graphs_of(device_);
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
  const GraphFunctions& graphs = *graphs_of(device_);
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

TEST_F(Captures, ThatWaitForAnEventFromOutside) {
  const c10::Event outside = recorded(new_stream());
  EXPECT_EQ(failure_of([&](const c10::Stream& root) { outside.block(root); }),
            "stand-in: a captured stream is to wait for an event that is not of its capture");
}

}  // namespace
}  // namespace penstock
