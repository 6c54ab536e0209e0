// SPDX-License-Identifier: Apache-2.0
// The code that documents show stands in the files they name.
#include <gtest/gtest.h>

#include "base/text.h"
#include "support/paths.h"

namespace penstock {
namespace {

class Document : public testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(Document, ShowsCodeThatIsBuilt) {
  const auto& [page, expected] = GetParam();
  const std::string root = test::tests_folder() + "/../";
  const std::string text = read_file(root + page);
  const std::string open = "<!-- ", fence = " -->\n```cpp\n";
  int snippets = 0;
  for (std::size_t at = text.find(open); at != std::string::npos; at = text.find(open, at + 1)) {
    const std::size_t code = text.find(fence, at);
    ASSERT_NE(code, std::string::npos);
    const std::string path = text.substr(at + open.size(), code - at - open.size());
    const std::size_t begin = code + fence.size(), end = text.find("```", begin);
    const std::string snippet = text.substr(begin, end - begin);
    EXPECT_NE(read_file(root + path).find(snippet), std::string::npos) << path << " does not contain\n" << snippet;
    ++snippets;
  }
  EXPECT_EQ(snippets, expected);
}

INSTANTIATE_TEST_SUITE_P(All, Document,
                         testing::Values(std::pair("docs/front_end.md", 8), std::pair("docs/tutorials/extend_in_cpp.md", 5)));

}  // namespace
}  // namespace penstock
