// SPDX-License-Identifier: Apache-2.0
// The transports that transport_conformance.h tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices/executor.h"

namespace penstock::test {

// Makes one connected endpoint per device.
struct TransportCase {
  std::string name;
  std::function<std::vector<std::unique_ptr<Transport>>(int devices)> make;
  bool in_order = false;  // whether both ends start the transfers of a direction in the order of their tags, as programs do
};

class TransportConformance : public testing::TestWithParam<TransportCase> {};

inline std::string case_name(const testing::TestParamInfo<TransportCase>& info) {
  return info.param.name;
}

}  // namespace penstock::test
