# SPDX-License-Identifier: Apache-2.0
"""GPT-2, tiny, reads the sources of Python's standard library, in tokens that `tokenizers` finds in them.

usage: gpt2_text.py
"""

import json
from pathlib import Path

import tokenizers
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import penstock

CONTEXT, BATCH, STEPS = 64, 16, 120


def tokens_of(texts):
    """A byte-pair tokenizer of these texts, and the texts in its tokens."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=1000, show_progress=False)
    return tokenizer, torch.tensor([token for text in tokenizer.encode_batch(texts) for token in text.ids])


def batches(tokens):
    """Windows anywhere in the text. GPT-2 predicts each window's next tokens itself, so the labels are the inputs."""
    while True:
        begins = torch.randint(len(tokens) - CONTEXT, (BATCH,))
        windows = torch.stack([tokens[begin: begin + CONTEXT] for begin in begins])
        yield {"input_ids": windows, "labels": windows}


def main():
    torch.manual_seed(0)
    tokenizer, tokens = tokens_of([path.read_text() for path in sorted(Path(json.__file__).parents[1].glob("*.py"))[:60]])
    print(f"{len(tokens)} tokens of {tokenizer.get_vocab_size()} kinds")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=tokenizer.get_vocab_size(), n_positions=CONTEXT, n_embd=96, n_layer=4, n_head=4,
                                       bos_token_id=0, eos_token_id=0))
    optimizer = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
                                   {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}], lr=3e-3)
    reader = batches(tokens)
    step = penstock.trainer(model, next(reader), optimizer=optimizer, schedule="zb-h1", microbatches=4, clip=1.0, split=["transformer.h.2"])
    print(step.predict())
    for number, batch in zip(range(1, STEPS + 1), reader):
        loss = step(batch)
        if number == 1 or number % 20 == 0:
            print(f"step {number}: loss {loss:.3f}")
    model.load_state_dict(step.state_dict())
    model.eval()
    start = torch.tensor([tokenizer.encode("def ").ids])
    print(tokenizer.decode(model.generate(start, max_new_tokens=30, do_sample=True, attention_mask=torch.ones_like(start), pad_token_id=0)[0].tolist()))


if __name__ == "__main__":
    main()
