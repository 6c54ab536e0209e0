"""Trains small tokenizers on this project's sources, and writes what the libraries that define their files make of some texts.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 && python tests/golden/tokenizer/make.py
"""

import json
import pathlib
import random
import unicodedata

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

FOLDER = pathlib.Path(__file__).parent
SOURCES = sorted((FOLDER.parents[2] / "docs").glob("*.md"))

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LINES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
REGEXES = {
    "llama": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + LINES,
    "qwen": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + LINES,
}
ADDED = {"gpt2": "<|endoftext|>", "llama": "<|end_of_text|>", "qwen": "<|endoftext|>"}

TEXTS = [
    "", " ", "a", "penstock", "The pipeline's stages don't wait: they've work, we'll see, I'd say I'M 'S.",
    "  two blanks,\tа tab,\n\n  and lines\r\n   \n", "x = 12345678 + 0x1F; // ½ ² Ⅷ ٣٤", "naïve café, na\u0069\u0308ve cafe\u0301",
    "привет, мир! 你好，世界。 🙂🙃 👩‍👩‍👧", "a\u00a0b\u2003c\u2028d\u0085e", "ſ'ſ 'RE 'Re Straße", "====---->>>> ((([[[{{{", "end \n", "\n\n\nend  ",
    "one<|endoftext|>two<|end_of_text|>three<|endoftext", "<pad><pad2> <pad", "the the the the" * 20, "\u0000\u0001\u007f", "_under_score __init__(self)",
]  # fmt: skip


def drawn(generator):
    pools = ["abcdefgh ", "aA1 '\n", "éïß日本 .", "\t\r\n  x", "0123456789,.", "'sstTreLLmd ", "🙂\u0301\u0308ei o"]
    return "".join(generator.choice(generator.choice(pools)) for _ in range(generator.randint(1, 60)))


def byte_level(kind):
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=kind == "llama"))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    if kind != "gpt2":
        split = pre_tokenizers.Split(tokenizers.Regex(REGEXES[kind]), behavior="isolated", invert=False)
        level = pre_tokenizers.Sequence([split, level])
    if kind == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[ADDED[kind]], show_progress=False
    )  # fmt: skip
    tokenizer.train([str(path) for path in SOURCES], trainer)
    tokenizer.add_tokens(["<pad>", "<pad2>"])
    tokenizer.save(str(FOLDER / f"{kind}.json"), pretty=False)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def pieces():
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(map(str, SOURCES)), model_prefix=str(FOLDER / "pieces"), vocab_size=400, byte_fallback=True,
        normalization_rule_name="identity", num_threads=1, minloglevel=2,
    )  # fmt: skip
    (FOLDER / "pieces.vocab").unlink()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "pieces.model"))
    return processor.encode, processor.decode


def write_cases(name, encode, decode, texts):
    cases = [{"text": text, "tokens": encode(text)} for text in texts]
    for case in cases:
        if (decoded := decode(case["tokens"])) != case["text"]:
            case["decoded"] = decoded
    (FOLDER / f"{name}_cases.json").write_text(json.dumps(cases, ensure_ascii=True).replace("}, ", "},\n ") + "\n")


# Pieces of texts and of added tokens: parts of one another, with marks that compose, letters that stand for other bytes, and blanks.
PARTS = [
    "caf\u00e9", "cafe\u0301", "\u00e9", "e\u0301", "e", "\u0301", "\u0301x", "o\u0323\u0302", "\u1ed9", "<|im|>", "<|im|>user", "<|im", "user", " user", "|>u",
    "a b", "ab", "abc", "b", "\u0120x", "x", "the", " the", "\ufb01", "\uac00", "\u1100\u1161", "\u1161", "\u65e5\u672c", "\n\n", "\n", "  ", " ", "\u212b", "\u00c5", "A\u030a",
    "<|endoftext|>", "\u00a0", "7", "'s", "\U0001f642",
]  # fmt: skip


def drawn_parts(generator, most):
    return "".join(generator.choice(PARTS) for _ in range(generator.randint(1, most)))


def drawn_token(generator, number):
    rare = {flag: generator.random() < 0.02 for flag in ("single_word", "lstrip", "rstrip")}
    return {"id": number, "content": drawn_parts(generator, 2), **rare, "normalized": generator.random() < 0.5, "special": generator.random() < 0.5}


def added_case(generator, base):
    """A tokenizer with drawn added tokens, and what the library makes of drawn texts; or why it is to be refused: what is not read, and
    what the library reads in another way than it is written, or not always in the same way."""
    normalizer = generator.choice((None, {"type": "NFC"}))
    added = [drawn_token(generator, 0) for _ in range(generator.randint(1, 7))]
    case = {"normalizer": normalizer, "added_tokens": added}
    meant = tokenizers.Tokenizer.from_str(json.dumps({**base, **case}))
    for token in added:
        token["id"] = meant.token_to_id(token["content"])
    wrong = generator.random() < 0.05
    added[-1]["id"] += wrong
    found = [unicodedata.normalize("NFC", t["content"]) if normalizer and t["normalized"] else t["content"] for t in added]
    twice = len({(t["normalized"], text) for t, text in zip(added, found)}) + len({t["content"] for t in added}) < 2 * len(added)
    if twice or wrong or any(t[flag] for t in added for flag in ("single_word", "lstrip", "rstrip")):
        return {**case, "refused": True}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps({**base, **case}))
    texts = [drawn_parts(generator, 8) for _ in range(4)]
    ids = [[*(generator.randrange(tokenizer.get_vocab_size()) for _ in range(4)), *(t["id"] for t in added)]]
    case["texts"] = [[text, tokenizer.encode(text, add_special_tokens=False).ids] for text in texts]
    decoded = [[i, tokenizer.decode(i, skip_special_tokens=False)] for i in [*ids, *([t["id"]] for t in added)]]
    case["decoded"] = [one for one in decoded if "\ufffd" not in one[1]]  # there the library has lost the bytes
    return case


def write_added(count):
    generator, base = random.Random(2), json.loads((FOLDER / "gpt2.json").read_text())
    cases = ",\n ".join(json.dumps(added_case(generator, base), separators=(",", ":")) for _ in range(count))
    (FOLDER / "added_cases.json").write_text(f"[{cases}]\n")


if __name__ == "__main__":
    write_added(120)
    generator = random.Random(1)
    texts = TEXTS + [drawn(generator) for _ in range(60)]
    for kind in ADDED:
        write_cases(kind, *byte_level(kind), texts)
    write_cases("pieces", *pieces(), texts)
