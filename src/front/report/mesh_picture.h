// SPDX-License-Identifier: Apache-2.0
// Pictures of a mesh: who holds what of a value, and what its axes send over a cluster's links.
#pragma once

#include <string>
#include <vector>

#include "report/held_value.h"
#include "report/mesh_traffic.h"

namespace penstock {

struct MeshPicture {
  std::string title;
  MeshShape mesh;
  ClusterSpec cluster;
  std::vector<AxisTraffic> traffic;
  std::vector<HeldValue> values;
};

// A standalone SVG: above, the devices in the cluster's levels, and for each axis a line through each group that it joins, in the colour of
// the level whose links it takes; below, each value as a matrix whose parts have the colours of who holds them, with a legend. What is a
// term of a sum is hatched. On a page the picture takes the page's colours. Throws Error for more devices than a picture can show.
std::string mesh_svg(const MeshPicture& picture);
// The same as text: a table, and for each value a matrix of letters.
std::string mesh_text(const MeshPicture& picture);

// The text of one value, without the style that the whole picture has.
std::string held_text(const HeldValue& value);

}  // namespace penstock
