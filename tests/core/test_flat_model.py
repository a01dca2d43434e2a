import pickle

import pytest
import torch
from torch import nn

from fedrecall.core.flat_model import EVAL_BATCH, FlatModel
from fedrecall.errors import UserError
from support.tiny_federation import TinyNet, flat, vectors


def test_state_is_weights_then_buffers() -> None:
    f = flat(batch_norm=True)
    state = f.join(f.w, f.b)
    assert len(state) == sum(p.numel() for p in f.model.parameters()) + 16
    w, b = f.split(state)
    assert torch.equal(w, f.w)
    assert torch.equal(b, f.b)
    assert flat().join(f.w, f.b) is f.w


def test_frozen_models_are_views_and_in_evaluation_mode() -> None:
    f, data = flat(batch_norm=True, dropout=0.5), vectors()
    other = torch.cat([f.w + 0.1, torch.rand(16) + 0.5])
    a, b = f.frozen_module(f.join(f.w, f.b), "a"), f.frozen_module(other, "b")
    assert a is not b
    assert b.a.weight.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    expected = f.to_module(*f.split(other), f.int_buffers)
    torch.testing.assert_close(b(data.x)[1], expected(data.x)[1])
    assert torch.equal(f(other, data.x).z, f(other, data.x).z), "no dropout"
    assert torch.equal(b.norm.running_mean, other[len(f.w) :][:8]), "statistics do not move"


def test_evaluation_in_chunks_equals_evaluation_at_once() -> None:
    f, data = flat(), vectors(n=EVAL_BATCH + 13)
    outputs = f.outputs(f.w, data)
    assert outputs.h.shape == (EVAL_BATCH + 13, 8)
    torch.testing.assert_close(outputs.z, f.model(data.x)[1].detach())
    score = f.score(f.w, data)
    assert score.num_correct == int((outputs.z.argmax(-1) == data.y).sum())
    assert score.mean_loss == pytest.approx(float(nn.functional.cross_entropy(outputs.z, data.y)), rel=1e-5)


def test_outputs_are_cached_once_and_for_the_same_inputs_only() -> None:
    f, data = flat(), vectors()
    outputs = f.outputs(f.w, data)
    f.cache_outputs(7, f.w, data, outputs)
    assert f.pop_cached_outputs(8, f.w, data) is None
    assert f.pop_cached_outputs(7, f.w.clone(), data) is outputs
    assert f.pop_cached_outputs(7, f.w, data) is None, "once"
    f.cache_outputs(7, f.w, data, outputs)
    assert f.pop_cached_outputs(7, f.w + 1e-6, data) is None, "another model"
    f.cache_outputs(7, f.w, data, outputs)
    assert f.pop_cached_outputs(7, f.w, vectors(n=2)) is None, "other examples"


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    f, data = flat(), vectors()
    outputs = f.outputs(f.w, data)
    monkeypatch.setattr("fedrecall.core.flat_model.OUTPUT_CACHE_BYTES", 2 * (outputs.h.nbytes + outputs.z.nbytes))
    for key in range(3):
        f.cache_outputs(key, f.w, data, outputs)
    assert [f.pop_cached_outputs(key, f.w, data) is outputs for key in range(3)] == [False, True, True]


def test_module_is_independent_and_has_the_modules_own_names() -> None:
    f = flat(batch_norm=True)
    out = f.to_module(f.w + 1, f.b + 2, f.int_buffers + 3)
    f.w.zero_()
    assert set(out.state_dict()) == set(TinyNet(batch_norm=True).state_dict())
    assert int(out.norm.num_batches_tracked) == 3
    assert not out.training
    assert out.a.weight.abs().sum() > 0
    pickle.dumps(out)


def test_untrained_parameters_are_not_changed() -> None:
    net = TinyNet()
    net.a.requires_grad_(False)
    f = FlatModel(net)
    assert len(f.w) == 27
    frozen = f.frozen_module(f.w)
    assert frozen.a.weight is net.a.weight


def test_tied_weights_are_one() -> None:
    net = TinyNet()
    net.b = nn.Linear(6, 8)
    net.b.weight = net.a.weight
    assert len(FlatModel(net).w) == sum(p.numel() for p in net.parameters())


def test_mixed_types_are_an_error() -> None:
    net = TinyNet()
    net.c = net.c.double()
    for wrong, found in ((net, "float32, float64"), (nn.Flatten(), "0 trainable")):
        with pytest.raises(UserError) as error:
            FlatModel(wrong)
        assert (error.value.code, error.value.key) == ("model.unsupported_parameters", "model")
        assert found in str(error.value)


def test_buffers_outside_the_state_dict_are_constants() -> None:
    class Positions(TinyNet):
        def __init__(self) -> None:
            super().__init__(batch_norm=True)
            self.register_buffer("positions", torch.arange(6), persistent=False)
            self.register_buffer("scale", torch.ones(6, dtype=torch.float64), persistent=False)

    f = FlatModel(Positions())
    assert (len(f.b), len(f.int_buffers)) == (16, 1)
    f.attach(f.w.clone(), f.b.clone(), f.int_buffers + 1)
    assert f.model.positions.tolist() == list(range(6))
    assert int(f.model.norm.num_batches_tracked) == 1
    assert f.frozen_module(f.join(f.w, f.b)).scale.dtype == torch.float64
