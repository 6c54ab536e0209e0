// SPDX-License-Identifier: Apache-2.0
// Where the tables of a recommendation model lie: whole on a device, or by rows on several, so that a step takes as short as can be where
// rows are looked up ahead (NestPipe, 2604.06956).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace penstock {

struct EmbeddingTable {
  double rows = 0, width = 0;  // elements of a row
  double lookups = 0;          // of a sample
};

struct TableDevice {
  double memory = std::numeric_limits<double>::infinity();  // bytes for tables
  double bandwidth = 0;                                     // bytes per second of rows that are looked up and updated; more than 0
  double dense = 0;                                         // seconds of a step for the dense layers that it has
};

struct PlacementProblem {
  std::vector<EmbeddingTable> tables;
  std::vector<TableDevice> devices;  // at most 64
  double batch = 1;                  // samples of a step
  double element = 4;                // bytes
  double passes = 3;                 // how often a step moves a row: it is looked up, and the update reads and writes it
  double copies = 1;                 // tables' bytes in memory over their elements': 2 with a velocity
  double link = 0;                   // bytes per second between devices; 0: no table is split
  double overlap = 0;                // share of a batch's rows that the step before changes, which are read again
};

// A table on k devices has rows / k on each, which look up their own among all indices and add up what they have, 2 (k-1)/k of the rows'
// bytes over the link. A device looks up ahead beside its dense layers, and before them reads again what has changed, which is one pass
// over it, so a step takes the largest of lookups, and dense + overlap * reads / passes, over the devices.
struct TablePlacement {
  double period = 0;                               // seconds
  std::vector<std::vector<std::int32_t>> devices;  // of each table, ascending
  std::vector<double> reads, exchange, bytes;      // of each device: seconds, seconds, of memory
  bool proven = false;                             // no placement is better
};

// Branch and bound, which tries the sets of devices of a table in the order of what they lead to; of more than 8 devices only the best set
// of each size, and after 2^18 steps none. Throws Error: numbers that are no such problem, and tables that do not fit, naming a table that
// is too large for all devices.
TablePlacement place_tables(const PlacementProblem& problem);

}  // namespace penstock
