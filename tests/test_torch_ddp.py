"""Torch's own DistributedDataParallel around a model of ours.

The host passes ``device_ids``, which torch refuses on a CPU, so that backend cannot be run through ``fairseq-train``
without a GPU; here the model is wrapped directly, over gloo, with a language on one worker only.
"""

import pytest
import torch
import torch.multiprocessing
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tests.cases import LANGS, batch, build, gradients, rows, shake
from tests.ddp import free_port

ARCHS = ("xlm_joint", "xlm_ffn", "xlm_attn", "xlm_adpt", "xlm_share_adpt")
OF_WORKER = ([0, 3], [1, 4])  # rows of the batch: the first language, the second; nobody has the third


def _model(arch):
    import fairseq_interference

    fairseq_interference.register()
    return shake(build(arch)).eval()


def _worker(rank, port, folder, arch):
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = _model(arch)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    for _ in range(2):  # without the detection of unused parameters the second step fails
        model.zero_grad(set_to_none=True)
        wrapped(**rows(batch(), OF_WORKER[rank]))[0].sum().backward()
    torch.save(gradients(model), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_two_workers_with_a_language_each(arch, tmp_path):
    torch.multiprocessing.spawn(_worker, (free_port(), str(tmp_path), arch), nprocs=2)
    model = _model(arch)
    for part in OF_WORKER:
        model(**rows(batch(), part))[0].sum().backward()
    expected = {name: gradient / 2 for name, gradient in gradients(model).items()}
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found.keys() == expected.keys()
        assert not any(f".{LANGS[2]}." in name for name in found)
        for name in found:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-9, msg=name)
