# SPDX-License-Identifier: Apache-2.0
"""T5 learns to turn words around. Micro-batches have lengths of their own, so that short words are not padded to long ones.

usage: t5_lengths.py
"""

import logging

import torch
from transformers import T5Config, T5ForConditionalGeneration

import penstock

LETTERS, PAD, END = 20, 0, 1


def padded(words):
    """Words of up to 4 letters padded to 6, of up to 8 to 10, and the same words backwards."""
    longest = 4 if len(words[-1]) <= 4 else 8
    inputs = torch.full((len(words), longest + 2), PAD)
    labels = torch.full((len(words), longest + 1), -100)
    for row, word in enumerate(words):
        inputs[row, : len(word) + 1] = torch.cat([word, torch.tensor([END])])
        labels[row, : len(word) + 1] = torch.cat([word.flip(0), torch.tensor([END])])
    return {"input_ids": inputs, "attention_mask": (inputs != PAD).long(), "labels": labels}


def batch(samples=32, microbatches=4):
    words = sorted((torch.randint(2, 2 + LETTERS, (int(torch.randint(1, 9, ())),)) for _ in range(samples)), key=len)
    size = samples // microbatches
    return [padded(words[begin : begin + size]) for begin in range(0, samples, size)]


def main():
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("penstock").setLevel(logging.INFO)  # says what is exported, and for which shapes there is a new program
    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(vocab_size=2 + LETTERS, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.0,
                                                decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=END))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = penstock.trainer(model, batch()[0], optimizer=optimizer, microbatches=4)
    losses = []
    for number in range(1, 81):
        losses.append(step(penstock.MicroBatches(batch())).item())
        if number == 1 or number % 20 == 0:
            print(f"step {number}: loss {sum(losses[-10:]) / len(losses[-10:]):.3f}")


if __name__ == "__main__":
    main()
