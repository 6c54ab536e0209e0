#include "base/papers/groups.h"

namespace penstock {

PaperGroup sequence_papers() {
  return {
      "Long sequences",
      {
          {.name = "TeraPipe",
           .title = "Token-Level Pipeline Parallelism for Training Large-Scale Language Models",
           .number = "2102.07988, ICML 2021",
           .here =
               "a schedule: `--schedule terapipe --slices N`; its planner of unequal slices is `--vary slices=planned` of `penstock plan`",
           .idea = "Causal attention lets a sequence pass the stages in slices of tokens, each behind the one before. A dynamic programme "
                   "finds "
                   "lengths for which the slowest slice does not set the pace.",
           .picture = R"($ penstock schedule terapipe --actors 2 --microbatches 1 --slices 4 --show
actor 0 | 0.0F0 0.1F0 0.2F0 0.3F0 .     .     .     0.3B0------ 0.2B0------ 0.1B0------ 0.0B0------
actor 1 | .     1.0F0 1.1F0 1.2F0 1.3F0 1.3B0------ 1.2B0------ 1.1B0------ 1.0B0------
time 15, bubble 20.0 %, live 4 4
)",
           .run = {"penstock train --schedule terapipe --slices 4 --microbatches 2 --steps 4 --out runs/terapipe"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --set microbatches=2 --vary schedule=terapipe --vary "
                    "slices=1,4,planned --slice-unit 8"},
           .differs =
               "The planner is exact for every unit of tokens, and takes forward and backward times apart. The batch is cut into groups "
               "with slices of their own in `penstock batch slices` alone; in a run all micro-batches have the same slices.",
           .claim = "Up to 5.0 times as fast on the largest GPT-3.",
           .found = "2 layers of 16,384 tokens in 8 slices take 0.459 of 1F1B's step on two actors (`bench/slices.py`, "
                    "docs/performance.md). The planned slices "
                    "of the paper's kind of costs take 9.26, the best equal ones 9.86.",
           .shown = R"($ penstock batch slices '{"actors": 4, "length": 16, "fixed": 0.3, "per_token": 0.1, "per_pair": 0.02}'
time       9.260000000000002
t max      1.1
sum        5.960000000000001
sequences  1
slices     5 3 2 2 2 2
uniform    9.86
)"},
          {.name = "SlimPipe",
           .title = "Memory-Thrifty and Efficient Pipeline Parallelism for Long-Context LLM Training",
           .number = "2504.14519, SC 2025",
           .here = "a schedule: `--schedule slimpipe --slices N`, and with its exchange of attention `--schedule slimpipe-exchange`",
           .idea =
               "Equal slices run in 1F1B: forward in order, backward in reverse, so that little more than a sequence's activations live. "
               "Actors at early slices do blocks of attention of those at late ones, and the vocabulary is computed in parts by all.",
           .picture = R"($ penstock schedule slimpipe --actors 2 --microbatches 2 --slices 4 --show
actor 0 | 0.0F0 0.1F0 0.2F0 0.3F0 0.0F1 0.1F1 .     0.3B0------ 0.2F1 0.2B0------ 0.3F1 0.1B0------ .     0.0B0------ .     0.3B1------ 0.2B1------ 0.1B1------ 0.0B1------
actor 1 | .     1.0F0 1.1F0 1.2F0 1.3F0 1.3B0------ 1.0F1 1.2B0------ 1.1F1 1.1B0------ 1.2F1 1.0B0------ 1.3F1 1.3B1------ 1.2B1------ 1.1B1------ 1.0B1------
time 27, bubble 11.1 %, live 6 4
)",
           .run = {"penstock train --schedule slimpipe --slices 4 --microbatches 2 --steps 4 --out runs/slimpipe",
                   "penstock train --schedule slimpipe --slices 4 --microbatches 2 --set head_shards=2 --set tied=0 --steps 4 --out "
                   "runs/vocabulary",
                   "penstock train --schedule slimpipe-exchange --slices 4 --microbatches 2 --chunks 2 --steps 4 --out runs/exchange"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --set microbatches=2 --vary schedule=1f1b,slimpipe --vary slices=1,4"},
           .differs = "Exchange of attention and parts of the vocabulary do not go together yet.",
           .claim = "Up to 1.57 times the model FLOPs utilisation of other systems.",
           .found = "Simulated on 64 A100 with 131,072 tokens it is 1.86 times as fast as 1F1B, which has to recompute, and 1.25 times as "
                    "TeraPipe; with 32,768 no slices pay (`bench/long_contexts.py`, docs/performance.md). On two actors 8 slices hold 172 "
                    "MB where 1F1B holds 210.",
           .shown = R"($ penstock simulate slimpipe --actors 4 --microbatches 4 --slices 8
...
makespan 13.125, bubble 8.6 %, lower bound 12 (busiest actor 12, longest chain of needs 4.125)
)"},
          {.name = "HelixPipe",
           .title = "Efficient Distributed Training of Long Sequence Transformers with Attention Parallel Pipeline Parallelism",
           .number = "2507.00394, PPoPP 2026",
           .here = "a schedule: `--schedule helixpipe`",
           .idea = "Attention has no parameters, so its stages may run anywhere: those of p micro-batches run on p actors at once. What is "
                   "left of the bubble does not grow with attention.",
           .picture = R"($ penstock schedule helixpipe --actors 2 --microbatches 2 --chunks 1 --show
actor 0 | 0F0 0F1 1F1 3F0 4F0 4F1 4B1---- 4B0---- 3B0---- 1B1---- 0B1---- 0B0----
actor 1 | .   1F0 2F0 2F1 3F1 .   .   .   3B1---- 2B1---- 2B0---- 1B0----
time 18, bubble 16.7 %, live 6 4
)",
           .run = {"penstock train --schedule helixpipe --chunks 2 --microbatches 2 --steps 4 --out runs/helixpipe"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --set microbatches=2 --set chunks=2 --vary schedule=helixpipe,gpipe"},
           .differs = "A model marks attention as a stage of its own; `gpt` does. The weights of q, k and v travel with the input where "
                      "`qkv_in_attention` says so. A stage of attention is on several actors, so it is no table for a window of steps.",
           .claim = "26 % faster than other ways at its longest sequences.",
           .found = "2 layers of 16,384 tokens take 0.682 of 1F1B's step on two actors; simulated on 64 A100 it is 1.52 times as fast at "
                    "131,072 tokens (`bench/slices.py`, `bench/long_contexts.py`, docs/performance.md). Below, attention takes three "
                    "quarters of the time.",
           .shown =
               R"($ penstock simulate helixpipe --actors 4 --microbatches 4 --chunks 1 --forward 4 --backward 8 --stage-times 0.5,3,1,3,1,3,1,3,0.5
...
makespan 57, bubble 15.8 %, lower bound 48 (busiest actor 48, longest chain of needs 48)
)"},
      }};
}

}  // namespace penstock
