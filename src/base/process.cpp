// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/text.h"

namespace penstock {
namespace {

// The machine since it was started, and the numbering of processes that this one sees.
std::string this_system() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code none;
  const std::string numbering = std::filesystem::read_symlink("/proc/self/ns/pid", none).string();
  return boot.empty() || numbering.empty() ? "" : concat(boot, " ", numbering);
}

// When the process was started, in the system's ticks; empty: there is no such process, or one that has ended and nobody has asked for yet.
std::string start_of(const std::string& pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  const std::string line = text.str();
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));  // behind the name, which may have any characters
  std::vector<std::string> found;
  for (std::string field; fields >> field;) found.push_back(field);
  constexpr std::size_t kState = 0, kStart = 19;
  if (found.size() <= kStart || found[kState] == "Z" || found[kState] == "X") return {};
  return found[kStart];
}

}  // namespace

std::string this_process() {
  const std::string system = this_system(), pid = std::to_string(getpid()), start = start_of(pid);
  return system.empty() || start.empty() ? "" : concat(system, " ", pid, " ", start);
}

bool has_ended(const std::string& process) {
  const std::vector<std::string> parts = split(process, ' ');
  if (parts.size() != 4 || concat(parts[0], " ", parts[1]) != this_system()) return false;
  return start_of(parts[2]) != parts[3];
}

}  // namespace penstock
