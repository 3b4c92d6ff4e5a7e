"""What `make bench` measures: throughput and latency of peers on this machine, and of other systems beside them."""
