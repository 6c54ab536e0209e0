// SPDX-License-Identifier: Apache-2.0
#include "data/json_lines.h"

#include <algorithm>

#include "base/text.h"
#include "base/words.h"

namespace penstock {

void read_lines(const SteadyFile& file, const std::string& form,
                const std::function<void(const JsonNode& line, const std::string& place)>& read) {
  const std::string all = read_all(file);
  std::int64_t number = 0;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end + 1) {
    end = std::min(all.find('\n', begin), all.size());
    const std::string_view text = std::string_view(all).substr(begin, end - begin);
    const JsonFile place{concat(file.path(), ":", ++number), form};
    if (trim(text).empty()) continue;
    const nlohmann::json value = parse_json(text, place);
    read(JsonNode(value, place), place.name);
  }
}

void check_misspelt(const JsonNode& line, const char* key) {
  line.check_object();
  if (line.has(key)) return;
  line.each_member([&](const std::string& other, const JsonNode&) {
    if (!nearest(other, {key}).empty()) line.fail(concat("has no key ", quote(key), ", but ", quote(other)), did_you_mean(other, {key}));
  });
}

}  // namespace penstock
