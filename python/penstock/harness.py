# SPDX-License-Identifier: Apache-2.0
"""Language models for lm-eval (EleutherAI's evaluation harness): `LanguageModel` has the methods of its `LM`.

    lm = penstock.harness.LanguageModel(step, tokenizer, length=128)
    lm_eval.simple_evaluate(model=lm, tasks=["lambada_openai"])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .errors import PenstockError
from .likelihoods import logits_in, outputs_of

try:
    from lm_eval.api.model import LM  # its evaluator takes subclasses of this alone
except ImportError:
    LM = object

SHORTEST = 16  # tokens to which a batch is padded at least; longer ones to powers of two, so that few shapes come
NEW_TOKENS = 256  # that generate_until makes where a request does not say


class LanguageModel(LM):
    """A trainer's step, or a module, as lm-eval asks it.

    `tokenizer` has encode(text, add_special_tokens=False) and decode(ids), as those of Hugging Face and of `tokenizers` have. `length` is how many
    tokens the model reads at most. `batch_size` rows go together, padded on the right. `prefix` stands before what has no context: the
    tokenizer's bos_token_id or eos_token_id, unless it is given; `end` ends what is generated: eos_token_id. `batch`: a function that makes of tokens,
    [batch_size, length], what the step or module is called with; without it {"input_ids": tokens, "labels": tokens}, or (tokens, tokens) where
    the trainer's loss takes a target; a module gets {"input_ids": tokens}, or the tokens alone where it has no such argument.

    Throws PenstockError for what is no language model: one without logits, with a smaller vocabulary than the tokenizer, or whose logits depend on
    tokens behind them.
    """

    def __init__(self, model: Any, tokenizer: Any, *, length: int, batch_size: int = 8, prefix: int | None = None, end: int | None = None,
                 batch: Callable[[torch.Tensor], Any] | None = None) -> None:
        super().__init__()
        self._model, self._tokenizer, self._length, self._batch_size = model, tokenizer, length, batch_size
        self._batch = batch or _batches_like(model)
        ends = [getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id")]
        self._end = ends[1] if end is None else end
        self._prefix = next((token for token in (prefix, *ends) if token is not None), None)
        if self._prefix is None:
            raise PenstockError("the tokenizer has neither bos_token_id nor eos_token_id", ["what has no context begins with one of these"], "prefix=TOKEN")
        self._check()

    # --- what lm-eval asks

    def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        """Gives the log-probability of the continuation of each (context, continuation), and whether it is what greedy decoding makes."""
        return self._scored([self._pair(*request.args) for request in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
        """Gives the log-probability of each (text,): each token counts once, with as many before it as the model reads."""
        windows = [list(self._windows(self._encoded(request.args[0]))) for request in requests]
        scores = iter(self._scored([pair for each in windows for pair in each]))
        return [sum(next(scores)[0] for _ in each) for each in windows]

    def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
        """Gives what greedy decoding makes of each (context, settings), up to the first of settings["until"], the end or "max_gen_toks"."""
        found: list[str] = []
        for begin in range(0, len(requests), self._batch_size):
            found += self._generated([request.args for request in requests[begin:begin + self._batch_size]])
        return found

    # --- inside

    def _encoded(self, text: str) -> list[int]:
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return list(getattr(found, "ids", found))

    def _pair(self, context: str, continuation: str) -> tuple[list[int], int]:
        """Context and continuation as tokens, and how many are the continuation's: blanks between them are the continuation's, as its first word's token
        begins with one."""
        blanks = len(context) - len(context.rstrip())
        context, continuation = context[:len(context) - blanks], context[len(context) - blanks:] + continuation
        if not context:
            own = self._encoded(continuation)
            return [self._prefix, *own], len(own)
        both, before = self._encoded(context + continuation), len(self._encoded(context))
        return both, len(both) - before

    def _windows(self, tokens: list[int]) -> Iterator[tuple[list[int], int]]:
        """Pieces of tokens, each with how many at its end are new."""
        tokens = [self._prefix, *tokens]
        done = 1
        while done < len(tokens):
            new = min(self._length, len(tokens) - done)
            done += new
            yield tokens[max(0, done - self._length - 1):done], new

    def _scored(self, pairs: Sequence[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """Gives the log-probability of the last n of each (tokens, n), and whether each of these is the likeliest."""
        pairs = [(tokens[-self._length - 1:], n) for tokens, n in pairs]
        long = next((n for _, n in pairs if n > self._length), None)
        if long is not None:
            raise PenstockError(f"a continuation has {long} tokens, and the model reads {self._length}", hint="length= says how many it reads")
        found: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: -len(pairs[i][0]))  # those of like lengths go together
        for begin in range(0, len(order), self._batch_size):
            rows = order[begin:begin + self._batch_size]
            for i, logits in zip(rows, self._logits([pairs[i][0][:-1] for i in rows])):
                tokens, n = pairs[i]
                if n > 0:
                    targets, last = torch.tensor(tokens[-n:]), logits[-n:].double()
                    likely = torch.log_softmax(last, -1).gather(1, targets[:, None]).sum()
                    found[i] = likely.item(), bool((last.argmax(-1) == targets).all())
        return found

    def _generated(self, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
        settings = [_Greedy(dict(given)) for _, given in requests]
        rows = []
        for (text, _), each in zip(requests, settings):
            if each.most >= self._length:
                raise PenstockError(f"{each.most} tokens are to be generated, and the model reads {self._length}",
                                    hint='"max_gen_toks" below that, or a larger length=')
            rows.append((self._encoded(text) or [self._prefix])[-(self._length - each.most):])
        begins, texts = [len(row) for row in rows], [""] * len(rows)
        running = [i for i, each in enumerate(settings) if each.most > 0]
        while running:
            for i, logits in zip(list(running), self._logits([rows[i] for i in running])):
                token = int(logits[-1].argmax())
                rows[i].append(token)
                made = rows[i][begins[i]:]
                texts[i], ended = settings[i].cut(self._tokenizer.decode(made if token != self._end else made[:-1]))
                if ended or token == self._end or len(made) == settings[i].most:
                    running.remove(i)
        return texts

    def _logits(self, rows: Sequence[list[int]]) -> list[torch.Tensor]:
        """The logits of each row, [its tokens, vocabulary]. What stands behind a row's end changes nothing in it."""
        longest = SHORTEST
        while longest < max(map(len, rows)):
            longest *= 2
        tokens = torch.zeros(self._batch_size, min(longest, self._length), dtype=torch.int64)
        for i, row in enumerate(rows):
            tokens[i, :len(row)] = torch.tensor(row, dtype=torch.int64)
        found = logits_in(outputs_of(self._model, self._batch(tokens)))
        return [found[i, :len(row)] for i, row in enumerate(rows)]

    def _check(self) -> None:
        """Throws PenstockError for a model that is none of language."""
        half = max(1, min(SHORTEST, self._length) // 2)
        begin, other = [self._prefix] * half, [int(self._prefix == 0)] * half
        try:
            logits, changed = (self._logits([begin + end])[0] for end in (begin, other))
        except (TypeError, KeyError) as error:
            raise PenstockError(f"the model cannot be called with tokens: {error}", hint="batch= is a function that makes a batch of tokens") from None
        largest = max(getattr(self._tokenizer, "vocab_size", None) or 0, self._prefix + 1)
        if logits.shape[-1] < largest:
            raise PenstockError(f"the model's vocabulary has {logits.shape[-1]} tokens, the tokenizer's {largest}")
        if not torch.allclose(logits[:half], changed[:half], rtol=0, atol=1e-5 * logits.abs().max().item()):
            raise PenstockError("the model is no causal language model",
                                ["its logits depend on tokens behind them, so they say no probabilities of a text"], "a causal model, such as GPT-2 or Llama")


class _Greedy:
    """A request of generate_until. Throws PenstockError where that is not greedy decoding."""

    def __init__(self, given: dict[str, Any]) -> None:
        until = given.pop("until", None) or []
        self.until = [until] if isinstance(until, str) else list(until)
        self.most = int(given.pop("max_gen_toks", NEW_TOKENS))
        drawn = given.get("do_sample") or given.get("do_sample") is None and float(given.get("temperature") or 0) > 0
        if drawn or int(given.get("num_beams") or 1) > 1:
            raise PenstockError(f"generate_until is greedy, and the request has {given}", hint="do_sample=False, temperature=0.0")

    def cut(self, text: str) -> tuple[str, bool]:
        """The text up to the first of `until`, and whether there is one."""
        ends = [place for stop in self.until if stop and (place := text.find(stop)) >= 0]
        return (text[:min(ends)], True) if ends else (text, False)


def _batches_like(model: Any) -> Callable[[torch.Tensor], Any]:
    if isinstance(model, torch.nn.Module):
        named = "input_ids" in inspect.signature(model.forward).parameters
        return lambda tokens: {"input_ids": tokens} if named else tokens
    if model.calls.takes_target:
        return lambda tokens: (tokens, tokens)
    return lambda tokens: {"input_ids": tokens, "labels": tokens}
