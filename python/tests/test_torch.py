"""Tests of tensors of PyTorch, which are read without a copy."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import plasmon
import pytest
from conftest import is_in_store
from plasmon import _values

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _warned() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", plasmon.ReadOnlyMemory)
        yield


DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_a_tensor(in_place: Any, dtype: str) -> None:
    tensor = (torch.arange(3000) % 2).reshape(10, 100, 3).to(getattr(torch, dtype))
    got = in_place(tensor, lambda tensor: tensor.data_ptr())
    assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(got, tensor)


@pytest.mark.parametrize("tensor", [torch.tensor(7.5), torch.empty(0, 3), torch.arange(24).reshape(4, 6).T])
def test_tensors_of_odd_shapes(near: plasmon.Client, reader: plasmon.Client, tensor: Any) -> None:
    got = reader.get(near.put(tensor), timeout=30)
    assert got.shape == tensor.shape
    assert torch.equal(got, tensor)


def test_a_state_dict(in_place: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.BatchNorm1d(400))
    state = model.state_dict()
    got = in_place(state, lambda state: state["0.weight"].data_ptr())
    assert got.keys() == state.keys()
    assert all(torch.equal(got[name], state[name]) for name in state)
    torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.BatchNorm1d(400)).load_state_dict(got)


def test_parameters_within_other_values(in_place: Any) -> None:
    parameter = torch.nn.Parameter(torch.rand(1000, 100))
    value = {"step": 3, "layers": [parameter, (parameter.detach(),)]}
    got = in_place(value, lambda value: value["layers"][0].data_ptr())
    assert type(got["layers"][0]) is torch.nn.Parameter
    assert got["layers"][0].requires_grad
    assert torch.equal(got["layers"][1][0], parameter)


def test_sparse_and_quantized_tensors_come_as_pytorch_pickles_them(
    near: plasmon.Client, reader: plasmon.Client
) -> None:
    sparse = torch.eye(30).to_sparse()
    assert torch.equal(reader.get(near.put(sparse), timeout=30).to_dense(), torch.eye(30))
    quantized = torch.quantize_per_tensor(torch.rand(30), 0.1, 0, torch.qint8)
    assert torch.equal(reader.get(near.put(quantized), timeout=30).dequantize(), quantized.dequantize())


def test_a_program_is_warned_before_it_writes_to_a_tensor(near: plasmon.Client) -> None:
    id = near.put(torch.zeros(1000))
    with pytest.warns(plasmon.ReadOnlyMemory, match=r"SIGSEGV; clone\(\) it first"):
        near.get(id)


class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Model whose last layer has the weights of its first one."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(1000, 300)
        self.head = torch.nn.Linear(300, 1000, bias=False)
        self.head.weight = self.emb.weight


BYTES = 4 * 300 * 1000


def test_tied_weights_are_stored_once_and_stay_tied(near: plasmon.Client, reader: plasmon.Client) -> None:
    model = Tied()
    for value in (model.state_dict(), [model.emb.weight, model.head.weight], model):
        assert _values.encode(value).size < BYTES + 4096
        oid = near.put(value)
        assert near.explain(oid)["value"]["copied"] == {}
        got = reader.get(oid, timeout=30)
        if isinstance(value, torch.nn.Module):
            emb, head = got.emb.weight, got.head.weight
        else:
            emb, head = got.values() if isinstance(got, dict) else got
        assert torch.equal(emb, model.emb.weight)
        assert emb.data_ptr() == head.data_ptr()
        assert is_in_store(emb.data_ptr())
        # A copy of both has one storage as well.
        first, second = copy.deepcopy([emb.detach(), head.detach()])
        assert first.data_ptr() == second.data_ptr()
        first[0, 0] = 7
        assert second[0, 0] == 7
    Tied().load_state_dict(reader.get(near.put(model.state_dict()), timeout=30))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "a part": lambda base: base[10:20],
    "transposed": lambda base: base.T,
    "every second": lambda base: base[:, ::2],
    "repeated": lambda base: base[0].expand(50, 300),
    "another type": lambda base: base.view(torch.int32),
    "half of each": lambda base: base.view(torch.int16)[:, ::2],
    "a row as a parameter": lambda base: torch.nn.Parameter(base[5]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_tensors_that_share_memory_share_it_for_readers(
    near: plasmon.Client, reader: plasmon.Client, name: str
) -> None:
    base = torch.rand(1000, 300)
    view = VIEWS[name](base)
    for value in ([base, view], [view, base]):
        assert _values.encode(value).size < BYTES + 4096
        got = reader.get(near.put(value), timeout=30)
        for left, right in zip(got, value, strict=True):
            assert (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
            assert torch.equal(left, right)
        assert got[1].data_ptr() - got[0].data_ptr() == value[1].data_ptr() - value[0].data_ptr()
        left, right = copy.deepcopy([one.detach() for one in got])
        assert left.data_ptr() - right.data_ptr() == got[0].data_ptr() - got[1].data_ptr()


def test_an_expanded_tensor_is_stored_as_what_it_is(near: plasmon.Client, reader: plasmon.Client) -> None:
    row = torch.rand(300)
    sparse = torch.rand(1000, 300)[:, 7].expand(200, 1000)
    for tensor in (row.expand(100_000, 300), row.expand(10, 100, 300).transpose(0, 1), sparse):
        for value in (tensor, {"tensor": tensor}):
            assert _values.encode(value).size < 8192
            got = reader.get(near.put(value), timeout=30)
            got = got["tensor"] if isinstance(got, dict) else got
            assert torch.equal(got, tensor)
            assert is_in_store(got.data_ptr())


def test_a_sparse_view_is_copied_and_told(near: plasmon.Client, reader: plasmon.Client) -> None:
    base = torch.rand(1000, 300)
    oid = near.put([base[:, 3], base[:, 3]])
    assert near.explain(oid)["value"]["copied"] == {"a tensor is not contiguous": 4000}
    left, right = reader.get(oid, timeout=30)
    assert torch.equal(left, base[:, 3])
    assert left.data_ptr() == right.data_ptr()


def test_copies_of_tensors_can_be_written_to(near: plasmon.Client) -> None:
    tied = torch.rand(300, 400)
    oid = near.put({"emb": tied, "head": tied.T, "step": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error", plasmon.ReadOnlyMemory)
        got = near.get(oid, copy=True)
    got["emb"] += 1
    assert torch.equal(got["emb"], tied + 1)
    assert torch.equal(got["head"], (tied + 1).T)
    assert torch.equal(near.get(oid)["emb"], tied)
