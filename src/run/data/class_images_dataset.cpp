// SPDX-License-Identifier: Apache-2.0
#include "data/class_images_dataset.h"

#include <algorithm>

#include "base/text.h"
#include "base/words.h"
#include "data/text_files.h"
#include "models/layers.h"
#include "penstock/error.h"
#include "state/initialise.h"

namespace penstock {
namespace {

std::int64_t pixels_of(std::int64_t size) {
  return kColours * size * size;
}

}  // namespace

ClassImagesDataset::ClassImagesDataset(const std::vector<std::string>& paths, const std::vector<DataPort>& ports, const SampleDraw& draw)
    : SyntheticDataset(ports, draw.batch, draw.seed), size_(find_port(ports, "image").type.shape.at(1)) {
  std::int64_t images = 0;
  const std::int64_t bytes = 1 + pixels_of(size_);
  for (const std::string& path : paths) {
    const SteadyFile& file = files_.emplace_back(path);
    if (file.size() == 0 || file.size() % bytes != 0)
      throw Error(concat(path, " has ", file.size(), " bytes, which are no whole number of images of ", size_, " x ", size_),
                  {concat("an image takes ", bytes, ": a byte for its class, and three planes of ", size_ * size_,
                          ", as in CIFAR-10's binary files")},
                  "set model.image to the size of the files' images");
    first_.push_back(images);
    images += file.size() / bytes;
  }
  first_.push_back(images);
  check_classes(find_port(ports, "label").below);
  fingerprint_ = hash_of(files_);
  order_ = SampleOrder(images, draw);
  order_.check("images", join(paths, ", "), "files");
}

ClassImagesDataset::Place ClassImagesDataset::place_of(std::int64_t sample) const {
  const std::int64_t image = sample % first_.back();
  const auto file = std::ranges::upper_bound(first_, image) - first_.begin() - 1;
  return {static_cast<std::size_t>(file), (image - first_[static_cast<std::size_t>(file)]) * (1 + pixels_of(size_))};
}

void ClassImagesDataset::check_classes(std::int64_t classes) const {
  for (std::int64_t image = 0; image < first_.back(); ++image) {
    const Place place = place_of(image);
    std::byte label{};
    SteadyFile::Reading(files_[place.file]).read(place.offset, {&label, 1});
    if (std::to_integer<std::int64_t>(label) >= classes)
      throw Error(concat(files_[place.file].path(), ": image ", image - first_[place.file], " is of class ", std::to_integer<int>(label),
                         "; the model has ", classes, " classes"),
                  {}, concat("set model.classes to ", std::to_integer<int>(label) + 1, " or more"));
  }
}

void ClassImagesDataset::fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows,
                              std::span<std::byte> out) const {
  const std::string_view name = data_name(port);
  if (name != "label" && name != "image") return SyntheticDataset::fill(port, input, first_row, rows, out);
  constexpr double kWhite = 255;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(name == "label" ? 1 : pixels_of(size_)));
  std::size_t element = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const Place place = place_of(sample_in_row(input, first_row + row));
    SteadyFile::Reading(files_[place.file]).read(place.offset + (name == "label" ? 0 : 1), std::as_writable_bytes(std::span(bytes)));
    for (const std::uint8_t byte : bytes)
      store_element(port.type.dtype, name == "label" ? byte : (byte / kWhite - 0.5) * kImageSpread, out, element++);
  }
}

std::vector<std::int64_t> ClassImagesDataset::training_samples(std::int64_t position) const {
  std::vector<std::int64_t> out = order_.training(position);
  for (std::int64_t& sample : out) sample += position++ / order_.trained() * order_.samples;
  return out;
}

std::string ClassImagesDataset::summary() const {
  return concat(counted(first_.back(), "image"), " in ", counted(std::ssize(files_), "file"));
}

}  // namespace penstock
