import pytest
import torch

from fedrecall.core.flat_model import FlatModel
from fedrecall.errors import UserError
from fedrecall.models.rnn import Rnn
from support.tiny_federation import Vectors


def texts() -> torch.Tensor:
    return torch.tensor([[5, 3, 9, 2], [7, 1, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_features_are_the_mean_state_of_the_tokens(cell: str) -> None:
    torch.manual_seed(0)
    net = Rnn(cell, vocabulary=10, embedding=4, width=6).build((4,), 3).double()
    h, z = net(texts())
    assert torch.equal(z, net.classifier(h))
    for row, text in enumerate(texts()):
        tokens = text[text != 0]
        if len(tokens):
            states, _ = net.features.recurrent(net.features.embedding(tokens)[None])
            torch.testing.assert_close(h[row], states[0].mean(0))
        else:
            assert (h[row] == 0).all()


def test_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    net = Rnn(vocabulary=10).build((4,), 3)
    longer = torch.cat([texts(), torch.zeros(4, 5, dtype=torch.int64)], 1)
    torch.testing.assert_close(net(texts())[0], net(longer)[0])


def test_the_vocabulary_is_that_of_the_data_unless_set() -> None:
    assert Rnn().sized_for({"": (4, 9, 7)}).vocabulary == 9
    assert Rnn(vocabulary=50).sized_for({"": (4, 9, 7)}).vocabulary == 50
    with pytest.raises(UserError) as error:
        Rnn(vocabulary=8).sized_for({"": (4, 9, 7)})
    assert (error.value.code, error.value.key) == ("config.conflict", "model.vocabulary")
    for model, shape in ((Rnn(), (4,)), (Rnn(vocabulary=5), (3, 32, 32))):
        with pytest.raises(UserError) as error:
            model.build(shape, 3)
        assert (error.value.code, error.value.key) == ("model.unsupported_input", "model.name")
    with pytest.raises(UserError) as error:
        Rnn(width=0)
    assert (error.value.code, error.value.key) == ("config.invalid_value", "model.width")


def test_the_fisher_information_is_the_mean_of_squared_gradients() -> None:
    torch.manual_seed(0)
    f, y = FlatModel(Rnn(vocabulary=10, embedding=3, width=4).build((4,), 3).double()), torch.tensor([0, 2, 1, 0])
    expected = torch.zeros_like(f.w)
    for x, label in zip(texts(), y, strict=True):
        loss = torch.nn.functional.cross_entropy(f.model(x[None])[1], label[None])
        gradient = torch.autograd.grad(loss, [*f.model.parameters()])
        expected += torch.cat([part.flatten() for part in gradient]).square() / len(y)
    torch.testing.assert_close(f.fisher(f.w, Vectors(texts(), y), 10), expected)
