"""The model FLOPs of models of transformers, against a count of one step."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from gpugauge.hook.flopcount import CountingMode
from gpugauge.hook.models import flops_of_token
from tests.needs import need_module

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.everything]


def needed_module(name: str) -> ModuleType:
    need_module(name)
    return importlib.import_module(name)


SIZE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 200}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GPT2", {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 200, "n_positions": 16}),
        ("Llama", {**SIZE, "num_key_value_heads": 2}),
        ("Qwen2", {**SIZE, "num_key_value_heads": 4}),
        ("Bert", SIZE),
    ],
)
def test_dense_models_of_transformers(name: str, options: dict[str, int]) -> None:
    transformers = needed_module("transformers")
    config = getattr(transformers, f"{name}Config")(**options, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    kind = {"GPT2": "LMHeadModel", "Bert": "ForMaskedLM"}.get(name, "ForCausalLM")
    model = getattr(transformers, f"{name}{kind}")(config)
    rows, length = 3, 4
    ids = torch.randint(0, 200, (rows, length))
    with CountingMode() as mode:
        model(input_ids=ids, labels=ids).loss.backward()
    attention = 3 * 2 * 2 * (2 * rows * length * length * 64)
    found = flops_of_token(model)
    assert found is not None
    assert found * rows * length + attention == pytest.approx(mode.total, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("T5ForConditionalGeneration", {"d_model": 32, "d_ff": 32, "num_layers": 1, "num_heads": 2}),
        ("MixtralForCausalLM", {**SIZE, "num_key_value_heads": 2, "num_local_experts": 2}),
        ("AlbertForMaskedLM", {**SIZE, "embedding_size": 16}),
        ("MambaForCausalLM", {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 200}),
    ],
)
def test_other_models_of_transformers(name: str, options: dict[str, int]) -> None:
    transformers = needed_module("transformers")
    model = getattr(transformers, name)
    assert flops_of_token(model(model.config_class(**options))) is None
