from __future__ import annotations

import re

import pytest

from gpugauge.artifacts.rules.serving import COMMANDS
from gpugauge.workload.command import command_name

# Command lines as the programs' own start scripts and process titles make them.
SERVING = (
    "/usr/bin/python3 /usr/local/bin/vllm serve meta-llama/Llama-3.1-8B",
    "python3 -m vllm.entrypoints.openai.api_server --model x",
    "VLLM::EngineCore",
    "VLLM::Worker_TP3",
    "python3 -m sglang.launch_server --model-path x",
    "sglang::scheduler_TP0",
    "sglang::detokenizer",
    "tritonserver --model-repository=/models",
    "/opt/tritonserver/backends/python/triton_python_backend_stub /models/m/1/model.py",
    "/usr/bin/python3 /usr/src/.venv/bin/text-generation-server serve x",
    "text-generation-launcher --model-id x",
    "/usr/bin/python3 /usr/local/lib/python3.11/site-packages/ts/model_service_worker.py --sock-type unix",
    "/usr/local/bin/ollama runner --model x",
    "/bin/ollama serve",
    "ray::ServeReplica:app:Model",
    "ray::ProxyActor",
    "python3 -m ipykernel_launcher -f kernel.json",
    "/opt/conda/bin/python /opt/conda/bin/jupyter-lab",
    "/usr/bin/python3 /usr/bin/ipython3",
    "python3 /usr/local/lib/python3.11/dist-packages/colab_kernel_launcher.py",
)
TRAINING = (
    "python3 train.py",
    "python3 -m torch.distributed.run train.py",
    "/usr/bin/python3 -u /home/ann/finetune_vllm_data.py",
    "python3 -m my.ollama_trainer",
    "ray::TrainWorker",
    "ray::RayTrainWorker.actor_fit",
    "python3 jupyter2train.py",
    "python3 serve_then_train.py",
    "accelerate launch train.py",
)


def serves(line: str) -> bool:
    # PromQL matches a whole value.
    return re.fullmatch(COMMANDS, command_name([word.encode() for word in line.split()]).decode()) is not None


@pytest.mark.parametrize("line", SERVING)
def test_a_server_or_notebook_is_no_training(line: str) -> None:
    assert serves(line)


@pytest.mark.parametrize("line", TRAINING)
def test_a_training_with_a_similar_name_is_one(line: str) -> None:
    assert not serves(line)
