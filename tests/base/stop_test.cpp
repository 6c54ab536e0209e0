// SPDX-License-Identifier: Apache-2.0
#include "base/stop.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>

#include "base/durable.h"
#include "base/text.h"
#include "penstock/error.h"
#include "support/temporary.h"

namespace penstock {
namespace {

using testing::ExitedWithCode;

[[noreturn]] void go_on() {
  std::fprintf(stderr, "went on");
  std::_Exit(0);
}

TEST(Stop, ASignalEndsTheProcessAtOnce) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE})
    EXPECT_EXIT(
        {
          end_on_signals();
          std::raise(signal);
          go_on();
        },
        ExitedWithCode(128 + signal), "^$");
}

TEST(Stop, OrWhenTheLastThatMustBeFinishedIs) {
  EXPECT_EXIT(
      {
        end_on_signals();
        {
          const StopLater outer;
          {
            const StopLater inner;
            std::raise(SIGTERM);
          }
          std::fprintf(stderr, stop_requested() ? "asked" : "not asked");
        }
        go_on();
      },
      ExitedWithCode(143), "^asked$");
}

// A terminal that closes is said by the system, and again by the shell; output that nobody reads at every write.
TEST(Stop, OfAClosedTerminalOrPipeIsHeardOnce) {
  for (const int signal : {SIGHUP, SIGPIPE})
    EXPECT_EXIT(
        {
          end_on_signals();
          {
            const StopLater later;
            std::raise(signal);
            std::raise(signal);
            std::fprintf(stderr, "finished");
          }
          go_on();
        },
        ExitedWithCode(128 + signal), "^finished$");
}

TEST(Stop, ASecondSignalEndsItAtOnce) {
  EXPECT_EXIT(
      {
        end_on_signals();
        const StopLater later;
        std::raise(SIGTERM);
        std::raise(SIGINT);
        go_on();
      },
      ExitedWithCode(130), "^$");
}

TEST(Stop, AnErrorIsSaidFirst) {
  EXPECT_EXIT(
      {
        end_on_signals();
        try {
          const StopLater later;
          std::raise(SIGTERM);
          throw Error("the step failed");
        } catch (const Error& error) {
          std::fprintf(stderr, "%s", error.what());
        }
        std::_Exit(1);
      },
      ExitedWithCode(1), "^the step failed$");
}

TEST(Stop, AnIgnoredSignalStaysIgnored) {
  EXPECT_EXIT(
      {
        std::signal(SIGINT, SIG_IGN);
        end_on_signals();
        std::raise(SIGINT);
        go_on();
      },
      ExitedWithCode(0), "^went on$");
}

TEST(Stop, AFileIsFinished) {
  const test::TemporaryFolder folder;
  EXPECT_EXIT(
      {
        end_on_signals();
        {
          DurableFile file(folder.file("plan.json"));
          std::raise(SIGTERM);
          file.write(std::as_bytes(std::span("{}", 2)));
          file.commit();
        }
        go_on();
      },
      ExitedWithCode(143), "^$");
  EXPECT_EQ(read_file(folder.file("plan.json")), "{}");
}

}  // namespace
}  // namespace penstock
