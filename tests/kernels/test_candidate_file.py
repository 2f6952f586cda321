"""What a user writes for --config becomes values of the template, or one sentence."""

from __future__ import annotations

import pytest

from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.taskfile import parse_config
from tunesmith.kernels.spec.template import LaunchGeometry, Parameter, Template

TEMPLATE = Template(
    name="made",
    backend="opencl",
    source="x",
    entry="f",
    launch=LaunchGeometry(grid=("1",), block=("1",)),
    parameters=(Parameter(name="VEC", values=(1, 4), default=4), Parameter(name="FAST", values=(True, False))),
)


@pytest.mark.parametrize("text", ['{"VEC": 4}', '{"VEC": 4.0}', "{}"])
def test_a_value_is_the_templates_own(text: str) -> None:
    assert repr(parse_config(text, TEMPLATE)) == "{'VEC': 4, 'FAST': True}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{VEC: 4}", "--config: give a JSON object"),
        ("[]", "--config: give a JSON object"),
        ('{"VEC": [4]}', "VEC = [4] is none of made, which takes VEC from 1, 4; FAST from True, False."),
        ('{"VECS": 4}', "VECS = 4 is none of made"),
    ],
)
def test_what_is_no_configuration_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(TunesmithError) as caught:
        parse_config(text, TEMPLATE)
    assert said in str(caught.value)
