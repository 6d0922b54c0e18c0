#!/usr/bin/env bash
# The profile gpu8 on one host of eight cards: four serve (vLLM), four train (accelerate launch).
#
#     RUNS=/data/runs bash docs/launch/accelerate.sh
#
# Start it in the checkout, with the environment active (pip install -e '.[lab,vllm]'). The same
# command goes on after Ctrl-C or a kill; where RL is finished already, which it says, only the last
# line is left. Without accelerate, that last line alone does it all: it starts torchrun itself.
# This file shows the one stage in which a launcher of yours may take its place.
#
# Not for a test on CPUs: `accelerate launch --cpu --num_processes 2` starts one process and says
# nothing. There torchrun starts two.
set -euo pipefail

RUNS=${RUNS:-runs}
MODEL=${MODEL:-Qwen/Qwen3-30B-A3B-Thinking-2507}
SETTINGS=(--profile gpu8 --runs "$RUNS" "--model.path=$MODEL")

# The development mode is what lets the trainer hand over its weights; everybody who reaches the
# port can do the same, hence loopback only.
CUDA_VISIBLE_DEVICES=0,1,2,3 VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 \
  python -m vllm.entrypoints.openai.api_server --model "$MODEL" \
  --host 127.0.0.1 --port 8000 --tensor-parallel-size 4 --dtype bfloat16 --max-model-len 32768 \
  --generation-config vllm --logprobs-mode processed_logprobs \
  --worker-extension-cls drlib.models.vllm_engine.WeightSync &
SERVER=$!
trap 'kill "$SERVER" 2>/dev/null || true' EXIT
until curl --silent --fail http://127.0.0.1:8000/health; do
  kill -0 "$SERVER" 2>/dev/null || { echo "error: the vLLM server ended" >&2; exit 1; }
  sleep 5
done

export CUDA_VISIBLE_DEVICES=4,5,6,7
drlib train sft "${SETTINGS[@]}"
# No --use_fsdp here: the stage says it itself (setting fsdp).
accelerate launch --multi_gpu --num_machines 1 --num_processes 4 --num_cpu_threads_per_process 8 \
  --mixed_precision bf16 --dynamo_backend no --main_process_port 29501 \
  --module drlib.training.build rl "${SETTINGS[@]}"
drlib train evaluate_rl "${SETTINGS[@]}"
