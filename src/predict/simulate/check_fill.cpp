// SPDX-License-Identifier: Apache-2.0
// Whether a fill of idle time is one.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "penstock/error.h"
#include "simulate/fill_idle.h"

namespace penstock {
namespace {

constexpr double kLoose = 1e-6;  // of a time, for what was added up in another order

std::string place_of(const FrozenPiece& piece) {
  return concat("layer ", piece.layer, " of frozen chain ", piece.chain, ", at ", number(piece.begin));
}

// Keeps how much is done of each chain, and when each device is busy, as pieces come in time.
class Check {
 public:
  Check(const Timeline& step, const std::vector<FrozenChain>& chains, const FrozenFill& fill)
      : step_(step), chains_(chains), parts_(fill.parts), rounding_(kLoose * std::max(fill.makespan, step.makespan)) {
    for (const FrozenChain& chain : chains) done_.emplace_back(chain.size(), 0.0), ends_.emplace_back(chain.size(), 0.0);
    busy_.resize(step.devices.size());
    for (const Activity& activity : step.activities)
      if (activity.lane != Lane::transfer && activity.end > activity.begin)
        busy_[activity.device].push_back({activity.begin, activity.end});
  }

  void add(const FrozenPiece& piece) {
    if (piece.chain < 0 || piece.chain >= std::ssize(chains_) || piece.layer < 0 || piece.layer >= std::ssize(chains_[piece.chain]))
      throw Error(concat("there is no ", place_of(piece)));
    const double parts = piece.share * parts_;
    if (!(parts > 0.5) || std::abs(parts - std::round(parts)) > kLoose)
      throw Error(concat(place_of(piece), ": a partial batch of ", short_decimal(piece.share, 6), " is no multiple of 1/", parts_), {},
                  concat("the nearest are ", std::floor(parts), "/", parts_, " and ", std::ceil(parts), "/", parts_, " of the batch"));
    check_order(piece);
    check_devices(piece);
  }

  void check_all_done() const {
    for (std::size_t c = 0; c < chains_.size(); ++c)
      for (std::size_t l = 0; l < chains_[c].size(); ++l)
        if (std::abs(done_[c][l] - 1) > kLoose)
          throw Error(concat("layer ", l, " of frozen chain ", c, " computes ", short_decimal(done_[c][l], 6), " of its batch"), {},
                      "each layer computes all of it once, in the step or behind it");
  }

 private:
  void check_order(const FrozenPiece& piece) {
    if (piece.layer > 0) {
      const double done = done_[piece.chain][piece.layer - 1], end = ends_[piece.chain][piece.layer - 1];
      if (done < 1 - kLoose || piece.begin < end - rounding_)
        throw Error(
            concat(place_of(piece), ": layer ", piece.layer - 1, " is not done then"),
            {done < 1 - kLoose ? concat("it has computed ", short_decimal(done, 6), " of its batch") : concat("it ends at ", number(end))});
    }
    done_[piece.chain][piece.layer] += piece.share;
    ends_[piece.chain][piece.layer] = std::max(ends_[piece.chain][piece.layer], piece.end);
  }

  void check_devices(const FrozenPiece& piece) {
    const double takes = chains_[piece.chain][piece.layer] * piece.share / static_cast<double>(piece.devices.size());
    if (piece.devices.empty() || std::abs(piece.end - piece.begin - takes) > rounding_)
      throw Error(concat(place_of(piece), ": takes ", number(piece.end - piece.begin), " on ", piece.devices.size(), " devices, not ",
                         number(takes)));
    for (const std::int32_t device : piece.devices) {
      if (device < 0 || device >= std::ssize(busy_)) throw Error(concat(place_of(piece), ": there is no device ", device));
      for (const auto& [begin, end] : busy_[device])
        if (std::min(end, piece.end) - std::max(begin, piece.begin) > rounding_)
          throw Error(concat(place_of(piece), ": ", step_.devices[device], " is busy from ", number(begin), " to ", number(end)));
      busy_[device].push_back({piece.begin, piece.end});
    }
  }

  const Timeline& step_;
  const std::vector<FrozenChain>& chains_;
  const int parts_;
  const double rounding_;
  std::vector<std::vector<double>> done_, ends_;  // by chain and layer: share of the batch, and when
  std::vector<std::vector<std::pair<double, double>>> busy_;
};

}  // namespace

void check_fill(const Timeline& step, const std::vector<FrozenChain>& chains, const FrozenFill& fill) {
  Check check(step, chains, fill);
  for (const FrozenPiece& piece : fill.inside) check.add(piece);
  for (const FrozenPiece& piece : fill.behind) check.add(piece);
  check.check_all_done();
}

}  // namespace penstock
