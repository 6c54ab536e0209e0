#include "base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <string_view>

#include "base/text.h"

namespace penstock {

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

std::int64_t memory_bytes() {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages * page : 0;
}

}  // namespace penstock
