"""Payloads are sent to the bit; malformed ones are errors that name the tensor."""

import pytest
import torch

from fedrecall.flower import codec
from fedrecall.flower.codec import EncodedTensor, InvalidMessage, decode, encode, require_same_spec

NUMBERS = torch.tensor([[1.5, -0.0, float("inf")], [float("nan"), 1e-30, 3.0]])


@pytest.mark.parametrize("kind", codec.WIRE_DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (6,), (), (0,), (3, 0)])
def test_every_type_and_shape_survives_the_round_trip_to_the_bit(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    t = torch.nan_to_num(NUMBERS, posinf=9).to(kind) if not kind.is_floating_point else NUMBERS.to(kind)
    t = t.flatten()[: max(1, torch.Size(shape).numel())][: torch.Size(shape).numel()].reshape(shape)
    back = decode(encode({"z": t, "a": t}))
    assert list(back) == ["z", "a"], "in the order they were given"
    assert back["z"].dtype == kind
    assert back["z"].shape == t.shape
    assert back["z"].reshape(-1).view(torch.uint8).tolist() == t.contiguous().reshape(-1).view(torch.uint8).tolist()
    assert back["z"].data_ptr() % 64 == 0, "aligned as torch aligns, on which the last bit may depend"


def test_views_are_sent_without_their_base() -> None:
    t = torch.arange(6.0).view(2, 3).T
    assert torch.equal(decode(encode({"w": t}))["w"], t)


@pytest.mark.parametrize(
    ("parts", "code", "fact"),
    [
        ({"w": EncodedTensor("float32", (2,), bytes(4))}, "reply.wrong_byte_count", "w has 4 bytes, its shape needs 8"),
        ({"w": EncodedTensor("float32", (-1,), b"")}, "reply.invalid_shape", "w "),
        ({"w": EncodedTensor("float32", (2**40,), b"")}, "reply.invalid_shape", "w "),
        ({"w": EncodedTensor("float32", (2**20, 2**20, 2**20), b"")}, "reply.invalid_shape", "w "),
        ({"w": EncodedTensor("float32", (0, *[2**31 - 2**20] * 3), b"")}, "reply.invalid_shape", "w "),
        ({"w": EncodedTensor("uint8", (2**31 - 2**20, 2, 0), b"")}, "reply.invalid_shape", "w "),
        ({"x": EncodedTensor("\x1b[31m", (1,), bytes(8))}, "reply.unsupported_dtype", "x "),
        ({"w": EncodedTensor("float32", (1,) * 9, bytes(4))}, "reply.invalid_shape", "w "),
        ({"w": EncodedTensor("object", (1,), bytes(8))}, "reply.unsupported_dtype", "'object'"),
        ({"w": EncodedTensor("complex64", (1,), bytes(8))}, "reply.unsupported_dtype", "'complex64'"),
        ({"../w": EncodedTensor("uint8", (1,), b"1")}, "reply.invalid_name", "'../w'"),
        ({"": EncodedTensor("uint8", (1,), b"1")}, "reply.invalid_name", "''"),
        ({"w" * 65: EncodedTensor("uint8", (1,), b"1")}, "reply.invalid_name", "www"),
        ({"m": EncodedTensor("bool", (1,), b"\x02")}, "reply.invalid_value", "m "),
        ({f"w{i}": EncodedTensor("uint8", (1,), b"1") for i in range(257)}, "reply.too_large", "257 tensors"),
    ],
)
def test_malformed_payloads_are_errors(parts: dict[str, EncodedTensor], code: str, fact: str) -> None:
    with pytest.raises(InvalidMessage) as error:
        decode(parts)
    assert error.value.code == code
    assert fact in str(error.value)


def test_too_large_payloads_are_errors_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BYTES", 100)
    parts = encode({"a": torch.zeros(20), "b": torch.zeros(5)})
    with pytest.raises(InvalidMessage) as error:
        encode({"a": torch.zeros(20), "b": torch.zeros(6)})
    assert error.value.code == "reply.too_large"
    assert "104 bytes" in str(error.value)
    assert "100" in str(error.value)
    parts["c"] = EncodedTensor("uint8", (1,), b"1")
    with pytest.raises(InvalidMessage) as error:
        decode(parts)
    assert error.value.code == "reply.too_large"
    assert "101 bytes" in str(error.value)


def test_an_unsupported_type_is_an_error_at_the_sender() -> None:
    with pytest.raises(InvalidMessage) as error:
        encode({"w": torch.zeros(1, dtype=torch.complex64)})
    assert error.value.code == "reply.unsupported_dtype"
    assert "complex64" in str(error.value)


def test_weights_must_be_like_those_of_the_model() -> None:
    model = {"w": torch.zeros(3)}
    require_same_spec({"w": torch.ones(3), "P": torch.ones(1, 1)}, model)
    for wrong, fact in ((torch.ones(4), "float32 [4]"), (torch.ones(3).double(), "float64 [3]")):
        with pytest.raises(InvalidMessage) as error:
            require_same_spec({"w": wrong}, model)
        assert error.value.code == "reply.wrong_shape"
        assert f"w is {fact}" in str(error.value)
        assert "float32 [3]" in str(error.value)
