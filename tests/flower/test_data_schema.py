"""Descriptions of nodes' own data: hostile ones are refused, and one node does not end the federation. No Flower."""

import json

import pytest

from fedrecall.config.data_section import DataSection
from fedrecall.data.column_sums import ColumnSums
from fedrecall.data.preprocessing import ColumnEncoding, Preprocessing
from fedrecall.errors import UserError
from fedrecall.flower.codec import InvalidMessage
from fedrecall.flower.data_schema import DataDescription, merge_descriptions

SUMS = [20, "40", "100"]  # mean 2, variance 1


def described(**changes: object) -> str:
    """Return the description of a table with a column of numbers and a column of text, as a node sends it."""
    fields = {"classes": ["ill", "well"], "numbers": "age", "sums": SUMS, "categories": ["no", "yes"]} | changes
    return json.dumps(
        {
            "classes": fields["classes"],
            "shapes": {"": [3]},
            "types": {"": "float32"},
            "columns": [
                {"name": fields["numbers"], "sums": fields["sums"]},
                {"name": "smoker", "categories": fields["categories"]},
            ],
        }
    )


def section(**fields: object) -> DataSection:
    return DataSection(name="table", label="outcome", **fields)


def merge(*texts: str, n: int = 20, **fields: object) -> tuple[Preprocessing, dict[int, UserError]]:
    nodes = dict(enumerate(map(DataDescription.parse, texts)))
    return merge_descriptions(nodes, section(**fields), None, dict.fromkeys(nodes, n))


@pytest.mark.parametrize(
    "changes",
    [
        {"sums": [1, "1" + "0" * 900, "1" + "0" * 1800]},
        {"sums": [1, "1" + "0" * 200, "1" + "0" * 400]},
        {"sums": [10**30, "0", "0"]},
        {"classes": ["ill", "well\x1b[2J"]},
        {"numbers": "age\n"},
        {"categories": ["no", "\u202eyes"]},
    ],
)
def test_a_hostile_description_is_refused_on_arrival(changes: dict[str, object]) -> None:
    DataDescription.parse(described())
    with pytest.raises(InvalidMessage) as error:
        DataDescription.parse(described(**changes))
    assert error.value.code == "reply.invalid_field"
    assert str(error.value).isprintable()


def test_a_name_may_have_any_kind_of_space() -> None:
    assert DataDescription.parse(described(numbers="âge\xa0(ans)")).columns[0].name == "âge\xa0(ans)"


@pytest.mark.parametrize(
    ("classes", "columns", "code", "key"),
    [
        (("ill", "well\x1b"), (), "data.invalid_labels", "well"),
        (("ill", "well"), (ColumnEncoding("a\tb"),), "data.invalid_inputs", "a b"),
        (("ill", "well"), (ColumnEncoding("a", ("no\x00", "yes")),), "data.invalid_inputs", "no"),
    ],
)
def test_unprintable_names_in_the_nodes_own_data_are_an_error_of_the_node(
    classes: tuple[str, ...], columns: tuple[ColumnEncoding, ...], code: str, key: str
) -> None:
    with pytest.raises(UserError) as error:
        DataDescription.of(Preprocessing(classes, {"": (2,)}, {"": "float32"}, columns))
    assert (error.value.code, error.value.key) == (code, key)


def test_numbers_out_of_range_in_the_nodes_own_data_are_an_error_of_the_node() -> None:
    own = Preprocessing(("ill", "well"), {"": (1,)}, {"": "float32"}, (ColumnEncoding("age"),))
    huge = ColumnSums.from_json([1, "1" + "0" * 200, "1" + "0" * 400])
    with pytest.raises(UserError) as error:
        DataDescription.of(own, {"age": huge})
    assert (error.value.code, error.value.key) == ("data.not_finite", "age")


def test_sums_of_more_rows_than_the_node_has_are_a_problem_of_that_node() -> None:
    schema, problems = merge(described(), described(sums=[10**9, "0", "0"], classes=["ill", "other"]), described())
    assert {client: (p.code, p.key) for client, p in problems.items()} == {1: ("reply.invalid_value", "age")}
    assert (schema.columns[0].center, schema.columns[0].scale) == (2.0, 1.0)
    assert schema.classes == ("ill", "well")
    with pytest.raises(UserError) as error:
        merge(described(sums=[10**9, "0", "0"]))
    assert error.value.code == "reply.invalid_value"


@pytest.mark.parametrize(
    ("n", "shares"),
    [(20, {}), (15, {"client_test": 0.25}), (11, {"client_test": 0.25, "validation": 0.25}), (1, {"group": "site"})],
)
def test_rows_that_are_held_out_are_counted_in_the_sums(n: int, shares: dict[str, object]) -> None:
    _, problems = merge(described(), n=n, **shares)
    assert not problems


def test_a_node_with_too_many_categories_takes_no_part() -> None:
    many = [str(number) for number in range(50)]
    for hostile in range(3):  # in any place
        texts = [described(), described(), described()]
        texts[hostile] = described(categories=many)
        schema, problems = merge(*texts)
        assert {client: (p.code, p.key) for client, p in problems.items()} == {hostile: ("data.text_column", "smoker")}
        assert schema.columns[1].categories == ("no", "yes")


def test_nodes_whose_categories_together_are_few_enough_all_take_part() -> None:
    schema, problems = merge(described(), described(categories=[str(number) for number in range(48)]))
    assert not problems
    assert len(schema.columns[1].categories or ()) == 50


def test_categories_of_the_coordinators_data_are_kept() -> None:
    server = DataDescription.parse(described(sums=None, categories=[str(number) for number in range(49)]))
    nodes = {0: DataDescription.parse(described()), 1: DataDescription.parse(described(categories=["yes"]))}
    schema, problems = merge_descriptions(nodes, section(), server, {0: 20, 1: 20})
    assert problems.keys() == {0}
    assert len(schema.columns[1].categories or ()) == 50
