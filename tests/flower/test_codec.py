"""Payloads survive the wire to the bit, and what is no payload is refused by name."""

import pytest
import torch

from fedrecall.engines.flower import codec
from fedrecall.engines.flower.codec import Malformed, Part, decode, encode, require_like

NUMBERS = torch.tensor([[1.5, -0.0, float("inf")], [float("nan"), 1e-30, 3.0]])


@pytest.mark.parametrize("kind", codec.TYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (6,), (), (0,), (3, 0)])
def test_every_type_and_shape_comes_back_to_the_bit(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    t = torch.nan_to_num(NUMBERS, posinf=9).to(kind) if not kind.is_floating_point else NUMBERS.to(kind)
    t = t.flatten()[: max(1, torch.Size(shape).numel())][: torch.Size(shape).numel()].reshape(shape)
    back = decode(encode({"z": t, "a": t}))
    assert list(back) == ["z", "a"], "in the order they were given"
    assert back["z"].dtype == kind
    assert back["z"].shape == t.shape
    assert back["z"].reshape(-1).view(torch.uint8).tolist() == t.contiguous().reshape(-1).view(torch.uint8).tolist()
    assert back["z"].data_ptr() % 64 == 0, "aligned as torch aligns, on which the last bit may depend"


def test_views_travel_as_what_they_show() -> None:
    t = torch.arange(6.0).view(2, 3).T
    assert torch.equal(decode(encode({"w": t}))["w"], t)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"w": Part("float32", (2,), bytes(4))}, "w should have 8 bytes by its shape, but has 4"),
        ({"w": Part("float32", (-1,), b"")}, "w has the shape"),
        ({"w": Part("float32", (2**40,), b"")}, "w has the shape"),
        ({"w": Part("float32", (2**20, 2**20, 2**20), b"")}, "w should have"),
        ({"w": Part("float32", (1,) * 9, bytes(4))}, "w has the shape"),
        ({"w": Part("object", (1,), bytes(8))}, "type 'object'"),
        ({"w": Part("complex64", (1,), bytes(8))}, "type 'complex64'"),
        ({"../w": Part("uint8", (1,), b"1")}, "is no name"),
        ({"": Part("uint8", (1,), b"1")}, "is no name"),
        ({"w" * 65: Part("uint8", (1,), b"1")}, "is no name"),
        ({"m": Part("bool", (1,), b"\x02")}, "neither 0 nor 1"),
        ({f"w{i}": Part("uint8", (1,), b"1") for i in range(257)}, "257 tensors"),
    ],
)
def test_what_is_no_payload_is_refused(parts: dict[str, Part], message: str) -> None:
    with pytest.raises(Malformed, match=message):
        decode(parts)


def test_too_much_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "LARGEST", 100)
    parts = encode({"a": torch.zeros(20), "b": torch.zeros(5)})
    with pytest.raises(Malformed, match="104 bytes in one message; at most 100"):
        encode({"a": torch.zeros(20), "b": torch.zeros(6)})
    parts["c"] = Part("uint8", (1,), b"1")
    with pytest.raises(Malformed, match="101 bytes"):
        decode(parts)


def test_a_type_that_is_not_sent_is_refused_by_the_sender() -> None:
    with pytest.raises(Malformed, match="complex64"):
        encode({"w": torch.zeros(1, dtype=torch.complex64)})


def test_weights_must_be_like_those_of_the_model() -> None:
    model = {"w": torch.zeros(3)}
    require_like({"w": torch.ones(3), "P": torch.ones(1, 1)}, model)
    with pytest.raises(Malformed, match=r"w is float32 \[4\], but must be float32 \[3\]"):
        require_like({"w": torch.ones(4)}, model)
    with pytest.raises(Malformed, match="w is float64"):
        require_like({"w": torch.ones(3).double()}, model)
