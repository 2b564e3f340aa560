#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
# One torchrun on each node, with all of its cores: helixd decodes on those that the eight ranks leave over.
set -euo pipefail

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HELIX_CACHE="${HELIX_CACHE:-$SCRATCH/helix}"   # a folder that all nodes may write to

srun --cpus-per-task="$SLURM_CPUS_ON_NODE" --cpu-bind=none --kill-on-bad-exit=1 \
    torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \
    train.py
