// Two backbones on the same actors (DiffusionPipe, Tian et al., 2405.01248, section 4, for cascaded models): one goes down the actors,
// stages 0 to p-1, and the other one up, stages p to 2p-1, with stage p on actor p-1. They do not feed each other, so where one waits the
// other computes, as Chimera's two directions do (chimera.cpp), but that each stage has one copy and all micro-batches.
//
// The bubble is Chimera's, (p-2)F where B=F and 2(p-2)F where B=2F, once for both backbones. Both in one direction have (p-1)(F+B), and one
// behind the other twice that. Peak p micro-batches of a stage, which is half of an actor's two.
//
//   penstock schedule bidirectional --actors 4 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 0F1 0F2 7F0 7B0---- 7F1 7B1---- 0F3 .   0B0---- 7F2 7B2---- .   0B1---- 7F3 7B3---- 0B2---- .   .   0B3----
//   actor 1 | .   1F0 6F0 1F1 6F1 .   6B0---- 1F2 1B0---- 6F2 6B1---- 1F3 1B1---- 6F3 6B2---- 1B2---- 6B3---- 1B3----
//   actor 2 | .   5F0 2F0 5F1 2F1 .   2B0---- 5F2 5B0---- 2F2 2B1---- 5F3 5B1---- 2F3 2B2---- 5B2---- 2B3---- 5B3----
//   actor 3 | 4F0 4F1 4F2 3F0 3B0---- 3F1 3B1---- 4F3 .   4B0---- 3F2 3B2---- .   4B1---- 3F3 3B3---- 4B2---- .   .   4B3----
//   time 28, bubble 14.3 %, live 4 4 4 4
#include "schedule/folded.h"

namespace penstock {

Schedule bidirectional(const ScheduleOptions& options) {
  require_even_actors("bidirectional", options);
  require_two_chunks("bidirectional", options);
  EngineWork work = folded_work(options.actors, 2, options.microbatches);
  work.shape.predecessors[static_cast<std::size_t>(options.actors)].clear();
  return oldest_first(work, 2 * options.actors, 1);
}

}  // namespace penstock
