#include "simulate/network.h"

namespace penstock {

const Link& Network::at(std::int32_t from, std::int32_t to) const {
  const auto it = between.find({from, to});
  return it == between.end() ? link : it->second;
}

}  // namespace penstock
