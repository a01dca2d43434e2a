import pytest
import torch

from fedrecall.errors import UserError
from fedrecall.models.tabular import TabularMlp

SHAPES = {"age": (), "colours": (2,), "sizes": (4,)}


def columns(n: int = 5) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    colours = torch.stack([torch.randint(0, 3, (n,), generator=rng), torch.randint(0, 9, (n,), generator=rng)], 1)
    age, sizes = torch.randint(0, 7, (n,), generator=rng), torch.randn(n, 4, generator=rng)
    return {"age": age, "colours": colours, "sizes": sizes}


def test_numbers_and_embeddings_are_concatenated() -> None:
    torch.manual_seed(0)
    model = TabularMlp(hidden=(8,)).sized_for({"age": (7,), "colours": (3, 9)})
    assert model.categories == (7, 3, 9)
    net, x = model.build(SHAPES, 4), columns()
    h, z = net(**x)
    assert (h.shape, z.shape) == ((5, 8), (5, 4))
    assert torch.equal(z, net.classifier(h))
    age, first, second = net.embeddings
    assert [tuple(e.weight.shape) for e in net.embeddings] == [(7, 4), (3, 2), (9, 5)]
    embedded = [age(x["age"]), first(x["colours"][:, 0]), second(x["colours"][:, 1])]
    torch.testing.assert_close(h, net.features(torch.cat([x["sizes"], *embedded], 1)))


def test_one_tensor_of_categories_or_of_numbers() -> None:
    categories = TabularMlp().sized_for({"": (3, 9)}).build((2,), 4)
    assert categories(columns()["colours"])[1].shape == (5, 4)
    numbers = TabularMlp().sized_for({}).build((4,), 4)
    assert numbers(columns()["sizes"])[1].shape == (5, 4)


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"hidden": (0,)}, "hidden"), ({"categories": (0,)}, "categories"), ({"dropout": 1.0}, "dropout")],
)
def test_settings_out_of_range_are_errors(settings: dict[str, tuple[int, ...]], key: str) -> None:
    with pytest.raises(UserError) as error:
        TabularMlp(**settings)
    assert (error.value.code, error.value.key) == ("config.invalid_value", f"model.{key}")


@pytest.mark.parametrize("values", [(3, 4), (3,), ()])
def test_data_with_other_categories_are_an_error(values: tuple[int, ...]) -> None:
    model = TabularMlp(categories=(3, 3))
    assert model.sized_for({"": (2, 3)}) == model
    with pytest.raises(UserError) as error:
        model.sized_for({"": values})
    assert (error.value.code, error.value.key) == ("config.conflict", "model.categories")


def test_more_categories_than_columns_are_an_error() -> None:
    with pytest.raises(UserError) as error:
        TabularMlp(categories=(3, 3)).build((1,), 4)
    assert (error.value.code, error.value.key) == ("config.conflict", "model.categories")
