#include "base/papers/groups.h"

namespace penstock {

PaperGroup table_papers() {
  return {
      "Tables of one step",
      {
          {.name = "GPipe",
           .title = "Efficient Training of Giant Neural Networks using Pipeline Parallelism",
           .number = "1811.06965, NeurIPS 2019",
           .here = "a schedule: `--schedule gpipe`",
           .idea = "All micro-batches go forward, then all go back, and there is one update. With recomputation a stage keeps only what "
                   "enters it.",
           .picture = R"($ penstock schedule gpipe --actors 4 --microbatches 4 --show
actor 0 | F0 F1 F2 F3 .  .  .  .  .  .  .  .  .  B0--- B1--- B2--- B3---
actor 1 | .  F0 F1 F2 F3 .  .  .  .  .  .  B0--- B1--- B2--- B3---
actor 2 | .  .  F0 F1 F2 F3 .  .  .  B0--- B1--- B2--- B3---
actor 3 | .  .  .  F0 F1 F2 F3 B0--- B1--- B2--- B3---
time 21, bubble 42.9 %, live 4 4 4 4
)",
           .run = {"penstock train --schedule gpipe --microbatches 4 --set recompute=inputs --steps 4 --out runs/gpipe"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --vary schedule=gpipe,1f1b --vary recompute=none,inputs"},
           .differs =
               "Recomputation is of whole stages: of all by `recompute = \"inputs\"`, of one for a micro-batch by an R in a table. The "
               "bubble is (p-1)(F+B) as in the paper.",
           .claim = "Nearly linear speed-up with the number of accelerators.",
           .found =
               "With 4 actors and 8 micro-batches a step takes 33 where the work of an actor is 24, and all 8 micro-batches' activations "
               "live at once.",
           .shown = R"($ penstock simulate gpipe --actors 4 --microbatches 8
...
makespan 33, bubble 27.3 %, lower bound 24 (busiest actor 24, longest chain of needs 12)
)"},
          {.name = "JaxPP",
           .title = "Scaling Deep Learning Training with MPMD Pipeline Parallelism",
           .number = "2412.14374, MLSys 2025",
           .here = "the way in which Penstock itself compiles; its order of DualPipeV is a schedule, `--schedule dualpipe-v-jaxpp`",
           .idea = "Marks in the traced step say where stages end, autodiff marks the backward alike, and one loop over micro-batches is "
                   "cut into "
                   "a task for each stage and direction. The loop is unrolled by a table into a program for each actor, with all transfers "
                   "inferred.",
           .picture = R"($ penstock schedule dualpipe-v-jaxpp --actors 2 --microbatches 4 --chunks 2 --show
actor 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1---- 3F2 0B0---- 3B2---- 3F3 .   0B1---- 3B3---- 0B2---- .   0B3----
actor 1 | .   1F0 2F0 1F1 2F1 1F2 2B0---- 2F2 1B0---- 1F3 2B1---- 2F3 1B1---- 2B2---- 1B2---- 2I3 1B3---- 2W3
time 26, bubble 7.7 %, live 5 5
)",
           .run = {"penstock train --schedule dualpipe-v-jaxpp --chunks 2 --steps 4 --out runs/jaxpp",
                   "penstock compile --schedule dualpipe-v-jaxpp --chunks 2 --emit program"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --set chunks=2 --vary schedule=interleaved-1f1b,dualpipe-v-jaxpp,zb-v"},
           .differs =
               "Steps are traced from C++ or exported from PyTorch, not from JAX. Stages form a DAG; what no mark decides is cut by rules "
               "that have one answer or refuse. A sent buffer is freed when it is sent, not at the end of the step. Tables are "
               "validated, and the program is proven to end. The axes of the mesh have fixed names.",
           .claim = "1.11 times (arXiv) or 1.16 times (MLSys) as fast as the best SPMD configuration.",
           .found = "Its order takes 27 for 4 actors and 8 micro-batches, DeepSeek's 25.5, where the work of an actor is 24. Nothing was "
                    "measured beside JAX.",
           .shown = R"($ penstock simulate dualpipe-v-jaxpp --actors 4 --microbatches 8 --chunks 2
...
makespan 27, bubble 11.1 %, lower bound 24 (busiest actor 24, longest chain of needs 12)
)"},
          {.name = "ZeroPP",
           .title = "Unleashing Exceptional Parallelism Efficiency through Tensor-Parallelism-Free Methodology",
           .number = "2402.03791",
           .here = "a schedule: `--schedule zeropp --unit U`, with `--set zero=3`",
           .idea = "A pipeline goes across nodes, and inside a node parameters are sharded; no tensor is split. Micro-batches go in units "
                   "of U, "
                   "chunk by chunk, so that a chunk's parameters are gathered once for each unit and direction; weight gradients fill what "
                   "is left.",
           .picture = R"($ penstock schedule zeropp --actors 2 --microbatches 4 --chunks 2 --unit 2 --show
actor 0 | 0F0 0F1 2F0 2F1 .   .   2I0 2I1 0I0 0I1 2W0 0F2 2W1 0F3 0W0 2F2 0W1 2F3 .   .   2I2 2I3 0I2 0I3 2W2 2W3 0W2 0W3
actor 1 | .   1F0 1F1 3F0 3F1 3I0 3I1 1I0 1I1 3W0 3W1 1W0 1F2 1W1 1F3 .   3F2 .   3F3 3I2 3I3 1I2 1I3 3W2 3W3 1W2 1W3
time 28, bubble 14.3 %, live 4 4
)",
           .run = {"penstock train --schedule zeropp --chunks 2 --unit 4 --mesh pipe=2,data=2 --set zero=3 --steps 4 --out runs/zeropp"},
           .plan = {"penstock plan gpt --devices 4 --bandwidth 1e10 --planner degrees --only schedule=zeropp"},
           .differs = "The layout of units is reconstructed, as the paper does not print it. U = 2p-1 does not reach the least bubble in "
                      "it: each unit fills and drains "
                      "the pipeline, so U = m does. Units of fewer micro-batches than actors are refused.",
           .claim = "Up to 33 % over 3D parallelism; 30 % over breadth-first; 68 % more throughput and 10 % less memory than 1F1B.",
           .found = "Simulated on 64 A100 (`bench/zeropp.py`, docs/performance.md): 30 % over breadth-first where memory binds, 0 to 7 % "
                    "where it does not; 56 to 69 % over "
                    "1F1B that gathers whole stages, with 3 to 22 % less memory, where there are as many micro-batches as stages, and 22 "
                    "to 25 % at 64. "
                    "A table of one unit has ZB-H1's bubble with two chunks.",
           .shown = R"($ penstock simulate zeropp --actors 4 --microbatches 8 --chunks 2 --unit 8
...
makespan 27, bubble 11.1 %, lower bound 24 (busiest actor 24, longest chain of needs 8.5)
)"},
          {.name = "BitPipe",
           .title = "Bidirectional Interleaved Pipeline Parallelism for Accelerating Large Models Training",
           .number = "2410.19367",
           .here = "a schedule: `--schedule bitpipe --chunks 2`",
           .idea = "Two pipelines run over the same actors in opposite directions, each going down and back up, with two copies of the "
                   "parameters. One fills the other's start and end.",
           .picture = R"($ penstock schedule bitpipe --actors 4 --microbatches 4 --chunks 2 --show
actor 0 | 0F0 0F2 .   3F1 4F1 3F3 4F3 7F0 7B0---- 7F2 7B2---- .   4B1---- 3B1---- 4B3---- 3B3---- 0B0---- .   .   0B2----
actor 1 | .   1F0 2F1 1F2 2F3 5F1 6F0 5F3 6F2 .   6B0---- 5B1---- 6B2---- 5B3---- 2B1---- 1B0---- 2B3---- 1B2----
actor 2 | .   1F1 2F0 1F3 2F2 5F0 6F1 5F2 6F3 .   6B1---- 5B0---- 6B3---- 5B2---- 2B0---- 1B1---- 2B2---- 1B3----
actor 3 | 0F1 0F3 .   3F0 4F0 3F2 4F2 7F1 7B1---- 7F3 7B3---- .   4B0---- 3B0---- 4B2---- 3B2---- 0B1---- .   .   0B3----
time 28, bubble 14.3 %, live 7 8 8 7
)",
           .run = {"penstock train --schedule bitpipe --chunks 2 --microbatches 4 --steps 4 --out runs/bitpipe"},
           .plan = {"penstock plan gpt --set layers=8 --set microbatches=4 --devices 4 --bandwidth 1e10 --vary schedule=chimera,bitpipe "
                    "--vary chunks=1,2"},
           .differs = "Micro-batches are a multiple of actors. The copies' gradients are summed behind the loop, as those of any replica "
                      "are, and not "
                      "early in the cool-down. Both copies of a stage are on different actors, so it is no table for a window of steps.",
           .claim = "1.05 to 1.28 times as fast as other synchronous ways.",
           .found = "Bubble 14.3 % for 4 actors and 4 micro-batches, where 1F1B has 42.9 % and Chimera 25 %.",
           .shown = R"($ penstock simulate bitpipe --actors 4 --microbatches 4 --chunks 2
...
makespan 14, bubble 14.3 %, lower bound 12 (busiest actor 12, longest chain of needs 12)
)"},
          {.name = "CrossPipe",
           .title = "Towards Optimal Pipeline Schedules for Cross-Datacenter Training",
           .number = "2507.00217, ATC 2025",
           .here = "a schedule: `--schedule crosspipe --in-flight N`; its solver's place has `penstock schedule search`",
           .idea =
               "Computing and communication are one constraint model, and a greedy order runs whatever can run within a limit of "
               "micro-batches, so that nothing waits for a slow link between data centres. Latency is easily hidden so, bandwidth is not.",
           .picture = R"($ penstock schedule crosspipe --actors 4 --microbatches 5 --transfers 0,0,2 --show
actor 0 | F0 F1 F2 F3 .  .  .  .  I0 W0 F4 I1 W1 I2 W2 I3 W3 .  .  I4 W4
actor 1 | .  F0 F1 F2 F3 .  .  I0 W0 I1 W1 F4 I2 W2 I3 W3 .  .  I4 W4
actor 2 | .  .  F0 F1 F2 F3 I0 W0 I1 W1 I2 W2 F4 I3 W3 .  .  I4 W4
actor 3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3 F4 I4 W4
time 21, bubble 28.6 %, live 4 4 4 4
)",
           .run = {"penstock train --schedule crosspipe --set pipeline.in_flight=4 --steps 4 --out runs/crosspipe"},
           .plan = {"penstock schedule search --actors 4 --microbatches 8 --link 2-3:latency=2"},
           .differs =
               "Transfers start as soon as what they send is there, in the order of a link; a table says the order of actions alone, so an "
               "order of communication of its own is neither searched nor kept. The search is ours, with a proven bound in place of a "
               "constraint solver.",
           .claim = "Up to 33.6 % less time than the best baselines.",
           .found = "With latency 2 on the last of 3 links, 8 micro-batches take 29 in its order where ZB-H1 takes 42, and 29 is proven "
                    "the least.",
           .shown = R"($ penstock simulate crosspipe --actors 4 --microbatches 8 --in-flight 8 --transfers 0,0,2 --link 2-3:latency=2
...
makespan 29, bubble 17.2 %, lower bound 24 (busiest actor 24, longest chain of needs 13)
)"},
          {.name = "FlexPipe",
           .title = "A Flexible Programmable Pipeline Parallelism Framework for Efficient DNN Training",
           .number = "2510.05112",
           .here = "a language of rules, `--schedule FILE.rules`, and a search, `penstock schedule search`",
           .idea =
               "A schedule is what each actor prefers: kinds of work, depth or breadth first, and where stages lie. An engine makes the "
               "order from that, and a search goes over the rules.",
           .picture = R"($ penstock schedule examples/schedules/zb-h1.rules --actors 4 --microbatches 4 --show
actor 0 | F0 F1 F2 F3 .  .  .  I0 W0 I1 W1 I2 W2 I3 W3
actor 1 | .  F0 F1 F2 .  .  I0 F3 I1 W0 I2 W1 I3 W2 W3
actor 2 | .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 I3 W1 W2 W3
actor 3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3
time 15, bubble 20.0 %, live 4 4 4 4
)",
           .run = {"penstock train --schedule examples/schedules/zb-v.rules --chunks 2 --steps 4 --out runs/rules"},
           .plan = {"penstock schedule search --actors 4 --microbatches 8 --activation-limit 2"},
           .differs = "Rules say F, B, I and W; recomputation, updates, offloading, gathers, slices and windows are not in the language, "
                      "but in tables, "
                      "which the search moves action by action. Rules are a file, not Python.",
           .claim = "Up to 2.28 times as fast as Megatron-LM and 1.49 times as fast as the best automatic framework before it.",
           .found =
               "For all of 30 drawn instances the search's table is proven the fastest; the best schedule by name is up to 50 % slower "
               "(`bench/search.py`, docs/performance.md).",
           .shown = R"($ penstock schedule search --actors 4 --microbatches 8 --activation-limit 2
...
makespan 41, bubble 41.5 %: no order of these stages is faster
...
)"},
      }};
}

}  // namespace penstock
