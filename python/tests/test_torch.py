"""Tests of tensors of PyTorch, which are read without a copy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import plasmon
import pytest

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
