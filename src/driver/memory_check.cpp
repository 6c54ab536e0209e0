#include "driver/memory_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

std::string size_text(std::int64_t bytes) {
  return bytes_text(static_cast<double>(bytes));
}

}  // namespace

std::int64_t planned_bytes(const Program& program, std::size_t devices) {
  std::int64_t sum = 0;
  for (std::size_t d = 0; d < std::min(devices, program.devices.size()); ++d)
    sum += program.devices[d].device_bytes() + program.devices[d].host_bytes;
  return sum;
}

void check_room(const Program& program, std::size_t devices, std::int64_t held, const MemoryRoom& room) {
  const std::int64_t planned = planned_bytes(program, devices);
  if (room.bytes < 0 || planned - held <= room.bytes) return;
  constexpr std::size_t kShown = 8;
  std::vector<std::string> lines;
  const std::size_t count = std::min(devices, program.devices.size());
  for (std::size_t d = 0; d < std::min(count, kShown); ++d) {
    const DeviceProgram& device = program.devices[d];
    lines.push_back(concat("device ", d, " plans ", size_text(device.device_bytes()), ": state ", size_text(device.state_bytes),
                           ", a step's tensors ", size_text(device.step_bytes), ", kernels' own ", size_text(device.scratch_bytes),
                           device.host_bytes > 0 ? concat("; and ", size_text(device.host_bytes), " on the host") : ""));
  }
  if (count > kShown) lines.push_back(concat("and ", count - kShown, " devices more"));
  throw Error(
      concat("program ", program.name, " needs ", size_text(planned - held), " of memory; ", room.limit, " is ", size_text(room.bytes)),
      lines, "a smaller model or batch, more micro-batches, --recompute inputs, or more machines (--backend gloo)");
}

}  // namespace penstock
