// SPDX-License-Identifier: Apache-2.0
// Pictures in formats that other programs make of an SVG.
#pragma once

#include <string>

namespace penstock {

// Writes the SVG as FILE.pdf or FILE.png, by the first of rsvg-convert, inkscape and cairosvg that is installed. Throws Error where none
// is, with what to install, and where it fails.
void convert_svg(const std::string& svg, const std::string& file);

}  // namespace penstock
