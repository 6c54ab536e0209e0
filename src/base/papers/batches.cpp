#include "base/papers/groups.h"

namespace penstock {

PaperGroup batch_papers() {
  return {
      "A plan for each batch",
      {
          {.name = "DynaPipe",
           .title = "Optimizing Multi-task Training through Dynamic Pipelines",
           .number = "2311.10418, EuroSys 2024",
           .here = "a batch planner: `--set batch.planner=dynapipe`",
           .idea = "Samples keep their lengths: each batch is ordered by them and cut into micro-batches of unequal size by a dynamic "
                   "programme. An order "
                   "in cycles lets one slow micro-batch stop nothing but itself, and the batch gets a program of its own.",
           .picture = R"($ penstock batch cyclic '{"actors": 3, "forward": [3, 1, 1, 2]}' --show
actor 0 | F0 F1 F2 F3 .  .  .  B0--- .  B1--- .  B2--- .  B3---
actor 1 | .  F0 F1 F2 .  B0--- F3 B1--- .  B2--- .  B3---
actor 2 | .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3---
time 18, bubble 33.3 %, live 4 3 1
)",
           .run = {"penstock train --set data.documents=examples --set batch.planner=dynapipe --batch 16 --steps 4 --out runs/dynapipe"},
           .plan = {"penstock batch cut examples/batch/ten.json", "penstock batch plan examples/batch/replicas.json"},
           .differs =
               "Tours are by nearest neighbours and exchanges, not a solver. Where candidates an interval apart leave no cut, all times "
               "are "
               "candidates. The first micro-batch keeps the cap too; what would stall is refused. Transfers are inferred by lowering, so "
               "none are planned. A run recomputes whole stages or nothing.",
           .claim = "Up to 4.39 times (T5) and 3.25 times (GPT) as fast as packing.",
           .found =
               "Simulated on 32 A100: 1.08 times packing at a context of 512, 3.04 (GPT) and 4.46 (T5) at 8,192 (`bench/flan.py`); on two "
               "cores 7.4 times as fast as padding for "
               "GPT, and level with ragged rows (`bench/lengths.py`, docs/performance.md). A cap of 2 takes 51, where our search takes 41.",
           .shown = R"($ penstock batch table '{"actors": 4, "forward": [1, 1, 1, 1, 1, 1, 1, 1], "cap": 2}'
makespan     41
lower bound  27
dynapipe     51
peak live    2 2 2 2
found by     injection (backward first, ahead 1.0, W behind by 1)
)"},
          {.name = "FlexSP",
           .title = "Accelerating Large Language Model Training via Flexible Sequence Parallelism",
           .number = "2412.01523, ASPLOS 2025",
           .here = "a batch planner: `--set batch.planner=flexsp` with `--mesh context=N`",
           .idea = "A long sequence needs many devices, and short ones are faster on few. For each micro-batch the devices are divided "
                   "into groups "
                   "of different sizes, and the sequences among them.",
           .picture = R"($ penstock batch groups examples/batch/groups.json
milliseconds  2500
groups        4 (20000) | 1 (9900) | 1 (9900) | 1 (9900) | 1 (9900)
proven        true
)",
           .run = {"penstock train --set data.documents=examples --set batch.planner=flexsp --batch 16 --mesh pipe=2,context=2 --steps 4 "
                   "--out runs/flexsp"},
           .plan = {"penstock batch groups examples/batch/groups.json",
                    "penstock batch divide '{\"lengths\": [9, 8, 7, 6, 5, 4, 3, 2, 1], \"parts\": 3}'"},
           .differs =
               "Branch and bound in place of an integer programme; it says whether it has proven the answer. Degree 1 is allowed. Numbers "
               "of micro-batches that suit a pipeline are tried too. Groups are along the context axis alone: replicas beside them are "
               "refused.",
           .claim = "Up to 1.98 times as fast as homogeneous sequence parallelism.",
           .found = "Simulated on 64 A100, lengths like Wikipedia's: 1.46 times as fast as packed rows and 1.25 times as one degree for "
                    "all; with "
                    "documents 16 times as long 1.08 and 1.07 times (`bench/long_documents.py`, docs/performance.md)."},
          {.name = "InfiniPipe",
           .title = "Elastic Pipeline Parallelism for Efficient Variable-Length Long-Context LLM Training",
           .number = "2509.21275",
           .here = "a batch planner: `--set batch.planner=infinipipe`",
           .idea = "Long sequences are cut into slices of equal time, and short ones are packed into the last slices and rows of their "
                   "own. Rows of "
                   "different numbers of slices share one 1F1B, and a plan says how many layers each slice computes again.",
           .picture = R"($ penstock batch chunks '{"actors": 3, "chunks": [3, 1, 1]}' --show
actor 0 | F0 F1 F2 F3 F4 .  .  .  .  B2--- .  B1--- .  B0--- B3--- B4---
actor 1 | .  F0 F1 F2 F3 .  .  B2--- F4 B1--- .  B0--- B3--- B4---
actor 2 | .  .  F0 F1 F2 B2--- F3 B1--- F4 B0--- B3--- B4---
time 21, bubble 28.6 %, live 5 4 3
)",
           .run =
               {"penstock train --set data.documents=examples --set batch.planner=infinipipe --batch 16 --steps 4 --out runs/infinipipe"},
           .plan = {"penstock batch split '{\"lengths\": [48000, 20000, 900, 700], \"pieces\": 4, \"a1\": 5.128e-6, \"a2\": 0.1839576}'",
                    "penstock batch checkpoint '{\"actors\": 4, \"chunks\": [3, 2, 1], \"layers\": 8, \"full\": 6, \"saved_per_layer\": 2, "
                    "\"room\": 24}'"},
           .differs = "Bounds of slices are those of the context, a half or a quarter of it, so that batches meet the same shapes again. A "
                      "run recomputes "
                      "whole stages of a slice, not layers, and has no groups of sequences one behind the other. An actor has one stage "
                      "and one device; "
                      "the model is `gpt`.",
           .claim = "1.69 times as fast as FlexSP.",
           .found = "Simulated on 64 A100: replicas of its pipelines take 0.93 of FlexSP's time for short documents and 1.2 times it for "
                    "long ones "
                    "(`bench/long_documents.py`, docs/performance.md).",
           .shown = R"($ penstock batch chunks '{"actors": 4, "chunks": [4, 3, 2, 1, 1, 1]}'
makespan   45
peak live  7 6 5 4
)"},
          {.name = "DIP",
           .also = {"pipeweaver"},
           .title = "Efficient Large Multimodal Model Training with Dynamic Interleaved Pipeline",
           .number = "2504.14145, ASPLOS 2026",
           .here = "a batch planner: `--set batch.planner=dip`, for texts with images",
           .idea = "Each module of a multimodal model is spread over all actors by itself, and a micro-batch's images go in parts of equal "
                   "time. "
                   "For each batch a search interleaves parts and texts while the batch before is computed.",
           .picture = R"($ penstock batch modules '{"actors": 2, "images": [4, 1], "part": 2, "backbone": 2}'
makespan     33
lower bound  33
proven       true
ranks        3F 0F 1F 4F 2F 2B 4B 0B 1B 3B | 3F 0F 1F 4F 2F 2B 4B 0B 1B 3B
)",
           .run = {"penstock train examples/vision.toml --steps 2 --out runs/dip"},
           .plan = {"penstock batch segments '{\"times\": [7, 20, 21]}'",
                    "penstock batch static-modules '{\"actors\": 2, \"batches\": [[4, 1], [0, 3]], \"backbone\": 2}'"},
           .differs =
               "All orders are tried where they are few, else local search, then branch and bound, in place of tree search and an integer "
               "programme for memory; memory is a limit of parts and texts that live. Stages may go there and back, and backwards be "
               "split, which the paper's do not. An actor has one device.",
           .claim = "Up to 97.3 % more throughput.",
           .found = "Four actors, 0 to 8 images a micro-batch, 50 batches of 4: the paper's tables take 3.5 % more than the best table for "
                    "all batches, with stages "
                    "there and back and split backwards 21.8 % less (`bench/dip.py`, docs/performance.md)."},
      }};
}

}  // namespace penstock
