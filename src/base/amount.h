// SPDX-License-Identifier: Apache-2.0
// Sizes, bandwidths and times as users write them: options and keys of files read them here, so that all take the same units.
#pragma once

#include <optional>
#include <string_view>

namespace penstock {

enum class Quantity { bytes, bytes_per_second, seconds };

// An amount in bytes, bytes per second or seconds.
struct Amount {
  double value = 0;
  bool has_unit = false;  // whether the text says a unit; else it is the plain number
};

// Reads a number with or without a unit: bytes "5e8", "16GB" (10^9 each), "512 MiB" (2^20 each); bytes per second "25GB/s", "25GB" or, of
// bits, "200Gbit/s" and "200Gbps"; seconds "10ms", "5us", "2min". Nothing where it is none, as "200Gb/s", which may mean bits or bytes.
std::optional<Amount> parse_amount(std::string_view text, Quantity quantity);

// How amounts are written with a unit, for help and hints: "16GB or 512MiB".
const char* examples_of(Quantity quantity);

// The unit of a plain number in a file. Of a quantity a text may say another unit: memory = "16GB".
struct FileUnit {
  double size = 1;  // in bytes, bytes per second, seconds, or what else the number counts
  std::optional<Quantity> quantity = {};
};
inline constexpr FileUnit kGigabytes{1e9, Quantity::bytes}, kGigabytesPerSecond{1e9, Quantity::bytes_per_second},
    kMicroseconds{1e-6, Quantity::seconds};

}  // namespace penstock
