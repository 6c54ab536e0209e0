// SPDX-License-Identifier: Apache-2.0
#include "driver/store_sockets.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "support/reserved_port.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

TEST(AwaitListener, ReturnsOnceSomebodyListens) {
  const int port = test::reserved_port();
  std::atomic<bool> listens = false;
  int fd = -1;
  std::thread server([&] {
    std::this_thread::sleep_for(milliseconds(50));
    listens = true;
    fd = listen_at("127.0.0.1", port);
  });
  await_listener("127.0.0.1", port, std::chrono::minutes(5));
  EXPECT_TRUE(listens);
  server.join();
  await_listener("127.0.0.1", port, std::chrono::minutes(5));
  ::close(fd);
}

TEST(AwaitListener, ReturnsWhereNobodyDoes) {
  await_listener("127.0.0.1", test::reserved_port(), milliseconds(20));
}

}  // namespace
}  // namespace penstock
