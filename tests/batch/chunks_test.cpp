// SPDX-License-Identifier: Apache-2.0
// InfiniPipe: splitting, the order of chunks, and what they recompute; published values, brute force and simulated memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "batch/checkpoint_plan.h"
#include "batch/chunk_schedule.h"
#include "batch/micro_batch_times.h"
#include "batch/split_sequences.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;
using test::Random;
using Chunks = std::vector<int>;
using Numbers = std::vector<double>;
using Tokens = std::vector<std::int64_t>;

// F takes 1, B 2.
TableTime run_chunks(int actors, const Chunks& chunks, int warm_up = 0) {
  const auto count = at(std::accumulate(chunks.begin(), chunks.end(), 0));
  const Schedule schedule = chunk_schedule(actors, chunks, warm_up);
  validate(schedule, chain(actors), static_cast<int>(count));
  return time_micro_batches(schedule, {Numbers(count, 1), Numbers(count, 2), Numbers(count, 1)});
}

const Chunks kSix = {4, 3, 2, 1, 1, 1};

TEST(Chunks, PublishedTimes) {
  EXPECT_EQ(run_chunks(4, kSix).makespan, 45);
  EXPECT_EQ(run_chunks(4, kSix).peak_live, (Numbers{7, 6, 5, 4}));
  EXPECT_EQ(run_chunks(2, kSix).makespan, 39);
  EXPECT_EQ(run_chunks(8, kSix).makespan, 57);
  EXPECT_EQ(run_chunks(4, {8, 2, 2}).makespan, 45);
  EXPECT_EQ(run_chunks(4, {8, 2, 2}).peak_live, (Numbers{11, 10, 9, 8}));
}

TEST(Chunks, EveryOrderOfSequencesTakesTheSame) {
  Chunks chunks = kSix;
  std::sort(chunks.begin(), chunks.end());
  do {
    EXPECT_EQ(run_chunks(4, chunks).makespan, 45);
  } while (std::next_permutation(chunks.begin(), chunks.end()));
}

// The same with sequences as micro-batches and chunks as slices.
TEST(Chunks, AreSlicesOfSequences) {
  EXPECT_EQ(print(sequence_schedule(2, {3, 1})),
            "0.0F0,0.1F0,0.2F0,0.0F1,0.2B0,0.1B0,0.0B0,0.0B1\n1.0F0,1.1F0,1.2F0,1.2B0,1.0F1,1.1B0,1.0B0,1.0B1\n");
  constexpr unsigned kSeed = 53;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(200); ++round) {
    const int actors = test::draw(random, 1, 5);
    Chunks chunks;
    for (int n = test::draw(random, 1, 6); n > 0; --n) chunks.push_back(test::draw(random, 1, 6));
    const Schedule schedule = sequence_schedule(actors, chunks);
    const int slices = *std::max_element(chunks.begin(), chunks.end());
    StageShape shape = sliced(chain(actors), slices);
    shape.idle.assign(at(actors * slices), std::vector<bool>(chunks.size(), false));
    for (std::size_t m = 0; m < chunks.size(); ++m)
      for (int s = 0; s < actors; ++s)
        for (int slice = chunks[m]; slice < slices; ++slice) shape.idle[at(s * slices + slice)][m] = true;
    validate(schedule, shape, static_cast<int>(chunks.size()));
    EXPECT_EQ(time_table(schedule, shape, uniform_costs(actors * slices)).makespan, run_chunks(actors, chunks).makespan)
        << "seed " << kSeed << ", round " << round;
  }
}

TEST(Chunks, ShortWarmUp) {
  EXPECT_EQ(run_chunks(4, {1, 1, 1, 2, 3, 4}, 1).makespan, 75);
}

// 3 n + 3 (p - 1) for n chunks, where the sequences descend.
TEST(Chunks, DescendingIsBest) {
  constexpr unsigned kSeed = 49;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(300); ++round) {
    const int actors = test::draw(random, 1, 8);
    Chunks chunks;
    for (int n = test::draw(random, 1, 8); n > 0; --n) chunks.push_back(test::draw(random, 1, 9));
    std::sort(chunks.begin(), chunks.end(), std::greater<>());
    const int count = std::accumulate(chunks.begin(), chunks.end(), 0);
    EXPECT_EQ(run_chunks(actors, chunks).makespan, 3 * count + 3 * (actors - 1)) << "seed " << kSeed << ", round " << round;
  }
}

// The chunks are alike.
CheckpointProblem problem(int actors, int layers, ChunkMemory chunk, double room, const Chunks& chunks) {
  return {.actors = actors,
          .layers = layers,
          .memory = std::vector<ChunkMemory>(at(std::accumulate(chunks.begin(), chunks.end(), 0)), chunk),
          .room = room};
}

CheckpointPlan plan_of(int actors, int layers, ChunkMemory chunk, double room, const Chunks& chunks) {
  return plan_checkpoints(problem(actors, layers, chunk, room, chunks), chunks);
}

// Each stage has `layers`, and half of the time the chunks differ.
CheckpointProblem drawn_problem(Random& random, int actors, int layers, const Chunks& chunks) {
  const auto drawn = [&] {
    const int saved = test::draw(random, 0, 3);
    return ChunkMemory{.full = 1. * layers * saved + test::draw(random, 0, 5), .saved = 1. * saved};
  };
  CheckpointProblem out = problem(actors, layers * actors, drawn(), test::draw(random, 5, 50), chunks);
  if (test::coin(random, 0.7)) std::ranges::generate(out.memory, drawn);
  return out;
}

TEST(Checkpoints, PublishedTotals) {
  EXPECT_EQ(plan_of(4, 8, {6, 2}, 24, {3, 2, 1}).total, 6);
  EXPECT_EQ(plan_of(4, 8, {6, 2}, 30, {3, 2, 1}).total, 3);
  EXPECT_FALSE(plan_of(4, 8, {6, 2}, 10, {3, 2, 1}).feasible);
  EXPECT_EQ(plan_of(3, 6, {4, 1}, 12, {2, 2, 1, 1}).total, 4);
}

TEST(Checkpoints, PublishedGroups) {
  const CheckpointProblem kept = problem(4, 8, {6, 2}, 30, kSix);
  const CheckpointGroups one = group_by_chunks(kept, kSix, 9), two = group_by_chunks(kept, kSix, 3);
  EXPECT_EQ(one.time, 17);
  EXPECT_EQ(one.groups.size(), 1U);
  EXPECT_EQ(two.time, 9);
  ASSERT_EQ(two.groups.size(), 2U);
  EXPECT_EQ(two.groups[0].sequences, (std::vector<std::size_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(two.groups[1].sequences, std::vector<std::size_t>{0});
}

// The most memory of a stage, if its k-th backward recomputes entry k + actors - 1 - stage.
double simulated_peak(const CheckpointProblem& p, const Chunks& chunks, const std::vector<int>& entries) {
  const Schedule schedule = chunk_schedule(p.actors, chunks);
  double peak = 0;
  for (int stage = 0; stage < p.actors; ++stage) {
    std::vector<double> held(schedule.actors[at(stage)].size(), 0);
    int k = p.actors - 1 - stage;
    for (const Action& action : schedule.actors[at(stage)])
      if (action.kind == Kind::B)
        held[at(action.microbatch)] = p.memory[at(action.microbatch)].full - p.memory[at(action.microbatch)].saved * entries[at(k++)];
    double live = 0;
    for (const Action& action : schedule.actors[at(stage)]) {
      live += (action.kind == Kind::F ? 1 : -1) * held[at(action.microbatch)];
      peak = std::max(peak, live);
    }
  }
  return peak;
}

int brute_total(const CheckpointProblem& p, const Chunks& chunks, std::vector<int>& entries, std::size_t i, int sum, int best) {
  if (sum >= best) return best;
  if (i == entries.size()) return simulated_peak(p, chunks, entries) <= p.room + 1e-9 ? sum : best;
  for (int value = 0; value <= p.layers / p.actors; ++value) {
    entries[i] = value;
    best = brute_total(p, chunks, entries, i + 1, sum + value, best);
  }
  return best;
}

TEST(Checkpoints, AreBestOfAllAndKeepTheirRoom) {
  constexpr unsigned kSeed = 50;
  constexpr int kNone = 1 << 20;
  Random random(kSeed);
  int none = 0;
  for (int round = 0; round < test::rounds(120); ++round) {
    const int actors = test::draw(random, 1, 3);
    Chunks chunks;
    for (int left = 8 - actors; left > 0 && chunks.size() < 8; left -= chunks.back())
      chunks.push_back(test::draw(random, 1, std::min(left, 4)));
    const CheckpointProblem p = drawn_problem(random, actors, test::draw(random, 1, 3), chunks);
    std::vector<int> entries(at(std::accumulate(chunks.begin(), chunks.end(), 0) + actors - 1));
    const int best = brute_total(p, chunks, entries, 0, 0, kNone);
    const CheckpointPlan plan = plan_checkpoints(p, chunks);
    ASSERT_EQ(plan.feasible ? plan.total : kNone, best) << "seed " << kSeed << ", round " << round;
    none += plan.feasible ? 0 : 1;
    if (!plan.feasible) continue;
    EXPECT_TRUE(plan.proven);
    EXPECT_EQ(std::accumulate(plan.per_chunk.begin(), plan.per_chunk.end(), 0), plan.total);
    EXPECT_LE(simulated_peak(p, chunks, plan.per_chunk), p.room + 1e-9);
  }
  EXPECT_GE(none, test::rounds(5));
  EXPECT_LE(none, test::rounds(60));
}

// The step grows by exactly the layers that the plan recomputes.
TEST(Checkpoints, StepGrowsByTheTotal) {
  constexpr unsigned kSeed = 51;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(200); ++round) {
    const int actors = test::draw(random, 1, 5);
    Chunks chunks;
    for (int n = test::draw(random, 1, 5); n > 0; --n) chunks.push_back(test::draw(random, 1, 5));
    std::sort(chunks.begin(), chunks.end(), std::greater<>());
    const int count = std::accumulate(chunks.begin(), chunks.end(), 0);
    const CheckpointProblem p = problem(actors, 3 * actors, {6, 1}, test::draw(random, 4, 8) * count / 2., chunks);
    const CheckpointPlan plan = plan_checkpoints(p, chunks);
    if (!plan.feasible) continue;
    // A forward of a stage takes 3, one of its layers 1; a backward takes 6 and what it recomputes.
    const Schedule schedule = chunk_schedule(actors, chunks);
    std::vector<std::vector<double>> end(at(actors), std::vector<double>(at(2 * count), -1));  // by stage: F, then B, by chunk
    std::vector<std::size_t> next(at(actors), 0);
    std::vector<double> free(at(actors), 0);
    std::vector<std::size_t> backwards(at(actors), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < at(actors); ++s) {
        while (next[s] < schedule.actors[s].size()) {
          const Action& action = schedule.actors[s][next[s]];
          const std::size_t m = at(action.microbatch), b = m + at(count);
          const bool forward = action.kind == Kind::F;
          const double ready = forward ? (s == 0 ? 0 : end[s - 1][m]) : s + 1 < at(actors) ? end[s + 1][b] : end[s][m];
          if (ready < 0) break;
          const double time = forward ? 3 : 6 + plan.per_chunk[backwards[s]++ + at(actors) - 1 - s];
          end[s][forward ? m : b] = free[s] = std::max(free[s], ready) + time;
          ++next[s];
          moved = true;
        }
      }
    }
    EXPECT_EQ(*std::max_element(free.begin(), free.end()), 9 * (count + actors - 1) + plan.total)
        << "seed " << kSeed << ", round " << round;
  }
}

TEST(Checkpoints, UnequalStages) {
  EXPECT_EQ(message_of([] { plan_of(3, 8, {6, 2}, 24, {1}); }), "8 layers do not divide into 3 equal stages");
}

TEST(Checkpoints, LayersSaveNoMoreThanThereIs) {
  EXPECT_EQ(message_of([] { plan_of(2, 8, {6, 2}, 24, {1}); }),
            "chunk 0 has 6.0 on a stage, and its 4 layers save 8.0\n"
            "  hint: give what one layer saves, and of a chunk all that it has");
}

// Against all ways of dividing sequences where their number of chunks changes.
TEST(Checkpoints, GroupsAreBestOfAll) {
  constexpr unsigned kSeed = 55;
  Random random(kSeed);
  int several = 0, none = 0;
  for (int round = 0; round < test::rounds(200); ++round) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", round " + std::to_string(round));
    const int actors = test::draw(random, 1, 3);
    Chunks chunks;
    for (int n = test::draw(random, 1, 5); n > 0; --n) chunks.push_back(test::draw(random, 1, 4));
    const CheckpointProblem p = drawn_problem(random, actors, test::draw(random, 1, 2), chunks);
    const double delay = test::draw(random, 0, 6);
    double best = kInfinity;
    for (unsigned ends = 0; ends < 8; ++ends) {  // after sequences of 1, 2, 3 chunks
      double time = 0;
      CheckpointProblem group = p;
      Chunks of_group;
      group.memory.clear();
      for (int size = 1; size <= 4; ++size) {
        for (std::size_t s = chunks.size(), end = p.memory.size(); s-- > 0; end -= at(chunks[s])) {
          if (chunks[s] != size) continue;
          const auto behind = p.memory.begin() + static_cast<std::ptrdiff_t>(end);
          group.memory.insert(group.memory.begin(), behind - size, behind);
          of_group.insert(of_group.begin(), size);
        }
        if (of_group.empty() || (size < 4 && (ends >> (size - 1) & 1) == 0)) continue;
        const CheckpointPlan plan = plan_checkpoints(group, of_group);
        time += plan.feasible ? delay + plan.total : kInfinity;
        group.memory.clear();
        of_group.clear();
      }
      best = std::min(best, time);
    }
    const CheckpointGroups found = group_by_chunks(p, chunks, delay);
    if (best == kInfinity) {
      EXPECT_TRUE(found.groups.empty());
      ++none;
      continue;
    }
    several += found.groups.size() > 1;
    EXPECT_EQ(found.time, best);
  }
  EXPECT_GE(several, test::rounds(6));
  EXPECT_LE(none, test::rounds(140));
}

const SequenceCosts kMeasured = {.a1 = 5.128e-6, .a2 = 0.1839576};

TEST(Split, PublishedBounds) {
  const std::vector<double> bounds = cut_bounds(48000, 4, kMeasured);
  ASSERT_EQ(bounds.size(), 3U);
  EXPECT_NEAR(bounds[0], 18507.9, 0.05);
  EXPECT_NEAR(bounds[1], 30381.9, 0.05);
  EXPECT_NEAR(bounds[2], 39866.1, 0.05);
}

TEST(Split, WithoutAttentionPiecesAreEqual) {
  EXPECT_EQ(cut_bounds(100, 4, {.a1 = 0, .a2 = 2}), (Numbers{25, 50, 75}));
}

// The tail of 30 goes with short sequences; the first bound of 80 in four is at 20.
TEST(Split, TailsTakeShortSequences) {
  const SplitSequences split = split_sequences({80, 30, 10, 10, 5}, 4, {.a1 = 0, .a2 = 1}, 20);
  ASSERT_EQ(split.sequences.size(), 3U);
  const auto shapes = [](const std::vector<Chunk>& sequence) {
    std::vector<std::pair<std::int64_t, Tokens>> out;
    for (const Chunk& chunk : sequence) out.emplace_back(chunk.tokens, chunk.shorts);
    return out;
  };
  using Shapes = std::vector<std::pair<std::int64_t, Tokens>>;
  EXPECT_EQ(shapes(split.sequences[0]), (Shapes{{20, {}}, {20, {}}, {20, {}}, {20, {}}}));
  EXPECT_EQ(shapes(split.sequences[1]), (Shapes{{20, {}}, {10, {10}}}));
  EXPECT_EQ(shapes(split.sequences[2]), (Shapes{{0, {10, 5}}}));
}

// Every token is in one chunk, pieces are in order, and no chunk is above the capacity.
TEST(Split, KeepsEveryToken) {
  constexpr unsigned kSeed = 52;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(300); ++round) {
    Tokens lengths, found;
    for (int n = test::draw(random, 1, 20); n > 0; --n) lengths.push_back(test::draw(random, 1, test::coin(random, 0.2) ? 50000 : 3000));
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const double capacity = static_cast<double>(longest) + test::draw(random, 0, 5000);
    const SplitSequences split = split_sequences(lengths, test::draw(random, 1, 6), kMeasured, capacity);
    std::size_t before = split.sequences[0].size();
    for (const std::vector<Chunk>& sequence : split.sequences) {
      EXPECT_LE(sequence.size(), before);
      before = sequence.size();
      std::int64_t tokens = 0;
      for (const Chunk& chunk : sequence) {
        EXPECT_EQ(chunk.before, tokens);
        EXPECT_LE(static_cast<double>(chunk.total()), capacity);
        EXPECT_TRUE(chunk.shorts.empty() || &chunk == &sequence.back());
        tokens += chunk.tokens;
        found.insert(found.end(), chunk.shorts.begin(), chunk.shorts.end());
      }
      if (tokens > 0) found.push_back(tokens);
    }
    std::sort(lengths.begin(), lengths.end());
    std::sort(found.begin(), found.end());
    ASSERT_EQ(found, lengths) << "seed " << kSeed << ", round " << round;
  }
}

TEST(Split, AboveTheCapacity) {
  EXPECT_EQ(message_of([] { split_sequences({100}, 2, {.a1 = 0, .a2 = 1}, 40); }),
            "a chunk of 50 tokens is above the capacity of 40.0\n  hint: cut into more pieces, or give more memory");
  EXPECT_EQ(message_of([] { split_sequences({}, 2, kMeasured); }), "there are no sequences to split");
}

}  // namespace
}  // namespace penstock
