#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures collectives of torch.distributed for bench/collectives.py. Rank 0 prints lines "operation bytes microseconds".

    nupa launch -n 2 -- python3 torch_collectives.py BACKEND STORE LEAST MOST FACTOR SECONDS [OPERATION...]

Sizes are those of `nupa ccl bench`. A time is the median of batches, and a batch takes as long as its slowest rank. An operation
that the backend lacks is left out."""
import os
import statistics
import sys
import time
import torch
import torch.distributed as dist

BATCHES = 9


def operations(ranks):
    """Returns {name: (make, is_total)}. make(count of elements) returns the function to call repeatedly; is_total is whether a
    size counts the blocks of all ranks."""
    def of_one(function):
        return lambda count: (lambda data=torch.ones(count): function(data))

    def all_gather(count):
        data, lists = torch.ones(count), list(torch.empty(count * ranks).chunk(ranks))
        return lambda: dist.all_gather(lists, data)

    def reduce_scatter(count):
        data, lists = torch.empty(count), list(torch.ones(count * ranks).chunk(ranks))
        return lambda: dist.reduce_scatter(data, lists)

    def all_to_all(count):
        data, out = torch.ones(count * ranks), torch.empty(count * ranks)
        return lambda: dist.all_to_all_single(out, data)

    # MAX is used because repeated sums of the same array would overflow.
    return {"all_reduce": (of_one(lambda data: dist.all_reduce(data, op=dist.ReduceOp.MAX)), False),
            "broadcast": (of_one(lambda data: dist.broadcast(data, 0)), False),
            "all_gather": (all_gather, True), "reduce_scatter": (reduce_scatter, True), "all_to_all": (all_to_all, True)}


def batch(call, calls):
    dist.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    slowest = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def median_us(call, seconds):
    calls = 1
    batch(call, calls)
    while batch(call, calls) < seconds / BATCHES / 4:
        calls *= 4
    return statistics.median(batch(call, calls) / calls * 1e6 for _ in range(BATCHES))


def main():
    backend, store, least, most, factor, seconds = sys.argv[1:7]
    if backend == "nupa":
        import nupa_torch  # noqa: F401, registers the backend
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["NUPA_RANK"]), int(os.environ["NUPA_WORLD_SIZE"])
    dist.init_process_group(backend, init_method="file://" + store, rank=rank, world_size=ranks)
    for name, (make, is_total) in operations(ranks).items():
        if len(sys.argv) > 7 and name not in sys.argv[7:]:
            continue
        size = int(least)
        while size <= int(most):
            count = size // 4 // (ranks if is_total else 1)
            try:
                if count > 0:
                    took = median_us(make(count), float(seconds))
                    if rank == 0:
                        print(name, size, "%.4f" % took, flush=True)
            except RuntimeError as error:
                if rank == 0:
                    print("%s: %s" % (name, str(error).splitlines()[0]), file=sys.stderr)
                break
            size *= int(factor)
    dist.destroy_process_group()


main()
