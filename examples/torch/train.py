#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer, character by character, on the text of this repository's sources, as a rank of a job:

    PYTHONPATH=build/lib/python nupa launch -n 2 -- python3 examples/torch/train.py --store "$(mktemp -d)/store"

`nupa launch` sets no address for torch, so the ranks find each other by a file (docs/guides/pytorch.md).
Rank 0 prints the mean loss of all ranks, and the characters of all ranks that it processes in a second."""
import argparse
import json
import os
import pathlib
import sys
import time
import torch
import torch.distributed as dist
from torch import nn
import nupa_torch  # noqa: F401, registers the backend

ROOT = pathlib.Path(__file__).resolve().parents[2]
WARM_UP = 5  # steps that are not timed, while DistributedDataParallel builds its buckets


def text_of_sources():
    files = sorted(path for folder in ("include", "src") for path in (ROOT / folder).rglob("*")
                   if path.suffix in (".h", ".cc"))
    return "".join(path.read_text(encoding="utf-8") for path in files)


class Transformer(nn.Module):
    def __init__(self, letters, context, width, layers, heads):
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Parameter(torch.randn(context, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers)
        self.norm = nn.LayerNorm(width)
        self.answer = nn.Linear(width, letters)
        self.register_buffer("future", torch.full((context, context), float("-inf")).triu(1))

    def forward(self, text):
        x = self.letters(text) + self.places
        return self.answer(self.norm(self.layers(x, mask=self.future)))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="nupa", choices=["nupa", "gloo"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=4, help="pieces of text, each rank and step")
    parser.add_argument("--context", type=int, default=64, help="characters of a piece")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--every", type=int, default=50, help="steps between two lines")
    parser.add_argument("--store", help="a file by which the ranks find each other (default: MASTER_ADDR and MASTER_PORT)")
    parser.add_argument("--out", help="a file for the losses, to the last bit, and the rate")
    return parser.parse_args()


def join(options):
    rank = int(os.environ.get("RANK", os.environ.get("NUPA_RANK", "0")))
    ranks = int(os.environ.get("WORLD_SIZE", os.environ.get("NUPA_WORLD_SIZE", "1")))
    method = "file://" + os.path.abspath(options.store) if options.store else "env://"
    dist.init_process_group(options.backend, init_method=method, rank=rank, world_size=ranks)
    return rank, ranks


def main():
    options = arguments()
    rank, ranks = join(options)
    torch.set_num_threads(1)
    text = text_of_sources()
    alphabet = sorted(set(text))
    number = {letter: index for index, letter in enumerate(alphabet)}
    data = torch.tensor([number[letter] for letter in text])
    torch.manual_seed(1)
    model = Transformer(len(alphabet), options.context, options.width, options.layers, heads=4)
    size = sum(parameter.numel() for parameter in model.parameters())
    if rank == 0:
        print("%s, %d ranks: %d characters, %d parameters" % (options.backend, ranks, len(text), size), flush=True)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(100 + rank)
    losses, began = [], time.perf_counter()
    for step in range(options.steps):
        if step == WARM_UP:
            began = time.perf_counter()
        starts = torch.randint(0, len(data) - options.context - 1, (options.batch,), generator=generator).tolist()
        pieces = torch.stack([data[start:start + options.context + 1] for start in starts])
        optimizer.zero_grad(set_to_none=True)
        logits = model(pieces[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / ranks)
        if rank == 0 and (step % options.every == 0 or step == options.steps - 1):
            print("step %4d  loss %.6f" % (step, losses[-1]), flush=True)
    rate = (options.steps - WARM_UP) * ranks * options.batch * options.context / (time.perf_counter() - began)
    if rank == 0:
        print("%.0f characters/s" % rate, flush=True)
        if options.out:
            with open(options.out, "w", encoding="utf-8") as out:
                json.dump({"losses": [loss.hex() for loss in losses], "rate": rate}, out)
    dist.destroy_process_group()


try:
    main()
except (OSError, RuntimeError, ValueError) as error:  # PyTorch and the backend raise RuntimeError
    sys.exit("train.py: rank %s: %s" % (os.environ.get("RANK", os.environ.get("NUPA_RANK", "0")), error))
