// SPDX-License-Identifier: Apache-2.0
// Drawn images with texts that describe them.
#include <array>
#include <cmath>

#include "base/hash.h"
#include "base/text.h"
#include "data/image_text_dataset.h"
#include "data/permutation.h"
#include "models/layers.h"
#include "state/draws.h"

namespace penstock {
namespace {

struct Colour {
  const char* name;
  std::array<std::uint8_t, kColours> value;
};
constexpr std::array kColourTable = {Colour{"red", {230, 40, 40}}, Colour{"green", {40, 200, 60}}, Colour{"blue", {50, 70, 230}},
                                     Colour{"yellow", {230, 220, 50}}, Colour{"white", {240, 240, 240}}};

// Whether the point, from -1 to 1 in both directions, is in the figure.
struct Figure {
  const char* name;
  bool (*has)(double x, double y);
};
constexpr std::array kFigures = {Figure{"disc", [](double x, double y) { return x * x + y * y < 0.5; }},
                                 Figure{"ring",
                                        [](double x, double y) {
                                          const double square = x * x + y * y;
                                          return square > 0.25 && square < 0.7;
                                        }},
                                 Figure{"bar", [](double, double y) { return std::abs(y) < 0.3; }},
                                 Figure{"pole", [](double x, double) { return std::abs(x) < 0.3; }}};

std::uint64_t key_of_sample(std::int64_t seed, std::int64_t sample) {
  return mix_key(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(sample));
}

// The figure that an image shows.
struct Drawing {
  const Colour& colour;
  const Figure& figure;
  std::uint64_t key;
};
Drawing drawing_of(std::int64_t seed, std::int64_t sample, std::int64_t image) {
  const std::uint64_t key = mix_key(key_of_sample(seed, sample), static_cast<std::uint64_t>(image) + 1);
  const auto pick = [&](std::uint64_t index, std::size_t count) {
    return static_cast<std::size_t>(uniform_draw(key, index) * static_cast<double>(count));
  };
  return {kColourTable[pick(0, kColourTable.size())], kFigures[pick(1, kFigures.size())], key};
}

}  // namespace

std::int64_t DrawnImagesDataset::images(std::int64_t sample) const {
  return static_cast<std::int64_t>(uniform_draw(key_of_sample(seed_, sample), 0) * static_cast<double>(ports().most + 1));
}

std::string DrawnImagesDataset::text_of(std::int64_t sample) const {
  std::string out;
  for (std::int64_t image = 0; image < images(sample); ++image) {
    const Drawing drawing = drawing_of(seed_, sample, image);
    out += concat(out.empty() ? "" : ", ", drawing.colour.name, " ", drawing.figure.name);
  }
  return out.empty() ? "nothing." : out + ".";
}

Pixels DrawnImagesDataset::image_of(std::int64_t sample, std::int64_t image) const {
  constexpr std::uint64_t kFirstNoise = 2;  // behind the draws of colour and figure
  constexpr double kNoise = 60;
  const Drawing drawing = drawing_of(seed_, sample, image);
  Pixels out;
  const double step = 2.0 / static_cast<double>(ports().size);
  for (std::int64_t y = 0; y < ports().size; ++y)
    for (std::int64_t x = 0; x < ports().size; ++x) {
      const bool inside = drawing.figure.has((static_cast<double>(x) + 0.5) * step - 1, (static_cast<double>(y) + 0.5) * step - 1);
      const auto noise =
          static_cast<std::uint8_t>(kNoise * uniform_draw(drawing.key, kFirstNoise + static_cast<std::uint64_t>(y * ports().size + x)));
      for (const std::uint8_t value : drawing.colour.value) out.push_back(inside ? value : noise);
    }
  return out;
}

std::string DrawnImagesDataset::summary() const {
  return concat("drawn images, 0 to ", ports().most, " for each text (seed ", seed_, ")");
}

std::uint64_t DrawnImagesDataset::fingerprint() const {
  Hash hash;
  for (const std::int64_t word : {seed_, ports().size, ports().patch, ports().most, ports().tokens})
    hash.add(static_cast<std::uint64_t>(word));
  return hash.value();
}

}  // namespace penstock
