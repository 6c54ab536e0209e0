# SPDX-License-Identifier: Apache-2.0
"""Models that users have, from transformers, timm and torchvision, in small configurations: `make(name)` gives (module, kwargs)."""

import contextlib
import importlib
import importlib.util

import torch
import torch.nn as nn
from torch.utils._pytree import tree_map_only

VOCABULARY = 61


def have(*packages):
    return all(importlib.util.find_spec(package) for package in packages)


def stub_torchvision():
    """torchvision wants the schemas of two operators when it is imported; where its compiled ones cannot be loaded, they are defined here."""
    with contextlib.suppress(OSError):
        torch.ops.load_library(f"{importlib.util.find_spec('torchvision').submodule_search_locations[0]}/_C.so")
        return
    with contextlib.suppress(RuntimeError):
        library = torch.library.Library("torchvision", "DEF")
        KEPT.append(library)
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


KEPT = []  # a library that is collected takes its operators with it


def tokens(*shape):
    return torch.randint(3, VOCABULARY, shape)


def text(batch=2, length=12, padded=True):
    ids = tokens(batch, length)
    mask = torch.ones_like(ids)
    if padded:
        mask[-1, length - 3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def sizes(**others):
    return {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 64, **others}


def gpt2(t):
    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=2)), text()


def llama(t):
    return t.LlamaForCausalLM(t.LlamaConfig(**sizes(num_key_value_heads=2))), text()


def qwen3(t):
    return t.Qwen3ForCausalLM(t.Qwen3Config(**sizes(num_key_value_heads=2, head_dim=8))), text()


def mixtral(t):
    return t.MixtralForCausalLM(t.MixtralConfig(**sizes(num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2))), text()


def bert(t):
    return t.BertForMaskedLM(t.BertConfig(**sizes())), text()


def t5(t, layers=2):
    config = t.T5Config(vocab_size=VOCABULARY, d_model=16, d_kv=4, d_ff=32, num_layers=layers, num_decoder_layers=layers, num_heads=4,
                        decoder_start_token_id=0)
    return t.T5ForConditionalGeneration(config), {**text(), "labels": tokens(2, 7)}


def vit(t):
    config = t.ViTConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4,
                         num_labels=5)
    return t.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([1, 4])}


def whisper(t):
    config = t.WhisperConfig(vocab_size=VOCABULARY, num_mel_bins=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                             decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=16, max_source_positions=20,
                             max_target_positions=30, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    return t.WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 8, 40), "labels": tokens(2, 7)}


def clip(t):
    part = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "projection_dim": 16}
    config = t.CLIPConfig(text_config={**part, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": 60},
                          vision_config={**part, "image_size": 16, "patch_size": 4}, projection_dim=16)
    return t.CLIPModel(config), {"input_ids": tokens(2, 10), "pixel_values": torch.randn(2, 3, 16, 16), "return_loss": True}


def mamba(t):
    config = t.MambaConfig(vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2)
    return t.MambaForCausalLM(config), {"input_ids": (ids := tokens(2, 6)), "labels": ids}


class Classifier(nn.Module):
    """A model of images with the loss of its labels."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.model(images), labels)


def images(model, size=32):
    return Classifier(model), {"images": torch.randn(2, 3, size, size), "labels": torch.tensor([1, 4])}


def timm_resnet18(timm):
    return images(timm.create_model("resnet18", num_classes=5))


def timm_convnext(timm):
    return images(timm.create_model("convnext_atto", num_classes=5, drop_path_rate=0.1))


def resnet50(torchvision):
    return images(torchvision.models.resnet50(num_classes=5))


class DLRM(nn.Module):
    """Bags of sparse features and dense ones, and their interaction (arXiv:1906.00091)."""

    def __init__(self, tables=3, rows=19, width=8):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + (tables + 1) * tables // 2, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense, sparse, clicks):
        x = self.bottom(dense)
        rows = torch.stack([x, *(bag(ids) for bag, ids in zip(self.bags, sparse))], 1)
        products = rows @ rows.transpose(1, 2)
        i, j = torch.tril_indices(rows.shape[1], rows.shape[1], -1)
        return nn.functional.binary_cross_entropy_with_logits(self.top(torch.cat([x, products[:, i, j]], 1)).squeeze(1), clicks)


def dlrm(_):
    return DLRM(), {"dense": torch.randn(4, 5), "sparse": [torch.randint(19, (4, 2)) for _ in range(3)], "clicks": torch.rand(4)}


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.transformer = nn.Transformer(16, 4, 2, 2, 32, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1] - 1)
        y = self.transformer(self.embed(source), self.embed(target[:, :-1]), tgt_mask=mask, tgt_is_causal=True)
        return nn.functional.cross_entropy(self.head(y).flatten(0, 1), target[:, 1:].flatten())


def transformer(_):
    return Translator(), {"source": tokens(2, 9), "target": tokens(2, 7)}


MODELS = {
    "transformers": (gpt2, llama, qwen3, mixtral, bert, t5, vit, whisper, clip, mamba),
    "timm": (timm_resnet18, timm_convnext),
    "torchvision": (resnet50,),
    "torch": (dlrm, transformer),
}
NAMES = tuple(maker.__name__ for makers in MODELS.values() for maker in makers)


def without_dropout(module):
    """Sets every probability of dropout to 0, in modules and in the numbers that modules hand to functions."""
    for part in module.modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout", "dropout_prob", "drop_prob", "resid_dropout", "layerdrop"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module


def make(name, dtype=torch.float32, seed=0):
    """The model in training mode, without dropout, and the arguments that it is called with."""
    package, maker = next((package, maker) for package, makers in MODELS.items() for maker in makers if maker.__name__ == name)
    stub_torchvision()
    torch.manual_seed(seed)
    module, kwargs = maker(importlib.import_module(package))
    kwargs = tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, kwargs)
    if name == "mixtral":
        module.set_experts_implementation("eager")  # the default knows no f64; what is exported is another way still
    return without_dropout(module.train()).to(dtype), kwargs


def loss_of(output):
    return output if isinstance(output, torch.Tensor) else output.loss
