// SPDX-License-Identifier: Apache-2.0
#include "devices/thread_transport.h"

#include <gtest/gtest.h>

#include "devices/forwarding_transport.h"
#include "devices/transport_conformance.h"
#include "support/fake_device.h"
#include "support/thread_lanes.h"

namespace penstock {
namespace {

using std::chrono::microseconds;
using namespace test;

// Endpoints that keep their hub alive.
class Shared : public ForwardingTransport {
 public:
  Shared(std::shared_ptr<ThreadHub> hub, int device) : ForwardingTransport(hub->endpoint(device)), hub_(std::move(hub)) {}

 private:
  std::shared_ptr<ThreadHub> hub_;
};

TransportCase threads(std::string name, microseconds spin, microseconds delay) {
  return {std::move(name), [=](int devices) {
            auto hub = std::make_shared<ThreadHub>(devices, spin);
            std::vector<std::unique_ptr<Transport>> ends;
            for (int device = 0; device < devices; ++device) {
              ends.push_back(std::make_unique<Shared>(hub, device));
              if (delay.count() > 0) ends.back() = make_fake_transport(std::move(ends.back()), {static_cast<std::uint64_t>(device), delay});
            }
            return ends;
          }};
}

// Begun on a thread of their own, and complete in any order.
TransportCase on_lanes() {
  const auto inner = threads("", microseconds(0), microseconds(0)).make;
  return {"OnLanes", [=](int devices) {
            auto ends = inner(devices);
            for (std::size_t d = 0; d < ends.size(); ++d)
              ends[d] = make_lane_transport(std::move(ends[d]), make_thread_lanes(d, microseconds(50)));
            return ends;
          }};
}

INSTANTIATE_TEST_SUITE_P(Threads, TransportConformance,
                         testing::Values(threads("Spinning", microseconds(1000), microseconds(0)),
                                         threads("Sleeping", microseconds(0), microseconds(0)),
                                         threads("Delayed", microseconds(-1), microseconds(500)), on_lanes()),
                         case_name);

TEST(ThreadTransport, AbortEndsAWait) {
  ThreadHub hub(2);
  auto end = hub.endpoint(0);
  end->begin_step(exchange_program(1), 0);
  std::vector<std::byte> got(64);
  const Event received = end->receive(1, 0, got);
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    hub.abort();
  });
  EXPECT_THROW(end->wait(received, in(20)), Aborted);
  aborter.join();
}

TEST(ThreadTransport, AbortEndsAWaitForAMember) {
  ThreadHub hub(2);
  auto end = hub.endpoint(0);
  Meeting meeting{{Opcode::all_reduce}, 64};
  meeting.call.group = meeting.call.tag = 0;
  end->begin_step(collective_program(2, {{0, 1}}, {meeting}), 0);
  Part part(meeting, 0, 2, numbers(DType::f32, 64, 0));
  const Event event = end->collective(part.call(meeting, 0));
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    hub.abort();
  });
  EXPECT_THROW(end->wait(event, in(20)), Aborted);
  aborter.join();
}

}  // namespace
}  // namespace penstock
