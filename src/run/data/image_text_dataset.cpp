// SPDX-License-Identifier: Apache-2.0
#include "data/image_text_dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/hash.h"
#include "base/invariant.h"
#include "base/text.h"
#include "base/words.h"
#include "data/json_lines.h"
#include "data/synthetic.h"
#include "data/text_files.h"
#include "models/layers.h"
#include "penstock/error.h"
#include "state/initialise.h"

namespace penstock {
namespace {

std::int64_t root_of(std::int64_t square) {
  const auto root = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(square))));
  if (root * root != square) throw Error(concat("images are squares of square patches, and ", square, " is no square"));
  return root;
}

// One image's entry: its patches, each colour by colour.
void store_patches(const ImagePorts& ports, const Pixels& pixels, std::span<std::byte> out) {
  constexpr double kMiddle = 127.5;
  const std::int64_t size = ports.size, patch = ports.patch, side = size / patch;
  std::size_t element = 0;
  for (std::int64_t square = 0; square < side * side; ++square)
    for (std::int64_t colour = 0; colour < kColours; ++colour)
      for (std::int64_t place = 0; place < patch * patch; ++place, ++element) {
        const std::int64_t y = square / side * patch + place / patch, x = square % side * patch + place % patch;
        const std::uint8_t value = pixels[static_cast<std::size_t>((y * size + x) * kColours + colour)];
        store_element(ports.dtype, value / kMiddle - 1, out, element);
      }
}

}  // namespace

ImagePorts image_ports_of(const std::vector<DataPort>& ports) {
  const auto slots = std::ranges::find(ports, DataPort::Kind::slots, &DataPort::kind);
  invariant(slots != ports.end(), "the model reads images");
  const DataPort& images = find_port(ports, slots->of.at(0));
  const std::int64_t patch = root_of(images.type.shape.at(1) / kColours);
  return {.size = patch * root_of(images.type.shape.at(0)),
          .patch = patch,
          .most = images.entries,
          .tokens = slots->below,
          .context = slots->type.shape.at(0),
          .dtype = images.type.dtype};
}

std::int64_t ImageTextDataset::length(std::int64_t sample) const {
  return std::min(image_tokens(sample) + std::ssize(text_of(sample)) - 1, ports_.context);
}

void ImageTextDataset::fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows,
                            std::span<std::byte> out) const {
  const std::string_view name = data_name(port);
  if (name == "images") return fill_images(port, input, first_row, rows, out);
  const std::span<std::int64_t> values(reinterpret_cast<std::int64_t*>(out.data()), out.size() / sizeof(std::int64_t));
  if (name == "seed") {
    values[0] = input.seed;
  } else if (name == "count") {
    values[0] = 0;
    for (const std::int64_t sample : input.samples) values[0] += length(sample) - std::max<std::int64_t>(image_tokens(sample) - 1, 0);
  } else if (name == "rows") {
    for (std::int64_t row = 0; row < rows; ++row) values[row] = sample_in_row(input, first_row + row);
  } else if (name == "slots") {
    fill_slots(port, input, first_row, values);
  } else if (name == "tokens" || name == "targets") {
    for (std::int64_t row = 0; row < rows; ++row)
      fill_text(sample_in_row(input, first_row + row), name == "targets", values.subspan(row * port.type.shape[1], port.type.shape[1]));
  } else {
    throw Error(concat("texts with images have no data for port ", quote(port.name)),
                {"they give images, tokens, targets, slots, rows, seed and count"});
  }
}

void ImageTextDataset::fill_images(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t entries,
                                   std::span<std::byte> out) const {
  const bool has_places = port.row < 0;
  std::int64_t row = has_places ? first_row / ports_.most : first_row, image = 0;
  const std::size_t bytes = out.size() / static_cast<std::size_t>(entries);
  const auto is_behind_all = [&] { return !has_places && row == std::ssize(input.samples); };
  for (std::int64_t entry = 0; entry < entries; ++entry, ++image) {
    while (!is_behind_all() && image == (has_places ? ports_.most : images(sample_in_row(input, row)))) {
      ++row;
      image = 0;
    }
    const std::span<std::byte> here = out.subspan(static_cast<std::size_t>(entry) * bytes, bytes);
    if (const std::int64_t sample = is_behind_all() ? -1 : sample_in_row(input, row); sample >= 0 && image < images(sample))
      store_patches(ports_, image_of(sample, image), here);
    else
      std::ranges::fill(here, std::byte{0});
  }
}

void ImageTextDataset::fill_slots(const Port& port, const StepInput& input, std::int64_t first_row, std::span<std::int64_t> values) const {
  std::ranges::fill(values, 0);
  std::int64_t next = 1;
  const std::int64_t length = port.type.shape[1];
  for (std::int64_t row = 0; row * length < std::ssize(values); ++row) {
    const std::int64_t count = image_tokens(sample_in_row(input, first_row + row));
    for (std::int64_t i = 0; i < count; ++i) values[row * length + i] = next + i;
    next += port.row < 0 ? ports_.most * ports_.tokens : count;
  }
}

void ImageTextDataset::fill_text(std::int64_t sample, bool targets, std::span<std::int64_t> row) const {
  const std::int64_t before = image_tokens(sample), end = length(sample);
  if (end > std::ssize(row)) throw Error(concat("sample ", sample, " has ", end, " tokens, its micro-batch ", row.size()));
  const std::string text = text_of(sample);
  for (std::int64_t i = 0; i < std::ssize(row); ++i) {
    const std::int64_t byte = i + targets - before;
    row[i] = byte >= 0 && i < end ? static_cast<unsigned char>(text[byte]) : targets ? kIgnored : 0;
  }
}

ImageFilesDataset::ImageFilesDataset(const std::vector<std::string>& paths, const ImagePorts& ports, const SampleDraw& draw)
    : ImageTextDataset(ports) {
  std::vector<SteadyFile> files = open_text(paths).files;
  for (const SteadyFile& file : files) {
    const std::string folder = std::filesystem::path(file.path()).parent_path().string();
    read_lines(file, "each line is an object with \"images\", a list of files, and \"text\"",
               [&](const JsonNode& line, const std::string& place) { add_line(line, folder, place); });
  }
  for (const Sample& sample : samples_)
    for (const ImageFile& image : sample.images) files.push_back(image.file());
  fingerprint_ = hash_of(files);
  order_ = SampleOrder(std::ssize(samples_), draw);
  order_.check("texts with images", join(paths, ", "), "files");
}

void ImageFilesDataset::add_line(const JsonNode& node, const std::string& folder, const std::string& place) {
  check_misspelt(node, "images");
  Sample& sample = samples_.emplace_back();
  sample.text = node.at("text").text();
  if (sample.text.size() < 2) node.at("text").fail("is too short: a sample predicts each byte from those before it");
  if (node.has("images"))
    node.at("images").each_element([&](const JsonNode& image) {
      try {
        sample.images.emplace_back((std::filesystem::path(folder) / image.text()).string(), ports().size);
      } catch (const Error& error) {
        throw Error(concat(place, ": ", error.what()));
      }
    });
  if (std::ssize(sample.images) > ports().most)
    node.at("images").fail(concat("has ", sample.images.size(), " images; the model takes at most ", ports().most),
                           "raise model.images, or leave some out");
}

const ImageFilesDataset::Sample& ImageFilesDataset::sample_at(std::int64_t sample) const {
  if (sample < 0 || sample >= std::ssize(samples_)) throw Error(concat("sample ", sample, " was asked for, there are ", samples_.size()));
  return samples_[static_cast<std::size_t>(sample)];
}

std::string ImageFilesDataset::summary() const {
  std::int64_t images = 0, cut = 0;
  for (const Sample& sample : samples_) {
    images += std::ssize(sample.images);
    cut += std::ssize(sample.images) * ports().tokens + std::ssize(sample.text) - 1 > ports().context;
  }
  return concat(counted(std::ssize(samples_), "text"), " with ", counted(images, "image"), cut > 0 ? concat(" (", cut, " cut)") : "");
}

}  // namespace penstock
