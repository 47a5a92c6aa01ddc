"""The bodies of fuseconv's ONNX functions."""

from typing import Any

import onnx_ir as ir
import torch

from fuseconv import ops
from fuseconv.targets import onnx_export
from fuseconv.targets.onnx_functions import Call, arguments_of, bodies, tensor_names

F32 = torch.float32


def called(act: str) -> Call:
    given = arguments_of(ops.linear_act, (None, None, None), {"act": act})
    rest = tuple((name, value) for name, value in given.items() if name not in tensor_names(ops.linear_act))
    return Call(ops.linear_act, ((F32, (1, 2)), (F32, (3, 2)), (F32, (3,)), None), (None,) * 3, rest)


def test_a_body_is_exported_once_and_does_not_depend_on_what_is_exported_with_it() -> None:
    exports: list[Any] = []

    def write(*calls: Call) -> list[bytes]:
        """Returns the bodies of the calls, without their overloads, from an exporter that has made none."""

        def export(exported: torch.export.ExportedProgram) -> ir.Model:
            exports.append(exported)
            return onnx_export._exporter("cpu")(exported)

        first, again = bodies(calls, export), bodies(calls[::-1], export)[::-1]
        protos = [[ir.to_proto(function) for function in functions] for functions in (first, again)]
        assert [proto.overload for proto in protos[0]] == [str(at) for at in range(len(calls))]
        for proto in (*protos[0], *protos[1]):
            proto.overload = ""
        texts = [[proto.SerializeToString() for proto in made] for made in protos]
        assert texts[0] == texts[1]
        return texts[0]

    gelu, silu = called("gelu"), called("silu")
    alone = [*write(gelu), *write(silu)]
    assert write(silu, gelu) == alone[::-1]
    assert len(exports) == 3
    assert alone[0] != alone[1]
    assert b"fuseconv.targets" not in alone[0]
    assert b"/" not in alone[0]
