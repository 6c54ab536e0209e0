// SPDX-License-Identifier: Apache-2.0
// Images with a class each, from files in the binary format of CIFAR-10: for each image a byte that says its class, and then three planes
// of size x size bytes, red, green and blue, each row by row.
#pragma once

#include "base/steady_file.h"
#include "data/sample_order.h"
#include "data/synthetic.h"

namespace penstock {

// All else that the model reads (the levels of noise of a diffusion model) is drawn as SyntheticDataset does, anew in each epoch. A
// sample's number is the image's, plus the number of images for each epoch before.
class ClassImagesDataset : public SyntheticDataset {
 public:
  // The files give `ports` "label" and "image". Throws Error: unreadable, a file that holds no whole number of images of the
  // port's size, a class that the port has not, fewer images than a batch takes.
  ClassImagesDataset(const std::vector<std::string>& paths, const std::vector<DataPort>& ports, const SampleDraw& draw);
  // Values of the image are from -kImageSpread / 2, black, to as much above 0.
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override;
  std::vector<std::int64_t> training_samples(std::int64_t position) const override;
  std::vector<std::int64_t> validation_samples(std::int64_t batch) const override { return order_.validation(batch); }
  std::string summary() const override;
  std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  struct Place {
    std::size_t file;
    std::int64_t offset;  // of the class
  };
  Place place_of(std::int64_t sample) const;
  void check_classes(std::int64_t classes) const;

  std::int64_t size_;  // of an image, in both directions
  std::vector<SteadyFile> files_;
  std::vector<std::int64_t> first_;  // of each file: how many images stand in those before it, and at the end how many there are
  SampleOrder order_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace penstock
