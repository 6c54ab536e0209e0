// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.h"
#include "report/mesh_picture.h"

namespace penstock {
namespace {

constexpr std::int64_t kMostLetters = 64, kMostLines = 16;

// A letter for each part, in their order; beyond those there are it is a point.
char letter_of(std::size_t part) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  return part < kLetters.size() ? kLetters[part] : '.';
}

bool has_element(const HeldPart& part, std::int64_t row, std::int64_t column) {
  return std::any_of(part.boxes.begin(), part.boxes.end(), [&](const HeldBox& box) {
    return box.row_begin <= row && row < box.row_end && box.column_begin <= column && column < box.column_end;
  });
}

// The first part that has the element in the middle of each field.
std::string matrix_of(const HeldValue& value) {
  const std::int64_t rows = value.all_rows(), lines = std::min(rows, kMostLines), letters = std::min(value.columns, kMostLetters);
  std::string out;
  for (std::int64_t line = 0; line < lines; ++line) {
    out += "  ";
    for (std::int64_t letter = 0; letter < letters; ++letter) {
      const std::int64_t row = (2 * line + 1) * rows / (2 * lines), column = (2 * letter + 1) * value.columns / (2 * letters);
      std::size_t part = 0;
      while (part < value.parts.size() && !has_element(value.parts[part], row, column)) ++part;
      out += part < value.parts.size() ? letter_of(part) : ' ';
    }
    out += '\n';
  }
  return out;
}

}  // namespace

std::string held_text(const HeldValue& value) {
  std::string out = concat(value.name, ", ", value.what, "\n", matrix_of(value));
  for (std::size_t p = 0; p < value.parts.size(); ++p) {
    const HeldPart& part = value.parts[p];
    const bool one = part.terms.size() == 1 && part.terms[0].size() == 1;
    out += concat("  ", letter_of(p), "  ", boxes_text(value, part), ": ", part.terms.size() > 1 ? "the sum of what " : "",
                  one ? "device " : "devices ", devices_text(part), part.terms.size() > 1 ? " have" : "", "\n");
  }
  if (!value.row_text.empty()) out += concat("  rows: ", value.row_text, value.bands.empty() ? "" : ", of each replica's samples", "\n");
  if (!value.column_text.empty()) out += concat("  columns: ", value.column_text, "\n");
  for (const std::string& note : value.notes) out += concat("  ", note, "\n");
  return out;
}

std::string mesh_text(const MeshPicture& picture) {
  std::string out =
      concat(picture.title, "\nmesh: ", text_of(picture.mesh), "; a step sends\n\n", traffic_text(picture.traffic, picture.cluster));
  for (const HeldValue& value : picture.values) out += concat("\n", held_text(value));
  return out;
}

}  // namespace penstock
