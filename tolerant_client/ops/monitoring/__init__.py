"""What an operator sees of a running mirror: Prometheus metrics, a Grafana dashboard, a status page."""
