#include "schedule/folded.h"

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

void require_two_chunks(std::string_view name, const ScheduleOptions& options) {
  if (options.chunks == 2) return;
  throw Error(concat(name, " gives each actor two stages, not ", options.chunks),
              {"its stages go down the actors and come back: actor r of p has stages r and 2p-1-r"}, "chunks 2");
}

void require_even_actors(std::string_view name, const ScheduleOptions& options) {
  if (options.actors % 2 == 0) return;
  throw Error(concat(name, " needs an even number of actors, not ", options.actors),
              {"two directions share the actors; a middle actor would hold one stage for both"},
              concat(options.actors > 1 ? concat(options.actors - 1, " or ") : std::string(), options.actors + 1, " actors"));
}

}  // namespace penstock
