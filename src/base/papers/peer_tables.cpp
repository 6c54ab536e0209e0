#include "base/papers/groups.h"

namespace penstock {

PaperGroup peer_tables() {
  return {
      "Peers: tables and planners",
      {
          {.name = "PipeDream",
           .also = {"pipedream-2bw", "2bw"},
           .title = "Generalized Pipeline Parallelism for DNN Training; Memory-Efficient Pipeline-Parallel DNN Training",
           .number = "SOSP 2019; 2006.09503",
           .here = "a planner, `penstock plan --planner pipedream`, and schedules, `--schedule pipedream` and `--schedule pipedream-2bw`, "
                   "with `--window K`",
           .idea = "1F1B is never drained: each stage is updated after each step, and a backward reads the parameters of its forward. 2BW "
                   "keeps two "
                   "versions, and a step reads the one before the last.",
           .picture = R"($ penstock schedule pipedream --actors 3 --microbatches 1 --window 5 --show
actor 0 | F0 F1 F2 .  .  .  .  B0--- F3 B1--- F4 B2--- .  B3--- .  B4---
actor 1 | .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- F4 B3--- .  B4---
actor 2 | .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4---
time 21, bubble 28.6 %, live 3 2 1
)",
           .run =
               {"penstock train --schedule pipedream-2bw --window 4 --microbatches 4 --set clip=0 --set tied=0 --steps 4 --out runs/2bw"},
           .plan = {"penstock plan gpt --devices 4 --bandwidth 1e10 --planner pipedream"},
           .differs = "Versions are written in the table and proven before the run, so that two runs have the same bits. 2BW needs m >= "
                      "p-1 micro-batches, "
                      "not p. A window of steps is drained at its end.",
           .claim = "Up to 5.3 times as fast as data parallelism.",
           .found = "A step of `pipedream` takes 0.85 of 1F1B's and of `pipedream-2bw` 0.83 on two actors; losses after 400 steps are "
                    "1.039 and 1.093 times 1F1B's "
                    "(`bench/late_parameters.py`, docs/asynchronous.md). The planner gives the authors' values.",
           .shown = R"($ penstock simulate pipedream --actors 4 --microbatches 1 --window 40
...
makespan 129, bubble 7.0 %, lower bound 120 (busiest actor 120, longest chain of needs 12)
...
)"},
          {.name = "Piper",
           .title = "Multidimensional Planner for DNN Parallelization",
           .number = "NeurIPS 2021",
           .here = "a planner: `penstock plan --planner piper`",
           .idea = "Stages are differences of nested downsets of the graph, each with a degree of data and of tensor parallelism and with "
                   "or without "
                   "recomputation, under the memory of a device.",
           .picture = R"($ penstock plan examples/graphs/two-encoders.json --devices 4 --bandwidth 1e9 --planner piper
...

two-encoders on 4 equal devices, by piper in ...

stage          nodes  devices  micro-batch  forward  backward    memory
words .. head     10      0-3            4    19 ms     38 ms  37.6 MiB

A step of 64 samples in 16 micro-batches takes 925.8 ms; no plan takes less than 912 ms, which leaves a gap of 1.5 %.
...
)",
           .run = {"penstock plan gpt --devices 2 --bandwidth 1e10 --planner piper --no-replicas --micro-batches 2 --out piper.json",
                   "penstock train --plan piper.json --steps 4 --out runs/piper"},
           .plan = {"penstock plan gpt --devices 4 --bandwidth 1e10 --planner piper"},
           .differs = "The bound on the value is bisected instead of a table over all sums of degrees. Graphs of more than 40,000 "
                      "downsets, at which Piper gives up, "
                      "are searched over some of them, and the plan says whether it is proven.",
           .claim = "The values of its plans, by which this planner is tested.",
           .found = "The plans of the authors' BERT-32 have their values. `best` begins with Piper's plan in 67 of 680 problems "
                    "(docs/performance.md)."},
          {.name = "Zero Bubble",
           .also = {"zbv", "zb-v", "zb-h1", "zb-h2", "v-half", "v-min"},
           .title = "Zero Bubble Pipeline Parallelism; Pipeline Parallelism with Controllable Memory",
           .number = "2401.10241; 2405.15362",
           .here = "a family of schedules: `--schedule zb-h1`, `--schedule zb-h2`, and with `--chunks 2` `--schedule zb-v`, `--schedule "
                   "v-half`, `--schedule v-min`",
           .idea = "The backward is two halves, and the gradient of the weights, for which nobody waits, fills what is left. The V family "
                   "gives each actor the "
                   "stages r and 2p-1-r, so that memory can be chosen.",
           .picture = R"($ penstock schedule zb-h1 --actors 3 --microbatches 4 --show
actor 0 | F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3
actor 1 | .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
actor 2 | .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
time 14, bubble 14.3 %, live 3 3 3
)",
           .run = {"penstock train --schedule zb-h1 --steps 4 --out runs/zb-h1",
                   "penstock train --schedule zb-v --chunks 2 --steps 4 --out runs/zb-v"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --vary schedule=1f1b,zb-h1,zb-h2"},
           .differs = "Post-validation of the optimiser's step is `pipeline.update = \"validated\"`. `penstock schedule search` looks for "
                      "tables under measured costs and a "
                      "limit of memory, and proves a bound.",
           .claim = "Up to 23 % (31 % without the limit of memory) more throughput than 1F1B.",
           .found = "A step takes 0.90 of 1F1B's with the same losses on two actors (docs/asynchronous.md).",
           .shown = R"($ penstock simulate zb-h1 --actors 4 --microbatches 8
...
makespan 27, bubble 11.1 %, lower bound 24 (busiest actor 24, longest chain of needs 9)
)"},
          {.name = "DualPipe",
           .also = {"dualpipev", "deepseek-v3"},
           .title = "DeepSeek-V3 Technical Report",
           .number = "2412.19437",
           .here = "two schedules: `--schedule dualpipe`, and with one copy of the parameters `--schedule dualpipe-v --chunks 2`",
           .idea = "Micro-batches enter at both ends, and a forward of one and a backward of another are one pair that hides "
                   "communication. DualPipeV is its "
                   "half, folded over the actors.",
           .picture = R"($ penstock schedule dualpipe --actors 2 --microbatches 4 --show
actor 0 | 0F0 1F2 0F1 1B2---- 1F3 0B0---- 1B3---- 0I1 0W1
actor 1 | 0F2 1F0 0F3 1B0---- 1F1 0B2---- 1B1---- 0I3 0W3
time 12, bubble 0.0 %, live 3 3
)",
           .run = {"penstock train --schedule dualpipe --microbatches 4 --steps 4 --out runs/dualpipe",
                   "penstock train --schedule dualpipe-v --chunks 2 --steps 4 --out runs/dualpipe-v"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --set chunks=2 --vary schedule=interleaved-1f1b,dualpipe-v"},
           .differs = "The two actions of a pair run one after the other, so that what the first gives others leaves at its end; "
                      "`--atomic-pairs` of `simulate` "
                      "takes a pair as one, as published times do.",
           .claim = "Nearly all communication between experts is hidden.",
           .found = "On two actors `dualpipe-v` takes 0.83 of 1F1B's step at 4 micro-batches, as the best of all schedules "
                    "(`bench/searched.py`, docs/performance.md).",
           .shown = R"($ penstock simulate dualpipe-v --actors 4 --microbatches 8 --chunks 2
...
makespan 25.5, bubble 5.9 %, lower bound 24 (busiest actor 24, longest chain of needs 12)
)"},
          {.name = "Chimera",
           .title = "Efficiently Training Large-Scale Neural Networks with Bidirectional Pipelines",
           .number = "2107.06925, SC 2021",
           .here = "a schedule: `--schedule chimera`",
           .idea = "Two chains run over the same actors in opposite directions with a copy of the parameters each, half of the "
                   "micro-batches in either.",
           .picture = R"($ penstock schedule chimera --actors 4 --microbatches 4 --show
actor 0 | 0F0 0F2 .   3F1 3B1---- 3F3 3B3---- .   0B0---- .   .   0B2----
actor 1 | .   1F0 2F1 1F2 2F3 .   2B1---- 1B0---- 2B3---- 1B2----
actor 2 | .   1F1 2F0 1F3 2F2 .   2B0---- 1B1---- 2B2---- 1B3----
actor 3 | 0F1 0F3 .   3F0 3B0---- 3F2 3B2---- .   0B1---- .   .   0B3----
time 16, bubble 25.0 %, live 3 4 4 3
)",
           .run = {"penstock train --schedule chimera --microbatches 4 --steps 4 --out runs/chimera"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --set microbatches=4 --vary schedule=chimera,1f1b"},
           .differs = "Units joined end to start lose nothing, without doubled forwards or halved backwards. A stage is on two actors, so "
                      "it is no table for a window of "
                      "steps.",
           .claim = "1.16 to 2.34 times as fast as other synchronous and asynchronous ways.",
           .found = "Bubble 25 % for 4 actors and 4 micro-batches, where 1F1B has 42.9 %.",
           .shown = R"($ penstock simulate chimera --actors 4 --microbatches 4
...
makespan 16, bubble 25.0 %, lower bound 12 (busiest actor 12, longest chain of needs 12)
)"},
          {.name = "Hanayo",
           .title = "Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model Training Efficiency",
           .number = "2308.15762, SC 2023",
           .here = "a schedule: `--schedule hanayo --chunks 2W` for W waves",
           .idea = "Stages go down the actors and back, several times, so that a micro-batch passes in waves. The ways are Chimera's short "
                   "ones without a second "
                   "copy of the parameters.",
           .picture = R"($ penstock schedule hanayo --actors 2 --microbatches 2 --chunks 4 --show
actor 0 | 0F0 0F1 .   3F0 4F0 3F1 4F1 7F0 7B0---- 7F1 7B1---- .   4B0---- 3B0---- 4B1---- 3B1---- 0B0---- .   .   0B1----
actor 1 | .   1F0 2F0 1F1 2F1 5F0 6F0 5F1 6F1 .   6B0---- 5B0---- 6B1---- 5B1---- 2B0---- 1B0---- 2B1---- 1B1----
time 28, bubble 14.3 %, live 7 8
)",
           .run = {"penstock train --schedule hanayo --chunks 2 --steps 4 --out runs/hanayo"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --set chunks=2 --vary schedule=hanayo,interleaved-1f1b"},
           .differs = "No formula of its bubble is published that we know; ours is read off the tables.",
           .claim = "Up to 30.4 % more throughput than the best before it, and a bubble below Chimera's.",
           .found = "With two waves 4 actors and 4 micro-batches have a bubble below Chimera's 25 %; with one it is above.",
           .shown = R"($ penstock simulate hanayo --actors 4 --microbatches 4 --chunks 4
...
makespan 15, bubble 20.0 %, lower bound 12 (busiest actor 12, longest chain of needs 12)
)"},
          {.name = "Breadth-First",
           .title = "Breadth-First Pipeline Parallelism",
           .number = "2211.05953, MLSys 2023",
           .here = "a schedule: `--schedule breadth-first --chunks V`",
           .idea = "A chunk runs all micro-batches before the next chunk starts. So sharded parameters are gathered once for each "
                   "direction, and the bubble is "
                   "divided by the chunks.",
           .picture = R"($ penstock schedule breadth-first --actors 2 --microbatches 4 --chunks 2 --show
actor 0 | 0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 .   .   .   2B3---- 2B2---- 2B1---- 2B0---- 0B3---- 0B2---- 0B1---- 0B0----
actor 1 | .   1F0 1F1 1F2 1F3 3F0 3F1 3F2 3F3 3B3---- 3B2---- 3B1---- 3B0---- 1B3---- 1B2---- 1B1---- 1B0----
time 27, bubble 11.1 %, live 8 8
)",
           .run =
               {"penstock train --schedule breadth-first --chunks 2 --mesh pipe=2,data=2 --set zero=3 --steps 4 --out runs/breadth-first"},
           .plan = {"penstock plan gpt --devices 4 --bandwidth 1e10 --planner degrees --only schedule=breadth-first"},
           .differs = "Nothing that we know.",
           .claim = "Up to 43 % more throughput than Megatron-LM for 52 billion parameters.",
           .found = "Simulated on 64 A100 with 28.3 billion parameters and 8 micro-batches a step takes 2.59 s where 1F1B takes 4.04 "
                    "(`bench/zeropp.py`, "
                    "docs/performance.md).",
           .shown = R"($ penstock simulate breadth-first --actors 4 --microbatches 8 --chunks 2
...
makespan 28.5, bubble 15.8 %, lower bound 24 (busiest actor 24, longest chain of needs 12)
)"},
          {.name = "Seq1F1B",
           .title = "Efficient Sequence-Level Pipeline Parallelism for Large Language Model Training",
           .number = "2406.03488",
           .here = "a schedule: `--schedule seq1f1b --slices N`",
           .idea = "1F1B over slices of sequences, whose warm-up is n+p-1-i slices, the least that works.",
           .picture = R"($ penstock schedule seq1f1b --actors 2 --microbatches 2 --slices 3 --show
actor 0 | 0.0F0 0.1F0 0.2F0 0.0F1 .     .     0.2B0------ 0.1F1 0.1B0------ 0.2F1 0.0B0------ .     0.2B1------ 0.1B1------ 0.0B1------
actor 1 | .     1.0F0 1.1F0 1.2F0 1.2B0------ 1.0F1 1.1B0------ 1.1F1 1.0B0------ 1.2F1 1.2B1------ 1.1B1------ 1.0B1------
time 21, bubble 14.3 %, live 4 3
)",
           .run = {"penstock train --schedule seq1f1b --slices 4 --microbatches 2 --steps 4 --out runs/seq1f1b"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --set microbatches=2 --set slices=4 --vary schedule=seq1f1b,slimpipe"},
           .differs = "Slices of equal work are `--vary slices=planned`, TeraPipe's planner.",
           .claim = "Higher throughput at less memory than 1F1B for long sequences.",
           .found = "It holds less than SlimPipe and hides no latency: 26.46 s where SlimPipe takes 19.33 with 131,072 tokens, simulated "
                    "(`bench/long_contexts.py`, docs/performance.md).",
           .shown = R"($ penstock simulate seq1f1b --actors 4 --microbatches 4 --slices 8
...
makespan 13.125, bubble 8.6 %, lower bound 12 (busiest actor 12, longest chain of needs 4.125)
)"},
          {.name = "PipeOptim",
           .title = "Ensuring Effective 1F1B Schedule with Optimizer-Dependent Weight Prediction",
           .number = "2312.00839",
           .here = "a schedule: `--schedule pipeoptim --window K`",
           .idea = "PipeDream in which forwards read parameters predicted to their own update, and backwards the newest.",
           .picture = R"($ penstock schedule pipeoptim --actors 2 --microbatches 1 --window 4 --show
actor 0 | @0F0   @0+1F1 .      .      @0B0--------- @1+1F2 @1B1--------- @2+1F3 @2B2--------- .      @3B3---------
actor 1 | .      @0F0   @0B0--------- @1F1   @1B1--------- @2F2   @2B2--------- @3F3   @3B3---------
time 15, bubble 20.0 %, live 2 1
)",
           .run = {"penstock train --schedule pipeoptim --window 4 --set clip=0 --set tied=0 --steps 4 --out runs/pipeoptim"},
           .plan =
               {"penstock plan gpt --devices 2 --bandwidth 1e10 --set clip=0 --set tied=0 --set window=4 --vary schedule=xpipe,pipeoptim"},
           .differs = "Predicted by as many updates as the table says that are missing, p-1-i, not p-i.",
           .claim = "Outperforms GPipe, PipeDream, PipeDream-2BW and SpecTrain.",
           .found = "The validation loss after 400 steps is 1.068 times 1F1B's and a step takes 0.87 of its time "
                    "(`bench/late_parameters.py`, docs/asynchronous.md)."},
          {.name = "AdaPtis",
           .title = "Reducing Pipeline Bubbles with Adaptive Pipeline Parallelism on Heterogeneous Models",
           .number = "2509.23722",
           .here = "what planner `best` and the search of tables do together: `penstock plan --planner best`",
           .idea = "Partition, placement and order are chosen together, under one model of the step's time.",
           .run = {"penstock plan gpt --devices 2 --bandwidth 1e10 --no-replicas --micro-batches 2 --out best.json",
                   "penstock train --plan best.json --steps 4 --out runs/best"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10"},
           .differs = "None of its algorithms is here. `best` improves the plans of all planners in simulation, and `plan --cluster local` "
                      "searches the table of "
                      "its plan.",
           .claim = "1.42 times as fast as Megatron's interleaved 1F1B in the mean, 2.14 at most.",
           .found = "Nothing was measured beside it."},
          {.name = "OptPipe",
           .title = "Memory- and Scheduling-Optimized Pipeline Parallelism for LLM Training",
           .number = "2510.05186",
           .here = "what the search of tables does: `penstock schedule search`",
           .idea = "Order and offloading are one integer programme under a limit of memory.",
           .picture = R"($ penstock schedule search --actors 2 --microbatches 3 --activation-limit 1
         busy  idle  peak live
actor 0     9     6          1
actor 1     9     6          1

makespan 15, bubble 40.0 %: no order of these stages is faster
found by interleaved-zb --group 1
best schedule by name of 2 stages: interleaved-zb --group 1, 15
)",
           .run = {"penstock schedule search --actors 2 --microbatches 4 --activation-limit 1 --out found.csv",
                   "penstock train --schedule found.csv --microbatches 4 --steps 4 --out runs/optpipe"},
           .plan = {"penstock schedule search --actors 4 --microbatches 8 --activation-limit 2.5 --recompute-time 1"},
           .differs = "A list search, local improvement and a proven bound, not an integer programme.",
           .claim = "Up to half of the idle time at equal memory.",
           .found = "Nothing was measured beside it; for all of 30 drawn instances our search's table is proven the fastest "
                    "(`bench/search.py`, docs/performance.md)."},
          {.name = "PipeOffload",
           .title = "Improving Scalability of Pipeline Parallelism with Memory Optimization",
           .number = "2503.01328, ICML 2025",
           .here = "actions of tables, OFFLOAD and RELOAD, which `penstock schedule search --offload-time T` places",
           .idea = "Activations go to the host and come back as actions of the schedule.",
           .run = {"penstock schedule search --actors 4 --microbatches 4 --activation-limit 1.5 --offload-time 0.5 --out offload.csv",
                   "penstock train --schedule offload.csv --actors 4 --microbatches 4 --steps 4 --out runs/offload"},
           .plan = {"penstock schedule search --actors 4 --microbatches 8 --activation-limit 2.5 --offload-time 0.5"},
           .differs = "Which actions offload is searched for one table; the paper's order for offloading has no schedule of its own.",
           .claim = "Up to 19 % faster than tensor parallelism at less memory.",
           .found = "Nothing was measured beside it."},
      }};
}

}  // namespace penstock
