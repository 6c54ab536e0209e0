// SPDX-License-Identifier: Apache-2.0
#include "base/words.h"

#include <algorithm>
#include <iterator>

#include "base/text.h"

namespace penstock {

std::string counted(std::int64_t count, std::string_view thing) {
  return concat(count, " ", thing, count == 1 ? "" : thing.ends_with("h") || thing.ends_with("s") ? "es" : "s");
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t kLeast = 2, kMost = 4;  // how many letters must match for a beginning to count; how many names a hint gives
  std::vector<std::string> meant;
  if (word.size() >= kLeast)
    std::copy_if(known.begin(), known.end(), std::back_inserter(meant), [&](const std::string& name) { return name.starts_with(word); });
  if (meant.empty() || meant.size() > kMost) meant = {nearest(word, known)};
  return meant.front().empty() ? ""
                               : concat("did you mean ", join(meant, " or ", [](const std::string& name) { return quote(name); }), "?");
}

}  // namespace penstock
