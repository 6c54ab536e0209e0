// SPDX-License-Identifier: Apache-2.0
// Golden text: compared with a file under tests/golden; PENSTOCK_UPDATE_GOLDEN=1 in the environment writes it instead.
#pragma once

#include <string>

namespace penstock::test {

// EXPECTs that `actual` equals tests/golden/<name>.
void expect_golden(const std::string& name, const std::string& actual);

}  // namespace penstock::test
