#include "base/papers/groups.h"

namespace penstock {

PaperGroup window_papers() {
  return {
      "Tables of several steps",
      {
          {.name = "XPipe",
           .title = "Efficient Pipeline Model Parallelism for Multi-GPU DNN Training",
           .number = "1911.04610",
           .here = "a schedule: `--schedule xpipe --window K`",
           .idea = "The pipeline is never drained. Forwards and backwards read parameters that the optimiser's moments predict, all to the "
                   "time "
                   "at which the first actor begins the step's last backward.",
           .picture = R"($ penstock schedule xpipe --actors 2 --microbatches 2 --window 3 --show
actor 0 | @0F0   @0F1   .      .      @0B0--------- @0+1F2 @0B1--------- @0+1F3 @1B2--------- @1+1F4 @1B3--------- @1+1F5 @2B4--------- .      @2B5---------
actor 1 | .      @0F0   @0B0--------- @0F1   @0B1--------- @1F2   @1B2--------- @1F3   @1B3--------- @2F4   @2B4--------- @2F5   @2B5---------
time 21, bubble 14.3 %, live 2 1
)",
           .run = {"penstock train --schedule xpipe --window 4 --set clip=0 --set tied=0 --steps 4 --out runs/xpipe"},
           .plan =
               {"penstock plan gpt --devices 2 --bandwidth 1e10 --set clip=0 --set tied=0 --vary schedule=zb-h1,xpipe --vary window=1,4"},
           .differs = "How far to predict is counted in the table, not taken from a formula, which with several micro-batches aims forward "
                      "and backward of a "
                      "stage at different versions. Updates wait for no other stage, so gradients are not clipped by their global norm and "
                      "no parameter is "
                      "tied; the optimiser is sgd, adam or adamw.",
           .claim = "More throughput than the synchronous way, at an accuracy that is comparable or slightly better.",
           .found = "Four actors on two cores, 400 steps, three seeds: a step takes 0.82 of 1F1B's, and the validation loss is 1.039 times "
                    "1F1B's (2.508 and "
                    "2.414), as it is for PipeDream (`bench/late_parameters.py`, docs/asynchronous.md).",
           .shown = R"($ penstock simulate xpipe --actors 4 --microbatches 4 --window 10
...
makespan 129, bubble 7.0 %, lower bound 120 (busiest actor 120, longest chain of needs 12)
...
)"},
          {.name = "HetPipe",
           .title = "Enabling Large DNN Training on (Whimpy) Heterogeneous GPU Clusters through Integration of Pipelined Model Parallelism "
                    "and Data "
                    "Parallelism",
           .number = "2005.14038, ATC 2020",
           .here = "a schedule, `--schedule hetpipe --window K` with `--set pipeline.distance=D`, and a planner, `penstock plan --planner "
                   "hetpipe`",
           .idea =
               "Unequal devices form virtual workers, each a pipeline that is never drained. Workers are data parallel and give each other "
               "what a wave of steps has changed, at most D waves late.",
           .picture = R"($ penstock schedule hetpipe --actors 3 --microbatches 1 --window 5 --show
actor 0 | @0F0 @0F1 @0F2 .    .    .    .    B0------- @1F3 B1------- @2F4 B2------- .    B3------- .    B4-------
actor 1 | .    @0F0 @0F1 .    .    B0------- @0F2 B1------- @1F3 B2------- @2F4 B3------- .    B4-------
actor 2 | .    .    @0F0 B0------- @0F1 B1------- @0F2 B2------- @1F3 B3------- @2F4 B4-------
time 21, bubble 28.6 %, live 3 2 1
)",
           .run = {"penstock train --schedule hetpipe --window 4 --mesh pipe=2,data=2 --microbatches 1 --set pipeline.distance=0 --set "
                   "optimiser=sgd "
                   "--set momentum=0 --set clip=0 --set tied=0 --steps 4 --out runs/hetpipe"},
           .plan = {"penstock plan gpt --cluster examples/clusters/mixed-4.toml --planner hetpipe"},
           .differs = "The servers' copy is a sum on the devices. The planner makes workers that are alike, each with a device of every "
                      "kind, and finds their "
                      "order; it plans a step that is synchronous, no waves. Unequal workers are said by `pipeline.workers`. Sgd without "
                      "momentum.",
           .claim = "Converges up to 49 % faster than data parallelism.",
           .found = "A late worker lacks at most (D+1)N + N - 2 of another's updates, and `penstock verify --distance` counts it. With an "
                    "actor of half the speed "
                    "its plan takes 0.73 of equal stages' step, `best` 0.64 (`bench/unequal.py`, docs/planning.md)."},
          {.name = "LayerPipe",
           .title =
               "Accelerating Deep Neural Network Training by Intra-Layer and Inter-Layer Gradient Pipelining and Multiprocessor Scheduling",
           .number = "2108.06629",
           .here = "a schedule: `--schedule layerpipe --window K`",
           .idea = "Nobody but the update waits for a weight gradient, so it runs on another processor than the input gradient, and one "
                   "input gradient is divided between neighbours. Late gradients cut the loop, so that work is equal everywhere.",
           .picture = R"($ penstock schedule layerpipe --actors 2 --microbatches 1 --window 3 --balance 3,1 --show
actor 0 | 0F0 0F1 0F2 0I0 .   .   0I1 .   .   .   .   0I2
actor 1 | .   1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2 0W0 0W1 0W2
time 13, bubble 30.8 %, live 3 1
)",
           .run =
               {"penstock train --schedule layerpipe --window 4 --microbatches 1 --set clip=0 --set tied=0 --steps 4 --out runs/layerpipe",
                "penstock schedule layerpipe --actors 2 --microbatches 2 --window 4 --balance 3,1 > balanced.csv",
                "penstock check --schedule balanced.csv --actors 2 --microbatches 2 --set clip=0 --set tied=0"},
           .plan = {"penstock batch layers '{\"forward\": [1, 2, 3, 4], \"input\": [0, 2, 3, 4], \"weight\": [1, 2, 3, 4], \"processors\": "
                    "3}'"},
           .differs = "A table has whole input gradients: an I stays with its F. `penstock batch layers` divides them, in figures alone. "
                      "Balanced weight gradients run "
                      "from a file that `schedule` writes.",
           .claim = "25 % faster in the mean, up to 80 %, than PipeDream.",
           .found = "Of stages that take 4, 2, 1 and 1, 20 steps take 82 where whole stages take 120 (docs/asynchronous.md).",
           .shown = R"($ penstock simulate layerpipe --balance 4,2,1,1 --actors 4 --microbatches 1 --window 20 --stage-times 4,2,1,1
...
makespan 82, bubble 26.8 %, lower bound 80 (busiest actor 80, longest chain of needs 10)
...
)"},
          {.name = "NestPipe",
           .title = "Large-Scale Recommendation Training on 1,500+ Accelerators via Nested Pipelining",
           .number = "2604.06956",
           .here = "a schedule: `--schedule nestpipe --window K` with `--set pipeline.prefetch=true`",
           .idea =
               "Rows of embeddings are brought for the next batch while this one is computed; rows that both have are read again behind "
               "the update, so that nothing is late. Within a batch tables stand still, so exchanges of some micro-batches run beside "
               "the dense layers of others.",
           .picture = R"($ penstock schedule nestpipe --actors 2 --microbatches 1 --window 3 --show
actor 0 | F0 .  .  I0 W0 F1 .  .  I1 W1 F2 .  .  I2 W2
actor 1 | .  F0 I0 W0 .  .  F1 I1 W1 .  .  F2 I2 W2
time 15, bubble 40.0 %, live 1 1
)",
           .run = {"penstock train --set model.name=dlrm --schedule nestpipe --window 4 --set pipeline.prefetch=true --set optimiser=sgd "
                   "--set "
                   "momentum=0 --set weight_decay=0 --steps 4 --out runs/nestpipe"},
           .plan = {"penstock batch prefetch '{\"lanes\": [1, 1, 1, 4, 5], \"batches\": 10}'",
                    "penstock batch window '{\"embed\": 2, \"dense\": 8, \"gradient\": 2, \"microbatches\": 4}'"},
           .differs = "Keys are not routed to the owners of rows, as what is sent has a size that the program says (docs/embeddings.md). "
                      "Updates that move rows "
                      "which no sample names (momentum, adamw, decay) are refused, bags are looked up when they are read, and nothing is "
                      "ahead from one window "
                      "to the next.",
           .claim = "Up to 3.06 times as fast, 94.07 % scaling efficiency on 1,536 workers.",
           .found = "The period of a step is 1.04 of the larger of lookups and computing, and 1.09 without looking ahead "
                    "(`bench/prefetch.py`, docs/embeddings.md); the claim is "
                    "1. A run has the same bits with and without.",
           .shown = R"($ penstock batch prefetch '{"lanes": [1, 1, 1, 4, 5], "batches": 10}'
time    57
period  5
)"},
      }};
}

}  // namespace penstock
