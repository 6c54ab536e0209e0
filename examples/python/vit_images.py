# SPDX-License-Identifier: Apache-2.0
"""A vision transformer learns to tell drawn shapes apart: a model of Hugging Face, a DataLoader, two pipeline stages.

usage: vit_images.py
"""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification

import penstock


class Shapes(Dataset):
    """Discs, squares and crosses of any place, size and brightness, on noise: 3 x 32 x 32."""

    def __len__(self):
        return 2048

    def __getitem__(self, number):
        draw = torch.Generator().manual_seed(number)
        kind = int(torch.randint(3, (), generator=draw))
        x, y = 10 + 12 * torch.rand(2, generator=draw)
        size = 4 + 5 * torch.rand((), generator=draw)
        rows, columns = (torch.arange(32.0)[:, None] - y).abs(), (torch.arange(32.0) - x).abs()
        inside = (rows**2 + columns**2 < size**2, torch.maximum(rows, columns) < size,
                  (torch.minimum(rows, columns) < size / 4) & (torch.maximum(rows, columns) < size))[kind]
        image = 0.1 * torch.randn(3, 32, 32, generator=draw) + inside * (0.5 + torch.rand(3, 1, 1, generator=draw))
        return {"pixel_values": image, "labels": kind}


def main():
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
                                                intermediate_size=128, num_labels=3))
    loader = DataLoader(Shapes(), batch_size=64, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=4 * len(loader), cycle_momentum=False)
    batch = next(iter(loader))
    step = penstock.trainer(model, batch, optimizer=optimizer, microbatches=4)
    print(step.explain())
    for epoch in range(4):
        losses = []
        for batch in loader:
            losses.append(step(batch).item())
            schedule.step()
        found = step.evaluate(batch)
        right = (found["logits"].argmax(-1) == batch["labels"]).float().mean()
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}, {100 * right:.0f} % of the last batch right")
    model.load_state_dict(step.state_dict())


if __name__ == "__main__":
    main()
