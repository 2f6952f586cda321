"""Settings of models: mistakes are one sentence, before anything is begun; the user is told where sources go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tunesmith.graph.models.client import PACKAGED, load_prices, price_of
from tunesmith.graph.models.opening import check_models, destination
from tunesmith.graph.settings import Settings, make_settings
from tunesmith.hw.errors import TunesmithError


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(**values: Any) -> Settings:
    return make_settings(task="softmax", **values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "batch:"}, "--model: .*batch:DIR"),
        ({"model": "batch:file/air"}, "--model: the folder .*file/air cannot be created"),
        ({"model": "replay:nowhere"}, "--model replay: .*nowhere has no recording"),
        ({"model": "m", "base_url": "localhost:8000"}, "--base-url: 'localhost:8000' is not a URL"),
        ({"model": "m", "base_url": "https://me:secret@host/v1"}, "--base-url: a URL with a name or password"),
        ({"model": "m", "base_url": "https://host/v1?key=secret"}, "--base-url: nothing may follow"),
        ({"model": "m", "key_env": "NO_SUCH_KEY"}, "--model: the environment variable NO_SUCH_KEY has no key"),
        ({"model": "m", "model_option": {"n_predict": -1}}, "--model-option: n_predict cannot .* --answer-tokens"),
        ({"model": "m", "max_cost": 1.0}, "--max-cost: no price is known for the model 'm'; name a file with --prices"),
        ({"model": "gpt-5", "model_for": {"plan": "m"}, "max_cost": 1.0}, "--max-cost: .*'m'"),
        ({"model": "batch:air", "max_cost": 1.0}, "--max-cost: .*'model'"),
        ({"model": "m", "max_cost": float("nan")}, "--max-cost: "),
        ({"model_for": {"plan": "m"}}, "--model-for: .*need a --model"),
        ({"model": "m", "prices": "none.toml"}, "--prices: .*none.toml cannot be read"),
    ],
)
def test_mistakes(values: dict[str, Any], said: str) -> None:
    Path("file").touch()
    with pytest.raises(TunesmithError, match=said) as raised:
        check_models(made(**values))
    assert str(raised.value).endswith(".") and "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, None),
        ({"model": "gpt-5"}, r"go to api\.openai\.com \(gpt-5\), with the key in OPENAI_API_KEY$"),
        ({"model": "q", "base_url": "http://gpu7:8000/v1"}, r"go to gpu7:8000 \(q\), .*; the line is not encrypted$"),
        ({"model": "q", "base_url": "http://127.0.0.1:1/v1"}, r"go to 127\.0\.0\.1:1 \(q\), with the key in \w+$"),
        ({"model": "a", "model_for": {"plan": "b"}}, r"\(a, b\)"),
        ({"model": "batch:air"}, r"written to /.*/air for a model to read; nothing is sent"),
    ],
)
def test_the_user_is_told_where_sources_go(values: dict[str, Any], said: str | None) -> None:
    told = destination(made(**values))
    assert (told is None) == (said is None)
    assert said is None or re.search(said, str(told)), told


def test_a_server_that_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert str(destination(made(model="q", base_url="http://localhost:11434/v1"))).endswith("without a key")
    with pytest.raises(TunesmithError, match="OPENAI_API_KEY has no key"):
        check_models(made(model="gpt-5"))


def test_the_packaged_prices_say_when_and_from_where_and_the_users_come_first(tmp_path: Path) -> None:
    text = PACKAGED.read_text()
    assert re.search(r"# Collected on \d{4}-\d{2}-\d{2}", text) and "https://" in text
    for name, price in load_prices(None).items():
        assert 0 < price.input < price.output < 1000, name
        assert price.cached_input is None or price.cached_input <= price.input
    own = tmp_path / "own.toml"
    own.write_text("\ufeff[models]\nmine = { input = 5, cached_input = 1, output = 2 }\n", encoding="utf-8")
    prices = load_prices(str(own))
    assert price_of(prices, "gpt-4o-2024-08-06") == prices["gpt-4o"], "a dated version costs as much"
    assert price_of(prices, "gpt-4o-audio-preview") is None
    assert prices["mine"].of(1_000_000, 0, cached=500_000) == 3.0 and prices["gpt-4o"].of(1_000_000, 0) == 2.5
    without = '[models]\n"a" = { input = 1 }'
    for text, said in (("[models", "write it as TOML"), ("[model]", "models"), (without, r"models\.a\.output")):
        own.write_text(text)
        with pytest.raises(TunesmithError, match=rf"{own}.*{said}.*\.$|{said}.*{own}.*\.$"):
            load_prices(str(own))
