// SPDX-License-Identifier: Apache-2.0
#include "data/sample_order.h"

#include <algorithm>

#include "base/invariant.h"
#include "base/text.h"
#include "data/permutation.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::uint64_t kSplitKey = 0x76616c6964617465;  // a constant, so that the split does not depend on the run's seed

std::int64_t sample_at(const SampleOrder& order, std::int64_t place) {
  const Permutation split(static_cast<std::uint64_t>(order.samples), kSplitKey);
  return static_cast<std::int64_t>(split(static_cast<std::uint64_t>(place)));
}

}  // namespace

SampleOrder::SampleOrder(std::int64_t all, const SampleDraw& draw)
    : samples(all), kept(static_cast<std::int64_t>(static_cast<double>(all) * draw.validation)), batch(draw.batch), seed(draw.seed) {
  if (draw.validation > 0) kept = std::max<std::int64_t>(kept, 1);
}

void SampleOrder::check(const std::string& what, const std::string& named, const std::string& sources) const {
  if (trained() >= batch) return;
  throw Error(concat("there are fewer ", what, " than one batch takes: ", samples, " in ", named),
              {concat("one batch takes ", batch, "; ", trained(), " are there beside validation")},
              concat("name more ", sources, ", or lower train.batch"));
}

std::vector<std::int64_t> SampleOrder::training(std::int64_t position) const {
  std::vector<std::int64_t> out;
  const std::int64_t size = trained();
  for (const std::int64_t end = position + batch; position < end; ++position) {
    const std::int64_t epoch = position / size;
    const Permutation order(static_cast<std::uint64_t>(size), mix_key(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(epoch)));
    out.push_back(sample_at(*this, kept + static_cast<std::int64_t>(order(static_cast<std::uint64_t>(position % size)))));
  }
  return out;
}

std::vector<std::int64_t> SampleOrder::validation(std::int64_t batch_number) const {
  invariant(kept > 0, "validation samples were asked for");
  std::vector<std::int64_t> out;
  for (std::int64_t row = 0; row < batch; ++row) out.push_back(sample_at(*this, (batch_number * batch + row) % kept));
  return out;
}

}  // namespace penstock
