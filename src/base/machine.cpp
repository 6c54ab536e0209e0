#include "base/machine.h"

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

std::int64_t memory_bytes() {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? pages * page : 0;
}

}  // namespace penstock
