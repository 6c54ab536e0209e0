// SPDX-License-Identifier: Apache-2.0
#include "program/interpreter.h"

#include <algorithm>

namespace penstock {

DeviceState::DeviceState(const DeviceProgram& program) : device(&program), slots(program.slots.size()) {
  sends.reserve(std::count_if(program.instructions.begin(), program.instructions.end(), [](const Instruction& i) {
    return i.opcode == Opcode::send || i.opcode == Opcode::output || is_host_copy(i.opcode) || is_collective(i.opcode);
  }));
}

void DeviceState::reset() {
  next = idle = 0;
  std::fill(slots.begin(), slots.end(), SlotEvents{});
  sends.clear();
}

}  // namespace penstock
