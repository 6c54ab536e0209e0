// SPDX-License-Identifier: Apache-2.0
// The places on this machine where the tests find their data.
#pragma once

#include <string>

namespace penstock::test {

// The project's folder tests/.
std::string tests_folder();
// The measured graphs for planners, which are no part of the project and need not exist.
std::string profiles_folder();
// A Python with PyTorch, which need not exist.
std::string python_with_torch();

}  // namespace penstock::test
