// Where on this machine the tests find what they read.
#pragma once

#include <string>

namespace penstock::test {

// The project's folder tests/.
std::string tests_folder();
// The measured graphs of planners, which are no part of the project and need not be there.
std::string profiles_folder();
// A Python with PyTorch; need not be there.
std::string python_with_torch();

}  // namespace penstock::test
