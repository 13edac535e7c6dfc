"""How samples become experiences: what is changed or watched between the engines and the policy's training."""
