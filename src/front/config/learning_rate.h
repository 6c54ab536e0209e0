// SPDX-License-Identifier: Apache-2.0
// How a resumed run continues the learning rate.
#pragma once

#include <set>
#include <string>

#include "config/config.h"

namespace penstock {

// The learning rate in words: "0.001 from step 20, cosine to 0.0001 at step 400".
std::string learning_rate_text(const Config::Train& train);

// The step at which the rate has fallen.
std::int64_t end_of_decay(const Config::Train& train);

// Lets a resumed run's learning rate go on as that of the run before would have, whatever its length, except for the keys that it was
// `told` ("train.decay_end").
void keep_learning_rate(Config::Train& train, const Config::Train& before, const std::set<std::string>& told);

}  // namespace penstock
