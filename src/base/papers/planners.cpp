#include "base/papers/groups.h"

namespace penstock {

PaperGroup planner_papers() {
  return {
      "Plans",
      {
          {.name = "GraphPipe",
           .title = "Improving Performance and Scalability of DNN Training with Graph Pipeline Parallelism",
           .number = "2406.17145, ASPLOS 2025",
           .here = "a planner, `penstock plan --planner graphpipe`, and a schedule, `--schedule graphpipe`",
           .idea = "Stages branch and join as the model does, so that a step waits for the depth of the pipeline and not for the number of "
                   "its stages. A shallower pipeline holds fewer micro-batches.",
           .picture = R"($ penstock plan examples/graphs/two-encoders.json --devices 4 --bandwidth 1e9 --planner graphpipe --no-replicas
...

two-encoders on 4 equal devices, by graphpipe in ...

stage               nodes  devices  micro-batch  forward  backward    memory
patches .. image.0      2        0            1     4 ms      8 ms   7.0 MiB
image.1 .. image.2      2        1            1     6 ms     12 ms   9.5 MiB
words .. text.1         3        2            1     5 ms     10 ms  17.3 MiB
text.2 .. head          3        3            1     4 ms      8 ms   6.8 MiB

A step of 64 samples in 64 micro-batches takes 1.171 s; no plan takes less than 912 ms, which leaves a gap of 28.4 %.
...
)",
           .run = {"penstock train --set model.name=two-branch --schedule graphpipe --actors 4 --steps 4 --out runs/graphpipe"},
           .plan = {"penstock plan two-branch --devices 4 --bandwidth 1e10 --planner graphpipe --no-replicas --micro-batches 4 --out "
                    "two-branch.json",
                    "penstock train --set model.name=two-branch --plan two-branch.json --steps 4 --out runs/planned"},
           .differs = "Graphs that are not series-parallel get barriers, as the paper's way is not published. Stages that share two "
                      "branches with each other are not "
                      "looked at, which other planners do (below). A stage of larger micro-batches than its neighbours runs several of the "
                      "table's in a row.",
           .claim = "Up to 1.6 times as fast as PipeDream and Piper, searched in a 9th to a 21st of the time.",
           .found =
               "The formula gives the authors' logged times to 0.1 and is within 1 % of every split in 97 of 100 random graphs of up to "
               "8 nodes (docs/planning.md). On the graph above nested downsets are faster.",
           .shown = R"($ penstock plan examples/graphs/two-encoders.json --devices 4 --bandwidth 1e9 --planner pipedream --no-replicas
...
A step of 64 samples in 64 micro-batches takes 1.014 s; no plan takes less than 912 ms, which leaves a gap of 11.2 %.
...
)"},
          {.name = "DAPPLE",
           .title = "A Pipelined Data Parallel Approach for Training Large Models",
           .number = "2007.01045, PPoPP 2021",
           .here = "a planner: `penstock plan --planner dapple`",
           .idea = "Stages have replicas on the machines of a cluster, and the latency of a step is that up to, on and behind its pivot "
                   "stage. A dynamic "
                   "programme places them on fresh machines, on those in use, or scattered over all.",
           .picture = R"($ penstock plan examples/graphs/two-encoders.json --cluster examples/clusters/v100-4.toml --planner dapple
...

two-encoders on 4 V100, one node, by dapple in ...

stage          nodes  devices  micro-batch  forward  backward    memory
words .. head     10      0-3            1  4.75 ms    9.5 ms  35.7 MiB

A step of 64 samples in 64 micro-batches takes 912.3 ms; no plan takes less than 912 ms, which leaves a gap of 0.0 %.
...
)",
           .run = {"penstock plan gpt --devices 4 --bandwidth 1e9 --planner dapple --no-replicas --micro-batches 1 --out dapple.json",
                   "penstock train --plan dapple.json --steps 4 --out runs/dapple"},
           .plan = {"penstock plan gpt --cluster examples/clusters/v100-8.toml --planner dapple"},
           .differs =
               "The pivot is the part for which the latency is longest. Where its warm-up does not last until its first backward, the "
               "wait counts, which the paper leaves out. Of each piece and number of devices eight partial plans are kept.",
           .claim = "Up to 3.23 times as fast as PipeDream's plans.",
           .found = "Within 1 % of the best of all cuts and placements on chains of up to 10 layers and 8 devices; its latency within 2 % "
                    "of the simulator at "
                    "64 micro-batches (docs/planning.md)."},
          {.name = "SPP",
           .title = "Efficient Pipeline Planning for Expedited Distributed DNN Training",
           .number = "2204.10562, INFOCOM 2022",
           .here = "a planner: `penstock plan --planner spp`",
           .idea = "The devices are ordered by recursive minimum cuts of their links, and a dynamic programme cuts layers and replicas "
                   "along that "
                   "line. The number of stages with the shortest list schedule wins.",
           .picture =
               R"($ penstock plan examples/graphs/two-encoders.json --cluster examples/clusters/v100-4.toml --planner spp --no-replicas
...

two-encoders on 4 V100, one node, by spp in ...

stage               nodes  devices  micro-batch  forward  backward    memory
words .. text.0         2        0            1     3 ms      6 ms  13.8 MiB
text.1 .. patches       3        1            1     5 ms     10 ms  11.4 MiB
image.0 .. image.1      2        2            1     6 ms     12 ms   9.5 MiB
image.2 .. head         3        3            1     5 ms     10 ms   6.9 MiB

A step of 64 samples in 64 micro-batches takes 1.188 s; no plan takes less than 912 ms, which leaves a gap of 30.3 %.
...
)",
           .run = {"penstock plan gpt --devices 4 --bandwidth 1e9 --planner spp --no-replicas --micro-batches 1 --out spp.json",
                   "penstock train --plan spp.json --steps 4 --out runs/spp"},
           .plan = {"penstock plan gpt --cluster examples/clusters/v100-8.toml --planner spp"},
           .differs = "The simulator is the list schedule. On more than 8 devices replicas are powers of two. Unequal speeds are counted, "
                      "but do not change the "
                      "line.",
           .claim = "Up to 157 % faster than other plans.",
           .found = "Within 1 % of the exact planner on average, on chains of up to 6 layers and 4 equal devices (docs/planning.md)."},
          {.name = "BaPipe",
           .title = "Exploration of Balanced Pipeline Parallelism for DNN Training",
           .number = "2012.12544",
           .here = "a planner: `penstock plan --planner bapipe`",
           .idea = "Layers are cut in proportion to the devices' speeds, at small activations where links bind, and as the memory allows. "
                   "Of 1F1B and an order that runs twice as far ahead the fastest that fits is taken.",
           .picture = R"($ penstock plan examples/graphs/two-encoders.json --cluster examples/clusters/mixed-4.toml --planner bapipe
...

two-encoders on 2 A100 and 2 V100, by bapipe in ...

stage              nodes  devices  micro-batch   forward  backward    memory
words .. text.1        3        0            1  4.032 ms  8.065 ms  18.8 MiB
text.2 .. image.0      3        1            1  4.839 ms  9.677 ms  11.8 MiB
image.1                1        2            1      3 ms      6 ms   4.8 MiB
image.2 .. head        3        3            1      5 ms     10 ms   6.9 MiB

A step of 64 samples in 64 micro-batches takes 995.7 ms; no plan takes less than 814.3 ms, which leaves a gap of 22.3 %.
...
)",
           .run = {"penstock plan gpt --devices 4 --bandwidth 1e9 --planner bapipe --micro-batches 1 --out bapipe.json",
                   "penstock train --plan bapipe.json --steps 4 --out runs/bapipe"},
           .plan = {"penstock plan gpt --cluster examples/clusters/mixed-4.toml --planner bapipe"},
           .differs =
               "One dynamic programme over cuts does what the paper does in three rounds. Its asynchronous order is not among the choices.",
           .claim = "Up to 3.2 times as fast, with a quarter of the memory.",
           .found = "With a latency of 1 on each of four equal stages' links, running ahead takes 39 and 1F1B 49; the planner takes the "
                    "first if it fits (docs/planning.md).",
           .shown = R"($ penstock simulate eager-1f1b --actors 4 --microbatches 8 --latency 1
...
makespan 39, bubble 38.5 %, lower bound 24 (busiest actor 24, longest chain of needs 18)
)"},
          {.name = "DawnPiper",
           .title = "A Memory-Scalable Pipeline Parallel Training Framework",
           .number = "2505.05856",
           .here = "a planner: `penstock plan --planner dawnpiper`",
           .idea = "Stage x of p holds p-x micro-batches, so the best cut lies between the one that balances time and the one that "
                   "balances memory. "
                   "Devices are halved recursively over that interval, between any two nodes, and what does not fit is recomputed where it "
                   "costs least for a byte.",
           .picture = R"($ penstock plan examples/graphs/two-encoders.json --devices 4 --bandwidth 1e9 --planner dawnpiper
...

two-encoders on 4 equal devices, by dawnpiper in ...

stage               nodes  devices  micro-batch  forward  backward    memory
words .. text.0         2        0            1     3 ms      6 ms  13.8 MiB
text.1 .. patches       3        1            1     5 ms     10 ms  11.4 MiB
image.0 .. image.1      2        2            1     6 ms     12 ms   9.5 MiB
image.2 .. head         3        3            1     5 ms     10 ms   6.9 MiB

A step of 64 samples in 64 micro-batches takes 1.189 s; no plan takes less than 912 ms, which leaves a gap of 30.3 %.
...
)",
           .run = {"penstock plan gpt --devices 2 --bandwidth 1e10 --memory 3e7 --planner dawnpiper --out dawnpiper.json",
                   "penstock train --plan dawnpiper.json --steps 4 --out runs/dawnpiper"},
           .plan = {"penstock plan gpt --devices 2 --bandwidth 1e10 --memory 3e7 --planner dawnpiper"},
           .differs = "Ways that hold less are those of the graph's costs. A model's own costs have one way for each node, so its plans "
                      "are cuts alone; "
                      "nothing is swapped.",
           .claim = "4 times the batch that vPipe trains.",
           .found = "It fits the largest micro-batch that any cuts with any recomputation fit, on random chains of up to 16 nodes and 4 "
                    "devices (docs/planning.md)."},
          {.name = "DiffusionPipe",
           .title = "Training Large Diffusion Models with Efficient Pipelines",
           .number = "2405.01248, MLSys 2024",
           .here = "a planner, `penstock plan --planner diffusionpipe`, and stages in idle time, `--frozen TIMES`",
           .idea = "Layers that are not trained depend on data alone, so the next step's are computed where actors wait in this one. Two "
                   "backbones run in opposite "
                   "directions, each in the other's idle time.",
           .picture = R"($ penstock schedule 1f1b --actors 2 --microbatches 2 --frozen 1 --window 2 --show
actor 0 | 0F0 1F0 1F1 0F3 .   1B0---- .   1B1---- 1F2 1F3 .   .   1B2---- .   1B3----
actor 1 | 0F1 0F2 2F0 2B0---- 2F1 2B1---- .   .   .   2F2 2B2---- 2F3 2B3----
time 19, bubble 26.3 %, live 2 1
)",
           .run =
               {"penstock train --set model.name=latent_diffusion --frozen 0.5,0.5 --window 4 --set clip=0 --steps 4 --out runs/diffusion",
                "penstock train --set model.name=latent_diffusion --set backbones=2 --schedule bidirectional --chunks 2 --frozen 0.5,0.5 "
                "--window 4 --set clip=0 --steps 4 --out "
                "runs/backbones"},
           .plan = {"penstock plan latent_diffusion --set layers=2 --set clip=0 --set window=2 --devices 2 --bandwidth 1e10 --planner "
                    "diffusionpipe",
                    "penstock batch stages '{\"layers\": [3, 1, 4, 1, 5, 9, 2, 6], \"links\": 1, \"stages\": 4, \"microbatches\": 4}'"},
           .differs = "Frozen stages go by micro-batches in a run, by parts of a batch in `--fill`, which is about times. Up to 128 ways "
                      "to fill are followed, not "
                      "the greedy one. `bidirectional` is for backbones of equal times. Self-conditioning is a table, without a model that "
                      "trains with it.",
           .claim = "Up to 1.41 times as fast.",
           .found = "On two actors, frozen work of 31 % of the idle time takes 1.03 of the step without it ahead of the pipeline and 0.95 "
                    "in its idle "
                    "time, so it adds less than the noise (`bench/filled.py`, docs/filling.md). Ten layers of 80 % of the idle time are "
                    "all placed.",
           .shown = R"($ penstock schedule 1f1b --actors 4 --microbatches 4 --fill 10x2.88 --steps 3
frozen layers  10 in 1 chain, 28.8 on one device
placed         100 % of them, in 80 % of the idle time of 36
step           21, where all behind it would be 28.2 and none of them 21
3 steps        70.2, of which 7.2 ahead of the first
...
)"},
          {.name = "Sizing",
           .also = {"distributed-training-large-scale-deep-architectures", "1709.06622"},
           .title = "Distributed Training Large-Scale Deep Architectures",
           .number = "1709.06622",
           .here = "a calculator: `penstock size`",
           .idea = "What a GPU adds to a mini-batch by sending and waiting says how many GPUs a job is worth. What workers send says how "
                   "many parameter servers hide it.",
           .run = {"penstock size --overhead 0.1 --gpus 4 --alpha 0.8"},
           .plan = {"penstock size --parameters 0.1 --workers 8 --bandwidth 1.25 --compute 0.5"},
           .differs = "Nothing is trained by it: gradients are summed by collectives, there are no parameter servers. Figures are given, "
                      "not taken from a profile.",
           .claim = "The lemmas themselves.",
           .found = "The efficiency is that of a simulated table, and a server fewer exposes traffic.",
           .shown = R"($ penstock size --parameters 0.1 --workers 8 --bandwidth 1.25 --compute 0.5
servers                 3   2 S N / (B T), rounded up
exposed_seconds         0.0   a step beyond its computing, simulated
exposed_with_one_fewer  0.14   the same with a server less
)"},
      }};
}

}  // namespace penstock
