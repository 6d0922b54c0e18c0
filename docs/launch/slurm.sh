#!/usr/bin/env bash
#SBATCH --job-name=drlib
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=drlib-%j.log
#
# The profile gpu8 under SLURM: the first node serves (vLLM), all others train (torchrun).
#
#     RUNS=/shared/runs sbatch docs/launch/slurm.sh
#
# Submit it in the checkout, with the environment active: sbatch passes both on. RUNS, the checkout
# and the environment lie on a file system that all nodes share. --mem=0 is all of a node's memory.
# The same command goes on after a kill, from the last checkpoint; --requeue lets SLURM do so. Where
# RL is finished already, which it says, only the last line is left.
# Hosts with several networks: export NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME.
set -euo pipefail

RUNS=${RUNS:?name a folder that all nodes share}
MODEL=${MODEL:-Qwen/Qwen3-30B-A3B-Thinking-2507}
CARDS=$SLURM_GPUS_ON_NODE
# The weights go to the server through a temporary folder, which it must be able to read.
export TMPDIR=$RUNS/tmp
mkdir -p "$TMPDIR"

mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
((${#NODES[@]} > 1)) || { echo "error: one node serves, the others train: two at least" >&2; exit 1; }
SERVES=${NODES[0]}
FIRST=${NODES[1]}
TRAIN=$(IFS=, && echo "${NODES[*]:1}")
COUNT=$((${#NODES[@]} - 1))
SETTINGS=(--profile gpu8 --runs "$RUNS" "--model.path=$MODEL" "--processes=$CARDS"
  "--engine.url=http://$SERVES:8000/v1")

# The development mode is what lets the trainer hand over its weights; everybody who reaches the
# port can do the same: keep it inside the cluster.
VLLM_SERVER_DEV_MODE=1 VLLM_NO_USAGE_STATS=1 srun --nodes=1 --ntasks=1 --nodelist="$SERVES" \
  python -m vllm.entrypoints.openai.api_server --model "$MODEL" \
  --host "$SERVES" --port 8000 --tensor-parallel-size "$CARDS" --dtype bfloat16 \
  --max-model-len 32768 --generation-config vllm --logprobs-mode processed_logprobs \
  --worker-extension-cls drlib.models.vllm_engine.WeightSync &
SERVER=$!
trap 'kill "$SERVER" 2>/dev/null || true' EXIT
until curl --silent --fail "http://$SERVES:8000/health"; do
  kill -0 "$SERVER" 2>/dev/null || { echo "error: the vLLM server ended" >&2; exit 1; }
  sleep 5
done

# What comes before RL, on one node; RL on all; the evaluation on one.
srun --nodes=1 --ntasks=1 --nodelist="$FIRST" drlib train sft "${SETTINGS[@]}"
srun --nodes="$COUNT" --ntasks="$COUNT" --ntasks-per-node=1 --nodelist="$TRAIN" \
  torchrun --nnodes="$COUNT" --nproc-per-node="$CARDS" \
  --rdzv-backend=c10d --rdzv-endpoint="$FIRST:29500" --rdzv-id="$SLURM_JOB_ID" \
  -m drlib.training.build rl "${SETTINGS[@]}"
srun --nodes=1 --ntasks=1 --nodelist="$FIRST" drlib train evaluate_rl "${SETTINGS[@]}"
