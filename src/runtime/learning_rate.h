// The learning rate of a run that is resumed.
#pragma once

#include <set>
#include <string>

#include "runtime/config.h"

namespace penstock {

// "0.001 from step 20, cosine to 0.0001 at step 400".
std::string learning_rate_text(const Config::Train& train);

// The step at which it has fallen.
std::int64_t end_of_decay(const Config::Train& train);

// A resumed run's learning rate goes on as that of the run before would have, whatever its length, but for the keys that it was told
// ("train.decay_end").
void keep_learning_rate(Config::Train& train, const Config::Train& before, const std::set<std::string>& told);

}  // namespace penstock
