#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes 8 --nproc-per-node 8 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" pretrain_gpt.py \
    --num-layers 32 \
    --hidden-size 4096 \
    --ffn-hidden-size 14336 \
    --num-attention-heads 32 \
    --kv-channels 128 \
    --num-query-groups 8 \
    --group-query-attention \
    --vocab-size 128256 \
    --make-vocab-size-divisible-by 1 \
    --swiglu \
    --untie-embeddings-and-output-weights \
    --position-embedding-type rope \
    --max-position-embeddings 8192 \
    --disable-bias-linear \
    --normalization RMSNorm \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 2 \
    --num-virtual-stages-per-pipeline-rank 8 \
    --context-parallel-size 1 \
    --sequence-parallel \
    --micro-batch-size 2 \
    --seq-length 8192 \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --tp-comm-overlap \
    --attention-dropout 0.0 \
    --hidden-dropout 0.0 \
    --cross-entropy-loss-fusion \
    --cross-entropy-fusion-impl te \
    --bf16 \
    --grad-reduce-in-bf16 \
    --global-batch-size 512 \
    "$@"  # data, tokenizer, optimizer, checkpoints
