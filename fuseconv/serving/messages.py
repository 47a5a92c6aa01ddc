"""Defines and parses the JSON messages in request bodies of the KServe v2 protocol. Does not import torch."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fuseconv.serving.refusals import RequestError, TooLargeError

MAX_JSON = 8 * 2**20
"""The maximum size in bytes of the JSON in a body. Parsed JSON takes up to twenty times as much memory, and no other
request is served during parsing. Clients must send large tensors as binary data."""

MAX_RANK = 32
"""The maximum number of axes of a tensor."""

_CONFIG = ConfigDict(frozen=True, extra="forbid", strict=True)

Size = Annotated[int, Field(ge=0, lt=2**63)]
Text = Annotated[str, Field(max_length=1024)]


class InputParameters(BaseModel):
    """The parameters of an input: the size of its binary data in bytes."""

    model_config = _CONFIG
    binary_data_size: Size | None = None


class Input(BaseModel):
    """An input. Its values are in `data`, or in the binary data after the JSON."""

    model_config = _CONFIG
    name: Text
    shape: Annotated[list[Size], Field(max_length=MAX_RANK)]
    datatype: Text
    parameters: InputParameters = InputParameters()
    data: list[Any] | None = None


class OutputParameters(BaseModel):
    """The parameters of a requested output: whether the server sends its values as binary data."""

    model_config = _CONFIG
    binary_data: bool | None = None


class Output(BaseModel):
    """An output that the client requests."""

    model_config = _CONFIG
    name: Text
    parameters: OutputParameters = OutputParameters()


class Parameters(BaseModel):
    """The parameters of a request: whether outputs without their own setting are sent as binary data."""

    model_config = _CONFIG
    binary_data_output: bool = False


class InferRequest(BaseModel):
    """The body of an inference request."""

    model_config = _CONFIG
    id: Text = ""
    parameters: Parameters = Parameters()
    inputs: Annotated[list[Input], Field(max_length=1024)]
    outputs: Annotated[list[Output], Field(max_length=1024)] | None = None


class LoadParameters(BaseModel):
    """The parameters of a load request: the name of a bundle in the server's folder for new weights."""

    model_config = _CONFIG
    bundle: Text | None = None


class LoadRequest(BaseModel):
    """The body of a load request, which asks for new weights for a model."""

    model_config = _CONFIG
    parameters: LoadParameters = LoadParameters()


def parsed(model: type[BaseModel], text: memoryview) -> Any:
    """Parses JSON, validates it as a message of the type `model`, and returns the message.

    Raises:
        TooLargeError: the text is longer than `MAX_JSON`.
        RequestError: the text is not JSON, is nested too deeply, or is not a message of the given type.
    """
    if len(text) > MAX_JSON:
        raise TooLargeError(
            f"the JSON has {len(text)} bytes, but at most {MAX_JSON} are parsed",
            where="the body",
            fix="send large tensors as binary data (binary_data_size)",
        )
    try:
        return model.model_validate(orjson.loads(text))
    except orjson.JSONDecodeError as error:
        what = f"the body is not JSON: {error.msg}"
        fix = "send valid JSON; send NaN and infinities as binary data, because JSON cannot represent them"
        raise RequestError(what, where=f"line {error.lineno}, column {error.colno}", fix=fix) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:200] or "the body"
        raise RequestError(
            f"the request does not follow the KServe v2 protocol: {first['msg']}",
            where=where,
            fix="see docs/serving.md for an example",
        ) from error
