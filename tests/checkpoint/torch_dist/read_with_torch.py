"""Reads torch_dist checkpoints with PyTorch, and with Megatron Core where it is installed.

    python3 read_with_torch.py OUT.json FOLDER...

OUT.json: for every folder, what every way of reading it gave: {"ways": {WAY: {KEY: {"dtype", "shape", "sha256"}}},
"state": {WAY: {"iteration", "args"}}}. An error of theirs ends the script.
"""

import argparse
import hashlib
import io
import json
import os
import pathlib
import sys
import tempfile
import warnings

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

warnings.filterwarnings("ignore")
# What Megatron lets a checkpoint name besides PyTorch's own.
torch.serialization.add_safe_globals([argparse.Namespace])
try:  # rng_state of golden checkpoints has numpy's
    import numpy

    reconstruct = numpy.ndarray((0,)).__reduce__()[0]
    torch.serialization.add_safe_globals([reconstruct, numpy.ndarray, numpy.dtype, type(numpy.dtype(numpy.uint32))])
except ImportError:
    pass


def digest(tensor):
    tensor = tensor.contiguous()
    size = tensor.numel() * tensor.element_size()
    raw = bytes(tensor.reshape(-1).untyped_storage())[tensor.storage_offset() * tensor.element_size() :][:size]
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }


def state_of(state):
    # A dtype, which JSON lacks, as its name.
    return json.loads(json.dumps({"iteration": state["iteration"], "args": vars(state["args"])}, default=str))


def read_with_dcp(folder):
    """torch.distributed.checkpoint.load into tensors of the metadata's shapes, without a process group."""
    metadata = dcp.FileSystemReader(folder).read_metadata()
    wanted = {}
    for key, about in metadata.state_dict_metadata.items():
        if isinstance(about, TensorStorageMetadata):
            wanted[key] = torch.empty(about.size, dtype=about.properties.dtype)
        else:
            wanted[key] = None
    dcp.load(wanted, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    return wanted


def read_converted(folder):
    """dcp_to_torch_save, and the one file that it writes."""
    with tempfile.TemporaryDirectory() as temporary:
        file = os.path.join(temporary, "all.pt")
        dcp_to_torch_save(folder, file)
        return torch.load(file, weights_only=False)


def read_items(folder):
    """Every stored item by itself, as torch.load reads it with weights_only."""
    metadata = dcp.FileSystemReader(folder).read_metadata()
    result = {}
    for index, info in metadata.storage_data.items():
        with open(os.path.join(folder, info.relative_path), "rb") as file:
            file.seek(info.offset)
            item = torch.load(io.BytesIO(file.read(info.length)), weights_only=True)
        about = metadata.state_dict_metadata[index.fqn]
        if not isinstance(about, TensorStorageMetadata):
            result[index.fqn] = item
            continue
        whole = result.setdefault(index.fqn, torch.empty(about.size, dtype=about.properties.dtype))
        box = tuple(slice(o, o + s) for o, s in zip(index.offset, item.shape))
        if item.numel() > 0:
            whole[box] = item
    return result


def read_with_megatron(folder):
    """megatron.core.dist_checkpointing.load, as one rank that holds everything."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor

    metadata = dcp.FileSystemReader(folder).read_metadata()
    wanted, empty = {}, {}
    for key, about in metadata.state_dict_metadata.items():
        if isinstance(about, TensorStorageMetadata):
            tensor = torch.empty(about.size, dtype=about.properties.dtype)
            # Its loader divides by the extents.
            if tensor.numel() > 0:
                wanted[key] = ShardedTensor.from_rank_offsets(key, tensor)
            else:
                empty[key] = tensor
    result = dist_checkpointing.load({"model": wanted}, folder)
    # Up to 0.16 it reads common.pt; later versions the object too.
    return {**result["model"], **empty, "common_state/shard_0_1": [dist_checkpointing.load_common_state_dict(folder)]}


def main():
    out, folders = sys.argv[1], sys.argv[2:]
    ways = {"load": read_with_dcp, "dcp_to_torch_save": read_converted, "weights_only": read_items}
    versions = {"torch": torch.__version__}
    try:
        sys.stdout.flush()
        import megatron.core

        versions["megatron.core"] = megatron.core.__version__
        ways["megatron"] = read_with_megatron
        store = pathlib.Path(tempfile.mkdtemp()) / "store"
        torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    except ImportError:
        pass
    result = {"versions": versions, "folders": {}}
    for folder in folders:
        read = {"ways": {}, "state": {}}
        for name, way in ways.items():
            values = way(folder)
            read["ways"][name] = {k: digest(v) for k, v in values.items() if isinstance(v, torch.Tensor)}
            for key, value in values.items():
                if key == "common_state/shard_0_1":
                    read["state"][name] = state_of(value[0])
        result["folders"][folder] = read
    with open(out, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
