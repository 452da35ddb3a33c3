"""The life of a link: status and plan, promotion, failover, failback, take-over and hand-back."""
