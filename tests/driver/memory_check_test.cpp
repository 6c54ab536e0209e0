#include "driver/memory_check.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

Program program() {
  Program out;
  out.name = "training";
  out.devices.resize(2);
  out.devices[0].state_bytes = 3 << 20;
  out.devices[0].step_bytes = 1 << 20;
  out.devices[1].state_bytes = 1 << 20;
  out.devices[1].host_bytes = 1 << 20;
  return out;
}

std::string verdict(std::size_t devices, std::int64_t held, std::int64_t room) {
  return message_of([&] { check_room(program(), devices, held, {room, "this machine's free memory"}); });
}

TEST(MemoryCheck, SaysWhatEachDevicePlansAndWhatThereIs) {
  EXPECT_EQ(verdict(2, 0, 5 << 20),
            "program training needs 6.0 MiB of memory; this machine's free memory is 5.0 MiB\n"
            "  device 0 plans 4.0 MiB: state 3.0 MiB, a step's tensors 1.0 MiB, kernels' own 0 B\n"
            "  device 1 plans 1.0 MiB: state 1.0 MiB, a step's tensors 0 B, kernels' own 0 B; and 1.0 MiB on the host\n"
            "  hint: a smaller model or batch, more micro-batches, --recompute inputs, or more machines (--backend gloo)");
  EXPECT_EQ(verdict(2, 0, 6 << 20), "no error");
}

TEST(MemoryCheck, CountsOnlyWhatIsNewAndHere) {
  EXPECT_EQ(verdict(2, 2 << 20, 4 << 20), "no error");
  EXPECT_EQ(verdict(1, 0, 4 << 20), "no error");
  EXPECT_EQ(verdict(2, 0, -1), "no error");  // not known
}

}  // namespace
}  // namespace penstock
