import pytest
import torch
from torch import nn

from fedrecall.errors import UserError
from fedrecall.models.vit import Block, Patches, Vit


def test_attention_is_that_of_torch() -> None:
    torch.manual_seed(0)
    block, reference = Block(12, 3, 24, 0.0).double(), nn.MultiheadAttention(12, 3, batch_first=True).double()
    with torch.no_grad():
        reference.in_proj_weight.copy_(block.qkv.weight)
        reference.in_proj_bias.copy_(block.qkv.bias)
        reference.out_proj.load_state_dict(block.out.state_dict())
    x = torch.randn(4, 7, 12, dtype=torch.float64)
    torch.testing.assert_close(block.attention(x), reference(x, x, x, need_weights=False)[0])


def test_a_block_is_torchs_pre_norm_layer() -> None:
    torch.manual_seed(0)
    block = Block(12, 3, 24, 0.0)
    reference = nn.TransformerEncoderLayer(12, 3, 24, 0.0, "gelu", batch_first=True, norm_first=True)
    with torch.no_grad():
        reference.self_attn.in_proj_weight.copy_(block.qkv.weight)
        reference.self_attn.in_proj_bias.copy_(block.qkv.bias)
        reference.self_attn.out_proj.load_state_dict(block.out.state_dict())
    for mine, its in ((block.norm1, reference.norm1), (block.norm2, reference.norm2)):
        its.load_state_dict(mine.state_dict())
    reference.linear1.load_state_dict(block.hidden[0].state_dict())
    reference.linear2.load_state_dict(block.hidden[2].state_dict())
    x = torch.randn(4, 7, 12)
    torch.testing.assert_close(block(x), reference(x))


def test_a_token_is_the_linear_map_of_its_patch() -> None:
    torch.manual_seed(0)
    patches, x = Patches(3, 2, 5, 6), torch.randn(1, 3, 4, 6)
    token = patches(x)[0, 4]  # second row of patches, second column
    weight = patches.projection.weight.flatten(1)
    expected = weight @ x[0, :, 2:4, 2:4].flatten() + patches.projection.bias + patches.position[4]
    torch.testing.assert_close(token, expected)


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"patch": 5}, "patch"), ({"heads": 5}, "heads"), ({"depth": 0}, "depth"), ({"dropout": 1.0}, "dropout")],
)
def test_settings_that_do_not_fit_are_errors(settings: dict[str, int], key: str) -> None:
    with pytest.raises(UserError) as error:
        Vit(**settings).build((3, 32, 32), 10)
    assert (error.value.code, error.value.key) == ("config.invalid_value", f"model.{key}")
