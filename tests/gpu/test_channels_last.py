"""Images stay channels last through what copies them: a channel shuffle, and a permutation of tokens."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from support.channels import Modulated, Shuffled, archive

from fuseconv.pipeline.convert import convert
from fuseconv.runtime.model import load
from fuseconv.sources import Options

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [Shuffled, Modulated])
def test_images_stay_channels_last(make: type[Shuffled | Modulated], dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make().to(dtype)
    program = archive(model, tmp_path / "model.pt2")
    output, targets = tmp_path / "model.fuseconv", ["torchscript", "aoti", "export"]
    done = convert(program, target=targets, options=Options(device="cuda"), tune="none", output=output)
    assert not done.left_out
    assert not done.plan.rejected
    assert {step.rule for step in done.plan.steps} >= make.rules
    for target in targets:
        loaded = load(output, target)
        for sizes in ((1, 32, 32), (4, 64, 64), (2, 32, 48)):
            x = torch.randn(sizes[0], 3, *sizes[1:], dtype=dtype)
            with torch.no_grad():
                got, eager = loaded(x.cuda()).cpu().double(), deepcopy(model).cuda()(x.cuda()).cpu().double()
                fp64 = deepcopy(model).double()(x.double())
            assert (got - fp64).abs().max() <= 2 * (eager - fp64).abs().max() + torch.finfo(dtype).eps
