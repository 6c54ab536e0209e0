// SPDX-License-Identifier: Apache-2.0
// Timelines for tests of drawings.
#pragma once

#include <random>

#include "penstock/timeline.h"

namespace penstock::test {

// A timeline of two devices and two micro-batches with a split backward, transfers with causes, an update, and memory; it takes 20 ms.
Timeline small_timeline();

// A timeline with anything that one may hold: names with every kind of character, activities that overlap or take no time, memory or none.
Timeline random_timeline(std::mt19937_64& random);

// `devices` times `boxes` boxes of F and B in turn that touch each other, without names.
Timeline dense_timeline(int devices, int boxes);

}  // namespace penstock::test
