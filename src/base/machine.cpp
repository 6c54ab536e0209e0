// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/text.h"

namespace penstock {
namespace {

// The number that a file begins with, or that stands behind the word `key`; none where there is no file or no number (as for "max").
std::optional<std::int64_t> number_in(const std::string& path, const std::string& key = "") {
  std::ifstream file(path);
  for (std::string word; !key.empty() && word != key;)
    if (!(file >> word)) return {};
  std::int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// The room left in this process's control group and in all groups around it: the least of them. Memory that only caches files counts as
// free.
std::optional<std::int64_t> control_group_room(const std::string& root) {
  std::optional<std::int64_t> least;
  const auto add = [&](const std::string& folder, const char* limit, const char* used, const char* cache) {
    const auto most = number_in(folder + limit);
    if (!most) return;
    const std::int64_t left = *most - number_in(folder + used).value_or(0) + number_in(folder + "/memory.stat", cache).value_or(0);
    least = std::min(least.value_or(left), left);
  };
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = split(line, ':');  // number, controllers, path
    if (parts.size() < 3) continue;
    const bool second = parts[1].empty();  // version 2 has one tree for all controllers
    if (!second && parts[1] != "memory") continue;
    for (std::string path = parts[2];; path.resize(path.rfind('/'))) {
      if (path.ends_with('/')) path.pop_back();
      if (second)
        add(root + "/sys/fs/cgroup" + path, "/memory.max", "/memory.current", "file");
      else
        add(root + "/sys/fs/cgroup/memory" + path, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_cache");
      if (path.empty()) break;
    }
  }
  return least;
}

std::optional<std::int64_t> address_space_room(const std::string& root) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  const std::int64_t used = number_in(root + "/proc/self/statm").value_or(0) * ::sysconf(_SC_PAGESIZE);
  return static_cast<std::int64_t>(limit.rlim_cur) - used;
}

}  // namespace

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return std::string(trim(std::string_view(line).substr(line.find(':') + 1)));
  return {};
}

bool keep_to_share(int index, int count) {
  cpu_set_t allowed, share;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  const int processors = CPU_COUNT(&allowed);
  if (processors < count) return false;
  CPU_ZERO(&share);
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    if (seen >= processors * index / count && seen < processors * (index + 1) / count) CPU_SET(cpu, &share);
    ++seen;
  }
  return ::sched_setaffinity(0, sizeof share, &share) == 0;
}

MemoryRoom memory_room(const std::string& root) {
  MemoryRoom out;
  const auto bound = [&](std::optional<std::int64_t> bytes, const char* limit) {
    if (bytes && (out.bytes < 0 || *bytes < out.bytes)) out = {std::max<std::int64_t>(*bytes, 0), limit};
  };
  if (const auto available = number_in(root + "/proc/meminfo", "MemAvailable:"))
    bound(1024 * (*available + number_in(root + "/proc/meminfo", "SwapFree:").value_or(0)), "this machine's free memory");
  bound(control_group_room(root), "what the control group's limit leaves");
  bound(address_space_room(root), "what the limit of the address space (ulimit -v) leaves");
  return out;
}

std::int64_t memory_bytes() {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages * page : 0;
}

}  // namespace penstock
