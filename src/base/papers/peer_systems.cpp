#include "base/papers/groups.h"

namespace penstock {

PaperGroup peer_systems() {
  return {
      "Peers: systems",
      {
          {.name = "torch.distributed.pipelining",
           .also = {"pytorch", "torch", "pippy"},
           .title = "PyTorch's own pipeline parallelism",
           .number = "PyTorch 2",
           .here = "the peer beside which Penstock is timed; its tables are `--schedule FILE.csv`",
           .idea = "A table has a row for each rank, with actions such as 0F1 or 2B3, and each rank runs its row. Sends and receives go "
                   "between neighbouring stages.",
           .picture = R"($ penstock schedule interleaved-1f1b --actors 2 --microbatches 2 --chunks 2
0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1
1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1
)",
           .run = {"penstock schedule interleaved-1f1b --actors 2 --microbatches 8 --chunks 2 > torch.csv",
                   "penstock train --schedule torch.csv --steps 4 --out runs/torch"},
           .plan = {"penstock simulate torch.csv"},
           .differs = "Its CSV of compute actions is read and written. Sends and receives follow from the stages, which may be a DAG, so a "
                      "table that names them is refused. The "
                      "simulator counts time, links and memory.",
           .claim = "None that is compared here.",
           .found = "A step takes 0.29 of its time at width 64 and 0.41 at 256 (0.39 and 0.75 with equal matrix products), and 0.33 and "
                    "0.88 of its memory "
                    "(`bench/peer.py`, `bench/peer_memory.py`, docs/performance.md); GPT-2 of Hugging Face 0.40 to 0.59 "
                    "(`bench/gpt2_peer.py`)."},
          {.name = "torchtitan",
           .title = "One-stop PyTorch native solution for production ready LLM pre-training",
           .number = "2410.06511, ICLR 2025",
           .here = "a mesh of axes with a schedule, `--mesh pipe=P,data=D,tensor=T`",
           .idea = "FSDP, tensor, context and pipeline parallelism are composed over one mesh of devices. The pipeline is "
                   "torch.distributed.pipelining's.",
           .picture = R"($ penstock mesh --mesh pipe=2,data=2,tensor=2
gpt: a step of 16 samples in 16 micro-batches
mesh: pipe 2 x data 2 x tensor 2; a step sends

axis    over links of  the busiest device sends  all devices      by at most, of a device
pipe        8 devices                 577.7 KiB      4.5 MiB                      36 send
data        8 devices                 905.5 KiB      6.8 MiB                11 all_reduce
tensor      8 devices                   4.5 MiB     36.0 MiB  73 all_reduce, 8 all_gather
)",
           .run = {"penstock train --schedule interleaved-1f1b --chunks 2 --mesh pipe=2,data=2,tensor=2 --set zero=1 --steps 4 --out "
                   "runs/mesh"},
           .plan = {"penstock plan gpt --devices 8 --bandwidth 1e11 --planner degrees"},
           .differs = "All axes are in one program, which is proven to end. Models are ours or exported modules. There is no float8.",
           .claim = "Llama-3 405B on 512 H100: 1F1B 26.5 % of the peak, interleaved 33.9 %.",
           .found = "Over Gloo a step takes 0.35 and 0.45 of FSDP2's time and 0.27 and 0.47 of that of `parallelize_module` at widths 64 "
                    "and 256 "
                    "(`bench/data_peer.py`, `bench/tensor_peer.py`, docs/performance.md). Nothing was measured on GPUs."},
          {.name = "Megatron",
           .also = {"megatron-lm"},
           .title = "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
           .number = "2104.04473, SC 2021",
           .here = "a schedule, `--schedule interleaved-1f1b --chunks V`, with `--mesh tensor=T`",
           .idea = "Each actor has several chunks of layers in turn, which divides the bubble by their number. Inside a node matrices are "
                   "split by columns and "
                   "rows, across nodes go pipeline and data parallelism.",
           .picture = R"($ penstock schedule interleaved-1f1b --actors 2 --microbatches 4 --chunks 2 --show
actor 0 | 0F0 0F1 2F0 2F1 0F2 .   2B0---- 0F3 2B1---- 2F2 0B0---- 2F3 0B1---- .   2B2---- .   2B3---- 0B2---- 0B3----
actor 1 | .   1F0 1F1 3F0 3B0---- 3F1 3B1---- 1F2 1B0---- 1F3 1B1---- 3F2 3B2---- 3F3 3B3---- 1B2---- 1B3----
time 27, bubble 11.1 %, live 5 3
)",
           .run = {"penstock train --schedule interleaved-1f1b --chunks 2 --mesh pipe=2,tensor=2 --set layout.sequence=tensor --steps 4 "
                   "--out runs/megatron"},
           .plan = {"penstock plan gpt --cluster examples/clusters/a100-64.toml --batch 64 --planner degrees --only pipe=4,tensor=2"},
           .differs = "Splits follow from layouts of dims. Activations between nodes are not scattered over the tensor axis (section 4.1).",
           .claim = "52 % of the peak on 3,072 A100, 502 petaFLOP/s.",
           .found = "All ten rows of its table 1 are predicted within a tenth; of all degrees Penstock finds plans that are predicted 1.18 "
                    "to 1.70 times as fast, all with ZeRO-3 "
                    "(`bench/megatron.py`, docs/performance.md).",
           .shown = R"($ penstock simulate interleaved-1f1b --actors 4 --microbatches 8 --chunks 2
...
makespan 28.5, bubble 15.8 %, lower bound 24 (busiest actor 24, longest chain of needs 12)
)"},
          {.name = "DeepSpeed",
           .also = {"zero", "fsdp"},
           .title = "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
           .number = "1910.02054, SC 2020",
           .here = "shares of state among the devices of an actor: `--mesh data=N --set zero=1`, 2 or 3",
           .idea = "Devices that share micro-batches hold the optimiser's state, the gradients, or the parameters too, in equal shares. "
                   "What is missing is gathered when it is "
                   "read and dropped behind it.",
           .run = {"penstock train --mesh pipe=2,data=2 --set zero=3 --steps 4 --out runs/zero"},
           .plan = {"penstock plan gpt --devices 4 --bandwidth 1e10 --planner degrees --only zero=3"},
           .differs = "All three levels go together with a pipeline, its chunks and tables of several steps. States are not on the host.",
           .claim = "Eight times the model size at ten times the throughput.",
           .found = "Nothing was measured beside DeepSpeed; PyTorch's FSDP2 takes 1/0.35 and 1/0.45 of the time (`bench/data_peer.py`, "
                    "docs/performance.md)."},
          {.name = "Shardy",
           .also = {"mpmd", "gspmd"},
           .title = "openxla/shardy, dialect mpmd",
           .number = "2105.04663 for GSPMD",
           .here = "layouts inferred from names of dims: `penstock compile --emit layouts`, `[layout]` of a configuration",
           .idea = "A split of some tensors is propagated over a program by factors of its ops. In the MPMD dialect a schedule is a "
                   "comparator of what must happen "
                   "before what on each actor.",
           .run = {"penstock check --mesh pipe=2,tensor=2"},
           .plan = {"penstock compile --mesh pipe=2,tensor=2 --emit layouts"},
           .differs = "Layouts are chosen by what they send, not propagated by priorities. Schedules are tables, so that they can be "
                      "printed, read and proven.",
           .claim = "None that is compared here.",
           .found = "Nothing was measured beside it."},
      }};
}

}  // namespace penstock
