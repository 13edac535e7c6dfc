"""What OpenRLHF takes of ring_flash_attn, for a machine without a GPU: each rank attends to its own slice alone.

So the log-probs of a job on it are wrong, and how it deals responses and reduces figures is not.
"""


def substitute_hf_flash_attn(process_group, heads_k_stride):
    pass


def update_ring_flash_attn_params(cu_seqlens, process_group):
    pass
