# SPDX-License-Identifier: Apache-2.0
"""One rank of run_torch.py: python3 torch_rank.py CASE... runs these cases and says "ok CASE" after each."""
import ctypes
import datetime
import itertools
import os
import signal
import sys
import time
import torch
import torch.distributed as dist
import nupa_torch  # noqa: F401, registers the backend

RANK = int(os.environ.get("RANK", os.environ.get("NUPA_RANK", "0")))
RANKS = int(os.environ.get("WORLD_SIZE", os.environ.get("NUPA_WORLD_SIZE", "1")))
Op = dist.ReduceOp
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
SHORT = [torch.float16, torch.bfloat16]
FLOATS = SHORT + [torch.float32, torch.float64]
FLOAT8 = [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
COMPLEX = [torch.complex64, torch.complex128]
UNSIGNED = [getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)]
ALL = INTEGERS + FLOATS + [torch.bool] + COMPLEX + FLOAT8 + UNSIGNED
SIZES = [1, 7, 1000, 40000]
gloo = None


def of_rank(rank, size, dtype, seed=0):
    """What a rank has: small whole numbers, so that products stay exact."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    values = torch.randint(0, 2 if dtype == torch.bool else 4, (size,), generator=generator)
    return values.to(dtype)


def backend():
    """The group of all ranks as nupa_torch has made it, without what torch does around its calls."""
    pg = dist.distributed_c10d._get_default_group()
    return pg if torch.__version__ < "2" else pg._get_backend(torch.device("cpu"))


def mine(size, dtype, seed=0):
    return of_rank(RANK, size, dtype, seed)


def everybodys(size, dtype, seed=0):
    return [of_rank(rank, size, dtype, seed) for rank in range(RANKS)]


def same(got, wanted, what=""):
    if got.dtype in FLOAT8:
        got, wanted = got.float(), wanted.float()
    if got.dtype in UNSIGNED:
        got, wanted = got.long(), wanted.long()
    assert got.dtype == wanted.dtype and got.shape == wanted.shape and torch.equal(got, wanted), \
        "%s: %s is not %s" % (what, got.flatten()[:8], wanted.flatten()[:8])


def wide(dtype):
    """In which ranks' numbers are put together."""
    if dtype in SHORT + FLOAT8:
        return torch.float32
    return torch.int64 if dtype in UNSIGNED else dtype


def reduced(parts, op):
    """By one process, in the order of the ranks."""
    dtype = parts[0].dtype
    result = parts[0].to(wide(dtype), copy=True)
    for part in parts[1:]:
        part = part.to(wide(dtype))
        if op in (Op.SUM, Op.AVG):
            result = result | part if dtype == torch.bool else result + part
        elif op == Op.PRODUCT:
            result = result & part if dtype == torch.bool else result * part
        elif op == Op.MIN:
            result = torch.minimum(result, part)
        elif op == Op.MAX:
            result = torch.maximum(result, part)
        elif op == Op.BAND:
            result = result & part
        elif op == Op.BOR:
            result = result | part
        elif op == Op.BXOR:
            result = result ^ part
    if op == Op.AVG:
        whole = not (dtype.is_floating_point or dtype.is_complex)
        result = torch.div(result, RANKS, rounding_mode="trunc") if whole else result / RANKS
    return result.to(dtype)


def ops_of(dtype):
    if dtype in COMPLEX:
        return [Op.SUM, Op.AVG]
    numbers = [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX]
    if dtype == torch.bool:
        return numbers + [Op.BAND, Op.BOR, Op.BXOR]
    return numbers + ([Op.AVG] if dtype in FLOATS + FLOAT8 else [Op.AVG, Op.BAND, Op.BOR, Op.BXOR])


def all_reduce():
    for dtype in ALL:
        for op, size in itertools.product(ops_of(dtype), SIZES):
            tensor = mine(size, dtype)
            dist.all_reduce(tensor, op=op)
            same(tensor, reduced(everybodys(size, dtype), op), "%s of %d %s" % (op, size, dtype))
    scalar = torch.tensor(RANK)
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(RANKS)) and scalar.shape == ()
    dist.all_reduce(torch.empty(0))


def premultiplied():
    make = dist._make_nccl_premul_sum
    for dtype in FLOATS:
        tensor = mine(100, dtype)
        dist.all_reduce(tensor, op=make(0.5))
        same(tensor, (sum(part.to(wide(dtype)) for part in everybodys(100, dtype)) * 0.5).to(dtype), "half")
    factor = torch.tensor([float(RANK + 1)])
    tensor = mine(100, torch.float32)
    dist.all_reduce(tensor, op=make([factor]) if torch.__version__ < "2" else make(factor))
    same(tensor, sum(part * (rank + 1) for rank, part in enumerate(everybodys(100, torch.float32))), "each its own")


def premultiplied_often():
    """More often than there may be operators at a time: 65,536."""
    groups = [dist.new_group([rank], backend="nupa") for rank in range(RANKS)]
    unchanged = dist._make_nccl_premul_sum(1.0)
    tensor = torch.full((1,), 3.0)
    for _ in range(65537):
        dist.all_reduce(tensor, op=unchanged, group=groups[RANK])
    same(tensor, torch.full((1,), 3.0), "often")
    dist.destroy_process_group(groups[RANK])


def as_gloo_has_it():
    for dtype, op in itertools.product([torch.int32, torch.float32, torch.float64], [Op.SUM, Op.MIN, Op.MAX]):
        ours, theirs = mine(513, dtype), mine(513, dtype)
        dist.all_reduce(ours, op=op)
        dist.all_reduce(theirs, op=op, group=gloo)
        same(ours, theirs, "%s %s" % (op, dtype))


def broadcast():
    for dtype, root, size in itertools.product(ALL, range(RANKS), [1, 40000]):
        tensor = mine(size, dtype)
        dist.broadcast(tensor, root)
        same(tensor, of_rank(root, size, dtype), "broadcast")


def reduce():
    for dtype, root, op in itertools.product([torch.int64, torch.float32, torch.bfloat16], range(RANKS),
                                             [Op.SUM, Op.MAX]):
        tensor = mine(1000, dtype)
        dist.reduce(tensor, root, op=op)
        if RANK == root:
            same(tensor, reduced(everybodys(1000, dtype), op), "reduce")
        else:
            same(tensor, mine(1000, dtype), "what is not the root's")


def all_gather():
    for dtype, size in itertools.product(ALL, SIZES):
        outputs = [torch.zeros(size).to(dtype) for _ in range(RANKS)]
        dist.all_gather(outputs, mine(size, dtype))
        for got, wanted in zip(outputs, everybodys(size, dtype)):
            same(got, wanted, "all_gather")
    # Neighbours in one tensor; of differing sizes.
    whole = torch.zeros(RANKS * 10)
    dist.all_gather(list(whole.chunk(RANKS)), mine(10, torch.float32))
    same(whole, torch.cat(everybodys(10, torch.float32)), "into one")
    outputs = [torch.zeros(rank + 1) for rank in range(RANKS)]
    pg = dist.distributed_c10d._get_default_group()
    pg.allgather([outputs], [torch.full((RANK + 1,), float(RANK))]).wait()
    for rank, got in enumerate(outputs):
        same(got, torch.full((rank + 1,), float(rank)), "differing sizes")


def bases():
    into = getattr(dist, "all_gather_into_tensor", dist._all_gather_base)
    scatter = getattr(dist, "reduce_scatter_tensor", dist._reduce_scatter_base)
    for dtype, size in itertools.product([torch.int64, torch.float32, torch.bfloat16], SIZES):
        whole = torch.zeros(RANKS * size).to(dtype)
        into(whole, mine(size, dtype))
        same(whole, torch.cat(everybodys(size, dtype)), "all_gather_into_tensor")
        part = torch.zeros(size).to(dtype)
        for op in (Op.SUM, Op.AVG, Op.MAX):
            scatter(part, mine(RANKS * size, dtype), op=op)
            wanted = reduced(everybodys(RANKS * size, dtype), op).chunk(RANKS)[RANK]
            same(part, wanted.contiguous(), "reduce_scatter_tensor")


def coalesced():
    sizes = [3, 1, 5000]
    tensors = [mine(size, torch.float32) for size in sizes]
    dist.all_reduce_coalesced(tensors)
    for size, got in zip(sizes, tensors):
        same(got, reduced(everybodys(size, torch.float32), Op.SUM), "all_reduce_coalesced")
    lists = [[torch.zeros(size) for size in sizes] for _ in range(RANKS)]
    dist.all_gather_coalesced(lists, [mine(size, torch.float32) for size in sizes])
    for rank, size in itertools.product(range(RANKS), range(len(sizes))):
        same(lists[rank][size], of_rank(rank, sizes[size], torch.float32), "all_gather_coalesced")


def gather_and_scatter():
    for dtype, root in itertools.product([torch.bool, torch.int16, torch.float32], range(RANKS)):
        outputs = [torch.zeros(100).to(dtype) for _ in range(RANKS)] if RANK == root else None
        dist.gather(mine(100, dtype), outputs, dst=root)
        for got, wanted in zip(outputs or [], everybodys(100, dtype)):
            same(got, wanted, "gather")
        output = torch.zeros(100).to(dtype)
        dist.scatter(output, everybodys(100, dtype, seed=root) if RANK == root else None, src=root)
        same(output, mine(100, dtype, seed=root), "scatter")


def reduce_scatter():
    for dtype, op in itertools.product([torch.int32, torch.float16, torch.float32], [Op.SUM, Op.PRODUCT]):
        for sizes in ([50] * RANKS, [7 * rank + 1 for rank in range(RANKS)]):
            output = torch.zeros(sizes[RANK]).to(dtype)
            dist.reduce_scatter(output, list(mine(sum(sizes), dtype).split(sizes)), op=op)
            wanted = reduced(everybodys(sum(sizes), dtype), op).split(sizes)[RANK]
            same(output, wanted.contiguous(), "reduce_scatter")


def all_to_all():
    for dtype in (torch.uint8, torch.float32, torch.complex64):
        equal = mine(RANKS * 6, dtype).reshape(RANKS * 2, 3)
        output = torch.zeros_like(equal)
        dist.all_to_all_single(output, equal)
        wanted = [of_rank(rank, RANKS * 6, dtype).reshape(RANKS * 2, 3).chunk(RANKS)[RANK] for rank in range(RANKS)]
        same(output, torch.cat(wanted), "all_to_all_single")
        # Rank s gives rank r s + 2 r rows; some nothing.
        gives = [[s + 2 * r for r in range(RANKS)] for s in range(RANKS)]
        takes = [gives[s][RANK] for s in range(RANKS)]
        output = torch.zeros(sum(takes), 3).to(dtype)
        dist.all_to_all_single(output, mine(sum(gives[RANK]) * 3, dtype).reshape(-1, 3), takes, gives[RANK])
        wanted = [of_rank(s, sum(gives[s]) * 3, dtype).reshape(-1, 3).split(gives[s])[RANK] for s in range(RANKS)]
        same(output, torch.cat(wanted), "all_to_all_single with splits")
        outputs = [torch.zeros(takes[s]).to(dtype) for s in range(RANKS)]
        dist.all_to_all(outputs, list(mine(sum(gives[RANK]), dtype).split(gives[RANK])))
        for s in range(RANKS):
            same(outputs[s], of_rank(s, sum(gives[s]), dtype).split(gives[s])[RANK].contiguous(), "all_to_all")


def not_contiguous():
    def turned(rank):
        return of_rank(rank, 600, torch.float32).reshape(20, 30).t()
    tensor = turned(RANK)
    assert not tensor.is_contiguous()
    dist.all_reduce(tensor)
    same(tensor, sum(turned(rank) for rank in range(RANKS)), "turned")
    every_other = mine(200, torch.int64)[::2]
    dist.broadcast(every_other, 0)
    same(every_other, of_rank(0, 200, torch.int64)[::2], "every other")
    outputs = [torch.zeros(20, 30).t() for _ in range(RANKS)]
    dist.all_gather(outputs, turned(RANK))
    for rank in range(RANKS):
        same(outputs[rank], turned(rank), "gathered")
    conjugate = torch.full((4,), complex(1, RANK), dtype=torch.complex64).conj()
    outputs = [torch.zeros(4, dtype=torch.complex64) for _ in range(RANKS)]
    dist.distributed_c10d._get_default_group().allgather([outputs], [conjugate]).wait()
    for rank in range(RANKS):
        same(outputs[rank], torch.full((4,), complex(1, -rank), dtype=torch.complex64), "conjugate")
    # Torch's dispatcher, where it is in between, resolves these before the backend has them.
    negative = torch.full((1,), complex(1, RANK + 1), dtype=torch.complex64).conj().imag
    assert conjugate.is_conj() and negative.is_neg() and conjugate.is_contiguous() and negative.is_contiguous()
    for lazy in (conjugate, negative):
        whole = torch.zeros(RANKS * lazy.numel(), dtype=lazy.dtype)
        backend()._allgather_base(whole, lazy).wait()
        wanted = [torch.full((4,), complex(1, -rank)) if lazy is conjugate else torch.full((1,), -rank - 1.0)
                  for rank in range(RANKS)]
        same(whole, torch.cat(wanted), "lazy")
    parameter = torch.nn.Parameter(torch.full((3, 4), float(RANK)).t())
    dist.broadcast(parameter, 1)
    same(parameter.data, torch.ones(4, 3), "a parameter")


def in_any_order():
    tensors = [mine(size, torch.float32, seed) for seed, size in enumerate([1, 300000, 5, 1000, 2, 70000] * 3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    order = list(range(len(works)))
    torch.manual_seed(RANK)
    for index in [order[i] for i in torch.randperm(len(order))]:
        assert works[index].wait()
        assert works[index].is_completed() and works[index].is_success()
        same(tensors[index], reduced(everybodys(tensors[index].numel(), torch.float32, index), Op.SUM), "any order")
    # Nobody waits: by polling, by a future, dropped, and left alone while another group waits for it.
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    end = time.time() + 20
    while not work.is_completed():
        assert time.time() < end
    same(tensor, torch.full((3,), float(RANKS)), "polled")
    called = []
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: called.append(done.value()) or 5)
    assert future.wait() == 5
    same(called[0][0], torch.full((3,), float(RANKS) ** 2), "of a future")
    dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    same(tensor, torch.full((3,), float(RANKS) ** 3), "dropped")
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    if RANK == 0:
        dist.barrier(gloo)
    work.wait()
    if RANK != 0:
        dist.barrier(gloo)
    same(tensor, torch.full((3,), float(RANKS)), "left alone")
    assert work.wait(datetime.timedelta(seconds=5))


def messages():
    after, before = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    for dtype, size in itertools.product([torch.bool, torch.float32, torch.int64], SIZES + [300000]):
        sent = dist.isend(mine(size, dtype), after, tag=3)
        got = torch.zeros(size).to(dtype)
        dist.recv(got, before, tag=3)
        sent.wait()
        same(got, of_rank(before, size, dtype), "recv")
    # By tags in another order, into what does not lie one after the other.
    for tag in (1, 2):
        dist.isend(torch.full((4, 2), float(10 * RANK + tag)).t(), after, tag=tag)
    second, first = torch.zeros(4, 2).t(), torch.zeros(2, 4)
    works = [dist.irecv(second, before, tag=2), dist.irecv(first, before, tag=1)]
    for work in works:
        work.wait()
        assert work.is_completed()
    same(first, torch.full((2, 4), 10.0 * before + 1), "tag 1")
    same(second, torch.full((2, 4), 10.0 * before + 2), "tag 2")
    if RANK == 0:
        seen = set()
        for _ in range(RANKS - 1):
            number = torch.zeros(1)
            source = dist.recv(number)
            assert number.item() == source
            seen.add(source)
        assert seen == set(range(1, RANKS))
    else:
        dist.send(torch.full((1,), float(RANK)), 0)
    dist.barrier()
    got = torch.zeros(5)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine(5, torch.float32), after),
                                        dist.P2POp(dist.irecv, got, before)]):
        work.wait()
    same(got, of_rank(before, 5, torch.float32), "batch")
    # Nobody keeps it, and its numbers have to be put where they belong.
    dropped, wanted = torch.zeros(4, 2).t(), torch.full((2, 4), 10.0 * before + 8)
    dist.irecv(dropped, before, tag=8)
    dist.isend(torch.full((2, 4), 10.0 * RANK + 8), after, tag=8)
    end = time.time() + 20
    while not torch.equal(dropped, wanted):
        assert time.time() < end, dropped
        time.sleep(0.001)  # sleep: the pause between two looks
    got = torch.zeros(5)
    future = dist.irecv(got, before, tag=9).get_future()
    dist.isend(mine(5, torch.float32), after, tag=9)
    future.wait()
    same(got, of_rank(before, 5, torch.float32), "of a future")
    work = dist.irecv(got, before, tag=10)
    began = time.time()
    try:
        work.wait(datetime.timedelta(milliseconds=200))
        raise AssertionError("nothing was sent")
    except RuntimeError as error:
        assert "200 ms" in str(error) and time.time() - began < 10, error
    dist.barrier()
    dist.isend(mine(5, torch.float32), after, tag=10)
    assert work.wait(datetime.timedelta(seconds=20))


def objects():
    got = [None] * RANKS
    dist.all_gather_object(got, {"rank": RANK, "long": "x" * (1000 * RANK)})
    assert got == [{"rank": rank, "long": "x" * (1000 * rank)} for rank in range(RANKS)]
    given = ["a", 5, None] if RANK == 1 else [None] * 3
    dist.broadcast_object_list(given, 1)
    assert given == ["a", 5, None]


def subgroups():
    pairs = list(itertools.combinations(range(RANKS), 2))
    groups = {pair: dist.new_group(list(pair), backend="nupa") for pair in pairs}
    for pair in pairs:
        if RANK in pair:
            tensor = torch.full((10,), float(RANK))
            dist.all_reduce(tensor, group=groups[pair])
            same(tensor, torch.full((10,), float(sum(pair))), "group %s" % (pair,))
            tensor = torch.full((10,), float(RANK))
            dist.broadcast(tensor, pair[1], group=groups[pair])
            same(tensor, torch.full((10,), float(pair[1])), "from a group's root")
    # A rank may drop a group long before another one does.
    kept = dist.new_group(list(range(RANKS)), backend="nupa")
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=kept)
    if RANK == 0:
        dist.destroy_process_group(kept)
        del kept
    dist.barrier()
    for pair in pairs:
        if RANK in pair:
            dist.destroy_process_group(groups[pair])
    del groups
    dist.barrier()


def refused():
    def error_of(kind, call, *words):
        try:
            call()
        except kind as error:
            assert "nupa: " in str(error) and all(word in str(error) for word in words), error
            return
        raise AssertionError("nothing was refused: %s" % (words,))
    pg = dist.distributed_c10d._get_default_group()
    error_of(NotImplementedError, lambda: dist.all_reduce(torch.ones(3).to_sparse()), "sparse")
    error_of(TypeError, lambda: dist.all_reduce(torch.ones(3), op=Op.BAND), "BAND", "integers")
    error_of(TypeError, lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), op=Op.AVG), "AVG", "bool")
    error_of(ValueError, lambda: pg.allgather([[torch.ones(3)]], [torch.ones(3)]), "list has 1 tensors, not")
    error_of(ValueError, lambda: dist.all_to_all_single(torch.ones(RANKS), torch.ones(RANKS + 1)), "split equally")
    error_of(ValueError, lambda: dist._all_gather_base(torch.ones(RANKS), torch.ones(2)), "output has")
    error_of(TypeError, lambda: pg.alltoall([torch.ones(1)] * RANKS, [torch.ones(1).int()] * RANKS), "Float")
    # They are no part of what the ranks do together.
    dist.barrier()


def numbers_and_barriers():
    one = backend()
    before = one._get_sequence_number_for_group()
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    assert one._get_sequence_number_for_group() == before + 2
    assert one.name() == "nupa" if hasattr(one, "name") else True
    for _ in range(3):
        one.monitored_barrier(datetime.timedelta(seconds=20))


def limits():
    """A group's limit is not one of what the program makes and starts besides."""
    getenv = ctypes.CDLL(None).getenv  # os.environ does not see what others change
    getenv.restype = ctypes.c_char_p
    name = "NUPA_CCL_TIMEOUT"
    usual = os.environ.get(name)
    for before in (usual, "200"):
        if before is not None:
            os.environ[name] = before
        group = dist.new_group(list(range(RANKS)), timeout=datetime.timedelta(seconds=77), backend="nupa")
        after = getenv(name.encode())
        assert after == (None if before is None else before.encode()), after
        dist.destroy_process_group(group)
    del os.environ[name]
    if usual is not None:
        os.environ[name] = usual


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7 + RANK)  # DDP makes them equal
        self.layers = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.BatchNorm1d(300), torch.nn.ReLU(),
                                          torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5))

    def forward(self, x):
        return self.layers(x)


def train(group):
    """Losses, gradients of the last step and weights."""
    model = torch.nn.parallel.DistributedDataParallel(Model(), process_group=group, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(RANK)
    losses = []
    for _ in range(10):
        x = torch.randn(16, 20, generator=generator)
        y = torch.randint(0, 5, (16,), generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), [p.grad for p in model.parameters()], [p.data for p in model.parameters()]


def data_parallel():
    ours, theirs = train(dist.group.WORLD), train(gloo)
    # Gloo adds in another order than that of the ranks, which is seen with more than two.
    for got, wanted in zip([ours[0], *ours[1], *ours[2]], [theirs[0], *theirs[1], *theirs[2]]):
        if RANKS == 2:
            same(got, wanted, "as by gloo")
        else:
            assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5), (got - wanted).abs().max()
    again = train(dist.group.WORLD)
    for got, wanted in zip([again[0], *again[1], *again[2]], [ours[0], *ours[1], *ours[2]]):
        same(got, wanted, "again")


def sharded():
    """Each rank keeps a part of the weights, gathers all for a step and gets its part of the gradients' mean."""
    def run(group):
        torch.manual_seed(3)
        whole = torch.randn(RANKS * 500)
        part = whole.chunk(RANKS)[RANK].clone()
        losses = []
        for _ in range(10):
            if group is gloo:  # which has no such operations in all versions
                dist.all_gather(list(whole.chunk(RANKS)), part, group=gloo)
            else:
                dist._all_gather_base(whole, part)
            weights = whole.clone().requires_grad_()
            x = torch.randn(32, whole.numel(), generator=torch.Generator().manual_seed(RANK))
            loss = ((x @ weights) ** 2).mean()
            loss.backward()
            gradient = torch.zeros_like(part)
            if group is gloo:
                mean = weights.grad.clone()
                dist.all_reduce(mean, group=gloo)
                gradient.copy_(mean.chunk(RANKS)[RANK])
            else:
                dist._reduce_scatter_base(gradient, weights.grad)
            part -= 1e-3 * gradient / RANKS
            losses.append(loss.detach())
        return torch.stack(losses), part
    ours, theirs = run(dist.group.WORLD), run(gloo)
    for got, wanted in zip(ours, theirs):
        assert torch.allclose(got, wanted, rtol=1e-4), (got, wanted)
    assert ours[0][-1] < ours[0][0]


def fully_sharded():
    """By torch's own way of it."""
    import torch.distributed.fsdp

    def run(group):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
        torch.distributed.fsdp.fully_shard(model, mesh=dist.DeviceMesh.from_group(group, "cpu"))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        x = torch.randn(16, 20, generator=torch.Generator().manual_seed(RANK))
        losses = []
        for _ in range(10):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses)
    ours, theirs = run(dist.group.WORLD), run(gloo)
    assert torch.allclose(ours, theirs, rtol=1e-4) and ours[-1] < ours[0], (ours, theirs)


def gone():
    """Rank 1 goes without a word; the others are told who it was."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, as soon as one has gone
    dist.barrier()
    work = dist.all_reduce(torch.ones(10), async_op=True)
    work.wait()
    if RANK == 1:
        os.kill(os.getpid(), 9)
    began = time.time()
    for attempt in (lambda: dist.all_reduce(torch.ones(10)), lambda: dist.barrier(),
                    lambda: dist.all_reduce(torch.ones(10), async_op=True).get_future().wait()):
        try:
            attempt()
        except RuntimeError as error:
            assert "rank 1" in str(error) and time.time() - began < 20, error
            continue
        raise AssertionError("nothing was raised")


def late():
    """Rank 1 does not come: the group's timeout is over."""
    dist.barrier()  # else it would be over for who takes longer to begin
    group = dist.new_group(list(range(RANKS)), timeout=datetime.timedelta(seconds=3), backend="nupa")
    if RANK == 1:
        time.sleep(6)  # sleep: the rank is absent until the timeout of the others has passed
        return
    try:
        dist.all_reduce(torch.ones(10), group=group)
        raise AssertionError("nothing was raised")
    except RuntimeError as error:
        assert "rank 1" in str(error), error


def not_at_the_barrier():
    one = backend()
    dist.barrier()  # else they may have gone before the others have begun
    if RANK in (1, 2):
        time.sleep(6)  # sleep: the rank is absent until the timeout of the others has passed
        return
    try:
        one.monitored_barrier(datetime.timedelta(seconds=1), True)
        raise AssertionError("nothing was raised")
    except RuntimeError as error:
        assert RANK != 0 or "rank 1, 2" in str(error), error


def held():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def start():
    dist.init_process_group("nupa", init_method="env://" if "RANK" in os.environ else "file://" + os.environ["STORE"],
                            rank=RANK, world_size=RANKS, timeout=datetime.timedelta(seconds=120))


def released():
    """What a group has is gone some time after it is destroyed; another may be begun by the same store."""
    counts = []
    for _ in range(4):
        group = dist.new_group(list(range(RANKS)), backend="nupa")
        dist.all_reduce(torch.ones(300000), group=group, async_op=True)
        dist.isend(torch.ones(3), (RANK + 1) % RANKS, group=group)
        dist.recv(torch.ones(3), (RANK - 1) % RANKS, group=group)
        dist.irecv(torch.ones(3), (RANK - 1) % RANKS, group=group, tag=1)
        dist.isend(torch.ones(3), (RANK + 1) % RANKS, group=group, tag=1)
        dist.destroy_process_group(group)
        del group
        time.sleep(0.5)  # sleep: some of what the group had is released later; the first counts are what the last ones may be
        counts.append(held())
    # Where ranks meet stays in rank 0's process: a thread and two descriptors for each group. PyTorch's own threads may end.
    roots = len(counts) - 2 if RANK == 0 else 0
    most = counts[1][0] + 2 * roots, counts[1][1] + roots
    end = time.time() + 20
    while counts[-1][0] > most[0] or counts[-1][1] > most[1]:
        assert time.time() < end, counts
        time.sleep(0.05)  # sleep: the pause between two looks
        counts[-1] = held()


def main():
    global gloo
    names = sys.argv[1:]
    start()
    if not {"gone", "late", "not_at_the_barrier"} & set(names):
        gloo = dist.new_group(list(range(RANKS)), backend="gloo")
    for name in names:
        globals()[name]()
        sys.stdout.write("ok %s\n" % name)
        sys.stdout.flush()
    if os.environ.get("LEAVE", "1") == "1":
        dist.destroy_process_group()


main()
