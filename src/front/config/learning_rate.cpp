// SPDX-License-Identifier: Apache-2.0
#include "config/learning_rate.h"

#include "base/text.h"
#include "trace/decays.h"

namespace penstock {

std::int64_t end_of_decay(const Config::Train& train) {
  return train.decay_end > 0 ? train.decay_end : train.steps;
}

std::string learning_rate_text(const Config::Train& train) {
  const std::string warm = concat(train.learning_rate, train.warmup > 0 ? concat(" from step ", train.warmup) : "");
  if (!find_decay(train.decay).falls()) return warm + ", constant";
  const std::string late = train.decay_steps > 0 ? concat(" over ", train.decay_steps, " steps") : "";
  return concat(warm, ", ", train.decay, late, " to ", train.learning_rate * train.final_fraction, " at step ", end_of_decay(train));
}

void keep_learning_rate(Config::Train& train, const Config::Train& before, const std::set<std::string>& told) {
  const auto keep = [&](const char* key, auto& value, const auto& earlier) {
    if (!told.contains(key)) value = earlier;
  };
  keep("train.learning_rate", train.learning_rate, before.learning_rate);
  keep("train.final_fraction", train.final_fraction, before.final_fraction);
  keep("train.warmup", train.warmup, before.warmup);
  keep("train.decay", train.decay, before.decay);
  keep("train.decay_steps", train.decay_steps, before.decay_steps);
  const bool same_end = end_of_decay(train) == end_of_decay(before);  // 0 ("the last step") is kept where it means the same step
  if (!same_end) keep("train.decay_end", train.decay_end, end_of_decay(before));
}

}  // namespace penstock
