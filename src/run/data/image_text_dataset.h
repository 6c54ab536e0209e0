// SPDX-License-Identifier: Apache-2.0
// Texts with images in front: samples of different numbers of images, from files or drawn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/dataset.h"
#include "data/image_file.h"
#include "data/sample_order.h"

namespace penstock {

// The form in which a model takes images: squares of `size` pixels, cut into squares of `patch` pixels, at most so many in front of a text,
// each as so many tokens.
struct ImagePorts {
  std::int64_t size = 0, patch = 0, most = 0, tokens = 0, context = 0;
  DType dtype = DType::f32;
};
// Reads the form from the ports ("images": entries [patches, 3 * patch * patch]; "slots"). Throws Error where images are not square.
ImagePorts image_ports_of(const std::vector<DataPort>& ports);

// A sample is tokens of its images, then the bytes of its text, each predicted from what stands before it (without images the first byte is
// not).
class ImageTextDataset : public Dataset {
 public:
  // "images" [entries, patches, channels]: in a program of one shape each sample's at its own place, zeros where it has fewer; where
  // micro-batches have shapes of their own (Port::row) those that are there, one after the other; no slot names what a port with more
  // entries has behind them. A value is -1 to 1, a patch lies colour by colour, row by row. "tokens" and "targets" i64 [rows, length]: 0
  // where an image token stands, and behind the text; kIgnored where nothing is to be predicted. "slots" i64 [rows, length]; "rows",
  // "seed", "count" i64 [] (targets of the whole step). Throws Error for a sample that is longer than its row.
  void fill(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t rows, std::span<std::byte> out) const override;
  std::int64_t tokens() const override { return ports_.context; }
  std::int64_t length(std::int64_t sample) const override;

 protected:
  explicit ImageTextDataset(const ImagePorts& ports) : ports_(ports) {}
  virtual std::string text_of(std::int64_t sample) const = 0;
  virtual Pixels image_of(std::int64_t sample, std::int64_t image) const = 0;
  const ImagePorts& ports() const { return ports_; }

 private:
  void fill_images(const Port& port, const StepInput& input, std::int64_t first_row, std::int64_t entries, std::span<std::byte> out) const;
  void fill_slots(const Port& port, const StepInput& input, std::int64_t first_row, std::span<std::int64_t> row) const;
  void fill_text(std::int64_t sample, bool targets, std::span<std::int64_t> row) const;
  std::int64_t image_tokens(std::int64_t sample) const { return images(sample) * ports_.tokens; }

  ImagePorts ports_;
};

// From files *.jsonl, whose lines are objects with "images", a list of paths that begin at the file's folder, and "text". Throws Error,
// which names file and line: an image that is not there or of another size, more images than the model takes, no text.
class ImageFilesDataset : public ImageTextDataset {
 public:
  ImageFilesDataset(const std::vector<std::string>& paths, const ImagePorts& ports, const SampleDraw& draw);

  std::vector<std::int64_t> training_samples(std::int64_t position) const override { return order_.training(position); }
  std::vector<std::int64_t> validation_samples(std::int64_t batch) const override { return order_.validation(batch); }
  std::int64_t images(std::int64_t sample) const override { return std::ssize(sample_at(sample).images); }
  std::string summary() const override;
  std::uint64_t fingerprint() const override { return fingerprint_; }

 protected:
  std::string text_of(std::int64_t sample) const override { return sample_at(sample).text; }
  Pixels image_of(std::int64_t sample, std::int64_t image) const override { return sample_at(sample).images[image].read(); }

 private:
  struct Sample {
    std::vector<ImageFile> images;
    std::string text;
  };
  void add_line(const JsonNode& line, const std::string& folder, const std::string& place);
  const Sample& sample_at(std::int64_t sample) const;

  std::vector<Sample> samples_;
  SampleOrder order_;
  std::uint64_t fingerprint_ = 0;
};

// Drawn images of one coloured figure each, as many as is drawn for the sample (none to most, all equally likely), and a text that says
// what they show: "red disc, blue bar.". An endless data set. All depends on the seed and the sample's number only.
class DrawnImagesDataset : public ImageTextDataset {
 public:
  DrawnImagesDataset(const ImagePorts& ports, std::int64_t batch, std::int64_t seed)
      : ImageTextDataset(ports), batch_(batch), seed_(seed) {}

  std::vector<std::int64_t> training_samples(std::int64_t position) const override { return samples_from(position, batch_); }
  std::vector<std::int64_t> validation_samples(std::int64_t batch) const override {
    return samples_from(kFirstValidation + batch * batch_, batch_);
  }
  std::int64_t images(std::int64_t sample) const override;
  std::string summary() const override;
  std::uint64_t fingerprint() const override;

 protected:
  std::string text_of(std::int64_t sample) const override;
  Pixels image_of(std::int64_t sample, std::int64_t image) const override;

 private:
  std::int64_t batch_, seed_;
};

}  // namespace penstock
