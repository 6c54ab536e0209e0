// SPDX-License-Identifier: Apache-2.0
#include "planners/degrees_groups.h"

#include <algorithm>

#include "base/text.h"
#include "cost/cost_model.h"

namespace penstock {
namespace {

// The slower of `link` and the links of the ring.
ClusterLink slowest_of_ring(const ClusterSpec& cluster, const std::vector<int>& ring, ClusterLink link) {
  for (std::size_t i = 0; i < ring.size(); ++i)
    if (const int to = ring[(i + 1) % ring.size()]; to != ring[i]) link = slower(link, cluster.link(ring[i], to));
  return link;
}

Network pipes_of(const ClusterSpec& cluster, const Degrees& degrees, const std::vector<std::vector<int>>& groups) {
  Network network;
  for (int from = 0; from < degrees.pipe; ++from) {
    const int to = (from + 1) % degrees.pipe;
    if (from == to) continue;
    ClusterLink slowest;
    for (std::size_t i = 0; i < groups[from].size(); ++i) slowest = slower(slowest, cluster.link(groups[from][i], groups[to][i]));
    network.between[{from, to}] = network.between[{to, from}] = link_of(slowest);
  }
  return network;
}

const char* name_of(DegreeAxis axis) {
  constexpr const char* kNames[] = {"pipe", "data", "context", "tensor"};
  return kNames[static_cast<int>(axis)];
}

}  // namespace

int size_along(const Degrees& degrees, DegreeAxis axis) {
  const int sizes[] = {degrees.pipe, degrees.data, degrees.split.context, degrees.split.tensor};
  return sizes[static_cast<int>(axis)];
}

int stride_along(const Degrees& degrees, DegreeAxis axis) {
  int stride = 1;
  for (auto inner = degrees.order.rbegin(); *inner != axis; ++inner) stride *= size_along(degrees, *inner);
  return stride;
}

std::string order_text(const Degrees& degrees) {
  std::vector<std::string> names;
  for (const DegreeAxis axis : degrees.order)
    if (size_along(degrees, axis) > 1) names.emplace_back(name_of(axis));
  return join(names, "/");
}

std::vector<int> group_of(const Degrees& degrees, int actor) {
  std::vector<int> group = {actor * stride_along(degrees, DegreeAxis::pipe)};
  for (const DegreeAxis axis : {DegreeAxis::data, DegreeAxis::context, DegreeAxis::tensor}) {
    std::vector<int> more;
    for (const int device : group)
      for (int m = 0; m < size_along(degrees, axis); ++m) more.push_back(device + m * stride_along(degrees, axis));
    group = std::move(more);
  }
  return group;
}

std::vector<int> group_along(const Degrees& degrees, DegreeAxis axis, int device) {
  const int size = size_along(degrees, axis), stride = stride_along(degrees, axis), first = device - device / stride % size * stride;
  std::vector<int> group;
  for (int m = 0; m < size; ++m) group.push_back(first + m * stride);
  return group;
}

DegreesGroups groups_of(const ClusterSpec& cluster, const Degrees& degrees) {
  DegreesGroups out;
  std::vector<std::vector<int>> groups;
  ClusterLink tensor, context;
  for (int actor = 0; actor < degrees.pipe; ++actor) {
    const std::vector<int>& group = groups.emplace_back(group_of(degrees, actor));
    ClusterLink between, inside;
    for (int inner = 0; inner < degrees.split.devices(); ++inner) {
      const std::vector<int> replicas = group_along(degrees, DegreeAxis::data, group[inner]);
      std::vector<int> hosts;
      for (std::size_t i = 0; i < replicas.size(); i += degrees.local) hosts.push_back(replicas[i]);
      between = slowest_of_ring(cluster, hosts, between);
      inside = slowest_of_ring(cluster, {replicas.begin(), replicas.begin() + degrees.local}, inside);
    }
    out.between.push_back(link_of(between));
    out.inside.push_back(link_of(inside));
    out.weakest.push_back(weakest(cluster, group));
    for (const int device : group) {
      const std::vector<int> along_tensor = group_along(degrees, DegreeAxis::tensor, device),
                             along_context = group_along(degrees, DegreeAxis::context, device);
      if (along_tensor[0] == device) tensor = slowest_of_ring(cluster, along_tensor, tensor);
      if (along_context[0] == device) context = slowest_of_ring(cluster, along_context, context);
    }
  }
  out.pipes = pipes_of(cluster, degrees, groups);
  out.tensor = link_of(tensor);
  out.context = link_of(context);
  return out;
}

}  // namespace penstock
