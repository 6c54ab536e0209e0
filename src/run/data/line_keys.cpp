#include "data/line_keys.h"

#include "base/text.h"
#include "base/words.h"

namespace penstock {

void check_misspelt(const JsonNode& line, const char* key) {
  line.check_object();
  if (line.has(key)) return;
  line.each_member([&](const std::string& other, const JsonNode&) {
    if (!nearest(other, {key}).empty()) line.fail(concat("has no key ", quote(key), ", but ", quote(other)), did_you_mean(other, {key}));
  });
}

}  // namespace penstock
