// Reading TOML with toml++: what it gets wrong on bad input is caught here.
#pragma once

// What toml++ 3.3 asserts about its input is not always so ("[!]"): thrown, as a user's mistake must not end the process.
namespace penstock {
[[noreturn]] void fail_toml_assertion();
}  // namespace penstock

#define TOML_ASSERT(condition) ((condition) ? void() : penstock::fail_toml_assertion())
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <string>
#include <string_view>

namespace penstock {

// "run.toml:3:1: ", where messages about a key or value begin.
std::string place_text(std::string_view file, const toml::source_region& region);

// Throws Error with file:line:column.
toml::table parse_toml(std::string_view text, std::string_view file);

}  // namespace penstock
