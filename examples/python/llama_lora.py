# SPDX-License-Identifier: Apache-2.0
"""A Llama learns to count by ones; then adapters of low rank learn to count by threes, while its weights stay as they are.

usage: llama_lora.py
"""

import tempfile

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import penstock

VOCABULARY = 64


class LoRA(nn.Module):
    """A linear layer as it was, and beside it a product of two narrow ones that begins as zero."""

    def __init__(self, base: nn.Linear, rank: int = 8, alpha: float = 16.0):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


def add_adapters(model):
    """Freezes the model and puts adapters at the queries and values of all its layers."""
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, LoRA(getattr(layer.self_attn, name)))


def counting(by, samples=16, length=24):
    """Counting from anywhere."""
    tokens = (torch.randint(VOCABULARY, (samples, 1)) + by * torch.arange(length)) % VOCABULARY
    return {"input_ids": tokens, "labels": tokens}


def train(model, by, steps, rate):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    print(f"{sum(p.numel() for p in trained)} of {sum(p.numel() for p in model.parameters())} parameters are trained")
    step = penstock.trainer(model, counting(by), optimizer=torch.optim.AdamW(trained, lr=rate), microbatches=4)
    for number in range(1, steps + 1):
        loss = step(counting(by))
        if number == 1 or number % 20 == 0:
            print(f"step {number}: loss {loss:.3f}")
    return step


def main():
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
                         num_key_value_heads=2, bos_token_id=0, eos_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        train(LlamaForCausalLM(config), by=1, steps=40, rate=3e-3).save_pretrained(folder, max_shard_size="200KB")
        model = LlamaForCausalLM.from_pretrained(folder)
    add_adapters(model)
    state = train(model, by=3, steps=60, rate=1e-2).state_dict()
    adapters = {name: value for name, value in state.items() if ".up." in name or ".down." in name}
    print(f"the adapters are {sum(value.numel() * value.element_size() for value in adapters.values()) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
